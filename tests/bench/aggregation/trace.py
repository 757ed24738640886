"""Shared aggregation of the jobs of a trace, by simulation: which aggregators the service's packing would hold. Pure.

Jobs are those of the Philly trace 103959 (tests/unit/scheduler/tiresias/SOURCE.txt: msr-fiddle/philly-traces,
CC-BY-4.0, by way of stanford-futuredata/gavel, MIT) with two workers or more: one alone has no gradients to sum. Each
runs from its submission for its duration.

The length of an iteration is Gavel's for ResNet-50 with batches of 64 on that many V100s
(tests/unit/scheduler/gavel/SOURCE.txt, MIT). The trace's other models are not in Gavel: theirs is that of ResNet-50 by
their multiplications per image. Parameters and multiplications: https://pytorch.org/vision/stable/models.html
(BSD-3-Clause), of Inception-v4 https://huggingface.co/timm/inception_v4.tf_in1k (Apache-2.0).

Memory and network of the aggregators' host have no end here, as its cores.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from services.aggregator.core.packing import JobLoad, Packing, end, place, predicted_slowdown, rebalance

MEASURED_AFTER_S: Final = 10
"""From a job's start until the service knows its load."""
REBALANCE_S: Final = 60
"""The default of the service."""
LEAST_WORKERS: Final = 2
REFERENCE: Final = "resnet50"
GAVEL_MODEL: Final = "ResNet-50 (batch size 64)"


class Model(NamedTuple):
    """What a model's gradients and its computation amount to."""

    parameters: int
    multiplications: float
    """1e9 for an image, forward."""


MODELS: Final[dict[str, Model]] = {
    "alexnet": Model(61_100_840, 0.71),
    "inception3": Model(27_161_264, 5.71),
    "inception4": Model(42_700_000, 12.3),
    REFERENCE: Model(25_557_032, 4.09),
    "vgg16": Model(138_357_544, 15.47),
    "vgg19": Model(143_667_240, 19.63),
}


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One replicated job."""

    name: str
    start_s: int
    duration_s: int
    load: JobLoad


@dataclass(frozen=True, slots=True)
class Held:
    """What was held over the whole trace."""

    loss_limit: float
    shared_core_s: float
    dedicated_core_s: float
    busy_s: int
    """In which there is a job at all."""
    slowdown: float
    """Predicted, as a share of an iteration: mean over the jobs' time."""
    moves: int

    @property
    def saving(self) -> float:
        """Share of the dedicated cores' time that is not held."""
        return 1 - self.shared_core_s / self.dedicated_core_s


class _Kind(IntEnum):
    """At the same time in this order."""

    END = 0
    BEGIN = 1
    MEASURED = 2
    REBALANCE = 3


def trace_jobs(
    rows: Sequence[Mapping[str, str]], steps_per_s: Mapping[str, float], ns_per_value: float
) -> list[TraceJob]:
    """Jobs with two workers or more.

    Args:
        rows: of the trace: job_id, num_gpu, submit_time, duration (seconds), model_name.
        steps_per_s: of Gavel's ResNet-50, all workers' together, by number of workers.
        ns_per_value: processor time of an aggregator for each value that each worker pushes.

    Raises:
        KeyError: a model or a number of workers that is not known.
    """
    found = []
    for row in rows:
        workers = int(row["num_gpu"])
        if workers < LEAST_WORKERS:
            continue
        model = MODELS[row["model_name"]]
        reference_us = 1e6 * workers / steps_per_s[str(workers)]
        alone_us = reference_us * model.multiplications / MODELS[REFERENCE].multiplications
        busy_us = model.parameters * workers * ns_per_value / 1e3
        # Where the aggregator takes longer than the computation, it sets the pace: measured is then how long it takes.
        load = JobLoad(row["job_id"], max(1, round(max(alone_us, busy_us))), round(busy_us))
        found.append(TraceJob(row["job_id"], int(row["submit_time"]), int(row["duration"]), load))
    return found


class _Simulation:
    """Events in order of time; between two of them nothing changes."""

    def __init__(self, jobs: Sequence[TraceJob], loss_limit: float) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._loss_limit = loss_limit
        self._events = [(job.start_s, _Kind.BEGIN, job.name) for job in jobs]
        heapq.heapify(self._events)
        self._packing = Packing({})
        self._running: set[str] = set()
        self._rebalance_s = -1
        """When the next one is due, if any."""
        self._moves = 0

    def run(self) -> Held:
        now_s, busy_s, shared, dedicated, lost = 0, 0, 0.0, 0.0, 0.0
        while self._events:
            at_s, kind, name = heapq.heappop(self._events)
            passed_s = at_s - now_s
            shared += passed_s * len(self._packing.jobs)
            dedicated += passed_s * len(self._running)
            busy_s += passed_s if self._running else 0
            lost += passed_s * sum(predicted_slowdown(here) * len(here) for here in self._shared())
            now_s = at_s
            self._carry_out(kind, name, now_s)
        return Held(self._loss_limit, shared, dedicated, busy_s, lost / dedicated, self._moves)

    def _shared(self) -> list[tuple[JobLoad, ...]]:
        return [here for here in self._packing.jobs.values() if len(here) > 1]

    def _carry_out(self, kind: _Kind, name: str, now_s: int) -> None:
        if kind is _Kind.BEGIN:
            self._packing, _ = place(self._packing, JobLoad.unmeasured(name), self._loss_limit)
            self._running.add(name)
            heapq.heappush(self._events, (now_s + self._jobs[name].duration_s, _Kind.END, name))
            heapq.heappush(self._events, (now_s + MEASURED_AFTER_S, _Kind.MEASURED, name))
        elif kind is _Kind.END:
            self._packing, moves = end(self._packing, name, self._loss_limit)
            self._running.remove(name)
            self._moves += len(moves)
            self._expect_rebalance(now_s)
        elif kind is _Kind.MEASURED and name in self._running:
            self._packing = self._packing.measured({name: self._jobs[name].load})
            self._expect_rebalance(now_s)
        elif kind is _Kind.REBALANCE:
            self._packing, moves = rebalance(self._packing, self._loss_limit)
            self._moves += len(moves)
            if moves:
                self._expect_rebalance(now_s)

    def _expect_rebalance(self, now_s: int) -> None:
        """At the next full minute: between two changes all others find nothing to do."""
        next_s = (now_s // REBALANCE_S + 1) * REBALANCE_S
        if next_s != self._rebalance_s:
            self._rebalance_s = next_s
            heapq.heappush(self._events, (next_s, _Kind.REBALANCE, ""))


def simulate(jobs: Sequence[TraceJob], loss_limit: float) -> Held:
    """All jobs, aggregated by the service's packing with this loss limit."""
    return _Simulation(jobs, loss_limit).run()
