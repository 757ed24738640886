"""How many workers an elastic training should have, from what its steps took with as many as it had. Pure.

A step's computing is divided among its workers; what else it takes (collectives) is taken to stay. A number of workers
that has been measured counts as measured: one that was tried and was not worth it is left, and not tried again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Final

LEAST_STEPS: Final = 10
"""With the present workers and batch, before anything is decided."""
FIRST_STEPS: Final = 3
"""Of a generation, which do not count."""
NEWEST_STEPS: Final = 100
"""That count, of each number of workers and samples."""
_S_PER_HOUR: Final = 3_600


class Policy(StrEnum):
    """What decides."""

    THROUGHPUT_PER_DOLLAR = "throughput-per-dollar"
    """The most workers whose samples per dollar are not below a share of the best."""
    DEADLINE = "deadline"
    """The fewest workers that are done in time."""
    BUDGET = "budget"
    """The most workers whose cost stays within the budget."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What the user wants."""

    policy: Policy
    least: int
    most: int
    usd_per_hour: float = 0.0
    """Of one worker; without a price, samples per dollar compare as samples per worker."""
    least_efficiency: float = 0.8
    """Of `THROUGHPUT_PER_DOLLAR`: share of the best."""
    deadline_s: float = 0.0
    """Of `DEADLINE`: since the start."""
    budget_usd: float = 0.0
    """Of `BUDGET`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over the steps with so many workers and samples."""

    workers: int
    batch: int
    step_us: float
    compute_us: float
    """Of one worker."""
    steps: int


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a training."""

    workers: int
    batch: int
    left: tuple[tuple[int, int], ...]
    """Samples of a step, and how many steps of so many are left, in their order."""
    spent_usd: float
    measured: tuple[Measured, ...]
    """At most one of each number of workers and samples."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The value that decided, and what it was compared with."""

    measured: float
    threshold: float
    unit: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Join:
    """Start workers until there are so many."""

    workers: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Leave:
    """Let workers go until there are so many."""

    workers: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Stay:
    """Change nothing."""

    reason: Reason


Decision = Join | Leave | Stay


def decide(goal: Goal, state: State, now_s: float) -> Decision:
    """What to do now.

    Args:
        goal: the user's.
        state: of the training.
        now_s: since its start.
    """
    if outside := _into_bounds(goal, state.workers):
        return outside
    known = next((one for one in state.measured if (one.workers, one.batch) == (state.workers, state.batch)), None)
    steps = 0 if known is None else known.steps
    if steps < LEAST_STEPS:
        return Stay(Reason(steps, LEAST_STEPS, "steps", f"{steps} of {LEAST_STEPS} steps are measured"))
    wanted, reason = _POLICIES[goal.policy](goal, state, now_s)
    # What is not measured is predicted from what is: no further than twice as many workers at once.
    wanted = min(wanted, 2 * state.workers)
    if wanted > state.workers:
        return Join(wanted, reason)
    return Leave(wanted, reason) if wanted < state.workers else Stay(reason)


def predicted_step_us(measured: Sequence[Measured], workers: int, batch: int) -> float:
    """As measured with so many workers and samples; else from the nearest number of workers, with this batch first."""
    nearest = min(measured, key=lambda one: (one.batch != batch, abs(one.workers - workers), one.workers))
    if (nearest.workers, nearest.batch) == (workers, batch):
        return nearest.step_us
    share = batch * nearest.workers / (workers * nearest.batch)
    return nearest.compute_us * share + max(nearest.step_us - nearest.compute_us, 0.0)


def _into_bounds(goal: Goal, workers: int) -> Decision | None:
    if workers < goal.least:
        text = f"{workers} workers are fewer than {goal.least}"
        return Join(goal.least, Reason(workers, goal.least, "workers", text))
    if workers > goal.most:
        return Leave(goal.most, Reason(workers, goal.most, "workers", f"{workers} workers are more than {goal.most}"))
    return None


def _left_s(state: State, workers: int) -> float:
    return sum(steps * predicted_step_us(state.measured, workers, batch) for batch, steps in state.left) / 1e6


def _by_efficiency(goal: Goal, state: State, _now_s: float) -> tuple[int, Reason]:
    unit = "samples/$" if goal.usd_per_hour else "samples/worker-second"
    usd_per_s = (goal.usd_per_hour / _S_PER_HOUR) or 1.0

    def worth(workers: int) -> float:
        return 1e6 * state.batch / (predicted_step_us(state.measured, workers, state.batch) * workers * usd_per_s)

    counts = range(goal.least, goal.most + 1)
    threshold = goal.least_efficiency * max(map(worth, counts))
    wanted = max(count for count in counts if worth(count) >= threshold)
    text = f"{wanted} workers give {worth(wanted):.4g} {unit}, of at least {threshold:.4g}"
    if wanted < goal.most:
        text += f"; {wanted + 1} would give {worth(wanted + 1):.4g}"
    return wanted, Reason(worth(wanted), threshold, unit, text)


def _by_deadline(goal: Goal, state: State, now_s: float) -> tuple[int, Reason]:
    counts = range(goal.least, goal.most + 1)
    wanted = next((count for count in counts if now_s + _left_s(state, count) <= goal.deadline_s), goal.most)
    end_s = now_s + _left_s(state, wanted)
    text = f"with {wanted} workers it is done after {end_s:.4g} s, of {goal.deadline_s:.4g} s until the deadline"
    return wanted, Reason(end_s, goal.deadline_s, "s", text)


def _by_budget(goal: Goal, state: State, _now_s: float) -> tuple[int, Reason]:
    def cost(workers: int) -> float:
        return state.spent_usd + _left_s(state, workers) * workers * goal.usd_per_hour / _S_PER_HOUR

    counts = range(goal.most, goal.least - 1, -1)
    wanted = next((count for count in counts if cost(count) <= goal.budget_usd), goal.least)
    text = f"with {wanted} workers it costs {cost(wanted):.4g} USD in all, of {goal.budget_usd:.4g}"
    return wanted, Reason(cost(wanted), goal.budget_usd, "USD", text)


_POLICIES: Final = {
    Policy.THROUGHPUT_PER_DOLLAR: _by_efficiency,
    Policy.DEADLINE: _by_deadline,
    Policy.BUDGET: _by_budget,
}


@dataclass(slots=True)
class StepMeasurements:
    """Collects what steps take, by number of workers and samples. Rank 0 stands for all: workers are alike."""

    _rows: dict[tuple[int, int], deque[tuple[float, float]]] = field(default_factory=dict)
    _left_out: int = 0

    def begin(self) -> None:
        """A new generation: its first steps load code and connect, and do not count."""
        self._left_out = FIRST_STEPS

    def take(self, workers: int, batch: int, step_us: float, compute_us: float) -> None:
        """A step of rank 0."""
        if self._left_out:
            self._left_out -= 1
            return
        self._rows.setdefault((workers, batch), deque(maxlen=NEWEST_STEPS)).append((step_us, compute_us))

    @property
    def measured(self) -> tuple[Measured, ...]:
        """Medians of the newest steps."""
        return tuple(
            Measured(
                *key, median(step_us for step_us, _ in rows), median(compute_us for _, compute_us in rows), len(rows)
            )
            for key, rows in self._rows.items()
        )
