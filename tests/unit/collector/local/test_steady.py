"""A cut run whose first steps are slow, or whose steps are longer than a sampling interval, tells the whole's time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.jobs import Configuration, TaskFeatures
from schemas.runs import SERIES, RunEnd, RunProfile, WorkerSeries
from services.collector.profiler.progress.reader import ProgressReader
from services.collector.profiler.rate import rate_of, whole_run_of
from services.collector.profiler.steady import completions, warm_up
from services.collector.profiler.throughput import ring_bytes_per_step

PARAMETERS = 100_000
WORKERS = 3
INTERVAL_S = 0.1
STARTUP_S = 0.5
STEPS = 100
"""Of the whole training."""


def cut_run(ends_s: np.ndarray, until_s: float, epochs: int = 1) -> RunProfile:
    """A run of which each step's bytes are sent in the interval in which it ends, stopped at `until_s`."""
    samples = int(until_s / INTERVAL_S + 1e-9)
    steps, _ = np.histogram(ends_s, bins=np.arange(samples + 1) * INTERVAL_S)
    sent = (steps * ring_bytes_per_step(PARAMETERS, WORKERS) / INTERVAL_S).astype("<f8")
    columns = {kind: np.ones(samples).tobytes() for kind in SERIES} | {"network_out_bytes_per_s": sent.tobytes()}
    task = TaskFeatures(task="t", parameter_count=PARAMETERS, samples_per_epoch=STEPS * 32 * WORKERS, epochs=epochs)
    return RunProfile(
        run="r",
        task=task,
        configuration=Configuration(instance_type="local", workers=WORKERS, batch_size=32),
        duration_s=until_s,
        interval_s=INTERVAL_S,
        end=RunEnd.TIMED_OUT,
        workers=tuple(WorkerSeries(worker=f"w{at}", **columns) for at in range(WORKERS)),
    )


def training(step_s: float, slow: int, factor: float) -> np.ndarray:
    """When each of the training's steps ends; the first ones are slower."""
    took_s = np.full(STEPS, step_s)
    took_s[:slow] *= factor
    return STARTUP_S + np.cumsum(took_s)


@pytest.mark.parametrize("seen", [9, 12, 16, 24])
@pytest.mark.parametrize("phase", [0.05, 0.35, 0.65, 0.95])
def test_where_within_a_step_a_run_is_cut_changes_little(seen: int, phase: float) -> None:
    """Steps of 0.37 s, sampled ten times a second, the first four three times as slow."""
    ends_s = training(0.37, slow=4, factor=3.0)
    cut = cut_run(ends_s, until_s=float(ends_s[seen - 1] + phase * 0.37))
    rate = rate_of(cut)
    found = whole_run_of(cut, rate)
    assert rate is not None
    assert found is not None
    assert found.duration_s == pytest.approx(ends_s[-1], rel=0.08)
    assert rate.relative_error < 0.1


def test_slow_first_epochs_do_not_count_as_the_rate() -> None:
    """20 of 200 epochs are seen: five of 10 s, caches being filled, then one a second."""
    took_s = np.ones(200)
    took_s[:5] = 10.0
    ends_s = np.cumsum(took_s)
    reader = ProgressReader(0.1)
    for number, end_s in enumerate(ends_s[:20], 1):
        reader.take(f"epoch {number}/200", float(end_s))
    cut = cut_run(np.zeros(0), until_s=float(ends_s[19]), epochs=200)
    rate = rate_of(cut, reader.pace())
    found = whole_run_of(cut, rate)
    assert found is not None
    assert found.duration_s == pytest.approx(ends_s[-1], rel=0.02)


def test_a_pause_that_comes_again_stays_in_the_rate() -> None:
    """Each tenth step is followed by an evaluation: that is no warm-up, and the median would not see it."""
    took_s = np.full(STEPS, 0.4)
    took_s[9::10] = 2.0
    ends_s = STARTUP_S + np.cumsum(took_s)
    cut = cut_run(ends_s, until_s=float(ends_s[59]) + 0.1)
    found = whole_run_of(cut, rate_of(cut))
    assert found is not None
    assert found.duration_s == pytest.approx(ends_s[-1], rel=0.06)


@pytest.mark.parametrize(
    ("durations", "left_out"),
    [
        ([], 0),
        ([9.0, 1.0, 1.0], 0),
        ([1.0] * 8, 0),
        ([9.0, 1.0, 1.0, 1.0, 1.0, 1.0], 1),
        ([9.0] * 3 + [1.0] * 5, 3),
        ([1.0] * 3 + [9.0] * 5, 0),  # a fast beginning is none
        ([9.0] * 6 + [1.0] * 2, 0),  # two of eight are no steady state
    ],
)
def test_what_is_warm_up(durations: list[float], left_out: int) -> None:
    assert warm_up(np.array(durations)) == left_out


@given(st.lists(st.floats(1e-3, 1e3), max_size=60), st.floats(1e-3, 1e3))
def test_warm_up_is_at_most_half_whatever_the_unit(durations: list[float], unit: float) -> None:
    values = np.array(durations)
    assert 0 <= warm_up(values) <= len(values) // 2
    if len(values):
        kept = values[warm_up(values) :]
        assert kept.var() / len(kept) <= values.var() / len(values) + 1e-9 * float(values @ values)
    assert warm_up(np.full(len(values), unit)) == 0


@given(st.lists(st.floats(0.0, 3_000.0), min_size=1, max_size=200), st.floats(0.01, 5.0))
def test_completions_grow_and_are_of_whole_steps(steps: list[float], interval_s: float) -> None:
    values = np.array(steps)
    ends_s, group = completions(values, interval_s)
    assert len(ends_s) <= 1_000
    assert len(ends_s) == int(values.sum() * (1 + 1e-9)) // group
    assert bool((np.diff(ends_s) >= 0).all())
    if len(ends_s):
        assert ends_s[0] >= 0
        assert ends_s[-1] <= len(values) * interval_s * (1 + 1e-9)
