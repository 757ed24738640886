"""A route's congestion control is changed with all else kept, in bytes as the kernel has them."""

from __future__ import annotations

import struct

import pytest

from services._host.netlink.attributes import MalformedError, attribute, attributes, nested, text, u32
from services._host.netlink.route_codec import Hop, KernelRoute, decode_route
from services._host.netlink.route_congestion import congestion_control_of, with_congestion_control
from tests.support.route_messages import route_message

ROUTE = KernelRoute("10.77.0.0/16", (Hop(3),), protocol=2, metric=7, source="10.77.0.1", scope=253)
MTU = u32(2, 1_400)
METRICS, CACHEINFO, CC_ALGO = 8, 12, 16


def test_it_is_set_read_and_taken_out() -> None:
    plain = route_message(ROUTE)
    changed = with_congestion_control(plain, "mltcp_2")
    assert (congestion_control_of(plain), congestion_control_of(changed)) == ("", "mltcp_2")
    assert congestion_control_of(with_congestion_control(changed, "cubic")) == "cubic"
    assert with_congestion_control(changed, "") == plain
    assert decode_route(changed) == ROUTE


def test_other_metrics_stay() -> None:
    given = route_message(ROUTE) + nested(METRICS, MTU, text(CC_ALGO, "reno"))
    changed = with_congestion_control(given, "mltcp")
    assert attributes(attributes(changed, 12)[METRICS]) == {2: struct.pack("=I", 1_400), CC_ALGO: b"mltcp\0"}
    assert with_congestion_control(changed, "") == route_message(ROUTE) + nested(METRICS, MTU)


def test_what_the_kernel_tells_and_does_not_take_is_left_out() -> None:
    """The state of a device, an age, and the hops of a nexthop object beside its id."""
    linkdown = struct.pack("=I", 16)
    by_object = KernelRoute("10.78.0.0/16", nexthop_id=5)
    told = route_message(by_object) + u32(4, 3) + attribute(CACHEINFO, bytes(32))
    told = told[:8] + linkdown + told[12:]
    assert with_congestion_control(told, "") == route_message(by_object)


@pytest.mark.parametrize("size", [0, 11, 14])
def test_no_route_is_told(size: int) -> None:
    with pytest.raises(MalformedError):
        with_congestion_control(route_message(ROUTE)[:size], "mltcp")
