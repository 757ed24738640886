"""Emulated racks as values: who is in which rack, addresses, and the sizes of an uplink's bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services._jobs.sandbox.racks import MAX_RACKS, RackPlan, TokenBucket

RATE = 100_000_000


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


def test_nodes_are_spread_in_order() -> None:
    plan = RackPlan.of(names(5), 2, RATE)

    assert plan.racks == (("n1", "n2", "n3"), ("n4", "n5"))
    assert [(link.name, link.nodes) for link in plan.uplinks] == [
        ("rack-1-up", ("n1", "n2", "n3")),
        ("rack-2-up", ("n4", "n5")),
    ]
    assert (plan.rack_of("n3"), plan.rack_of("n4")) == ("rack-1", "rack-2")


@given(nodes=st.integers(2, 64), racks=st.integers(2, MAX_RACKS))
def test_no_rack_is_empty_and_none_has_two_nodes_more_than_another(nodes: int, racks: int) -> None:
    if racks > nodes:
        with pytest.raises(ValueError, match=f"{nodes} nodes make 2 to {min(MAX_RACKS, nodes)} racks, not {racks}"):
            RackPlan.of(names(nodes), racks, RATE)
        return
    plan = RackPlan.of(names(nodes), racks, RATE)
    sizes = [len(rack) for rack in plan.racks]

    assert plan.nodes == tuple(names(nodes))
    assert len(sizes) == racks
    assert 0 <= max(sizes) - min(sizes) <= 1
    assert len({plan.address(node) for node in plan.nodes}) == nodes


@pytest.mark.parametrize(
    ("bits_per_s", "bucket"),
    [
        (RATE, (12_500_000, 16_000, 46_000)),
        (10 * RATE, (125_000_000, 160_000, 460_000)),  # as long a queue in time
        (RATE // 100, (125_000, 16_000, 16_000)),  # ten packets at least
    ],
)
def test_burst_and_queue_grow_with_the_rate(bits_per_s: int, bucket: tuple[int, int, int]) -> None:
    assert TokenBucket.of(bits_per_s) == bucket


@pytest.mark.parametrize("bits_per_s", [1_000, 100_000_000_000])
def test_a_rate_that_tbf_cannot_keep_is_refused(bits_per_s: int) -> None:
    with pytest.raises(ValueError, match="is not within 8 kbit/s and 34 Gbit/s"):
        RackPlan.of(names(2), 2, bits_per_s)
