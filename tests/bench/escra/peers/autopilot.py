"""Autopilot's machine-learning recommender (EuroSys 2020, section 3.2.3), after measured/peers.md.

Every window of W periods gives a histogram s of the samples of its periods. A family of models m = (decay d, margin M)
follows it; L runs over a grid:

    o(L) = (1 - d) o(L) + d * (mass of s above L)          u(L) likewise with the mass below L
    L'_m = argmin over L of  w_o o(L) + w_u u(L) + w_dL [L != L'_m before],    L_m = L'_m + M
    c_m  = d_c (w_o o(L_m) + w_u u(L_m) + w_dL [L_m changed]) + (1 - d_c) c_m
    L    = L_m of the m with the least  c_m + w_dm [m != m before] + w_dL [L_m != L before]

Two choices are kind to it (measured/policy.md section 1): the mass below L counts by its distance to L, as a share of L
(by count alone, many limits cost the same), and the use of a throttled period counts CENSORED times (a hard limit hides
demand, and it would never grow out of it). Margins are shares of L'; which family of models there is, is as secret as
the weights, so the smallest margin is searched with them: L' holds all that was seen, and by the formulas a margin
above it is never worth its cost, however usage grows.

The weights are its engineers' secret. `tune_autopilot` searches them on profiles of the tuning applications for its
benefit, as the thesis did (2.6.1); what it found stands below. w_o is 1: only ratios matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from services.allocator.arrays.array_types import Floats, Ints
from services.allocator.arrays.slot_arrays import SlotArrays
from services.allocator.cpu.policy_interface import CpuTargets, CpuView
from services.allocator.memory.policy import MemoryTargets
from tests.bench.escra.peers.fitting import MemorySample, fit_cpu, fit_memory
from tests.bench.escra.profile import ContainerProfile

DECAYS: Final = (0.02, 0.1, 0.3, 0.6)
MARGINS: Final = (0.0, 0.1, 0.25, 0.5)
"""Shares of the limit. Decays and margins as in the simulation (measured/policy.md)."""
MODELS: Final = len(DECAYS) * len(MARGINS)
GRID: Final = 128
"""Limits that are tried."""
CPU_GRID_US: Final[Floats] = 1_000 * np.power(1.06, np.arange(GRID, dtype=np.float64))
"""0.01 to 16 cores."""
MEMORY_GRID_BYTES: Final[Floats] = (4 << 20) * np.power(1.07, np.arange(GRID, dtype=np.float64))
"""4 MiB to 22 GiB."""
CENSORED: Final = 1.3


@dataclass(frozen=True, slots=True)
class Weights:
    """What is traded against what; w_o is 1."""

    underrun: float
    """w_u."""
    limit_change: float
    """w_dL."""
    model_change: float
    """w_dm."""
    cost_decay: float
    """d_c."""
    least_margin: float = 0.0
    """Models have at least this margin."""


CPU_WEIGHTS: Final[dict[int, Weights]] = {
    10: Weights(0.027, 0.0029, 0.00005, 0.43),
    60: Weights(0.001, 0.0039, 0.000034, 0.38),
}
"""By the window's periods. Found by `tune_autopilot` (500 draws) on profiles of 24 s of the shop and of the cache under
the loads fixed, exponential, burst and bursty."""
MEMORY_WEIGHTS: Final[dict[int, Weights]] = {
    10: Weights(0.036, 0.0086, 0.00012, 0.44, least_margin=0.25),
    60: Weights(0.37, 0.000089, 0.0079, 0.115, least_margin=0.5),
}


@dataclass(frozen=True, slots=True)
class Autopilot:
    """Constants."""

    weights: Weights
    window_periods: int


class RecommenderState(SlotArrays):
    """Per slot. Matrices over (decay, grid) are flat; models are ordered by decay, then margin."""

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]] = {
        "counts": (np.float64, GRID),
        "samples": (np.int64, 0),
        "over": (np.float64, len(DECAYS) * GRID),
        "under": (np.float64, len(DECAYS) * GRID),
        "best": (np.float64, len(DECAYS)),
        "limits": (np.float64, MODELS),
        "costs": (np.float64, MODELS),
        "model": (np.int64, 0),
        "limit": (np.float64, 0),
    }
    counts: Floats
    """Samples of the present window by the smallest limit of the grid that holds them."""
    samples: NDArray[np.int64]
    over: Floats
    under: Floats
    best: Floats
    """L' per decay; 0: none yet."""
    limits: Floats
    """L_m; 0: none yet."""
    costs: Floats
    model: NDArray[np.int64]
    limit: Floats
    """What is recommended; 0: nothing yet."""


def start_cpu(state: RecommenderState, slots: Ints, profiles: Sequence[ContainerProfile], setting: Autopilot) -> None:
    """Watch the profiles, window by window; one for each slot."""
    _watch(state, slots, [one.used_us for one in profiles], (CPU_GRID_US, setting))


def start_memory(
    state: RecommenderState, slots: Ints, profiles: Sequence[ContainerProfile], setting: Autopilot
) -> None:
    """As `start_cpu`."""
    _watch(state, slots, [one.memory_bytes for one in profiles], (MEMORY_GRID_BYTES, setting))


def decide(state: RecommenderState, view: CpuView, rows: Ints, setting: Autopilot) -> CpuTargets:
    """Decide one step.

    Args:
        state: updated in place, for the fresh rows only.
        view: the step's observations, shape N.
        rows: slot of every row in `state`, shape N, distinct.
        setting: weights and window.
    """
    fresh = np.flatnonzero(view.fresh)
    used: Floats = np.where(view.throttled[fresh], CENSORED, 1.0) * view.used_us[fresh].astype(np.float64)
    observe(state, rows[fresh], used, CPU_GRID_US, setting)
    return fit_cpu(view, state.limit[rows])[0]


def decide_memory(state: RecommenderState, sample: MemorySample, rows: Ints, setting: Autopilot) -> MemoryTargets:
    """As `decide`, for memory."""
    fresh = np.flatnonzero(sample.view.fresh)
    observe(state, rows[fresh], sample.view.usage_bytes[fresh].astype(np.float64), MEMORY_GRID_BYTES, setting)
    return fit_memory(sample, state.limit[rows])


def observe(state: RecommenderState, slots: Ints, values: Floats, grid: Floats, setting: Autopilot) -> None:
    """Take in a sample for each of the slots; recommend anew where a window is full.

    Args:
        state: updated in place.
        slots: shape (K,), distinct.
        values: shape (K,), in the grid's unit.
        grid: limits that are tried, rising, shape (GRID,).
        setting: weights and window.
    """
    state.counts[slots, np.minimum(np.searchsorted(grid, values), GRID - 1)] += 1
    state.samples[slots] += 1
    full = slots[state.samples[slots] >= setting.window_periods]
    if len(full):
        _end_windows(state, full, grid, setting)


def _end_windows(state: RecommenderState, slots: Ints, grid: Floats, setting: Autopilot) -> None:
    _learn(state, slots, grid)
    _recommend(state, slots, grid, setting.weights)
    state.counts[slots] = 0
    state.samples[slots] = 0


def _watch(
    state: RecommenderState, slots: Ints, series: Sequence[tuple[int, ...]], how: tuple[Floats, Autopilot]
) -> None:
    """All windows of all series; of a short life all that there is makes one window."""
    grid, setting = how
    width = setting.window_periods
    places = [np.minimum(np.searchsorted(grid, values), GRID - 1) for values in series]
    windows = [max(len(values) // width, len(values) > 0) for values in series]
    for number in range(max(windows, default=0)):
        there = [position for position, count in enumerate(windows) if number < count]
        for position in there:
            window = places[position][number * width : (number + 1) * width]
            state.counts[slots[position]] = np.bincount(window, minlength=GRID)
            state.samples[slots[position]] = len(window)
        _end_windows(state, slots[there], grid, setting)


def _learn(state: RecommenderState, slots: Ints, grid: Floats) -> None:
    """Fold a window's histogram into o and u. The first begins the averages, whatever the decay."""
    share = state.counts[slots] / state.samples[slots][:, None]
    below = np.cumsum(share, axis=1)
    above = np.maximum(1 - below, 0)
    distance = below - np.cumsum(share * grid, axis=1) / grid  # sum of share * (1 - value / L) over values up to L
    new = state.best[slots, 0] == 0
    for number, decay in enumerate(DECAYS):
        part = slice(number * GRID, (number + 1) * GRID)
        rate = np.where(new, 1.0, decay)[:, None]
        for average, mass in ((state.over, above), (state.under, distance)):
            before = average[slots, part]
            average[slots, part] = before + rate * (mass - before)


def _recommend(state: RecommenderState, slots: Ints, grid: Floats, weights: Weights) -> None:
    """Each model's limit and cost, then the choice among the models."""
    change = weights.limit_change
    costs = np.empty((len(slots), MODELS))
    limits = np.empty((len(slots), MODELS))
    for number in range(len(DECAYS)):
        part = slice(number * GRID, (number + 1) * GRID)
        cost = state.over[slots, part] + weights.underrun * state.under[slots, part]
        before = state.best[slots, number]
        moved = (before[:, None] > 0) & (np.abs(grid - before[:, None]) > 1e-9 * grid)
        best = grid[np.argmin(cost + change * moved, axis=1)]
        state.best[slots, number] = best
        for turn, margin in enumerate(MARGINS):
            model = number * len(MARGINS) + turn
            limits[:, model] = best * (1 + max(margin, weights.least_margin))
            index = np.minimum(np.searchsorted(grid, limits[:, model] * (1 - 1e-9)), GRID - 1)
            costs[:, model] = cost[np.arange(len(slots)), index]
    former = state.limits[slots]
    costs += change * ((former > 0) & ~np.isclose(limits, former, rtol=1e-9))
    first = (state.limit[slots] == 0)[:, None]
    costs = np.where(first, costs, weights.cost_decay * costs + (1 - weights.cost_decay) * state.costs[slots])
    state.costs[slots], state.limits[slots] = costs, limits
    now = state.limit[slots][:, None]
    switched = ~first & (np.arange(MODELS) != state.model[slots][:, None])
    moved = ~first & ~np.isclose(limits, now, rtol=1e-9)
    chosen = np.argmin(costs + weights.model_change * switched + change * moved, axis=1)
    state.model[slots] = chosen
    state.limit[slots] = limits[np.arange(len(slots)), chosen]
