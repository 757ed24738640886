"""One look at all containers: what of it is worth a second one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services._host.cgroup_snapshot import Counters, CounterSnapshot, KernelState
from services._host.control_file import read_each
from services.agent.sampling.sampler import MOVED_BYTES, ExpectedState, rows_to_check

MIB = 1 << 20


def readings(*memory_bytes: int) -> CounterSnapshot:
    return CounterSnapshot(np.array([(9, 1, 5, 70, usage) for usage in memory_bytes], dtype=np.int64))


def held(*limits: tuple[int, int, int], guarded: bool = True) -> KernelState:
    count = len(limits)
    return KernelState(
        np.array(limits), np.full(count, guarded), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    )


def known(*limits: tuple[int, int, int], armed: bool = True, tracked_bytes: int = 0) -> ExpectedState:
    count = len(limits)
    return ExpectedState(np.array(limits), np.full(count, armed), np.full(count, tracked_bytes))


def test_those_that_vanished_are_named_and_left_out() -> None:
    counters = Counters(1, 2, 3, 4, 5)
    found = read_each([SimpleNamespace(read=lambda: counters), SimpleNamespace(read=lambda: None)])
    assert (found.vanished, found.without_vanished().counters.tolist()) == ((1,), [[1, 2, 3, 4, 5]])
    assert read_each([]).counters.shape == (0, 5)


def test_what_is_held_goes_with_its_container() -> None:
    both = CounterSnapshot(np.zeros((2, 5), dtype=np.int64), (0,), held((1, 2, 3), (4, 5, 6)))
    left = both.without_vanished().kernel
    assert left is not None
    assert (left.limits.tolist(), len(left.guarded), len(left.boundary_ns)) == ([[4, 5, 6]], 1, 1)


def test_what_is_as_believed_needs_no_second_look() -> None:
    limits = (20_000, 64 * MIB, 0), (-1, -1, 2)
    assert rows_to_check(readings(0, 0), held(*limits), known(*limits)) == []


def test_each_difference_is_seen() -> None:
    believed = (20_000, 64 * MIB, 1)
    for other in ((20_001, 64 * MIB, 1), (20_000, 65 * MIB, 1), (20_000, 64 * MIB, 2)):
        assert rows_to_check(readings(0, 0), held(believed, other), known(believed, believed)) == [1]


def test_a_guard_that_was_switched_off_is_seen_where_it_is_ours() -> None:
    limits = (20_000, 64 * MIB, 0)
    off = held(limits, guarded=False)
    assert rows_to_check(readings(0), off, known(limits)) == [0]
    assert rows_to_check(readings(0), off, known(limits, armed=False)) == []


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_a_guard_follows_usage_that_moved_by_a_threshold(usage: int, followed: int) -> None:
    limits = (20_000, 1 << 41, 0)
    seen = rows_to_check(readings(usage), held(limits), known(limits, tracked_bytes=followed))
    assert bool(seen) == (abs(usage - followed) >= MOVED_BYTES)
