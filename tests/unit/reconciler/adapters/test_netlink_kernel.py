"""Raw netlink against this machine's kernel: batches, dumps that are interrupted, events and answers that are lost."""

from __future__ import annotations

import errno
import json
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from services._host.netlink import route_codec
from services._host.netlink.attributes import attribute
from services._host.netlink.constants import AF_INET, AF_INET6, RTNH_F_ONLINK, Group, Rtm
from services._host.netlink.messages import CREATE, EXCLUSIVE, HEADER
from services._host.netlink.route_codec import Hop, KernelRoute, NexthopObject, Rule
from services._host.netlink.socket import Ack, DumpInterruptedError, NetlinkSocket, Request, Subscription
from services._host.readiness import readable
from services.fastpath import routes as fast_path
from services.fastpath.values import FrrRoute, Write
from tests.support.netlink_ground import NetlinkGround, netlink_ground
from tests.support.route_messages import nexthop_message

pytestmark = [pytest.mark.root, pytest.mark.netns]

NO_DEVICE = Request(Rtm.GETLINK, 0, struct.pack("=BxHiII", 0, 0, 0x7FFFFFF, 0, 0))
TINY = 1
"""The kernel makes a few hundred bytes of it."""


@pytest.fixture(scope="module")
def ground() -> Iterator[NetlinkGround]:
    with netlink_ground() as ground:
        yield ground


@pytest.fixture
def kernel(ground: NetlinkGround) -> Iterator[NetlinkSocket]:
    with NetlinkSocket(ground.netns) as kernel:
        yield kernel


def write_nexthop(nexthop: NexthopObject) -> Request:
    """No product of ours writes nexthop objects."""
    return Request(Rtm.NEWNEXTHOP, CREATE | EXCLUSIVE, nexthop_message(nexthop))


def delete_nexthop(nexthop_id: int) -> Request:
    return Request(Rtm.DELNEXTHOP, 0, nexthop_message(NexthopObject(nexthop_id)))


def blackholes(first: int, count: int) -> list[Request]:
    """Writes of nexthop objects: cheap things that can be dumped and that events tell of."""
    return [write_nexthop(NexthopObject(first + i, blackhole=True)) for i in range(count)]


@pytest.fixture
def many(kernel: NetlinkSocket) -> Iterator[NetlinkSocket]:
    """With 3,000 nexthop objects: a datagram holds 900 of them, and at each read the kernel makes the next one."""
    assert set(kernel.write(blackholes(1, 3_000))) == {Ack(0)}
    yield kernel
    kernel.write([delete_nexthop(i) for i in range(1, 3_100)])


def ids(kernel: NetlinkSocket) -> list[int]:
    return [route_codec.decode_nexthop(m.payload).id for m in kernel.dump(route_codec.dump_nexthops())]


def test_a_batch_tells_of_each_whatever_its_length(kernel: NetlinkSocket) -> None:
    assert kernel.write([]) == []
    for count in (1, 63, 64, 65, 200):
        requests = blackholes(1, count)
        requests[count // 2] = NO_DEVICE
        errnos = [ack.errno for ack in kernel.write(requests)]
        assert errnos == [errno.ENODEV if index == count // 2 else 0 for index in range(count)]
        deletions = [ack.errno for ack in kernel.write([delete_nexthop(i + 1) for i in range(count)])]
        assert deletions == [errno.ENOENT if index == count // 2 else 0 for index in range(count)]


def test_a_batch_of_failures(kernel: NetlinkSocket) -> None:
    assert kernel.write([NO_DEVICE] * 130) == [Ack(errno.ENODEV)] * 130
    assert kernel.write_one(NO_DEVICE).errno == errno.ENODEV


def test_the_kernels_own_words(kernel: NetlinkSocket) -> None:
    ack = kernel.write_one(write_nexthop(NexthopObject(7, group=((999, 1),))))
    assert ack == Ack(errno.EINVAL, "Invalid nexthop id")


def test_long_messages_are_split_over_datagrams(kernel: NetlinkSocket) -> None:
    """A group of 200 members takes 1,600 bytes: 64 of those would not fit into one datagram of 32 KiB."""
    assert set(kernel.write(blackholes(1, 200))) == {Ack(0)}
    loopback = [NexthopObject(i, Hop(1), protocol=200) for i in range(1_001, 1_201)]
    kernel.write([write_nexthop(nexthop) for nexthop in loopback])
    members = tuple((nexthop.id, 1) for nexthop in loopback)
    groups = [write_nexthop(NexthopObject(i, group=members)) for i in range(2_001, 2_101)]
    assert [len(groups), kernel.write(groups)] == [100, [Ack(0)] * 100]
    found = [route_codec.decode_nexthop(m.payload) for m in kernel.dump(route_codec.dump_nexthops())]
    assert sum(nexthop.group == members for nexthop in found) == 100
    kernel.write([delete_nexthop(nexthop.id) for nexthop in found if not nexthop.group])
    assert ids(kernel) == []


def test_lost_answers_are_told_and_the_socket_goes_on(ground: NetlinkGround) -> None:
    with NetlinkSocket(ground.netns, receive_bytes=TINY) as kernel:
        errnos = {ack.errno for ack in kernel.write([NO_DEVICE] * 64)}
        assert errnos >= {errno.ENOBUFS}
        assert errnos <= {errno.ENOBUFS, errno.ENODEV}, "nothing is taken for done"
        assert kernel.write_one(NO_DEVICE).errno == errno.ENODEV


def test_a_dump_of_many_datagrams(many: NetlinkSocket) -> None:
    assert ids(many) == list(range(1, 3_001))
    assert len(many.dump_datagrams(route_codec.dump_nexthops())) > 3


def after_first_datagram(kernel: NetlinkSocket, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something in the midst of each dump."""
    receive, seen = kernel._receive, [0]

    def receiving() -> bytes:
        if seen[0] != kernel._sequence:
            seen[0] = kernel._sequence
            data = receive()
            act()
            return data
        return receive()

    monkeypatch.setattr(kernel, "_receive", receiving)


def test_an_interrupted_dump_is_taken_again(
    ground: NetlinkGround, many: NetlinkSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = iter(blackholes(3_001, 3))
    with NetlinkSocket(ground.netns) as other:
        after_first_datagram(many, monkeypatch, lambda: [other.write_one(new) for new in [next(news, None)] if new])
        # Three dumps in which something changed, and one in which nothing did.
        assert ids(many) == list(range(1, 3_004))


def test_a_dump_that_is_always_interrupted_is_an_error(
    ground: NetlinkGround, many: NetlinkSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = iter(blackholes(3_001, 99))
    with NetlinkSocket(ground.netns) as other:
        after_first_datagram(many, monkeypatch, lambda: other.write_one(next(news)))
        with pytest.raises(DumpInterruptedError, match="changed 5 times"):
            ids(many)
    assert len(list(news)) == 94
    monkeypatch.undo()
    assert len(ids(many)) == 3_005


def test_a_refused_dump_raises_and_the_socket_goes_on(kernel: NetlinkSocket) -> None:
    with pytest.raises(FileNotFoundError):
        kernel.dump(route_codec.dump_routes(AF_INET, table=77))
    assert kernel.dump(route_codec.dump_routes(AF_INET, table=255))


def test_only_the_kernel_is_heard(kernel: NetlinkSocket, ground: NetlinkGround) -> None:
    """Another process of the namespace may send to any port; it must not be taken for the kernel."""
    forged = HEADER.pack(36, 2, 0, kernel._sequence + 1, 0) + struct.pack("=i", -errno.EPERM) + bytes(16)
    with NetlinkSocket(ground.netns) as other, Subscription([Group.NEXTHOP], ground.netns) as events:
        for port_id in (kernel.port_id, events._socket.getsockname()[0]):
            other._connected().sendto(forged, (port_id, 0))
        assert kernel.write_one(NO_DEVICE).errno == errno.ENODEV
        assert events.read().messages == []


def test_events_and_whose_write_they_follow(kernel: NetlinkSocket, ground: NetlinkGround) -> None:
    with Subscription([Group.NEXTHOP, Group.LINK], ground.netns) as events:
        assert events.read() == ([], False, False)
        kernel.write(blackholes(1, 300))
        kernel.write([delete_nexthop(i) for i in range(1, 301)])
        ground.ip("link", "set", "p1", "mtu", "1400")
        assert readable([events], 60.0)
        first = events.read(most=100)
        assert (len(first.messages), first.overrun, first.more) == (100, False, True)
        rest = events.read()
        seen = first.messages + rest.messages
        assert [m.kind for m in seen[:600]] == [Rtm.NEWNEXTHOP] * 300 + [Rtm.DELNEXTHOP] * 300
        assert {m.port_id for m in seen[:600]} == {kernel.port_id}
        assert {m.kind for m in seen[600:]} == {Rtm.NEWLINK}
        assert kernel.port_id not in {m.port_id for m in seen[600:]}
        assert not rest.overrun
        assert events.read() == ([], False, False)


def test_lost_events_are_a_value_and_later_ones_arrive(kernel: NetlinkSocket, ground: NetlinkGround) -> None:
    with Subscription([Group.NEXTHOP], ground.netns, receive_bytes=TINY) as events:
        kernel.write(blackholes(1, 500))
        received = events.read()
        assert received.overrun
        assert len(received.messages) < 500
        kernel.write_one(delete_nexthop(1))
        assert [m.kind for m in events.read().messages] == [Rtm.DELNEXTHOP]
        assert events.read() == ([], False, False)
    kernel.write([delete_nexthop(i) for i in range(1, 501)])


def test_twenty_many_events_fit_into_the_buffer(kernel: NetlinkSocket, ground: NetlinkGround) -> None:
    with Subscription([Group.NEXTHOP], ground.netns) as events:
        kernel.write(blackholes(1, 10_000))
        kernel.write([delete_nexthop(i) for i in range(1, 10_001)])
        count, received = 0, events.read()
        while received.messages:
            assert not received.overrun
            count += len(received.messages)
            received = events.read()
    assert count == 20_000


def test_a_foreign_namespace_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        NetlinkSocket("nlg-not-there")
    with pytest.raises(FileNotFoundError):
        Subscription([Group.LINK], "nlg-not-there")


def test_a_namespace_by_its_path(ground: NetlinkGround) -> None:
    with NetlinkSocket(f"/run/netns/{ground.netns}") as kernel:
        assert len(kernel.dump(Request(Rtm.GETLINK, 0, struct.pack("=BxHiII", 0, 0, 0, 0, 0)))) > 5


def test_routes_are_read(kernel: NetlinkSocket, ground: NetlinkGround) -> None:
    first, second = ground.ifindex("p1"), ground.ifindex("p2")
    unnumbered = Hop(first, "169.254.0.1", onlink=True)
    two = "nexthop via 169.254.0.1 dev p1 onlink nexthop via inet6 fe80::1 dev p2 weight 3"
    written = {
        f"10.255.0.2/32 proto bgp metric 20 src 10.255.0.1 {two}": KernelRoute(
            "10.255.0.2/32", (unnumbered, Hop(second, "fe80::1", weight=3)), 254, 186, 20, "10.255.0.1"
        ),
        "10.255.0.3 table 1000 proto 200 via 169.254.0.1 dev p1 onlink": KernelRoute(
            "10.255.0.3/32", (unnumbered,), table=1_000, protocol=200
        ),
        "10.255.0.4 table 100 proto 9 via inet6 fe80::1 dev p2": KernelRoute(
            "10.255.0.4/32", (Hop(second, "fe80::1"),), table=100, protocol=9
        ),
        "2001:db8::/64 metric 7 proto 200 nexthop via fe80::2 dev p1 nexthop via fe80::3 dev p2": KernelRoute(
            "2001:db8::/64", (Hop(first, "fe80::2"), Hop(second, "fe80::3")), metric=7, protocol=200
        ),
    }
    routes = list(written.values())
    ground.batch([f"route add {line}" for line in written])
    found = [
        route_codec.decode_route(m.payload)
        for family in (AF_INET, AF_INET6)
        for m in kernel.dump(route_codec.dump_routes(family))
    ]
    assert all(route in found for route in routes)
    for table, protocol, expected in ((100, 0, 2), (1_000, 0, 1), (254, 186, 0)):
        chosen = kernel.dump(route_codec.dump_routes(AF_INET, table=table, protocol=protocol))
        assert [route_codec.decode_route(m.payload) for m in chosen] == [routes[expected]]
    ground.batch([f"route del {line}" for line in written])


def test_an_override_as_iproute2_shows_it(kernel: NetlinkSocket, ground: NetlinkGround) -> None:
    first, second = ground.ifindex("p1"), ground.ifindex("p2")
    gateway = attribute(5, bytes([169, 254, 0, 1]))
    via = attribute(18, struct.pack("=H", AF_INET6) + socket.inet_pton(AF_INET6, "fe80::1"))
    hops = (fast_path.Hop(first, gateway, RTNH_F_ONLINK), fast_path.Hop(second, via, 0, 2))
    write = Write("10.255.0.2", FrrRoute(hops, bytes([10, 255, 0, 1])))
    for table in (100, 1_000):
        request = fast_path.override_request(write, table)
        assert {kernel.write_one(request), kernel.write_one(request)} == {Ack(0)}, "it replaces"
        [shown] = json.loads(ground.ip("-j", "route", "show", "table", str(table)))
        assert (shown["dst"], shown["protocol"], shown["prefsrc"]) == ("10.255.0.2", "200", "10.255.0.1")
        assert [(hop["dev"], hop["weight"], hop["flags"]) for hop in shown["nexthops"]] == [
            ("p1", 1, ["onlink"]),
            ("p2", 3, []),
        ]
        assert shown["nexthops"][1]["via"] == {"family": "inet6", "host": "fe80::1"}
        away = fast_path.override_request(Write("10.255.0.2", None), table)
        assert [kernel.write_one(away).errno, kernel.write_one(away).errno] == [0, errno.ESRCH]


def test_nexthop_objects_are_read(kernel: NetlinkSocket, ground: NetlinkGround) -> None:
    hops = [Hop(ground.ifindex(name), "169.254.0.1", onlink=True) for name in ("p1", "p2")]
    objects = [
        *(NexthopObject(11 + i, hop, protocol=200) for i, hop in enumerate(hops)),
        NexthopObject(13, group=((11, 1), (12, 3)), protocol=200),
        NexthopObject(14, blackhole=True),
        NexthopObject(15, Hop(0, "10.0.0.9"), fdb=True),
    ]
    assert {ack.errno for ack in kernel.write([write_nexthop(nexthop) for nexthop in objects])} == {0}
    found = [route_codec.decode_nexthop(m.payload) for m in kernel.dump(route_codec.dump_nexthops())]
    assert found == objects
    ground.ip("route", "add", "10.255.0.9", "proto", "bgp", "nhid", "13")
    [message] = kernel.dump(route_codec.dump_routes(AF_INET, table=254, protocol=186))
    decoded = route_codec.decode_route(message.payload)
    assert decoded is not None
    assert (decoded.nexthop_id, [hop.weight for hop in decoded.hops]) == (13, [1, 3])
    # One write takes a hop out for every route of the group.
    ground.ip("nexthop", "replace", "id", "13", "group", "12")
    [message] = kernel.dump(route_codec.dump_routes(AF_INET, table=254, protocol=186))
    decoded = route_codec.decode_route(message.payload)
    assert decoded is not None
    assert [hop.ifindex for hop in decoded.hops] == [ground.ifindex("p2")]
    ground.ip("nexthop", "flush")


def test_rules_both_ways(kernel: NetlinkSocket, ground: NetlinkGround) -> None:
    rules = [Rule(AF_INET, 100, 90, 200), Rule(AF_INET6, 1_000, 91, 200)]
    for rule in rules:
        add, delete = route_codec.add_rule(rule), route_codec.delete_rule(rule)
        assert [kernel.write_one(add).errno, kernel.write_one(add).errno] == [0, errno.EEXIST]
        dumped = kernel.dump(route_codec.dump_rules(rule.family))
        assert rule in [route_codec.decode_rule(m.payload) for m in dumped]
        shown = json.loads(ground.ip("-6" if rule.family == AF_INET6 else "-4", "-j", "rule"))
        [line] = [row for row in shown if row["priority"] == rule.priority]
        assert (line["table"], line["protocol"]) == (str(rule.table), "200")
        assert [kernel.write_one(delete).errno, kernel.write_one(delete).errno] == [0, errno.ENOENT]


def test_without_rights_the_buffer_is_what_one_gets(ground: NetlinkGround, monkeypatch: pytest.MonkeyPatch) -> None:
    set_option = socket.socket.setsockopt

    def refusing(self: socket.socket, level: int, option: int, value: int) -> None:
        if option == 33:  # SO_RCVBUFFORCE
            raise PermissionError(errno.EPERM, "no")
        set_option(self, level, option, value)

    monkeypatch.setattr(socket.socket, "setsockopt", refusing, raising=False)
    with Subscription([Group.LINK], ground.netns) as events:
        assert events._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > 10_000
