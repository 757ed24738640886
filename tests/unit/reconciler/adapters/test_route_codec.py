"""Routes, rules and nexthop objects without a kernel: what the fast path writes, and what is read of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services._edge.override_tables import OverrideTables
from services._host.netlink import route_codec as rc
from services._host.netlink.attributes import MalformedError, address_bytes, attribute, u32
from services._host.netlink.messages import Message
from services._host.netlink.route_codec import Hop, KernelRoute, NexthopObject, Rule, add_rule, decode_rule, delete_rule
from services.fastpath import routes as fp
from services.fastpath.mirror import Row
from services.fastpath.values import FrrRoute, Write
from tests.support.route_messages import nexthop_message, route_message

V4 = st.ip_addresses(v=4).map(str)
V6 = st.ip_addresses(v=6).map(lambda address: str(address).split("%", maxsplit=1)[0])
INDEX = st.integers(1, 0x7FFFFFFF)
BYTE = st.integers(0, 255)
HOPS = st.builds(Hop, INDEX, st.none() | V4 | V6, onlink=st.booleans(), weight=st.integers(1, 256))
DESTINATIONS = st.one_of(st.tuples(V4, st.integers(0, 32)), st.tuples(V6, st.integers(0, 128))).map(
    lambda pair: str(ip_network(f"{pair[0]}/{pair[1]}", strict=False))
)


def sensible(route: KernelRoute) -> bool:
    """IPv6 routes have no IPv4 gateways; a single hop no weight."""
    if any(hop.gateway is not None and ":" not in hop.gateway for hop in route.hops) and route.family == rc.AF_INET6:
        return False
    return len(route.hops) != 1 or route.hops[0].weight == 1


ROUTES = st.builds(
    KernelRoute,
    DESTINATIONS,
    st.lists(HOPS, max_size=4).map(tuple),
    table=st.integers(1, 0xFFFFFFFF),
    protocol=st.integers(0, 255),
    metric=st.integers(0, 0xFFFFFFFF),
    source=st.none() | V4,
    kind=st.integers(0, 11),
    scope=st.integers(0, 254),
    tos=st.integers(0, 255),
).filter(sensible)


@given(ROUTES)
def test_a_route_is_read(route: KernelRoute) -> None:
    assert rc.decode_route(route_message(route)) == route


OVERRIDES = st.builds(
    FrrRoute,
    st.lists(
        st.builds(fp.Hop, INDEX, V4.map(lambda a: attribute(5, address_bytes(a))), st.sampled_from([0, 4]), BYTE),
        min_size=2,
        max_size=4,
    ).map(tuple),
    st.just(b"") | V4.map(address_bytes),
)


@given(destination=V4 | V6, route=OVERRIDES, table=st.integers(1, 0xFFFFFFFF))
def test_what_the_fast_path_writes_is_read_as_meant(destination: str, route: FrrRoute, table: int) -> None:
    request = fp.override_request(Write(destination, route), table)
    assert (request.kind, request.flags) == (24, 0x500)
    read = rc.decode_route(request.payload)
    assert read is not None
    assert (read.destination, read.table, read.protocol) == (
        f"{destination}/{128 if ':' in destination else 32}",
        table,
        200,
    )
    assert [(hop.ifindex, hop.onlink, hop.weight) for hop in read.hops] == [
        (hop.ifindex, bool(hop.flags), hop.weight + 1) for hop in route.hops
    ]
    assert [hop.gateway for hop in read.hops] == [fp.gateway_text(hop) for hop in route.hops]
    assert (read.source is None) == (not route.source)


@given(ROUTES)
def test_an_overrides_hops_are_as_frr_has_them(route: KernelRoute) -> None:
    """Whatever FRR's route has, an override carries over in full."""
    address = route.destination.partition("/")[0]
    route = replace(route, destination=f"{address}/{128 if ':' in address else 32}", table=254, kind=1)
    row = fp.read_route(Message(24, 0, 0, route_message(route)), OverrideTables())
    assert isinstance(row, Row)
    assert ip_address(row.destination) == ip_address(address)  # the kernel writes ::ffff:0:0 as ::ffff:0.0.0.0
    assert (row.protocol, row.metric, row.tos) == (route.protocol, route.metric, route.tos)
    if row.route is None:
        assert not route.hops
        return
    written = rc.decode_route(fp.override_request(Write(row.destination, row.route), 100).payload)
    assert written is not None
    assert (written.hops, written.source) == (route.hops, route.source)


def test_golden_bytes_of_an_override() -> None:
    """As ``ip route replace 10.255.0.2 table 100 proto 200 via 169.254.0.1 dev <3> onlink src 10.255.0.1``."""
    hop = fp.Hop(3, attribute(5, bytes([169, 254, 0, 1])), 4)
    write = Write("10.255.0.2", FrrRoute((hop,), bytes([10, 255, 0, 1])))
    header = bytes([2, 32, 0, 0, 100, 200, 0, 1]) + struct.pack("=I", 4)
    body = attribute(1, bytes([10, 255, 0, 2])) + u32(15, 100) + attribute(7, bytes([10, 255, 0, 1])) + u32(4, 3)
    payload = header + body + attribute(5, bytes([169, 254, 0, 1]))
    assert fp.override_request(write, 100) == (24, 0x500, payload)
    assert rc.decode_route(payload) == KernelRoute(
        "10.255.0.2/32", (Hop(3, "169.254.0.1", onlink=True),), 100, 200, source="10.255.0.1"
    )


def test_golden_bytes_of_two_hops_one_by_ipv6() -> None:
    first = struct.pack("=HBBi", 16, 4, 0, 3) + attribute(5, bytes([169, 254, 0, 1]))
    # struct rtvia: family in the machine's order, then the address.
    via = attribute(18, struct.pack("=H", 10) + bytes.fromhex("fe80" + "00" * 13 + "01"))
    second = struct.pack("=HBBi", 32, 0, 1, 4) + via
    destination, ways = attribute(1, bytes([10, 255, 0, 2])), attribute(9, first + second)
    frr = bytes([2, 32, 0, 0, 254, 186, 0, 1]) + bytes(4) + destination + u32(15, 254) + u32(6, 20) + ways
    hops = (Hop(3, "169.254.0.1", onlink=True), Hop(4, "fe80::1", weight=2))
    assert rc.decode_route(frr) == KernelRoute("10.255.0.2/32", hops, protocol=186, metric=20)

    write = Write("10.255.0.2", FrrRoute((fp.Hop(3, first[8:], 4), fp.Hop(4, via, 0, 1))))
    ours = bytes([2, 32, 0, 0, 0, 200, 0, 1]) + bytes(4) + destination + u32(15, 1_000) + ways
    assert fp.override_request(write, 1_000) == (24, 0x500, ours)


def test_a_deletion_matches_any_scope_and_kind() -> None:
    request = fp.override_request(Write("10.0.0.1", None), 1_000)
    assert (request.kind, request.flags) == (25, 0)
    assert rc.decode_route(request.payload) == KernelRoute("10.0.0.1/32", (), 1_000, 200, kind=0, scope=255)


def test_dead_hops_are_told() -> None:
    single = bytes([2, 32, 0, 0, 254, 186, 0, 1]) + struct.pack("=I", 0x11) + attribute(1, bytes(4)) + u32(4, 3)
    assert rc.decode_route(single) == KernelRoute("0.0.0.0/32", (Hop(3, dead=True, linkdown=True),), protocol=186)


def test_what_is_no_entry_of_a_table() -> None:
    for family, flags in ((2, 0x200), (7, 0), (28, 0)):
        assert rc.decode_route(bytes([family, 0, 0, 0, 0, 0, 0, 0]) + struct.pack("=I", flags)) is None


@pytest.mark.parametrize(
    "payload",
    [
        bytes(11),
        bytes([2, 33, 0, 0, 0, 0, 0, 0]) + bytes(4),
        bytes([2, 32, 0, 0, 0, 0, 0, 0]) + bytes(4) + attribute(1, bytes(16)),
        bytes([2, 0, 0, 0, 0, 0, 0, 0]) + bytes(4) + attribute(9, bytes(8)),
        bytes([2, 0, 0, 0, 0, 0, 0, 0]) + bytes(4) + attribute(9, struct.pack("=HBBi", 40, 0, 0, 1)),
        bytes([2, 0, 0, 0, 0, 0, 0, 0]) + bytes(4) + attribute(9, struct.pack("=HBBi", 8, 0, 0, 1) + b"\0"),
    ],
)
def test_nonsense_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedError):
        rc.decode_route(payload)


def of_message(read: Callable[[Message], object]) -> Callable[[bytes], object]:
    """A reader of messages as one of payloads."""
    return lambda payload: read(Message(24, 0, 0, payload))


def read_own(message: Message) -> object:
    """With the default tables."""
    return fp.read_route(message, OverrideTables())


@given(st.binary(max_size=120))
def test_garbage_is_read_or_refused(data: bytes) -> None:
    for decode in (
        rc.decode_route,
        rc.decode_nexthop,
        decode_rule,
        *(of_message(r) for r in (fp.read_link, read_own)),
    ):
        for payload in (data, b"\x02" + data, b"\x02\x20\0\0\xfe\xba\0\x01\0\0\0\0" + data):
            with suppress(MalformedError):
                decode(payload)


NEXTHOPS = st.one_of(
    st.builds(NexthopObject, INDEX, st.builds(Hop, INDEX, st.none() | V4 | V6, onlink=st.booleans())),
    st.builds(
        NexthopObject,
        INDEX,
        group=st.lists(st.tuples(INDEX, st.integers(1, 65_536)), min_size=1, max_size=5).map(tuple),
        protocol=st.integers(0, 255),
        fdb=st.booleans(),
    ),
    st.builds(NexthopObject, INDEX, blackhole=st.just(value=True)),
)


@given(NEXTHOPS)
def test_a_nexthop_object_is_read(nexthop: NexthopObject) -> None:
    assert rc.decode_nexthop(nexthop_message(nexthop)) == nexthop


def test_golden_bytes_of_a_group() -> None:
    # struct nexthop_grp: id, weight minus one in two halves, reserved. 300 - 1 = 0x012B.
    group = NexthopObject(13, group=((11, 1), (12, 300)), protocol=200)
    members = struct.pack("=IBBH", 11, 0, 0, 0) + struct.pack("=IBBH", 12, 0x2B, 1, 0)
    assert rc.decode_nexthop(bytes([0, 0, 200, 0]) + bytes(4) + u32(1, 13) + attribute(2, members)) == group


def test_nexthop_nonsense_is_refused() -> None:
    for payload in (bytes(7), bytes(8), bytes(8) + u32(1, 1) + attribute(2, bytes(7))):
        with pytest.raises(MalformedError):
            rc.decode_nexthop(payload)


RULES = st.builds(
    Rule, st.sampled_from(fp.FAMILIES), st.integers(1, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF), st.integers(0, 255)
)


@given(RULES)
def test_a_rule_comes_back(rule: Rule) -> None:
    add, delete = add_rule(rule), delete_rule(rule)
    assert [(request.kind, request.flags) for request in (add, delete)] == [(32, 0x600), (33, 0)]
    assert decode_rule(add.payload) == decode_rule(delete.payload) == rule


def test_golden_bytes_of_a_rule() -> None:
    """As ``ip rule add pref 90 lookup 1000 protocol 200``: a table above 255 stands in no header."""
    body = u32(6, 90) + u32(15, 1_000) + attribute(21, bytes([200]))
    assert add_rule(Rule(2, 1_000, 90, 200)).payload == bytes([2, 0, 0, 0, 0, 0, 0, 1]) + bytes(4) + body
    assert add_rule(Rule(2, 100, 90, 200)).payload[:8] == bytes([2, 0, 0, 0, 100, 0, 0, 1])
    with pytest.raises(MalformedError):
        decode_rule(bytes(11))
