"""What applications held beside what they would hold without limits: integrals over time, by day, counted once."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.apps import AppSpec
from schemas.savings import Baseline
from services._runtime.settings_error import SettingsError
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import AllocationCycle
from services.allocator.savings import DAY_NS, INTEGRALS, KINDS, SUMS, Holding, Kind, SavingsSums
from services.allocator.settings import AllocatorSettings
from services.allocator.state.usage_totals import COUNTS
from tests.support.cfs_batches import PERIOD_NS, START_NS, Row, batch
from tests.support.lossy_cluster import owning

MIB, GIB = 1 << 20, 1 << 30
S = 1_000_000_000
GAP_NS = 2 * S
ALL = 1 << 30
NOON_NS = 20_000 * DAY_NS + DAY_NS // 2
OBSERVED = Kind("observe", Baseline.CONFIGURED, Baseline.CONFIGURED)


def holding(*apps: tuple[float, float], measured: bool = True, kind: Kind = OBSERVED, counted: int = 0) -> Holding:
    """Of each application the CPU baseline and what is held, in cores; a tenth of both in GiB of memory."""
    cpu = np.array(apps, dtype=np.float64).T
    return Holding(
        np.full(len(apps), measured),
        np.full(len(apps), KINDS.index(kind)),
        np.vstack([cpu, cpu / 10]),
        np.full((len(COUNTS), len(apps)), float(counted)),
    )


class Published:
    """What readers have: of each account the newest."""

    def __init__(self) -> None:
        self.accounts: dict[tuple[int, int, int], list[tuple[Kind, dict[str, float]]]] = {}

    def take(self, sums: SavingsSums, now_ns: int, every_ns: int = 0, most: int = ALL) -> int:
        due = sums.take_due(now_ns, every_ns, most)
        for account in due:
            self.accounts[account.app, account.day, account.serial] = account.parts
        return len(due)

    def by_day(self, app: int = 0) -> dict[int, dict[str, float]]:
        totals: defaultdict[int, dict[str, float]] = defaultdict(lambda: dict.fromkeys(SUMS, 0.0))
        for (owner, day, _), parts in self.accounts.items():
            for _, part in parts if owner == app else ():
                totals[day] = {name: totals[day][name] + part[name] for name in SUMS}
        return dict(totals)

    def total(self, app: int = 0) -> dict[str, float]:
        return {name: sum(day[name] for day in self.by_day(app).values()) for name in SUMS}


def total(sums: SavingsSums, app: int = 0) -> dict[str, float]:
    published = Published()
    published.take(sums, ALL)
    return published.total(app)


def test_a_second_of_two_cores_that_hold_half_a_core() -> None:
    sums = SavingsSums()
    for tick in range(11):
        sums.add(holding((2.0, 0.5), counted=tick), tick * S // 10, NOON_NS + tick * S // 10, GAP_NS)

    # 10 x 0.1 s of 2 and 0.5 cores, 0.2 and 0.05 GiB; 10 steps count one of everything each
    found = total(sums)
    assert found == pytest.approx(
        {"covered_s": 1, "cpu_baseline_core_s": 2, "cpu_held_core_s": 0.5}
        | {"memory_baseline_gib_s": 0.2, "memory_held_gib_s": 0.05}
        | dict.fromkeys(COUNTS, 10)
    )


def test_more_held_than_the_baseline_is_told_as_such() -> None:
    sums = SavingsSums()
    for tick in range(2):
        sums.add(holding((1.0, 3.0)), tick * S, NOON_NS, GAP_NS)

    found = total(sums)
    assert found["cpu_baseline_core_s"] - found["cpu_held_core_s"] == -2
    assert {name: found[name] for name in INTEGRALS} == sums.since_acquired(0)


def test_a_gap_counts_nothing() -> None:
    sums = SavingsSums()
    for at_s in (0, 1, 4, 5):
        sums.add(holding((2.0, 1.0)), at_s * S, NOON_NS + at_s * S, GAP_NS)

    assert total(sums)["covered_s"] == 2


def test_midnight_divides_an_interval_and_the_older_day_is_published_at_once() -> None:
    sums, published = SavingsSums(), Published()
    midnight_ns = 20_001 * DAY_NS
    for at_ns in (0, S):
        sums.add(holding((2.0, 1.0), counted=at_ns // S), at_ns, midnight_ns - S // 4 + at_ns, GAP_NS)
    published.take(sums, S, every_ns=3600 * S)
    assert {day: found["covered_s"] for day, found in published.by_day().items()} == {20_000: 0.25, 20_001: 0.75}
    assert published.total()["periods"] == 1

    sums.add(holding((2.0, 1.0)), 2 * S, midnight_ns + 7 * S // 4, GAP_NS)

    assert published.take(sums, 2 * S, every_ns=3600 * S) == 0, "published a second ago"
    assert published.take(sums, 3602 * S, every_ns=3600 * S) == 1
    assert published.by_day()[20_001]["covered_s"] == 1.75


def test_a_clock_that_is_set_back_over_midnight_replaces_no_account() -> None:
    sums, published = SavingsSums(), Published()
    midnight_ns = 20_001 * DAY_NS
    walls_ns = [-2 * S, -S, S, -3 * S, -2 * S, S, 2 * S]
    for tick, offset_ns in enumerate(walls_ns):
        sums.add(holding((1.0, 1.0)), tick * S, midnight_ns + offset_ns, GAP_NS)
        published.take(sums, tick * S)

    # Each second counts for the day that the clock shows at its end.
    assert {day: found["covered_s"] for day, found in published.by_day().items()} == {20_000: 3, 20_001: 3}


def test_modes_and_baselines_are_summed_up_apart() -> None:
    sums = SavingsSums()
    enforced = Kind("enforce", Baseline.APPLICATION_LIMIT, Baseline.CONFIGURED)
    for tick, kind in enumerate((OBSERVED, OBSERVED, enforced, enforced, enforced)):
        sums.add(holding((2.0, 1.0), kind=kind), tick * S, NOON_NS, GAP_NS)

    (account,) = sums.take_due(0, 0, ALL)

    assert {kind: part["covered_s"] for kind, part in account.parts} == {OBSERVED: 1, enforced: 3}


def test_what_was_released_is_published_and_another_owners_time_is_not_counted() -> None:
    sums, published = SavingsSums(), Published()
    for at_s in (0, 1):
        sums.add(holding((2.0, 1.0)), at_s * S, NOON_NS, GAP_NS)
    sums.release(0)
    sums.add(holding((2.0, 1.0)), int(1.5 * S), NOON_NS, GAP_NS)  # acquired again: from here on

    assert sums.since_acquired(0)["covered_s"] == 0
    published.take(sums, 2 * S)
    assert published.total()["covered_s"] == 1

    sums.add(holding((2.0, 1.0)), 2 * S, NOON_NS, GAP_NS)
    published.take(sums, 2 * S)

    assert published.total()["covered_s"] == 1.5


def test_publications_are_bounded_and_each_application_gets_its_turn() -> None:
    sums, published = SavingsSums(), Published()
    for at_s in (0, 1):
        sums.add(holding(*[(2.0, 1.0)] * 5), at_s * S, NOON_NS, GAP_NS)

    assert [published.take(sums, now_s * S, every_ns=60 * S, most=2) for now_s in range(4)] == [2, 2, 1, 0]
    assert {app for app, _, _ in published.accounts} == set(range(5))


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3_000),
        st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.integers(0, 8)), min_size=2, max_size=2),
    ),
    min_size=1,
    max_size=30,
)
"""Milliseconds since the step before; of two applications whether they are measured, baseline and held in cores."""


def _holding_of(apps: list[tuple[bool, int, int]]) -> Holding:
    made = holding(*[(float(base), float(held)) for _, base, held in apps])
    made.measured[:] = [measured for measured, _, _ in apps]
    return made


@given(STEPS, st.integers(0, 2 * DAY_NS))
def test_integrals_equal_a_sum_by_hand_whenever_they_are_published(steps, begin_ns) -> None:
    sums, published, now_ns = SavingsSums(), Published(), S
    expected = np.zeros((2, 3))
    for number, (elapsed_ms, apps) in enumerate(steps):
        now_ns += elapsed_ms * 1_000_000
        sums.add(_holding_of(apps), now_ns, begin_ns + now_ns, GAP_NS)
        if number and 0 < elapsed_ms <= 2_000:
            for app, (measured, base, held) in enumerate(apps):
                if measured and steps[number - 1][1][app][0]:
                    expected[app] += np.array([1, base, held]) * elapsed_ms / 1e3
        if elapsed_ms % 3 == 0:
            published.take(sums, now_ns, every_ns=5 * S, most=1)
    published.take(sums, now_ns)

    for app in (0, 1):
        found = published.total(app)
        assert [found[name] for name in INTEGRALS[:3]] == pytest.approx(expected[app].tolist())
        assert list(sums.since_acquired(app).values())[:3] == pytest.approx(expected[app].tolist())
        assert all(day["covered_s"] <= DAY_NS / S for day in published.by_day(app).values())


@given(st.lists(st.integers(1, 2_000), min_size=2, max_size=30), st.data())
def test_a_division_of_the_time_into_steps_changes_nothing(parts_ms, data) -> None:
    whole, divided, now_ns = SavingsSums(), SavingsSums(), 0
    for sums in (whole, divided):
        sums.add(holding((3.0, 1.0)), 0, NOON_NS, GAP_NS)
    for part_ms in parts_ms:
        cut_ms = data.draw(st.integers(0, part_ms))
        for end_ms in (cut_ms, part_ms):
            end_ns = now_ns + end_ms * 1_000_000
            divided.add(holding((3.0, 1.0)), end_ns, NOON_NS + end_ns, GAP_NS)
        now_ns += part_ms * 1_000_000
        whole.add(holding((3.0, 1.0)), now_ns, NOON_NS + now_ns, GAP_NS)

    assert whole.since_acquired(0) == pytest.approx(divided.since_acquired(0))
    assert whole.since_acquired(0)["covered_s"] == pytest.approx(sum(parts_ms) / 1e3)


@given(st.lists(st.tuples(st.integers(1, 1_000), st.integers(0, 1)), min_size=1, max_size=40))
def test_replicas_that_hand_an_application_over_count_no_time_twice(steps) -> None:
    replicas, owner, now_ns = (SavingsSums(), SavingsSums()), 0, 0
    for elapsed_ms, next_owner in steps:
        now_ns += elapsed_ms * 1_000_000
        if next_owner != owner:
            replicas[owner].release(0)
            owner = next_owner
        replicas[owner].add(holding((1.0, 1.0)), now_ns, NOON_NS + now_ns, GAP_NS)

    covered_s = sum(total(each)["covered_s"] for each in replicas)
    assert covered_s <= (now_ns - steps[0][0] * 1_000_000) / S + 1e-9


# -- of an allocation ------------------------------------------------------------------------------------------------


def run(allocation: AllocationCycle, ticks: range, used_us: int = 20_000, **fields: int) -> None:
    """Three containers of 0.6 cores and 200 MiB, which the kernel keeps; ``fields`` of the batch."""
    rows = [Row(f"web-{number}", quota_us=60_000, memory_limit_bytes=200 * MIB, used_us=used_us) for number in range(3)]
    for tick in ticks:
        now_ns = tick * PERIOD_NS
        allocation.step([batch(tick, rows, **fields)], StepTime(now_ns, START_NS + now_ns))


def owned(mode: str, cpu_limit: float = 2.0, memory_limit: int = GIB) -> AllocationCycle:
    allocation = owning("shop")
    allocation.set_spec("shop", AppSpec(name="shop", cpu_limit=cpu_limit, memory_limit=memory_limit, mode=mode))
    return allocation


CAME_WITH = {"configured_cpu_us": 180_000, "configured_memory_bytes": 600 * MIB}


def accounts(allocation: AllocationCycle) -> dict[Kind, dict[str, float]]:
    return {kind: part for account in allocation.savings.take_due(0, 0, ALL) for kind, part in account.parts}


def test_observed_containers_count_what_they_came_with_and_what_was_decided() -> None:
    allocation, held, held_bytes = owned("observe"), 0.0, 0.0
    run(allocation, range(2), **CAME_WITH)
    for tick in range(2, 12):
        held += allocation.pools().quota_committed_us[0] / 100_000 * 0.1
        limits_bytes = int(allocation.pools().limit_committed_bytes[0])
        held_bytes += (limits_bytes + min(int(0.2 * GIB), GIB - limits_bytes)) * 0.1  # 20 % would be withheld
        run(allocation, range(tick, tick + 1), **CAME_WITH)

    found = accounts(allocation)[OBSERVED]

    # The first step admits them, the second one measures them: from there on 10 periods of 0.1 s.
    assert found["covered_s"] == pytest.approx(1.0)
    assert found["cpu_baseline_core_s"] == pytest.approx(1.8)
    assert found["memory_baseline_gib_s"] == pytest.approx(600 / 1024)
    assert found["cpu_held_core_s"] == pytest.approx(held)
    assert 0.6 < found["cpu_held_core_s"] < 1.8, "above what they use, below what they came with"
    assert found["memory_held_gib_s"] == pytest.approx(held_bytes / GIB)
    assert found["periods"] == 30


@pytest.mark.parametrize("missing", ["configured_cpu_us", "configured_memory_bytes"])
def test_where_a_container_came_without_a_limit_the_applications_limit_is_the_baseline(missing: str) -> None:
    allocation = owned("observe")
    run(allocation, range(12), **(CAME_WITH | {missing: -1}))

    ((kind, found),) = accounts(allocation).items()

    if missing == "configured_cpu_us":
        assert (kind.cpu_baseline, kind.memory_baseline) == (Baseline.APPLICATION_LIMIT, Baseline.CONFIGURED)
        assert found["cpu_baseline_core_s"] == pytest.approx(2.0)
    else:
        assert (kind.cpu_baseline, kind.memory_baseline) == (Baseline.CONFIGURED, Baseline.APPLICATION_LIMIT)
        assert found["memory_baseline_gib_s"] == pytest.approx(1.0)


def test_baselines_of_all_nodes_add_up_and_those_of_one_that_is_gone_do_not_stay() -> None:
    allocation = owned("observe")
    for tick in range(12):
        now_ns = tick * PERIOD_NS
        batches = [
            batch(tick, [Row(f"web-{node}", quota_us=60_000)], node=node, configured_cpu_us=60_000)
            for node in ("a", "b")
        ]
        allocation.step(batches, StepTime(now_ns, START_NS + now_ns))
    assert allocation.cluster.configured_limits()[0].tolist() == [120_000]
    assert np.isnan(allocation.cluster.configured_limits()[1, 0]), "this agent tells nothing of memory"

    allocation.cluster.remove_node(0)

    assert allocation.cluster.configured_limits()[0].tolist() == [60_000]


def test_usage_above_what_was_decided_would_have_been_throttled() -> None:
    allocation = owned("observe")
    run(allocation, range(20), **CAME_WITH)
    decided_us = allocation.cluster.rows.quota_ordered_us.copy()
    assert (decided_us < 50_000).all()
    accounts(allocation)
    run(allocation, range(20, 21), used_us=50_000, **CAME_WITH)

    found = accounts(allocation)[OBSERVED]

    assert found["excess_periods"] == 3
    # One period; each used 50 ms of it
    assert found["excess_core_s"] == pytest.approx((150_000 - decided_us.sum()) / 1e6)
    assert found["throttled_periods"] == 0


def test_enforced_containers_count_what_is_in_force_and_what_is_withheld() -> None:
    """The kernel keeps the limits that it had, as if every update were lost: nothing is saved, the reserve is held."""
    allocation = owned("enforce", cpu_limit=1.8, memory_limit=750 * MIB)
    run(allocation, range(1), **CAME_WITH)
    allocation.cluster.fence_acknowledged(0, ["shop"], 1)
    run(allocation, range(1, 13), **CAME_WITH)

    found = accounts(allocation)[Kind("enforce", Baseline.CONFIGURED, Baseline.CONFIGURED)]

    assert found["covered_s"] > 0.9
    assert found["cpu_held_core_s"] == pytest.approx(found["cpu_baseline_core_s"])
    # 3 x 200 MiB of limits, and 20 % of 750 MiB that are withheld
    assert found["memory_held_gib_s"] == pytest.approx((600 + 150) / 1024 * found["covered_s"])
    assert found["excess_periods"] == 0


def test_what_is_not_known_is_not_counted() -> None:
    """An agent that is silent for longer than 2 s, while another application's goes on."""
    allocation = owned("observe")
    allocation.acquire("other", 1, 0)
    allocation.set_spec("other", AppSpec(name="other", cpu_limit=1.0, memory_limit=GIB, mode="observe"))
    for tick in range(100):
        now_ns = tick * PERIOD_NS
        batches = [batch(tick, [Row("x", quota_us=50_000)], app="other", node="n2", configured_cpu_us=50_000)]
        if tick < 20:
            batches.append(batch(tick, [Row("web", quota_us=50_000)], configured_cpu_us=50_000))
        allocation.step(batches, StepTime(now_ns, START_NS + now_ns))

    assert allocation.savings.since_acquired(0)["covered_s"] == pytest.approx(1.8 + 2.0)
    assert allocation.savings.since_acquired(1)["covered_s"] == pytest.approx(9.8)


def test_prices_need_their_currency() -> None:
    assert AllocatorSettings.load({}).core_hour_price is None
    priced = AllocatorSettings.load({}, core_hour_price=0.03, gib_hour_price=0.004, price_currency="EUR")
    assert priced.price_currency == "EUR"

    with pytest.raises(SettingsError) as refusal:
        AllocatorSettings.load({"TURNBUCKLE_ALLOCATOR__CORE_HOUR_PRICE": "0.03"})

    assert "TURNBUCKLE_ALLOCATOR__GIB_HOUR_PRICE and TURNBUCKLE_ALLOCATOR__PRICE_CURRENCY, too" in str(refusal.value)
