"""Constant demand: the writes stop. A burst: quotas follow it up and down. As the policies' docstrings claim."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from services.allocator.cpu.waterfill import HEADROOM_US, HOLD_PERIODS, KEEP_PERIODS
from tests.support.cfs_plant import PERIOD_US, POLICIES, CfsPlant, parameters

both = pytest.mark.parametrize("policy", sorted(POLICIES))
limits = pytest.mark.parametrize("times_demand", [3.0, 1.15, 1.02, 0.8])
SETTLED, QUIET = 20, 100
SEEDS = range(12)


def constant(
    policy: str, times_demand: float, *, seeds: Sequence[int] = SEEDS, noise: float = 0.0, low: bool = False
) -> CfsPlant:
    """An application per seed: 1-12 containers with demands of 0.05 to 3 cores, from equal shares or 10 % of demand."""
    demands, quotas = [], []
    for seed in seeds:
        random = np.random.default_rng(seed)
        demand = random.integers(5_000, 300_000, random.integers(1, 13))
        equal_us = min(int(demand.sum() * times_demand) // len(demand), 4 * PERIOD_US)
        demands.append(demand)
        quotas.append(np.maximum(demand // 10, 1_000) if low else np.full(len(demand), equal_us))
    app = np.repeat(np.arange(len(demands), dtype=np.int32), [len(demand) for demand in demands])
    limit = np.array([int(demand.sum() * times_demand) for demand in demands])
    plant = CfsPlant(app, limit, np.concatenate(quotas), policy, noise=noise)
    plant.demand = np.concatenate(demands)  # type: ignore[attr-defined]
    return plant


def run(plant: CfsPlant, periods: int) -> NDArray[np.int64]:
    """Writes in these periods, by application."""
    before = plant.writes.copy()
    for _ in range(periods):
        plant.step(plant.demand)  # type: ignore[attr-defined]
    return plant.by_app(plant.writes - before)


def last_writes(plant: CfsPlant, periods: int) -> NDArray[np.int64]:
    """Number of the last period with a write, by application; 0: none."""
    last = np.zeros(len(plant.limit_us), np.int64)
    for period in range(1, periods + 1):
        last[run(plant, 1) > 0] = period
    return last


@both
@limits
def test_constant_demand_settles_within_two_windows_and_stays(policy: str, times_demand: float) -> None:
    """All within 25 periods, all but one of these loads within 20, and not a single write until period 125."""
    last = last_writes(constant(policy, times_demand), SETTLED + 5 + QUIET)
    assert last.max() <= SETTLED + 5
    assert (last > SETTLED).sum() <= 1


@both
@limits
def test_from_a_tenth_of_the_demand_it_settles_within_three_windows(policy: str, times_demand: float) -> None:
    """Where the limit is scarce, waterfill once more when it forgets the levels that it kept on the way."""
    forgotten = 2 * KEEP_PERIODS if policy == "waterfill" and times_demand < 2 else 0
    plant = constant(policy, times_demand, low=True)
    assert run(plant, 30 + forgotten).all(), "every one of them had to be raised"
    assert not run(plant, QUIET).any()


@both
@limits
def test_noise_of_two_percent_hardly_ever_causes_a_write(policy: str, times_demand: float) -> None:
    plant = constant(policy, times_demand, noise=0.02)
    run(plant, SETTLED)
    rates = run(plant, QUIET) / QUIET / np.bincount(plant.app)
    assert rates.mean() <= 0.01


@pytest.mark.parametrize("times_demand", [3.0, 1.15, 1.02])
def test_waterfill_leaves_no_container_starved_when_the_limit_suffices(times_demand: float) -> None:
    plant = constant("waterfill", times_demand)
    run(plant, 40)
    assert (plant.quota_us >= 0.95 * plant.demand).all()  # type: ignore[attr-defined]


def test_waterfill_favours_small_demands_when_the_limit_is_tight() -> None:
    """The weights (demand ** 0.75) favour the small: at 0.8 of the demand nobody has less than 0.45 of his."""
    plant = constant("waterfill", 0.8)
    run(plant, 40)
    served = plant.quota_us / plant.demand  # type: ignore[attr-defined]
    assert served.min() >= 0.45
    for app in range(len(SEEDS)):
        of_one, demand = served[plant.app == app], plant.demand[plant.app == app]  # type: ignore[attr-defined]
        assert of_one[np.argmin(demand)] >= of_one[np.argmax(demand)]


@both
@pytest.mark.parametrize("cores", [0.3, 1.0, 3.0])
def test_a_burst_is_followed_within_ten_periods_and_left_within_two_windows(policy: str, cores: float) -> None:
    """Four containers, three steady; the fourth starts to burn at a tenth of its demand, for 40 periods, then idles."""
    burst = int(cores * PERIOD_US)
    steady = np.array([40_000, 40_000, 40_000])
    limit = np.array([3 * (int(steady.sum()) + burst)])
    plant = CfsPlant(np.zeros(4, np.int32), limit, np.append(steady * 5 // 4, max(burst // 10, 1_000)), policy)
    for _ in range(10):
        reached = plant.step(np.append(steady, burst)).used_us[3]
    assert plant.quota_us[3] >= 0.95 * burst or reached >= 0.95 * burst
    for _ in range(30):
        plant.step(np.append(steady, burst))
    peak = plant.quota_us[3]
    for _ in range(20):
        plant.step(np.append(steady, 0))
    floor = HEADROOM_US if policy == "waterfill" else 20_000  # gamma
    assert plant.quota_us[3] <= max(floor + plant.min_us, peak // 4)


@both
def test_a_burst_after_a_long_rest_is_followed_as_fast(policy: str) -> None:
    """The window is full of rest: escra's mean of throttles starts at a tenth."""
    plant = CfsPlant(np.zeros(2, np.int32), np.array([3 * PERIOD_US]), np.array([50_000, 10_000]), policy)
    for _ in range(40):
        plant.step(np.array([40_000, 0]))
    for _ in range(11):
        sample = plant.step(np.array([40_000, PERIOD_US]))
    assert sample.used_us[1] >= 0.95 * PERIOD_US


def test_waterfill_hands_a_remembered_peak_over() -> None:
    """A idles along at 5 ms with the memory of 2 cores; B needs them, the limit has room for one peak only."""
    plant = CfsPlant(np.zeros(2, np.int32), np.array([280_000]), np.array([250_000, 20_000]), "waterfill")
    for _ in range(20):
        plant.step(np.array([200_000, 10_000]))
    for _ in range(HOLD_PERIODS - 1):
        plant.step(np.array([5_000, 10_000]))
    assert plant.quota_us[0] >= 190_000
    used = [int(plant.step(np.array([5_000, 200_000])).used_us[1]) for _ in range(30)]
    assert used[10] >= 0.5 * 200_000
    assert used[29] >= 0.95 * 200_000


@both
def test_containers_that_report_in_turns_settle_too(policy: str) -> None:
    """Phases differ: a third of the rows has no new sample in a step."""
    plant = constant(policy, 1.15)
    plant.silent = 0.3
    run(plant, 3 * SETTLED)
    assert not run(plant, QUIET).any()


def test_escra_settles_with_any_window() -> None:
    for window in (1, 3, 64):
        plant = constant("escra", 3.0, seeds=[3])
        plant.params = parameters(1, window=window)
        run(plant, 2 * window + SETTLED)
        assert not run(plant, QUIET).any()
