"""The kernel's records of single periods, folded into what a batch says per period."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services._host.bpf.cfs_periods import PERIOD_FIELDS, PeriodAccounts

QUOTA = 20_000_000
MS = 1_000_000


def record(group: int, used_ms: float, nr_periods: int, nr_throttled: int = 0, throttled_ms: int = 0) -> list[int]:
    used = int(used_ms * MS)
    return [group, nr_periods * 100 * MS, QUOTA, QUOTA - used, 0, nr_periods, nr_throttled, throttled_ms * MS]


def records(*rows: list[int]) -> np.ndarray:
    return np.array(rows, dtype=np.int64).reshape(-1, PERIOD_FIELDS)


def accounts(*ids: int) -> PeriodAccounts:
    made = PeriodAccounts()
    made.track(np.array(ids, dtype=np.int64))
    return made


def test_each_container_has_its_own_and_strangers_are_left_out() -> None:
    ours = accounts(7, 5)
    exact = ours.fold(records(record(5, 3, 11), record(9, 19, 4), record(7, 20.5, 30, 2, 7)))
    assert exact.periods.tolist() == [1, 1]
    assert exact.used_us.tolist() == [20_500, 3_000]
    assert exact.unused_us.tolist() == [0, 17_000]
    assert exact.throttled.tolist() == [0, 0]

    exact = ours.fold(records(record(7, 10, 31, 3, 12), record(7, 20, 32, 3, 13)))
    assert (exact.periods.tolist(), exact.used_us.tolist()) == ([2, 0], [15_000, 0])
    assert (exact.throttled.tolist(), exact.throttled_us.tolist()) == ([1, 0], [3_000, 0])


def test_a_record_of_several_periods_is_shared_among_them() -> None:
    ours = accounts(7)
    ours.fold(records(record(7, 1, 30)))
    exact = ours.fold(records(record(7, 12, 33)))
    assert (exact.periods.tolist(), exact.used_us.tolist()) == ([3], [4_000])


def test_nothing_heard_is_no_period() -> None:
    exact = accounts(7).fold(records())
    assert exact.periods.tolist() == exact.used_us.tolist() == exact.throttled_us.tolist() == [0]
    assert accounts().fold(records(record(7, 1, 1))).periods.tolist() == []


@given(st.lists(st.sets(st.integers(1, 6)), min_size=1, max_size=6), st.data())
def test_time_used_is_counted_once_whoever_comes_and_goes(memberships: list[set[int]], data: st.DataObject) -> None:
    ours, numbers = PeriodAccounts(), dict.fromkeys(range(1, 7), 100)
    for members in memberships:
        ids = sorted(members)
        ours.track(np.array(ids, dtype=np.int64))
        rows = []
        for group in data.draw(st.lists(st.integers(1, 6), max_size=12)):
            numbers[group] += 1
            rows.append(record(group, group, numbers[group]))
        exact = ours.fold(records(*rows))
        for row, group in enumerate(ids):
            heard = sum(one[0] == group for one in rows)
            assert exact.periods[row] >= heard
            total_us = exact.used_us[row] * exact.periods[row]
            assert abs(total_us - heard * group * 1000) <= exact.periods[row]
