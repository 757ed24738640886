"""`Kernel` on this machine's kernel: it reads what iproute2 wrote. Flower: tests/lab/vm/guest_thorn_codec.py."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from services._host.netlink.constants import Group, Rtm
from services._host.netlink.objects import (
    Action,
    ActionKind,
    Clsact,
    FdbEntry,
    Filter,
    Neighbour,
    NextHop,
    Route,
    Vxlan,
)
from services.reconciler.adapters.kernel import Kernel, NamespaceGoneError
from services.reconciler.core.operation import Operation, OperationKind, Phase, Target
from tests.support.netlink_ground import NetlinkGround, netlink_ground, run

pytestmark = [pytest.mark.root, pytest.mark.netns]

ADD, REPLACE, DELETE = OperationKind.ADD, OperationKind.REPLACE, OperationKind.DELETE
MAC = "02:00:00:00:00:02"
FOREIGN = ("filter", "add", "dev", "rep0", "ingress", "protocol", "all")
MATCH = ("u32", "match", "u32", "0", "0")
BIND = (*FOREIGN, "pref", "5", *MATCH, "action", "mirred", "index", "900")


@pytest.fixture
def ground() -> Iterator[NetlinkGround]:
    with netlink_ground() as ground:
        yield ground


@pytest.fixture
def kernel(ground: NetlinkGround) -> Iterator[Kernel]:
    kernel = Kernel(ground.netns)
    yield kernel
    kernel.close()


def errnos(kernel: Kernel, *writes: tuple[OperationKind, Target]) -> list[int]:
    return kernel.apply([Operation(kind, target, Phase.PREREQUISITES) for kind, target in writes])


def settle(kernel: Kernel) -> None:
    """What bound an action lets go of it a moment after it is gone itself."""
    deadline = time.monotonic() + 60
    hooks, _ = kernel.hooks()
    while not hooks and any(action.bound for action in kernel.actions()):
        assert time.monotonic() < deadline


def test_links(kernel: Kernel, ground: NetlinkGround) -> None:
    ground.ip("link", "set", "d2", "down")
    found = {link.name: link for link in kernel.links()}
    shown = {link["ifname"]: link for link in json.loads(ground.ip("-j", "-d", "link"))}
    assert found.keys() == shown.keys()
    for name, link in found.items():
        what = shown[name]
        assert (link.ifindex, link.mac, link.mtu) == (what["ifindex"], what["address"], what["mtu"])
        assert link.kind == what.get("linkinfo", {}).get("info_kind", "")
        assert (link.up, link.carrier) == ("UP" in what["flags"], "LOWER_UP" in what["flags"])
        assert link.master == (found[what["master"]].ifindex if "master" in what else 0)
    assert (found["p2"].up, found["p2"].carrier, found["d2"].up) == (True, False, False)
    assert found["vx100"].vxlan == Vxlan(100, "10.255.0.1", 4789, external=False)
    assert found["vxenc0"].vxlan == Vxlan(0, None, 4790, external=True)
    assert found["br0"].vxlan is None


def test_a_vxlan_of_ipv6(kernel: Kernel, ground: NetlinkGround) -> None:
    ground.ip("link", "add", "vx6", "type", "vxlan", "id", "7", "local", "2001:db8::1", "dstport", "4791")
    [link] = [link for link in kernel.links() if link.name == "vx6"]
    assert link.vxlan == Vxlan(7, "2001:db8::1", 4791, external=False)


def test_forwarding_entries_as_zebra_enters_them(kernel: Kernel, ground: NetlinkGround) -> None:
    tunnel, port, bridge = (ground.ifindex(name) for name in ("vx100", "rep0", "br0"))
    ground.batch(
        [
            f"fdb add {MAC} dev vx100 dst 10.255.0.2 self extern_learn",
            f"fdb add {MAC} dev vx100 master extern_learn",
            "fdb append 00:00:00:00:00:00 dev vx100 dst 10.255.0.2 self permanent",
            "fdb append 00:00:00:00:00:00 dev vx100 dst 10.255.0.3 self permanent",
            "fdb add 02:00:00:00:00:01 dev rep0 master static",
            "fdb add 02:00:00:00:00:03 dev vx100 dst 10.255.0.3 port 5000 vni 7 self permanent",
        ],
        "bridge",
    )
    ground.ip("nexthop", "add", "id", "20", "via", "10.255.0.9", "fdb")
    ground.ip("nexthop", "add", "id", "21", "group", "20", "fdb")
    ground.bridge("fdb", "add", "02:00:00:00:00:04", "dev", "vx100", "nhid", "21", "self", "extern_learn")
    found = set(kernel.fdb())
    flood = FdbEntry(tunnel, "00:00:00:00:00:00", own=True, static=True)
    assert found >= {
        FdbEntry(tunnel, MAC, own=True, destination="10.255.0.2", static=True, extern_learn=True),
        FdbEntry(tunnel, MAC, own=False, extern_learn=True),
        replace(flood, destination="10.255.0.2"),
        replace(flood, destination="10.255.0.3"),
        FdbEntry(port, "02:00:00:00:00:01", own=False, static=True),
        FdbEntry(tunnel, "02:00:00:00:00:03", own=True, destination="10.255.0.3", static=True, vni=7, port=5000),
    }
    [multihomed] = [entry for entry in found if entry.mac == "02:00:00:00:00:04"]
    assert (multihomed.nexthop_id, multihomed.destination, multihomed.own) == (21, None, True)
    own = next(link.mac for link in kernel.links() if link.name == "rep0")
    assert FdbEntry(port, own, own=False, static=True, local=True) in found
    assert {entry.ifindex for entry in kernel.fdb(port=tunnel)} == {tunnel}
    assert {entry.ifindex for entry in kernel.fdb(bridge=bridge)} >= {tunnel, port}
    assert set(kernel.fdb(bridge=bridge)) <= found


def test_static_entries_are_written(kernel: Kernel, ground: NetlinkGround) -> None:
    port = ground.ifindex("rep0")
    entry = FdbEntry(port, "02:00:00:00:00:01", own=False, static=True)
    assert errnos(kernel, (ADD, entry), (ADD, entry), (REPLACE, entry)) == [0, errno.EEXIST, 0]
    assert entry in kernel.fdb()
    assert "static" in ground.bridge("fdb", "show", "dev", "rep0").split(entry.mac)[1].splitlines()[0]
    assert errnos(kernel, (DELETE, entry), (DELETE, entry)) == [0, errno.ENOENT]
    # One that was learned becomes static by replacing, and does not age then.
    ground.bridge("fdb", "add", entry.mac, "dev", "rep0", "master", "dynamic")
    assert replace(entry, static=False) in kernel.fdb()
    assert errnos(kernel, (REPLACE, entry)) == [0]
    assert entry in kernel.fdb()


def found_routes(kernel: Kernel) -> dict[str, Route]:
    return {route.destination: route for route in kernel.routes()}


def test_routes_with_and_without_nexthop_objects(kernel: Kernel, ground: NetlinkGround) -> None:
    first, second = ground.ifindex("p1"), ground.ifindex("p2")
    hop = "169.254.0.1"
    ground.batch(
        [
            f"route add 10.255.0.2 proto bgp metric 20 nexthop via {hop} dev p1 onlink nexthop via {hop} dev p2 onlink",
            f"nexthop add id 1 via {hop} dev p1 onlink",
            f"nexthop add id 2 via {hop} dev p2 onlink",
            "nexthop add id 3 group 1/2",
            "route add 10.255.0.3 nhid 3 proto bgp",
            "route add 10.255.0.4 nhid 1 proto bgp table 100",
            "route add blackhole 10.255.0.5",
        ]
    )
    hops = (NextHop(first, hop), NextHop(second, hop))
    found = {(route.destination, route.table): route for route in kernel.routes()}
    assert ("10.255.0.5/32", 254) not in found, "nothing is forwarded there"
    plain, grouped, single = (
        found["10.255.0.2/32", 254],
        found["10.255.0.3/32", 254],
        found["10.255.0.4/32", 100],
    )
    assert (plain.next_hops, plain.protocol, plain.metric, plain.nexthop_id) == (hops, 186, 20, 0)
    assert (grouped.next_hops, grouped.nexthop_id) == (hops, 3)
    assert (single.next_hops, single.nexthop_id) == (hops[:1], 1)
    ground.ip("link", "set", "d1", "down")
    left = (NextHop(first, hop, dead=True), hops[1])
    deadline = time.monotonic() + 60
    while found_routes(kernel)["10.255.0.2/32"].next_hops != left or "10.255.0.4/32" in found_routes(kernel):
        assert time.monotonic() < deadline, "the kernel hears of a carrier a moment later"
    routes = found_routes(kernel)
    # The kernel takes the hop out of the group for good: it does not come back with the carrier.
    assert routes["10.255.0.3/32"].next_hops == hops[1:]


def test_next_hops_stand_in_objects_only_where_the_kernel_is_told_so(kernel: Kernel, ground: NetlinkGround) -> None:
    ground.batch(["nexthop add id 1 via 169.254.0.1 dev p1 onlink", "route add 10.255.0.3 nhid 1 proto bgp"])
    run("ip", "netns", "exec", ground.netns, "sysctl", "-qw", "net.ipv4.nexthop_compat_mode=0")
    [route] = [route for route in kernel.routes() if route.destination == "10.255.0.3/32"]
    assert route.next_hops == (NextHop(ground.ifindex("p1"), "169.254.0.1"),)


def test_tables_that_packets_look_into(kernel: Kernel, ground: NetlinkGround) -> None:
    assert kernel.lookups() == (255, 254, 253)
    rules = ("pref 91 lookup 1001", "pref 90 lookup 100", "pref 89 blackhole", "pref 95 lookup 100")
    ground.batch([f"rule add {rule}" for rule in rules])
    ground.ip("-6", "rule", "add", "pref", "91", "lookup", "1002")
    assert kernel.lookups() == (255, 100, 1_001, 1_002, 254, 253)
    assert kernel.snapshot([]).lookups == kernel.lookups()
    ground.batch([f"rule del {rule}" for rule in rules])
    ground.ip("-6", "rule", "del", "pref", "91")


def test_neighbours(kernel: Kernel, ground: NetlinkGround) -> None:
    device = ground.ifindex("p1")
    ground.batch(
        [
            "neighbour add 169.254.0.1 lladdr 02:00:00:00:00:09 dev p1 nud permanent",
            "neighbour add fe80::9 lladdr 02:00:00:00:00:09 dev p1 nud reachable",
            "neighbour add 169.254.0.2 dev p1 nud failed",
        ]
    )
    found = {n.address: n for n in kernel.neighbours() if n.ifindex == device}
    assert found["169.254.0.1"] == Neighbour(device, "169.254.0.1", "02:00:00:00:00:09", resolved=True)
    assert found["fe80::9"].resolved
    assert (found["169.254.0.2"].mac, found["169.254.0.2"].resolved) == (None, False)


def test_hooks_and_foreign_filters(kernel: Kernel, ground: NetlinkGround) -> None:
    port, other = ground.ifindex("rep0"), ground.ifindex("app")
    assert kernel.hooks() == (frozenset(), frozenset())
    assert errnos(kernel, (ADD, Clsact(port)), (ADD, Clsact(port))) == [0, errno.EEXIST]
    ground.tc("qdisc", "add", "dev", "app", "ingress")
    assert kernel.hooks() == (frozenset({port}), frozenset({other}))
    redirect = ["action", "mirred", "egress", "redirect", "dev", "vxenc0"]
    for pref in ("5", "6"):
        ground.tc(*FOREIGN, "pref", pref, *MATCH, *redirect)
    found = kernel.filters([port])
    assert [(rule.ifindex, rule.pref, rule.kind, rule.managed, rule.foreign_actions) for rule in found] == [
        (port, 5, "u32", False, True),
        (port, 6, "u32", False, True),
    ]
    assert kernel.snapshot().filters == found, "every port with clsact"
    assert kernel.snapshot([]).filters == ()
    assert errnos(kernel, (DELETE, found[0]), (DELETE, found[0])) == [0, errno.ENOENT]
    assert kernel.filters([port]) == found[1:]
    assert kernel.filters([0x7FFFFFF]) == (), "no such device"


def test_actions_of_the_namespace(kernel: Kernel, ground: NetlinkGround) -> None:
    device, port = ground.ifindex("vxenc0"), ground.ifindex("rep0")
    redirect = Action(ActionKind.MIRRED, 900, b"THRN" + bytes(12), redirect_to=device)
    assert errnos(kernel, (ADD, redirect), (ADD, redirect)) == [0, errno.EEXIST]
    assert kernel.actions() == (redirect,)
    moved = replace(redirect, redirect_to=ground.ifindex("vx100"))
    assert errnos(kernel, (REPLACE, moved)) == [0]
    assert kernel.actions() == (moved,)
    errnos(kernel, (ADD, Clsact(port)))
    ground.tc(*BIND)
    assert kernel.actions() == (replace(moved, bound=1),)
    assert errnos(kernel, (DELETE, moved)) == [errno.EPERM]
    ground.ip("link", "del", "vx100")
    assert kernel.actions() == (replace(moved, bound=1, redirect_to=0),)


def test_three_hundred_actions(kernel: Kernel, ground: NetlinkGround) -> None:
    device = ground.ifindex("vxenc0")
    actions = [Action(ActionKind.MIRRED, 1_000 + i, b"THRN", redirect_to=device) for i in range(300)]
    assert set(errnos(kernel, *((ADD, action) for action in actions))) == {0}
    assert kernel.actions() == tuple(actions)


def test_what_the_kernel_says(kernel: Kernel, ground: NetlinkGround) -> None:
    port = ground.ifindex("rep0")
    errnos(kernel, (ADD, Clsact(port)))
    no_mac = Filter(port, 100, 1, "flower")
    no_port = Filter(0x7FFFFFF, 100, 1, "flower", MAC)
    long = Action(ActionKind.MIRRED, 1, bytes(17), redirect_to=port)
    big = Action(ActionKind.MIRRED, 1 << 32, b"", redirect_to=port)
    writes = [Operation(ADD, target, Phase.MISSING) for target in (no_mac, long, big, no_port, Clsact(port))]
    told = kernel.apply_acknowledged(writes)
    assert [ack.errno for ack in told] == [errno.EINVAL] * 3 + [errno.ENODEV, errno.EEXIST]
    assert "is no flower filter" in told[0].reason
    assert told[1].reason == "a cookie of 17 bytes: the most is 16"
    assert told[4].reason == "Exclusivity flag on, cannot modify"
    assert kernel.apply([]) == []


def test_a_probe_is_stable_and_sees_changes(kernel: Kernel, ground: NetlinkGround) -> None:
    port, device = ground.ifindex("rep0"), ground.ifindex("vxenc0")
    redirect = Action(ActionKind.MIRRED, 900, b"THRN", redirect_to=device)
    errnos(kernel, (ADD, Clsact(port)), (ADD, redirect))
    seen = [kernel.probe()]
    for change in (
        lambda: ground.tc(*BIND),
        lambda: ground.ip("link", "set", "p1", "down"),
        lambda: ground.tc("qdisc", "del", "dev", "rep0", "clsact"),
        lambda: errnos(kernel, (DELETE, redirect)),
    ):
        assert kernel.probe() == seen[-1]
        change()
        settle(kernel)
        seen.append(kernel.probe())
    assert len(set(seen)) == len(seen)


def test_a_namespace_that_vanishes(kernel: Kernel, ground: NetlinkGround) -> None:
    """Our sockets would keep it alive, and go on showing devices that nobody else can reach."""
    assert kernel.links()
    run("ip", "netns", "del", ground.netns)
    for look in (kernel.snapshot, kernel.probe, lambda: kernel.apply([])):
        with pytest.raises(NamespaceGoneError, match="is gone or was made anew"):
            look()
    with pytest.raises(FileNotFoundError):
        kernel.subscribe()
    run("ip", "netns", "add", ground.netns)
    with pytest.raises(NamespaceGoneError):
        kernel.snapshot()
    again = Kernel(ground.netns)
    assert [link.name for link in again.snapshot().links] == ["lo"]
    again.close()
    again.close()


def test_no_such_namespace() -> None:
    with pytest.raises(FileNotFoundError):
        Kernel("nlg-not-there")


def test_our_own_namespace() -> None:
    kernel = Kernel()
    assert "lo" in {link.name for link in kernel.snapshot([]).links}
    assert kernel.apply([]) == []
    kernel.close()


def test_events_of_our_own_writes_can_be_told(kernel: Kernel, ground: NetlinkGround) -> None:
    port = ground.ifindex("rep0")
    with kernel.subscribe([Group.TC, Group.NEIGH]) as events:
        errnos(kernel, (ADD, Clsact(port)), (ADD, FdbEntry(port, MAC, own=False, static=True)))
        ground.tc("qdisc", "del", "dev", "rep0", "clsact")
        messages = events.read().messages
    kinds = [(m.kind, m.port_id == kernel.port_id) for m in messages]
    assert (Rtm.NEWQDISC, True) in kinds
    assert (Rtm.DELQDISC, False) in kinds
    assert Rtm.NEWNEIGH in {kind for kind, _ in kinds}
