"""Proportional and weighted max-min sharing against slow, obvious versions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.arrays.max_min_fairness import weighted_max_min
from services.allocator.arrays.proportional_share import scale_to_fit

demands = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300_000), st.integers(1, 100_000)), max_size=30)
rooms = st.lists(st.integers(-1000, 2_000_000), min_size=4, max_size=4)


def columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    app, demand, weight = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(app, np.int32), np.array(demand, np.int64), np.array(weight, np.int64)


def slow_max_min(demand: list[int], weight: list[int], room: int) -> list[Fraction]:
    """Serve whoever is satisfied at the current level, until nobody is."""
    left, open_rows, share = Fraction(max(room, 0)), set(range(len(demand))), [Fraction(0)] * len(demand)
    while open_rows:
        level = left / sum(weight[i] for i in open_rows)
        satisfied = {i for i in open_rows if demand[i] <= level * weight[i]}
        for i in satisfied or open_rows:
            share[i] = Fraction(demand[i]) if satisfied else level * weight[i]
        left -= sum(share[i] for i in satisfied)
        open_rows = open_rows - satisfied if satisfied else set()
    return share


@given(demands, rooms)
def test_max_min_equals_the_slow_version_to_a_microsecond(rows: list[tuple[int, int, int]], room: list[int]) -> None:
    app, demand, weight = columns(rows)
    got = weighted_max_min(app, demand, weight, np.array(room))
    for index in range(4):
        mine = np.flatnonzero(app == index)
        expected = slow_max_min(demand[mine].tolist(), weight[mine].tolist(), room[index])
        assert all(abs(int(value) - want) <= 1 for value, want in zip(got[mine], expected, strict=True))
        assert got[mine].sum() <= max(room[index], 0)


@given(demands, rooms)
def test_ration_is_proportional_and_never_more_than_the_room(rows: list[tuple[int, int, int]], room: list[int]) -> None:
    app, need, _ = columns(rows)
    got = scale_to_fit(app, need, np.array(room))
    for index in range(4):
        mine = np.flatnonzero(app == index)
        total, free = int(need[mine].sum()), max(room[index], 0)
        if total <= free:
            assert (got[mine] == need[mine]).all()
        else:
            assert got[mine].tolist() == [int(value) * free // total for value in need[mine]]
