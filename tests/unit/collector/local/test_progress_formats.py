"""How tools print their progress: a whole duration is right, has an interval that holds the truth, or is not known."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from schemas.jobs import Configuration, TaskFeatures
from schemas.runs import SERIES, RunEnd, RunProfile, WorkerSeries
from services.collector.profiler.progress.reader import ProgressReader
from services.collector.profiler.rate import rate_of, whole_run_of
from tests.unit.collector.local.progress_formats import FORMATS, Format, Training, at_ticks

SEEDS = (0, 1)
MOST_ERROR = 0.25
LEAST_KNOWN = 35
PARTS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Of a run's duration, at which it is cut."""


@cache
def told(form: Format, part: float, seed: int) -> tuple[float, float] | None:
    """The whole duration over the true one, and its relative standard error; None where it is not known."""
    job = Training(seed=seed, validation_steps=(20, 0)[seed % 2], epochs=(8, 12)[seed % 2])
    lines = list(at_ticks(form.lines(job)))
    cut_s = max(math.floor(job.now_s * part), 1)
    reader = ProgressReader(1.0, form.given(job))
    for at_s, line in lines:
        if at_s <= cut_s or part == 1.0:
            reader.take(line, at_s)
    known = form.given(job)
    columns = {name: np.ones(cut_s).tobytes() for name in SERIES}
    profile = RunProfile(
        run="r",
        task=TaskFeatures(task="t", epochs=known.epochs, steps=known.steps),
        configuration=Configuration(instance_type="local", workers=1),
        duration_s=float(cut_s),
        end=RunEnd.TIMED_OUT,
        workers=(WorkerSeries(worker="w", **columns),),
    )
    rate = rate_of(profile, reader.pace())
    found = whole_run_of(profile, rate)
    return None if rate is None or found is None else (found.duration_s / job.now_s, rate.relative_error)


def is_right(ratio: float, error: float) -> bool:
    """Whether it is within 25 %, or its 95 % interval holds the truth."""
    return abs(ratio - 1.0) <= MOST_ERROR or abs(1.0 - ratio) <= 1.96 * error * ratio


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rate_is_right_or_not_known(form: Format, part: float, seed: int) -> None:
    found = told(form, part, seed)
    assert found is None or is_right(*found), found


@pytest.mark.parametrize("part", [0.2, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_most_formats_are_known(part: float, seed: int) -> None:
    assert len(FORMATS) >= 45
    known = [form.name for form in FORMATS if told(form, part, seed) is not None]
    assert len(known) >= LEAST_KNOWN, sorted({form.name for form in FORMATS} - set(known))
