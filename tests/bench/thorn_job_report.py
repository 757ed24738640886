"""From the log of a run to figures: where its time went, how accuracy grew, how long iterations took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final

import numpy as np

from tests.bench.figures import Spread
from tests.bench.thorn_job_faults import InjectedFault
from tests.bench.thorn_job_supervisor import JobRun

_PERCENTILES: Final = (50, 90, 95, 99)
_AFTERMATH_S: Final = 2.0
"""How long after a fault its effect is looked for: retransmission timers of TCP included."""
_AVERAGED: Final = 10
"""Thesis figure 3.6 averages each point over ten iterations."""


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """A run's whole time in seconds, by what it was spent on; the parts add up to the total.

    Attributes:
        initialisation: from the first start of the ranks to their first iteration; no restart's fault.
        training: iterations done for the first time, with their evaluations and checkpoints.
        detection: from the last iteration of an attempt until its loss was noticed and its ranks were dead.
        waiting: for the other ranks, in later attempts, and attempts that never came to an iteration: the fault lasts.
        restart: the rest of the time from the start of the ranks to their first iteration, in later attempts.
        recomputation: iterations that a lost attempt had done already.
    """

    initialisation: float = 0.0
    training: float = 0.0
    detection: float = 0.0
    waiting: float = 0.0
    restart: float = 0.0
    recomputation: float = 0.0

    @property
    def lost(self) -> float:
        """Seconds that a run without restarts would not have needed."""
        return self.detection + self.waiting + self.restart + self.recomputation


def time_spent(run: JobRun) -> TimeSpent:
    """Split a run's time. An iteration's time reaches from the end of the one before it to its own end."""
    parts = dict.fromkeys(TimeSpent.__slots__, 0.0)
    most_done = 0
    for number, attempt in enumerate(run.attempts):
        last = number + 1 == len(run.attempts)
        # The time between two attempts, some milliseconds, counts to the first.
        end = attempt.ended if last else run.attempts[number + 1].started
        iterations = [line for line in run.of_kind("iteration") if line["attempt"] == number]
        if not iterations:
            parts["waiting"] += end - attempt.started
            continue
        before = iterations[0]["t"] - iterations[0]["ms"] / 1e3
        waited = _rendezvous_s(run, number) if most_done else 0.0
        parts["waiting"] += waited
        parts["restart" if most_done else "initialisation"] += before - attempt.started - waited
        for line in iterations:
            parts["training" if line["done"] > most_done else "recomputation"] += line["t"] - before
            before, most_done = line["t"], max(most_done, line["done"])
        parts["training" if last and run.finished else "detection"] += end - before
    return TimeSpent(**parts)


def _rendezvous_s(run: JobRun, attempt: int) -> float:
    """How long rank 0 waited for the others."""
    at = {line["event"]: line["t"] for line in run.events if line["attempt"] == attempt}
    return float(at["joined"] - at["imported"])


def noticed_after_s(run: JobRun) -> tuple[float, ...]:
    """For each attempt that lost a peer in mid-run: seconds from the fault to the end of all ranks."""
    running = {line["attempt"] for line in run.of_kind("iteration")}
    found = []
    for number, attempt in enumerate(run.attempts):
        before = [fault.since for fault in run.faults if fault.since < attempt.ended]
        if attempt.lost and number in running and before:
            found.append(attempt.ended - before[-1])
    return tuple(found)


def stalls_ms(run: JobRun) -> tuple[float, ...]:
    """For each fault that the job lived through: by how much it delayed the iterations of the next two seconds.

    That is, their time beyond the mean of iterations that no fault touched.
    """
    iterations = run.of_kind("iteration")
    lost_at = [attempt.ended for attempt in run.attempts if attempt.lost]
    touched = [[line["ms"] for line in iterations if _touches(fault, line)] for fault in run.faults]
    others = [line["ms"] for line in iterations if not any(_touches(fault, line) for fault in run.faults)]
    return tuple(
        sum(times) - fmean(others) * len(times)
        for fault, times in zip(run.faults, touched, strict=True)
        if times and others and not any(fault.since <= at <= (fault.until or at) for at in lost_at)
    )


def _touches(fault: InjectedFault, iteration: dict[str, Any]) -> bool:
    begin = iteration["t"] - iteration["ms"] / 1e3
    return bool(iteration["t"] > fault.since and begin < fault.since + _AFTERMATH_S)


@dataclass(frozen=True, slots=True)
class JobResult:
    """One run as figures: seconds, milliseconds, shares. Curves are pairs of (seconds since the start, value)."""

    name: str
    finished: bool
    total_s: float
    spent: TimeSpent
    noticed_after_s: tuple[float, ...]
    stalls_ms: tuple[float, ...]
    errors: tuple[str, ...]
    restarts: int
    faults: tuple[tuple[str, float, float], ...]
    accuracy: tuple[tuple[float, float], ...]
    iteration_ms: tuple[float, ...]
    evaluation_ms: tuple[float, ...]
    checkpoint_ms: tuple[float, ...]
    final_loss: float
    final_accuracy: float

    @classmethod
    def of(cls, name: str, run: JobRun) -> JobResult:
        """From what was logged."""
        begin, end = run.attempts[0].started, run.attempts[-1].ended
        evaluations = run.of_kind("evaluation")
        return cls(
            name,
            run.finished,
            end - begin,
            time_spent(run),
            noticed_after_s(run),
            stalls_ms(run),
            tuple(attempt.error for attempt in run.attempts if attempt.lost),
            len(run.attempts) - 1,
            tuple((fault.port, fault.since - begin, (fault.until or end) - begin) for fault in run.faults),
            tuple((line["t"] - begin, line["accuracy"]) for line in evaluations),
            tuple(line["ms"] for line in run.of_kind("iteration")),
            tuple(line["ms"] for line in evaluations),
            tuple(line["ms"] for line in run.of_kind("checkpoint")),
            evaluations[-1]["loss"] if evaluations else float("nan"),
            evaluations[-1]["accuracy"] if evaluations else 0.0,
        )

    def seconds_to(self, accuracy: float) -> float | None:
        """When accuracy was first reached, or None."""
        return next((t for t, reached in self.accuracy if reached >= accuracy), None)

    def percentiles_ms(self, *, averaged: bool = False) -> dict[str, float]:
        """p50 to p99 and the longest of iteration times, single or (thesis) averaged over ten."""
        values = averages(self.iteration_ms) if averaged else list(self.iteration_ms)
        if not values:
            return {}
        points = np.percentile(values, _PERCENTILES)
        return {f"p{rank}": float(ms) for rank, ms in zip(_PERCENTILES, points, strict=True)} | {"max": max(values)}

    def as_dict(self) -> dict[str, Any]:
        """For the JSON record: everything, with what follows from it."""
        return asdict(self) | {
            "lost_s": self.spent.lost,
            "iteration_percentiles_ms": self.percentiles_ms(),
            f"iteration_percentiles_of_{_AVERAGED}_ms": self.percentiles_ms(averaged=True),
        }


def averages(values: Sequence[float]) -> list[float]:
    """Means over `_AVERAGED` values each; what is left over at the end is left out."""
    whole = len(values) // _AVERAGED * _AVERAGED
    return [float(mean) for mean in np.reshape(values[:whole], (-1, _AVERAGED)).mean(1)] if whole else []


def target_accuracy(results: Sequence[JobResult]) -> float:
    """What "time to accuracy" means: 95 % of what the run without faults reached in the end."""
    return 0.95 * results[0].final_accuracy


def table(results: Sequence[JobResult]) -> str:
    """For people; the first result is the one that others are compared with."""
    reference, target = results[0], target_accuracy(results)
    heads = f"{'run':<14}{'total s':>9}{'':>9}{f's to {target:.0%}':>10}{'faults':>8}{'restarts':>10}"
    heads += f"{'iteration ms p50 / p90 / p95 / p99 / max':>44}{'loss':>10}{'accuracy':>10}"
    lines = [heads]
    for result in results:
        reached = result.seconds_to(target)
        ratio = "" if result is reference else f"{result.total_s / reference.total_s - 1:+.1%}"
        times = " / ".join(f"{ms:.0f}" for ms in result.percentiles_ms().values())
        lines.append(
            f"{result.name:<14}{result.total_s:>9.1f}{ratio:>9}{'-' if reached is None else f'{reached:.1f}':>10}"
            f"{len(result.faults):>8}{result.restarts:>10}{times:>44}{result.final_loss:>10.4f}"
            f"{result.final_accuracy:>10.1%}{'' if result.finished else '  given up'}"
        )
    stalled = [
        f"{result.name}: a fault delays the job by {Spread.of(result.stalls_ms).text(0)} ms ({len(result.stalls_ms)})"
        for result in results
        if result.stalls_ms
    ]
    return "\n".join([*lines, "", *stalled, *_losses(results)])


def _losses(results: Sequence[JobResult]) -> list[str]:
    restarted = [result for result in results if result.restarts]
    if not restarted:
        return []
    names = [name for name in TimeSpent.__slots__ if name not in ("initialisation", "training")]
    lines = [
        "time lost, s per restart" + "".join(f"{name:>15}" for name in names) + f"{'sum':>10}{'noticed after':>18}"
    ]
    for result in restarted:
        cells = "".join(f"{getattr(result.spent, name) / result.restarts:>15.1f}" for name in names)
        noticed = Spread.of(result.noticed_after_s).text()
        lines.append(f"{result.name:<24}{cells}{result.spent.lost / result.restarts:>10.1f}{noticed:>18}")
    return lines
