"""Times of a training on one accelerator, by what was measured of other trainings on such devices.

From a run of the same training on another device:

- *device ratio*: the mean over other applications of the ratio of their steps on both devices, each counting once;
- *roofline*, where fewer than two applications ran on both: the ratio of `roofline.step_s`. Another batch, too.

Without any run on an accelerator: the roofline itself, times the median of what other applications took over theirs.
The interval of each law is the error that it has on those applications, each left out and each counting once. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from typing import Final

import numpy as np

from schemas.accelerators import canonical_name
from schemas.jobs import Configuration, JobRecord, JobState, TaskFeatures
from schemas.runs import RunProfile
from services.advisor.core.roofline import precision_of, step_s, steps_of, with_precision
from services.advisor.core.training_range import BEYOND
from services.advisor.core.whole_job_duration import whole_job_duration

LEAST_APPLICATIONS: Final = 2
"""Applications that a device ratio is the mean of; one more, to leave out, are needed for the error of a law."""
RUN_ERROR: Final = 0.1
"""Half width of the logarithm of another run on the same device with the same batch: an assumption."""
APPLICATION: Final = "application"
"""Attribute of a task: variants of one model name the same one, and are left out together."""
DEVICE_RATIO: Final = "by the ratio of these accelerators on other trainings"
ROOFLINE: Final = "by the roofline (arithmetic and memory traffic of a step over the accelerator's peaks)"
OWN_RUN: Final = "by a run of this training on such an accelerator"


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a training on one accelerator."""

    task: TaskFeatures
    where: Configuration
    measured_s: float
    log_error: float = 0.0
    """Standard error of the logarithm of `measured_s`."""

    @property
    def device(self) -> str:
        """The accelerator's canonical name."""
        return canonical_name(self.where.accelerator)


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated logarithm of seconds, or of a ratio, with the half width of its interval and the law's name."""

    log: float
    half_width: float
    law: str


def application_of(task: TaskFeatures) -> str:
    """Return the application of a task; its own name if none is named."""
    return str(task.attributes.get(APPLICATION, task.task))


def is_single(where: Configuration) -> bool:
    """Whether a configuration is one machine with one accelerator: how several scale is not known here."""
    return where.workers == 1 and bool(where.accelerator) and where.accelerators <= 1


def measured_step(record: JobRecord) -> Step | None:
    """Return a record's step; None unless it succeeded on one accelerator with a known number of steps."""
    where = with_precision(record.task, record.configuration)
    steps = steps_of(record.task, where)
    if not (is_single(where) and record.state is JobState.SUCCEEDED and record.duration_s and steps):
        return None
    return Step(record.task, where, record.duration_s / steps)


def profiled_step(task: TaskFeatures, profile: RunProfile | None) -> Step | None:
    """Return the step of a local run on one accelerator; None of any other one, or where its rate is not known."""
    if profile is None or not is_single(profile.configuration):
        return None
    where = with_precision(task, profile.configuration)
    whole, steps = whole_job_duration(task, profile), steps_of(task, where)
    if not (math.isfinite(whole.time_s) and steps):
        return None
    return Step(task, where, whole.time_s / steps, math.sqrt(whole.log_variance))


@dataclass(frozen=True, eq=False)
class AcceleratorTimes:
    """Measured steps on single accelerators, and the laws that they give."""

    steps: tuple[Step, ...] = ()
    level: float = 0.9
    """Of the intervals."""

    @staticmethod
    def of(records: Iterable[JobRecord]) -> AcceleratorTimes:
        """Take the records of single accelerators."""
        return AcceleratorTimes(tuple(one for record in records if (one := measured_step(record)) is not None))

    def without(self, application: str) -> AcceleratorTimes:
        """Return these times less those of one application."""
        return replace(self, steps=tuple(one for one in self.steps if application_of(one.task) != application))

    def runs_of(self, task: TaskFeatures, profile: RunProfile | None) -> list[Step]:
        """Return the steps of a training's own runs on accelerators, recorded and local ones."""
        local = profiled_step(task, profile)
        return [one for one in self.steps if one.task.task == task.task] + ([local] if local is not None else [])

    def job(self, task: TaskFeatures, where: Configuration, runs: Iterable[Step]) -> Estimate | None:
        """Return the logarithm of a whole training's seconds; None where no law reaches it.

        Its own runs come first: the one with the narrowest interval.
        """
        where = with_precision(task, where)
        steps = steps_of(task, where) if is_single(where) else None
        if not steps:
            return None
        found = [one for run in runs if (one := self.from_run(run, task, where)) is not None]
        step = min(found, key=lambda one: one.half_width) if found else self.from_work(task, where)
        return None if step is None else replace(step, log=step.log + math.log(steps))

    def too_short(self, task: TaskFeatures, where: Configuration) -> str:
        """Return why a step's work says nothing of its duration; empty if it is not far below all that was measured.

        A short step waits for the starts of its operators (microseconds each), which no roofline has.
        """
        bound_s, least_s = step_s(task, with_precision(task, where)), self._least_bound_s
        if bound_s is None or least_s is None or bound_s >= least_s / BEYOND:
            return ""
        device = canonical_name(where.accelerator)
        return (
            f"a step has {bound_s * 1e3:.2g} ms of work on one {device}, and the shortest that was measured "
            f"{least_s * 1e3:.2g}: to start its operators takes longer (a larger batch, or one run there)"
        )

    def from_run(self, run: Step, task: TaskFeatures, where: Configuration) -> Estimate | None:
        """Return a step's duration by a run of the same training on an accelerator."""
        moved = run.where.model_copy(update={"accelerator": where.accelerator})
        device = None if precision_of(where) != precision_of(run.where) else self._other_device(run, moved)
        if device is None:  # another precision: all by the roofline
            device, moved = self._roofline_ratio(task, run.where, where), where
        batch = self._other_batch(task, moved, where)
        if device is None or batch is None:
            return None
        level = run.log_error * _NORMAL_QUANTILE
        widths = math.hypot(device.half_width, batch.half_width, level)
        law = batch.law if device.law == OWN_RUN else device.law
        return Estimate(math.log(run.measured_s) + device.log + batch.log, widths, law)

    def from_work(self, task: TaskFeatures, where: Configuration) -> Estimate | None:
        """Return a step's duration by its arithmetic and memory traffic alone."""
        bound_s, efficiency = step_s(task, where), self._efficiency
        if bound_s is None or efficiency is None or self.too_short(task, where):
            return None
        return Estimate(math.log(bound_s) + efficiency.log, efficiency.half_width, ROOFLINE)

    def _other_device(self, run: Step, there: Configuration) -> Estimate | None:
        """Return the logarithm of the ratio of a step on another device to that of a run."""
        if run.device == canonical_name(there.accelerator):
            return Estimate(0.0, RUN_ERROR, OWN_RUN)
        ratio, error = self.device_ratio(run.where, there), self._ratio_error
        return None if ratio is None or error is None else Estimate(ratio, error, DEVICE_RATIO)

    def _other_batch(self, task: TaskFeatures, here: Configuration, there: Configuration) -> Estimate | None:
        if here.batch_size == there.batch_size:
            return Estimate(0.0, 0.0, OWN_RUN)
        before, after, error = step_s(task, here), step_s(task, there), self._doubling_error
        if before is None or after is None or error is None or self.too_short(task, there):
            return None
        doublings = abs(math.log2(there.batch_size / here.batch_size))
        return Estimate(math.log(after / before), error * doublings, ROOFLINE)

    def _roofline_ratio(self, task: TaskFeatures, here: Configuration, there: Configuration) -> Estimate | None:
        before, after, error = step_s(task, here), step_s(task, there), self._roofline_error
        if before is None or after is None or error is None or self.too_short(task, there):
            return None
        return Estimate(math.log(after / before), error, ROOFLINE)

    def device_ratio(self, here: Configuration, there: Configuration) -> float | None:
        """Return the logarithm of a step's time on another device over that here; None: too few applications."""
        names = canonical_name(here.accelerator), canonical_name(there.accelerator)
        found = self._ratios.get((*names, precision_of(there)), {})
        return float(np.mean(list(found.values()))) if len(found) >= LEAST_APPLICATIONS else None

    # -- what the measurements say ------------------------------------------------------------------------------

    def pairs(self) -> Iterator[tuple[Step, Step]]:
        """Yield all ordered pairs of one step, with its batch and precision, on two devices."""
        same: defaultdict[tuple[str, int, str], dict[str, Step]] = defaultdict(dict)
        for one in self.steps:
            same[one.task.task, one.where.batch_size, precision_of(one.where)][one.device] = one
        for by_device in same.values():
            yield from permutations(by_device.values(), 2)

    @cached_property
    def _least_bound_s(self) -> float | None:
        """Of the measured steps."""
        return min((bound_s for one in self.steps if (bound_s := step_s(one.task, one.where))), default=None)

    @cached_property
    def _ratios(self) -> Mapping[tuple[str, str, str], Mapping[str, float]]:
        """Mean logarithms of the ratio of steps, by both devices and precision, by application."""
        found: defaultdict[tuple[str, str, str], defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for here, there in self.pairs():
            ratio = math.log(there.measured_s / here.measured_s)
            found[here.device, there.device, precision_of(here.where)][application_of(here.task)].append(ratio)
        return {key: {name: float(np.mean(each)) for name, each in by.items()} for key, by in found.items()}

    @cached_property
    def _ratio_error(self) -> float | None:
        errors: list[tuple[str, float]] = []
        for here, there in self.pairs():
            name = application_of(here.task)
            by = self._ratios[here.device, there.device, precision_of(here.where)]
            others = [value for other, value in by.items() if other != name]
            if len(others) >= LEAST_APPLICATIONS:
                errors.append((name, math.log(there.measured_s / here.measured_s) - float(np.mean(others))))
        return self._half_width(errors)

    @cached_property
    def _roofline_error(self) -> float | None:
        errors = []
        for here, there in self.pairs():
            before, after = step_s(here.task, here.where), step_s(there.task, there.where)
            if before and after:
                errors.append(
                    (application_of(here.task), math.log(there.measured_s / here.measured_s * before / after))
                )
        return self._half_width(errors)

    @cached_property
    def _doubling_error(self) -> float | None:
        """Half width of the roofline's ratio between two batches on one device, for each factor of two."""
        same: defaultdict[tuple[str, str, str], list[Step]] = defaultdict(list)
        for one in self.steps:
            same[one.task.task, precision_of(one.where), one.device].append(one)
        errors = []
        for here, there in (pair for each in same.values() for pair in permutations(each, 2)):
            before, after = step_s(here.task, here.where), step_s(there.task, there.where)
            doublings = math.log2(there.where.batch_size / here.where.batch_size) if before else 0.0
            if before and after and doublings:
                error = math.log(there.measured_s / here.measured_s * before / after)
                errors.append((application_of(here.task), error / doublings))
        return self._half_width(errors)

    @cached_property
    def _efficiency(self) -> Estimate | None:
        """The median logarithm of measured steps over their rooflines; its error with each application left out."""
        over: defaultdict[str, list[float]] = defaultdict(list)
        for one in self.steps:
            if bound_s := step_s(one.task, one.where):
                over[application_of(one.task)].append(math.log(one.measured_s / bound_s))
        if len(over) <= LEAST_APPLICATIONS:
            return None
        medians = {name: float(np.median(each)) for name, each in over.items()}
        errors = [
            (name, one - float(np.median([value for other, value in medians.items() if other != name])))
            for name, each in over.items()
            for one in each
        ]
        half_width = self._half_width(errors)
        assert half_width is not None
        return Estimate(float(np.median(list(medians.values()))), half_width, ROOFLINE)

    def _half_width(self, errors: Sequence[tuple[str, float]]) -> float | None:
        """Return the quantile of absolute errors, by application; None of too few applications."""
        names = [name for name, _ in errors]
        if len(set(names)) <= LEAST_APPLICATIONS:
            return None
        counts = {name: names.count(name) for name in set(names)}
        sizes, weights = [abs(error) for _, error in errors], [1.0 / counts[name] for name in names]
        return float(np.quantile(sizes, self.level, weights=weights, method="inverted_cdf"))


_NORMAL_QUANTILE: Final = 1.645
"""Standard deviations on either side of a central interval of 0.9."""
