"""The Vertical Pod Autoscaler's recommender and updater, acting in place, its time compressed.

CPU: means of one second go into a histogram whose weights halve every half-life; each sample weighs what the container
was given (its request), at least 0.1 core. Target: 90th percentile x 1.15; bounds that must be left before it acts on a
young container: 50th and 95th percentile x 1.15, wider where little has been seen (by days of data):
lower x (1 + 0.001 / days) ** -2, upper x (1 + 1 / days). Older than half a day it acts on changes of more than 10 %.
Memory: one peak per day of usage; target 90th percentile of the peaks x 1.15; after a kill usage x 1.2 or + 100 MB,
whichever is more, counts as a peak. At least 25 mCPU and 250 MB, which a pod's containers share: all containers of the
application are taken for one pod, which is kind to it.

Compressed time: it acts every 6 s instead of every minute. A day is DAY_PERIODS (one minute), the half-lives and the
peaks' windows with it: a run of some ten seconds would show nothing of 24 h. CPU samples are means of 1 s, where a
metrics server's are of 15 s to 1 minute: kind to it, too. Starts from the profile as if it had watched it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from services.allocator.arrays.array_types import AppIndex, Floats, Ints
from services.allocator.arrays.grouping import per_app
from services.allocator.arrays.slot_arrays import SlotArrays
from services.allocator.cpu.policy_interface import CpuTargets, CpuView
from services.allocator.memory.policy import MemoryTargets
from tests.bench.escra.peers.fitting import MemorySample, fit_cpu, fit_memory
from tests.bench.escra.peers.histogram import Buckets
from tests.bench.escra.profile import PERIODS_PER_S, ContainerProfile

DAY_PERIODS: Final = 60 * PERIODS_PER_S
"""What stands for 24 h."""
MARGIN: Final = 1.15
TARGET, LOWER, UPPER = 0.9, 0.5, 0.95
"""Percentiles."""
WORTH_IT: Final = 0.10
"""Relative change on which it acts once a container is OLD_DAYS old."""
OLD_DAYS: Final = 0.5
LEAST_WEIGHT_US: Final = 10_000
"""0.1 core: a sample weighs at least so much."""
POD_MIN_US: Final = 2_500
POD_MIN_BYTES: Final = 250_000_000
OOM_FACTOR: Final = 1.2
OOM_BYTES: Final = 100_000_000
CPU_BUCKETS: Final = Buckets(first=1_000, growth=1.05, count=128)
"""Up to 100 cores in us per period."""
MEMORY_BUCKETS: Final = Buckets(first=1e7, growth=1.05, count=160)
"""Up to 0.5 TB."""


@dataclass(frozen=True, slots=True)
class Vpa:
    """Constants."""

    act_periods: int
    """Periods between two actions."""


class CpuState(SlotArrays):
    """Per slot: the histogram, the second that is being added up, and what was decided."""

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]] = {
        "weights": (np.float64, CPU_BUCKETS.count),
        "sum_us": (np.float64, 0),
        "summed": (np.int64, 0),
        "seconds": (np.int64, 0),
        "periods": (np.int64, 0),
        "wish_us": (np.float64, 0),
    }
    weights: Floats
    sum_us: Floats
    summed: NDArray[np.int64]
    seconds: NDArray[np.int64]
    """Samples so far."""
    periods: NDArray[np.int64]
    """Since it last could act."""
    wish_us: Floats
    """0: none yet."""


class MemoryState(SlotArrays):
    """Per slot: the peaks' histogram, the peak of the present day, kills seen, and what was decided."""

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]] = {
        "weights": (np.float64, MEMORY_BUCKETS.count),
        "peak_bytes": (np.float64, 0),
        "day_periods": (np.int64, 0),
        "kills": (np.int64, 0),
        "periods": (np.int64, 0),
        "wish_bytes": (np.float64, 0),
    }
    weights: Floats
    peak_bytes: Floats
    day_periods: NDArray[np.int64]
    kills: NDArray[np.int64]
    periods: NDArray[np.int64]
    wish_bytes: Floats


def start_cpu(state: CpuState, slots: Ints, profiles: Sequence[ContainerProfile], setting: Vpa) -> None:
    """Watch the profiles, second by second, with equal weights, then recommend; one profile for each slot."""
    seconds = [_means(one.used_us, PERIODS_PER_S) for one in profiles]
    for number in range(max(map(len, seconds), default=0)):
        there = [position for position, means in enumerate(seconds) if number < len(means)]
        means_us = np.array([seconds[position][number] for position in there])
        _add_second(state, slots[there], means_us, np.full(len(there), LEAST_WEIGHT_US))
    state.wish_us[slots] = MARGIN * CPU_BUCKETS.percentile(state.weights[slots], TARGET)
    state.periods[slots] = setting.act_periods  # the application's share of the minimum is known at the first step


def decide(state: CpuState, view: CpuView, rows: Ints, setting: Vpa) -> CpuTargets:
    """Decide one step.

    Args:
        state: updated in place, for the fresh rows only.
        view: the step's observations, shape N.
        rows: slot of every row in `state`, shape N, distinct.
        setting: how often it acts.
    """
    fresh = np.flatnonzero(view.fresh)
    slots = rows[fresh]
    state.sum_us[slots] += view.used_us[fresh]
    state.summed[slots] += 1
    state.periods[slots] += 1
    whole = state.summed[slots] >= PERIODS_PER_S
    done = slots[whole]
    _add_second(state, done, state.sum_us[done] / PERIODS_PER_S, view.ordered_us[fresh[whole]])
    state.sum_us[done] = state.summed[done] = 0
    due = state.periods[slots] >= setting.act_periods
    _act(state, slots[due], _share_of_pod(view.app, POD_MIN_US, len(view.limit_us))[fresh[due]])
    return fit_cpu(view, state.wish_us[rows])[0]


def _add_second(state: CpuState, slots: Ints, mean_us: Floats, request_us: Ints) -> None:
    state.weights[slots] *= 0.5 ** (PERIODS_PER_S / DAY_PERIODS)
    state.weights[slots, CPU_BUCKETS.index(mean_us)] += np.maximum(request_us, LEAST_WEIGHT_US)
    state.seconds[slots] += 1


def _act(state: CpuState, slots: Ints, least_us: Floats) -> None:
    state.periods[slots] = 0
    known = state.seconds[slots] > 0
    slots, least_us = slots[known], least_us[known]
    weights, days = state.weights[slots], state.seconds[slots] * PERIODS_PER_S / DAY_PERIODS
    target = np.maximum(MARGIN * CPU_BUCKETS.percentile(weights, TARGET), least_us)
    lower = np.maximum(MARGIN * CPU_BUCKETS.percentile(weights, LOWER) * (1 + 0.001 / days) ** -2, least_us)
    upper = np.maximum(MARGIN * CPU_BUCKETS.percentile(weights, UPPER) * (1 + 1 / days), least_us)
    now = state.wish_us[slots]
    outside = (now < lower) | (now > upper)
    worth = (days >= OLD_DAYS) & (np.abs(target - now) > WORTH_IT * now)
    state.wish_us[slots] = np.where(outside | worth, target, now)


def start_memory(state: MemoryState, slots: Ints, profiles: Sequence[ContainerProfile], setting: Vpa) -> None:
    """Watch the profiles, day by day, then recommend."""
    for slot, profile in zip(slots[:, None], profiles, strict=True):
        for begin in range(0, len(profile.memory_bytes), DAY_PERIODS):
            day = profile.memory_bytes[begin : begin + DAY_PERIODS]
            _see_peak(state, slot, np.array([max(day)], dtype=np.float64))
            state.day_periods[slot] = len(day)
            _turn_days(state, slot)
    state.periods[slots] = setting.act_periods


def decide_memory(state: MemoryState, sample: MemorySample, rows: Ints, setting: Vpa) -> MemoryTargets:
    """As `decide`, for memory. A kill is acted upon at once: the container starts again with the new limit."""
    view = sample.view
    fresh = np.flatnonzero(view.fresh)
    slots = rows[fresh]
    state.day_periods[slots] += 1
    _turn_days(state, slots)
    killed = sample.oom_kills[fresh] > state.kills[slots]
    state.kills[slots] = sample.oom_kills[fresh]
    usage = view.usage_bytes[fresh].astype(np.float64)
    after_kill = np.maximum(OOM_FACTOR * view.ordered_bytes[fresh], view.ordered_bytes[fresh] + OOM_BYTES)
    _see_peak(state, slots, np.where(killed, np.maximum(usage, after_kill), usage))
    state.periods[slots] += 1
    due = killed | (state.periods[slots] >= setting.act_periods)
    acting = slots[due]
    state.periods[acting] = 0
    least = _share_of_pod(view.app, POD_MIN_BYTES, len(view.limit_bytes))[fresh[due]]
    target = np.maximum(MARGIN * MEMORY_BUCKETS.percentile(state.weights[acting], TARGET), least)
    now = state.wish_bytes[acting]
    state.wish_bytes[acting] = np.where(np.abs(target - now) > WORTH_IT * now, target, now)
    return fit_memory(sample, state.wish_bytes[rows])


def _see_peak(state: MemoryState, slots: Ints, usage: Floats) -> None:
    """A new peak takes the place of the day's former one."""
    higher = usage > state.peak_bytes[slots]
    slots, usage = slots[higher], usage[higher]
    former = state.peak_bytes[slots]
    state.weights[slots, MEMORY_BUCKETS.index(former)] -= former > 0
    state.weights[slots, MEMORY_BUCKETS.index(usage)] += 1
    state.peak_bytes[slots] = usage


def _turn_days(state: MemoryState, slots: Ints) -> None:
    turned = slots[state.day_periods[slots] >= DAY_PERIODS]
    state.weights[turned] *= 0.5
    state.peak_bytes[turned] = state.day_periods[turned] = 0


def _means(values: tuple[int, ...], width: int) -> Floats:
    """Of so many neighbours each; what is left over at the end is left out."""
    whole = len(values) // width * width
    means: Floats = np.array(values[:whole], dtype=np.float64).reshape(-1, width).mean(axis=1)
    return means


def _share_of_pod(app: AppIndex, least: int, apps: int) -> Floats:
    """Of a pod's minimum, per row."""
    containers = per_app(app, np.ones(len(app), dtype=np.int64), apps)
    share: Floats = least / np.maximum(containers, 1)[app]
    return share
