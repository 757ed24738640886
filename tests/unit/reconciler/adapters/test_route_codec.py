"""Routes, rules and nexthop objects both ways, without a kernel."""

from __future__ import annotations

import struct
from contextlib import suppress
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reconciler.adapters import nexthop_codec as nh
from services.reconciler.adapters import route_codec as rc
from services.reconciler.adapters.attributes import MalformedError, attribute, u32
from services.reconciler.adapters.nexthop_codec import NexthopObject, Rule
from services.reconciler.adapters.route_codec import Hop, KernelRoute

V4 = st.ip_addresses(v=4).map(str)
V6 = st.ip_addresses(v=6).map(lambda address: str(address).split("%", maxsplit=1)[0])
INDEX = st.integers(1, 0x7FFFFFFF)
HOPS = st.builds(Hop, INDEX, st.none() | V4 | V6, onlink=st.booleans(), weight=st.integers(1, 256))
DESTINATIONS = st.one_of(
    st.tuples(V4, st.integers(0, 32)), st.tuples(V6, st.integers(0, 128))
).map(lambda pair: str(ip_network(f"{pair[0]}/{pair[1]}", strict=False)))  # fmt: skip


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


@given(route=ROUTES, replace=st.booleans())
def test_a_route_comes_back(route: KernelRoute, *, replace: bool) -> None:
    request = rc.add_route(route, replace=replace)
    assert rc.decode_route(request.payload) == route
    assert (request.kind, bool(request.flags & 0x100), bool(request.flags & 0x200)) == (24, replace, not replace)


def test_golden_bytes_of_an_override() -> None:
    """As ``ip route replace 10.255.0.2 table 100 proto 200 via 169.254.0.1 dev <3> onlink src 10.255.0.1``."""
    route = KernelRoute("10.255.0.2/32", (Hop(3, "169.254.0.1", onlink=True),), 100, 200, source="10.255.0.1")
    header = bytes([2, 32, 0, 0, 100, 200, 0, 1]) + struct.pack("=I", 4)
    body = attribute(1, bytes([10, 255, 0, 2])) + u32(15, 100) + attribute(7, bytes([10, 255, 0, 1])) + u32(4, 3)
    assert rc.add_route(route, replace=True) == (24, 0x500, header + body + attribute(5, bytes([169, 254, 0, 1])))


def test_golden_bytes_of_two_hops_one_by_ipv6() -> None:
    hops = (Hop(3, "169.254.0.1", onlink=True), Hop(4, "fe80::1", weight=2))
    route = KernelRoute("10.255.0.2/32", hops, protocol=186, metric=20)
    first = struct.pack("=HBBi", 16, 4, 0, 3) + attribute(5, bytes([169, 254, 0, 1]))
    # struct rtvia: family in the machine's order, then the address.
    via = struct.pack("=H", 10) + bytes.fromhex("fe80" + "00" * 13 + "01")
    second = struct.pack("=HBBi", 32, 0, 1, 4) + attribute(18, via)
    body = attribute(1, bytes([10, 255, 0, 2])) + u32(15, 254) + u32(6, 20) + attribute(9, first + second)
    header = bytes([2, 32, 0, 0, 254, 186, 0, 1]) + bytes(4)
    assert rc.add_route(route) == (24, 0x600, header + body)


def test_a_deletion_matches_any_scope_and_kind() -> None:
    payload = rc.delete_route(KernelRoute("10.0.0.0/8", (Hop(1),), table=1000, protocol=200, metric=5)).payload
    assert rc.decode_route(payload) == KernelRoute("10.0.0.0/8", (), 1000, 200, 5, kind=0, scope=255)


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


@pytest.mark.parametrize("destination", ["", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0/8", "x/8", "::/129", "10.0.0.0/x"])
def test_no_prefix_is_not_written(destination: str) -> None:
    with pytest.raises(ValueError, match=r"no prefix|no IP address|invalid literal"):
        rc.add_route(KernelRoute(destination))


@given(st.binary(max_size=120))
def test_garbage_is_read_or_refused(data: bytes) -> None:
    for decode in (rc.decode_route, nh.decode_nexthop, nh.decode_rule):
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


@given(nexthop=NEXTHOPS, replace=st.booleans())
def test_a_nexthop_object_comes_back(nexthop: NexthopObject, *, replace: bool) -> None:
    request = nh.add_nexthop(nexthop, replace=replace)
    assert nh.decode_nexthop(request.payload) == nexthop
    assert nh.decode_nexthop(nh.delete_nexthop(nexthop.id).payload).id == nexthop.id


def test_golden_bytes_of_a_group() -> None:
    # struct nexthop_grp: id, weight minus one in two halves, reserved. 300 - 1 = 0x012B.
    group = NexthopObject(13, group=((11, 1), (12, 300)), protocol=200)
    members = struct.pack("=IBBH", 11, 0, 0, 0) + struct.pack("=IBBH", 12, 0x2B, 1, 0)
    expected = bytes([0, 0, 200, 0]) + bytes(4) + u32(1, 13) + attribute(2, members)
    assert nh.add_nexthop(group) == (104, 0x600, expected)


def test_nexthop_nonsense_is_refused() -> None:
    for payload in (bytes(7), bytes(8), bytes(8) + u32(1, 1) + attribute(2, bytes(7))):
        with pytest.raises(MalformedError):
            nh.decode_nexthop(payload)


RULES = st.builds(
    Rule,
    st.integers(0, 0xFFFFFFFF),
    st.integers(1, 0xFFFFFFFF),
    st.sampled_from([2, 10]),
    st.integers(0, 255),
)


@given(RULES)
def test_a_rule_comes_back(rule: Rule) -> None:
    assert nh.decode_rule(nh.add_rule(rule).payload) == rule
    assert nh.decode_rule(nh.delete_rule(rule).payload) == rule


def test_a_rule_that_selects_is_not_plain_and_not_written() -> None:
    header = bytes([2, 32, 0, 0, 254, 0, 0, 1]) + bytes(4)
    rule = nh.decode_rule(header + attribute(1, bytes(4)) + u32(6, 5))
    assert (rule.plain, rule.priority, rule.table) == (False, 5, 254)
    with pytest.raises(ValueError, match="selects by more"):
        nh.add_rule(rule)
    # FRA_SUPPRESS_PREFIXLEN of -1 suppresses nothing and stands in every dump.
    assert nh.decode_rule(bytes([2, 0, 0, 0, 254, 0, 0, 1]) + bytes(4) + u32(14, 0xFFFFFFFF)).plain
    assert not nh.decode_rule(bytes([2, 0, 0, 0, 254, 0, 0, 1]) + bytes(4) + u32(14, 0)).plain
    with pytest.raises(MalformedError):
        nh.decode_rule(bytes(11))
