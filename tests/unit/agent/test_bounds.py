"""No order goes beyond what is announced; what an allocator that keeps its own rules orders always passes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.limits import RowStatus
from services.agent.containers.container import ContainerLimits
from services.agent.containers.incarnation import Incarnation
from services.agent.limits.accepted_updates import Admission, SpecLimit, UpdateLog
from tests.support.limit_orders import reserve_order, update

MIB = 1 << 20
LIMIT = SpecLimit(cpu_us=100_000, memory_bytes=1_000 * MIB)


@dataclass
class Reserve:
    given: int = 0
    used: int = 0

    def __call__(self, _app: str) -> tuple[int, int]:
        return self.given, self.used


class Lab:
    """An agent's book, and what is announced."""

    def __init__(self, **known: SpecLimit | None) -> None:
        limits = {name: ContainerLimits("shop", 20_000, 100 * MIB) for name in ("a", "b", "c")}
        self.book = UpdateLog(Incarnation("n1", 7), limits)
        self.bounds = dict(known)
        self.reserve = Reserve()
        self.seq = 0

    def order(self, rows, **keywords):
        """Accept, and write what is to be written; the statuses by container."""
        self.seq += 1
        plan = self.book.accept(update(rows, seq=self.seq, **keywords), self.room())
        for row in plan.rows:
            limits = self.book.containers.get(row.container)
            if limits is not None:
                limits.quota_us = row.increase_quota_us or row.decrease_quota_us or limits.quota_us
                limits.limit_bytes = row.limit_bytes or limits.limit_bytes
        return {row.container: row.status for row in plan.rows}, plan.over_limit

    def room(self):
        return Admission(self.bounds, self.book.containers, self.reserve)


def test_one_container_gets_no_more_than_the_application() -> None:
    lab = Lab(shop=LIMIT)

    statuses, beyond = lab.order({"a": (100_001, 0)})
    assert (statuses, beyond) == ({"a": RowStatus.FAILED}, {"shop"})
    assert lab.book.containers["a"].quota_us == 20_000
    assert lab.order({"a": (100_000, 0)}) == ({"a": RowStatus.APPLIED}, frozenset())


def test_all_together_get_no_more_either() -> None:
    """60 + 30 ms are ordered; 11 more would be 101 of 100. What is not ordered yet (c) does not count."""
    lab = Lab(shop=LIMIT)
    lab.order({"a": (60_000, 0), "b": (30_000, 0)})

    assert lab.order({"c": (11_000, 0)})[0] == {"c": RowStatus.FAILED}
    assert lab.order({"c": (10_000, 0)})[0] == {"c": RowStatus.APPLIED}
    assert lab.order({"a": (50_000, 0), "c": (20_000, 0)})[0]["c"] is RowStatus.FAILED  # the cut has yet to be written
    assert lab.order({"c": (20_000, 0)})[0] == {"c": RowStatus.APPLIED}


def test_memory_counts_with_the_reserve() -> None:
    """600 MiB ordered and 250 of the reserve left: 150 of 1,000 are free."""
    lab = Lab(shop=LIMIT)
    lab.order({"a": (0, 600 * MIB)})
    lab.reserve = Reserve(given=400 * MIB, used=150 * MIB)

    assert lab.order({"b": (0, 151 * MIB)})[0] == {"b": RowStatus.FAILED}
    assert lab.order({"b": (0, 150 * MIB)})[0] == {"b": RowStatus.APPLIED}


@pytest.mark.parametrize(("given_mib", "passes"), [(550, True), (551, False), (100, True)])
def test_a_reserve_grows_within_the_limit(given_mib: int, passes: bool) -> None:
    """600 MiB ordered, 250 left in the reserve: it may be given 150 more, and less at any time."""
    lab = Lab(shop=LIMIT)
    lab.order({"a": (0, 600 * MIB)})
    lab.reserve = Reserve(given=400 * MIB, used=150 * MIB)

    plan = lab.book.accept(reserve_order(given_mib * MIB, seq=9), lab.room())

    assert bool(plan.reserves) == passes
    assert lab.book.reserve_seq("shop") == 9  # seen in any case


@pytest.mark.parametrize("known", [{}, {"shop": None}], ids=["unread", "withdrawn"])
def test_what_is_not_announced_is_left_alone(known: dict[str, SpecLimit | None]) -> None:
    """Cuts, too; but a reserve is given back."""
    lab = Lab(**known)
    lab.reserve = Reserve(given=400 * MIB, used=150 * MIB)

    assert lab.order({"a": (1_000, 0)}) == ({"a": RowStatus.FAILED}, {"shop"})
    assert lab.book.accept(reserve_order(150 * MIB, seq=9), lab.room()).reserves
    assert not lab.book.accept(reserve_order(401 * MIB, seq=10), lab.room()).reserves


def test_a_replayed_order_is_void_within_the_limit_too() -> None:
    lab = Lab(shop=LIMIT)
    lab.order({"a": (50_000, 0)})
    lab.order({"a": (30_000, 0)})
    lab.seq = 0

    assert lab.order({"a": (50_000, 0)})[0] == {"a": RowStatus.STALE_SEQ}
    assert lab.order({"a": (50_000, 0)}, epoch=0)[0] == {"a": RowStatus.STALE_EPOCH}
    assert lab.book.accept(update({"a": (50_000, 0)}, seq=99, incarnation=6), lab.room()).refusal is not None


_STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1_000, 120_000), st.integers(4 * MIB, 1_200 * MIB)), max_size=30
)


@given(_STEPS)
def test_an_allocator_that_counts_is_never_refused(steps: list[tuple[str, int, int]]) -> None:
    """It orders a raise only where its sum of ordered values, over all containers, leaves room for it."""
    lab = Lab(shop=LIMIT)
    held = {name: [20_000, 100 * MIB] for name in "abc"}
    for name, more_us, more_bytes in steps:
        free_us = LIMIT.cpu_us - sum(each[0] for each in held.values())
        free_bytes = LIMIT.memory_bytes - sum(each[1] for each in held.values())
        quota_us = min(more_us, held[name][0] + max(free_us, 0))
        limit_bytes = min(more_bytes, held[name][1] + max(free_bytes, 0))
        statuses, beyond = lab.order({name: (quota_us, limit_bytes)})
        assert statuses[name] is not RowStatus.FAILED
        assert not beyond
        held[name] = [quota_us, limit_bytes]


_ROWS = st.dictionaries(
    st.sampled_from("abcd"), st.tuples(st.integers(0, 60_000), st.integers(0, 700 * MIB)), min_size=1, max_size=4
)


@given(st.lists(st.tuples(_ROWS, st.integers(-1, 1)), max_size=8))
def test_an_update_that_passes_no_limit_needs_no_second_comparison(orders: list[tuple[dict, int]]) -> None:
    """Rows that are replayed (seq not newer) or of an unknown container (d) are left out of what is accepted."""
    lab = Lab(shop=LIMIT)
    for rows, newer in orders:
        lab.seq += newer
        wanted, twin = update(rows, seq=max(lab.seq, 0)), deepcopy(lab.book)
        if not lab.book.over_limit(wanted, lab.room()):
            assert twin.accept(wanted) == deepcopy(lab.book).accept(wanted, lab.room())
        lab.order(rows)


@given(_STEPS)
def test_whatever_is_ordered_stays_within(steps: list[tuple[str, int, int]]) -> None:
    """What the containers came with is not ours to judge: 60 ms and 300 MiB here."""
    lab = Lab(shop=LIMIT)
    for name, quota_us, limit_bytes in steps:
        lab.order({name: (quota_us, limit_bytes)})
        ordered = lab.book.containers.values()
        assert sum(each.quota_us for each in ordered if each.quota_ordered) <= LIMIT.cpu_us
        assert sum(each.limit_bytes for each in ordered if each.limit_ordered) <= LIMIT.memory_bytes
