"""Searches Autopilot's weights for its benefit: ``python -m tests.bench.escra.peers.tune_autopilot PROFILE...``.

Give it the profiles of the tuning applications, (a) and (c). The first half of each profile is what Autopilot starts
from, the second half is replayed: work that does not fit under a limit waits, and the recommender sees what was served
and whether the container was throttled, as in a run. Which weights are best is decided as the thesis did, by
performance (2.6.1): of those with at most the slack of static 1.5x over all profiles the ones with the least delay
(mean of log(1 + delay), so that one profile that goes wrong for all does not decide), of these the ones with the least
slack. Delay: what waits at the end of a period, in periods of its container's limit, summed over
the containers of an application (a request visits many); its 99.9th percentile. For memory a delay is a kill: the
share of periods in which usage is above the limit.

Prints the tables for `autopilot`. Seeded; nothing is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from services.allocator.arrays.array_types import Floats
from tests.bench.escra.peers.autopilot import (
    CENSORED,
    CPU_GRID_US,
    MARGINS,
    MEMORY_GRID_BYTES,
    Autopilot,
    RecommenderState,
    Weights,
    observe,
    start_cpu,
    start_memory,
)
from tests.bench.escra.profile import ContainerProfile, Profile, read

WINDOWS: Final = (10, 60)
"""Periods, of `autopilot-1s` and of `autopilot-60s` with its minute compressed."""
SEED: Final = 20261121
DRAWS: Final = 300
STATIC_FACTOR: Final = 1.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """How weights do with one profile."""

    delay: float
    """CPU: periods, 99.9th percentile; memory: share of periods above the limit."""
    slack: float
    """Mean, per used unit."""
    static_slack: float
    """The same with static 1.5x."""


def merit(outcomes: Sequence[Outcome]) -> tuple[bool, float, float]:
    """What is compared, the least is the best: whether there is too much slack, delay, slack."""
    slack, static_slack = (
        float(np.mean([getattr(one, name) for one in outcomes])) for name in ("slack", "static_slack")
    )
    return slack > static_slack, float(np.mean([np.log1p(one.delay) for one in outcomes])), slack


@dataclass(frozen=True, slots=True)
class Trial:
    """One application's containers, equally long: what is learnt from and what is replayed; shape (periods, N)."""

    learnt: tuple[ContainerProfile, ...]
    replayed: Floats
    static: Floats
    """Static 1.5x, shape (N,)."""


def trial_of(profile: Profile, *, memory: bool) -> Trial:
    """Halve a profile. Containers that did not live through all of it are left out."""
    periods = max(len(one.used_us) for one in profile.containers.values())
    whole = [one for one in profile.containers.values() if len(one.used_us) == periods]
    half = periods // 2
    learnt = tuple(ContainerProfile(one.used_us[:half], one.memory_bytes[:half]) for one in whole)
    series = [(one.memory_bytes if memory else one.used_us)[half:] for one in whole]
    static = [one.max_memory_bytes if memory else one.max_second_used_us for one in learnt]
    replayed = np.array(series, dtype=np.float64).T
    return Trial(learnt, replayed, STATIC_FACTOR * np.array(static, dtype=np.float64))


def replay_cpu(trial: Trial, setting: Autopilot) -> Outcome:
    """Delay and slack with these weights."""
    count = trial.replayed.shape[1]
    slots, state, waiting = np.arange(count), RecommenderState(count), np.zeros(count)
    start_cpu(state, slots, trial.learnt, setting)
    delays, slack = [], 0.0
    for demand_us in trial.replayed:
        limit_us = np.maximum(state.limit, 1_000)
        asked = waiting + demand_us
        served = np.minimum(asked, limit_us)
        waiting = asked - served
        delays.append(float((waiting / limit_us).sum()))
        slack += float((limit_us - served).sum())
        observe(state, slots, served * np.where(waiting > 0, CENSORED, 1.0), CPU_GRID_US, setting)
    return _outcome(trial, float(np.quantile(delays, 0.999)), slack)


def replay_memory(trial: Trial, setting: Autopilot) -> Outcome:
    """Kills and slack with these weights. A container that was killed begins with what it used."""
    count = trial.replayed.shape[1]
    slots, state = np.arange(count), RecommenderState(count)
    start_memory(state, slots, trial.learnt, setting)
    kills, slack = 0, 0.0
    for usage_bytes in trial.replayed:
        kills += int((usage_bytes > state.limit).sum())
        slack += float(np.maximum(state.limit - usage_bytes, 0).sum())
        observe(state, slots, usage_bytes, MEMORY_GRID_BYTES, setting)
    return _outcome(trial, kills / trial.replayed.size, slack)


def _outcome(trial: Trial, delay: float, slack: float) -> Outcome:
    used = max(float(trial.replayed.sum()), 1.0)
    static_slack = float(np.maximum(trial.static - trial.replayed, 0).sum())
    return Outcome(delay, slack / used, static_slack / used)


Replay = Callable[[Trial, Autopilot], Outcome]


def draws(count: int, seed: int) -> list[Weights]:
    """Random weights over the ranges of the simulation's search (measured/policy.md), and below in w_u."""
    random = np.random.default_rng(seed)

    def log_uniform(low: float, high: float) -> float:
        return float(np.exp(random.uniform(np.log(low), np.log(high))))

    return [
        Weights(
            underrun=log_uniform(0.0005, 0.5),
            limit_change=log_uniform(1e-5, 0.01),
            model_change=log_uniform(1e-5, 0.01),
            cost_decay=float(random.uniform(0.05, 0.5)),
            least_margin=float(random.choice(MARGINS)),
        )
        for _ in range(count)
    ]


def search(trials: Sequence[Trial], replay: Replay, window_periods: int, candidates: Sequence[Weights]) -> Weights:
    """The best candidate over all trials, by `merit`."""

    def judged(weights: Weights) -> tuple[bool, float, float]:
        return merit([replay(trial, Autopilot(weights, window_periods)) for trial in trials])

    return min(candidates, key=judged)


def main() -> None:
    """Search and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("profiles", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    profiles = [read(path) for path in given.profiles]
    candidates = draws(given.draws, given.seed)
    for title, replay, memory in (("CPU", replay_cpu, False), ("MEMORY", replay_memory, True)):
        trials = [trial_of(profile, memory=memory) for profile in profiles]
        for window_periods in WINDOWS:
            best = search(trials, replay, window_periods, candidates)
            print(f"{title}_WEIGHTS[{window_periods}] = {best}")
            for path, trial in zip(given.profiles, trials, strict=True):
                print(f"    {path.name}: {replay(trial, Autopilot(best, window_periods))}")


if __name__ == "__main__":
    main()
