"""Autothrottle's Captain (NSDI 2024): a CPU quota per container that keeps its throttle ratio at a target.

After measured/peers.md and the published controller. Every period of 100 ms: is the container throttled, what did it
use. T is the target, r the mean of the throttle flags since the last decision over 10 periods, m the margin.

    rollback   checked every period after a cut: r > 3 T: limit = 2 * before - limit, m += r - T, flags start anew
    decision   every 10 periods: m = max(0, m + r - T), then
               r > 3 T: limit *= 1 + (r - 3 T)
               else candidate = max(use of 50 periods) + m * stdev(use of 50 periods);
                    where candidate <= 0.9 limit: limit = max(0.5 limit, candidate)
               flags start anew; limit >= 0.01 core

Ours: the limit stops at the host's CPUs; where the application's limit left less than the Captain asked for, it goes on
from what it got (its own wish would grow without bound while it is throttled, and all would end with equal shares).
Starts as if it had run on the profile, over and over, for REPLAY_PERIODS: its margin moves by at most T per second
where nothing is throttled, from 3 down to 0 within 150 s for the smallest target, and a run of some seconds would only
show what it starts with. In that replay work that does not fit under the limit waits, and the container is throttled.
The upper level, which picks T, is not there: the targets are policies of their own, the best of which counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from services.allocator.arrays.array_types import Bools, Floats, Ints
from services.allocator.arrays.slot_arrays import SlotArrays
from services.allocator.cpu.policy_interface import CpuTargets, CpuView
from tests.bench.escra.peers.fitting import fit_cpu
from tests.bench.escra.profile import ContainerProfile

DECISION_PERIODS: Final = 10
HISTORY_PERIODS: Final = 50
TOLERANCE: Final = 3
"""Times T: above it is too much."""
START_MARGIN: Final = 3.0
CUT_SHARE: Final = 0.9
"""A candidate above this share of the limit is not worth a cut."""
LEAST_SHARE: Final = 0.5
"""Of the limit: it is never cut by more."""
MIN_US: Final = 1_000
"""0.01 core."""
REPLAY_PERIODS: Final = 1_500


@dataclass(frozen=True, slots=True)
class Captain:
    """Constants."""

    target: float
    """Throttle ratio T, 0..1."""
    replay_periods: int = REPLAY_PERIODS
    """Before it begins."""


class CaptainState(SlotArrays):
    """Per slot; the newest entry of a history is its last column."""

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]] = {
        "used_us": (np.float64, HISTORY_PERIODS),
        "flags": (np.float64, DECISION_PERIODS),
        "limit_us": (np.float64, 0),
        "before_us": (np.float64, 0),
        "margin": (np.float64, 0),
        "was_cut": (np.bool_, 0),
        "periods": (np.int64, 0),
    }
    used_us: Floats
    flags: Floats
    limit_us: Floats
    """0: not started."""
    before_us: Floats
    """Limit before the last decision."""
    margin: Floats
    was_cut: Bools
    periods: NDArray[np.int64]
    """Since the last decision."""


def start(state: CaptainState, slots: Ints, profiles: Sequence[ContainerProfile], setting: Captain) -> None:
    """Begin with containers; one without a profile begins with what it was ordered, and no history."""
    for slot, profile in zip(slots.tolist(), profiles, strict=True):
        history = profile.used_us[-HISTORY_PERIODS:]
        state.used_us[slot, HISTORY_PERIODS - len(history) :] = history
    known = np.array([len(one.used_us) > 0 for one in profiles], dtype=np.bool_)
    begin_us = np.maximum(_candidate(state.used_us[slots], np.full(len(slots), START_MARGIN)), MIN_US)
    state.limit_us[slots] = state.before_us[slots] = np.where(known, begin_us, 0)
    state.margin[slots] = START_MARGIN
    if known.any() and setting.replay_periods:
        series = [np.resize(one.used_us, setting.replay_periods) for one in profiles if one.used_us]
        _replay(state, slots[known], np.array(series, dtype=np.float64).T, setting.target)


def _replay(state: CaptainState, slots: Ints, demand_us: Floats, target: float) -> None:
    """Run on demands, shape (periods, K)."""
    waiting = np.zeros(len(slots))
    for demand in demand_us:
        asked, limit = waiting + demand, state.limit_us[slots]
        served = np.minimum(asked, limit)
        waiting = asked - served
        _take_period(state, slots, served, waiting > 0, target)
        state.limit_us[slots] = np.maximum(state.limit_us[slots], MIN_US)


def decide(state: CaptainState, view: CpuView, rows: Ints, setting: Captain) -> CpuTargets:
    """Decide one step.

    Args:
        state: updated in place, for the fresh rows only.
        view: the step's observations, shape N.
        rows: slot of every row in `state`, shape N, distinct.
        setting: the target.
    """
    new = state.limit_us[rows] == 0
    state.limit_us[rows[new]] = state.before_us[rows[new]] = view.ordered_us[new]
    fresh = np.flatnonzero(view.fresh)
    slots = rows[fresh]
    _take_period(state, slots, view.used_us[fresh].astype(np.float64), view.throttled[fresh], setting.target)
    cap_us = np.maximum(view.cap_us, MIN_US)
    state.limit_us[rows] = np.clip(state.limit_us[rows], MIN_US, cap_us)
    targets, short = fit_cpu(view, state.limit_us[rows])
    state.limit_us[rows[short]] = targets.target_us[short]
    return targets


def _take_period(state: CaptainState, slots: Ints, used_us: Floats, throttled: Bools, target: float) -> None:
    """A sample of each of the slots, and what it leads to."""
    _observe(state, slots, used_us, throttled)
    _roll_back(state, slots, target)
    state.periods[slots] += 1
    due = slots[state.periods[slots] >= DECISION_PERIODS]
    if len(due):
        _decide(state, due, target)


def _observe(state: CaptainState, slots: Ints, used_us: Floats, throttled: Bools) -> None:
    for history, value in ((state.used_us, used_us), (state.flags, throttled)):
        history[slots, :-1] = history[slots, 1:]
        history[slots, -1] = value


def _roll_back(state: CaptainState, slots: Ints, target: float) -> None:
    rate = state.flags[slots].mean(axis=1)
    back = state.was_cut[slots] & (rate > TOLERANCE * target)
    if not back.any():
        return
    undone = slots[back]
    state.limit_us[undone] = 2 * state.before_us[undone] - state.limit_us[undone]
    state.margin[undone] += rate[back] - target
    state.flags[undone] = 0
    state.was_cut[undone] = False


def _decide(state: CaptainState, slots: Ints, target: float) -> None:
    rate, limit = state.flags[slots].mean(axis=1), state.limit_us[slots]
    margin = np.maximum(state.margin[slots] + rate - target, 0)
    candidate = _candidate(state.used_us[slots], margin)
    up = rate > TOLERANCE * target
    down = ~up & (candidate <= CUT_SHARE * limit)
    raised = limit * (1 + rate - TOLERANCE * target)
    state.before_us[slots] = limit
    state.limit_us[slots] = np.where(up, raised, np.where(down, np.maximum(LEAST_SHARE * limit, candidate), limit))
    state.margin[slots] = margin
    state.was_cut[slots] = down
    state.flags[slots] = 0
    state.periods[slots] = 0


def _candidate(used_us: Floats, margin: Floats) -> Floats:
    """Limit that the use of the history, shape (K, HISTORY_PERIODS), asks for, shape (K,)."""
    wanted: Floats = used_us.max(axis=1) + margin * used_us.std(axis=1, ddof=1)
    return wanted
