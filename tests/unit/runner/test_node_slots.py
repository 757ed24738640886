"""Which slots and GPUs a worker gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.runner.core.node_slots import NodeSlots


@given(
    slots=st.integers(1, 16),
    taken=st.sets(st.integers(0, 15)),
    wanted=st.integers(1, 4),
    workers=st.integers(1, 4),
)
def test_no_slot_is_held_twice(slots: int, taken: set[int], wanted: int, workers: int) -> None:
    held = {place for place in taken if place < slots}
    found = NodeSlots(slots, 0, 4.0, 1 << 30).find(wanted, workers, held)

    if found is None:
        assert slots - len(held) < wanted * workers
        return
    places = [place for each in found for place in each]
    assert [len(each) for each in found] == [wanted] * workers
    assert len(set(places)) == len(places)
    assert set(places) <= set(range(slots)) - held


def test_gpus_are_one_per_slot_or_shared() -> None:
    assert NodeSlots(4, 4, 8.0, 1 << 30).gpus_of([1, 3]) == (1, 3)
    assert NodeSlots(8, 4, 8.0, 1 << 30).gpus_of([1, 5]) == (1,)
    assert NodeSlots(8, 0, 8.0, 1 << 30).gpus_of([1, 5]) == ()


def test_shares() -> None:
    """2 of 8 slots: a quarter of 4 cores and 1 GiB."""
    slots = NodeSlots(8, 0, 4.0, 1 << 30)

    assert slots.share_cores(2) == 1.0
    assert slots.share_memory(2) == 256 << 20


def test_slots_that_share_a_gpu_have_a_part_of_its_memory_each() -> None:
    """8 slots on 3 GPUs of 24 GiB: three of them have the first one."""
    gib = 1 << 30

    assert NodeSlots(8, 3, 8.0, gib).device_memory_bytes(24 * gib) == 8 * gib
    assert NodeSlots(2, 4, 8.0, gib).device_memory_bytes(24 * gib) == 24 * gib
    assert NodeSlots(8, 3, 8.0, gib).device_memory_bytes(None) == 0
    assert NodeSlots(4, 0, 8.0, gib).device_memory_bytes(None) == gib // 4
    assert NodeSlots(4, 0, 8.0, gib).device_memory_bytes(gib) == gib
