"""Steps per second out of bytes, and the whole run's duration out of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.jobs import Configuration, TaskFeatures
from schemas.runs import SERIES, RunEnd, RunProfile, WorkerSeries
from services.collector.profiler.rate import rate_of, whole_run_of, with_estimates
from services.collector.profiler.throughput import (
    Method,
    ring_bytes_per_step,
    steps_of,
    throughput,
    training_starts,
)

PARAMETERS = 1_000_000


def worker(name: str, out: np.ndarray) -> WorkerSeries:
    columns = {kind: np.ones(len(out)).tobytes() for kind in SERIES}
    return WorkerSeries(worker=name, **(columns | {"network_out_bytes_per_s": np.asarray(out, "<f8").tobytes()}))


def profile(*out: np.ndarray, end: RunEnd = RunEnd.TIMED_OUT, interval_s: float = 1.0, **task: float) -> RunProfile:
    fields = {"task": "t", "parameter_count": PARAMETERS} | task
    return RunProfile(
        run="r",
        task=TaskFeatures(**fields),
        configuration=Configuration(instance_type="local", workers=len(out), batch_size=32),
        duration_s=len(out[0]) * interval_s,
        interval_s=interval_s,
        end=end,
        workers=tuple(worker(f"w{position}", series) for position, series in enumerate(out)),
    )


def test_a_ring_moves_the_gradients_almost_twice() -> None:
    # 2 * 2/3 * 4 bytes * 3 parameters; one worker has nobody to send to
    assert ring_bytes_per_step(3, 3) == pytest.approx(16.0)
    assert ring_bytes_per_step(3, 1) == 0


def test_steps_per_second_from_bytes() -> None:
    """Ten silent seconds of imports, then 12.5 steps/s."""
    per_step = 2 * 2 / 3 * 4 * PARAMETERS
    out = np.concatenate([np.zeros(10), np.full(50, 12.5 * per_step)])
    found = throughput(profile(out, out, out))
    assert found is not None
    assert found.steps_per_s == pytest.approx(12.5)
    assert (found.method, found.startup_s, found.training_s) == (Method.NETWORK, 10.0, 50.0)
    assert found.period_s is None


def test_what_only_the_master_sends_is_left_out() -> None:
    out = np.full(60, 8e6)
    found = throughput(profile(out * 10, out, out))
    assert found is not None
    # 8e6 bytes/s by 2 * 2/3 * 4 * 1e6
    assert found.steps_per_s == pytest.approx(1.5)


def test_small_talk_of_the_rendezvous_is_no_training() -> None:
    out = np.concatenate([np.full(20, 500.0), np.full(40, 8e6)])
    assert training_starts(out) == 20


def test_slow_steps_show_as_a_period() -> None:
    """One step in 5 s, whose bytes fall into one interval: both ways of counting agree."""
    per_step = 2 * 1 / 2 * 4 * PARAMETERS
    out = np.concatenate([np.zeros(7), np.tile([per_step, 0, 0, 0, 0], 20)])
    found = throughput(profile(out, out))
    assert found is not None
    assert found.period_s == pytest.approx(5.0, abs=0.1)
    assert found.steps_per_s == pytest.approx(0.2)
    assert found.steps_per_period == pytest.approx(1.0, abs=0.05)


def test_without_parameters_the_period_has_to_do() -> None:
    out = np.tile([5e6, 0, 0, 0], 20)
    found = throughput(profile(out, out, parameter_count=0, interval_s=0.5))
    assert found is not None
    # four intervals of half a second
    assert found.method is Method.PERIOD
    assert found.steps_per_s == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(
    "out",
    [
        (np.full(60, 8e6),),  # one worker has no network to speak of
        (np.zeros(60), np.zeros(60)),
        (np.concatenate([np.zeros(57), np.full(3, 8e6)]),) * 2,  # the training had just begun
    ],
)
def test_series_that_do_not_tell(out: tuple[np.ndarray, ...]) -> None:
    assert throughput(profile(*out)) is None


def test_neither_parameters_nor_a_period() -> None:
    out = np.full(60, 8e6)
    assert throughput(profile(out, out, parameter_count=0)) is None


def test_steps_of_a_whole_training() -> None:
    # 1,000 samples on 3 workers: 334 each (DistributedSampler pads), 11 batches of 32, 5 epochs
    assert steps_of(1000, 5, 32, 3) == 55
    assert steps_of(0, 5, 32, 3) is None


def test_the_whole_runs_duration_is_estimated_when_time_was_up() -> None:
    per_step = 2 * 2 / 3 * 4 * PARAMETERS
    out = np.concatenate([np.zeros(10), np.full(50, 10 * per_step)])
    cut = profile(out, out, out, samples_per_epoch=96_000, epochs=3)
    found = whole_run_of(cut, rate_of(cut))
    assert found is not None
    # 3 epochs of 1,000 steps at 10 a second, after 10 s
    assert (found.steps, found.measured) == (3000, False)
    assert found.duration_s == pytest.approx(310.0)


def test_a_run_that_got_to_its_end_is_measured() -> None:
    out = np.zeros(60)
    found = whole_run_of(profile(out, end=RunEnd.FINISHED), None)
    assert found is not None
    assert (found.duration_s, found.measured) == (60.0, True)


def test_an_estimate_is_never_less_than_what_was_seen() -> None:
    out = np.full(60, 8e6)
    cut = profile(out, out, samples_per_epoch=64, epochs=1)
    found = whole_run_of(cut, rate_of(cut))
    assert found is not None
    assert found.duration_s == 60.0


@pytest.mark.parametrize("end", [RunEnd.TIMED_OUT, RunEnd.INTERRUPTED])
def test_without_the_numbers_there_is_no_estimate(end: RunEnd) -> None:
    out = np.full(60, 8e6)
    cut = profile(out, out, end=end)
    assert whole_run_of(cut, rate_of(cut)) is None


def test_estimates_stand_in_the_local_configuration() -> None:
    out = np.full(60, 8e6)
    told = with_estimates(profile(out, out, samples_per_epoch=64_000, epochs=2))
    # one step is 4e6 bytes: 2 a second; 2,000 steps of 32 x 2 samples
    assert told.configuration.attributes["steps_per_s"] == pytest.approx(2.0)
    assert told.configuration.attributes["whole_run_s"] == pytest.approx(1000.0)
    silent = profile(np.zeros(60), np.zeros(60))
    assert with_estimates(silent) == silent


@given(st.floats(0.1, 50), st.integers(2, 8), st.integers(0, 30))
def test_the_rate_is_found_again(rate: float, workers: int, silence: int) -> None:
    out = np.concatenate([np.zeros(silence), np.full(40, rate * ring_bytes_per_step(PARAMETERS, workers))])
    found = throughput(profile(*[out] * workers))
    assert found is not None
    assert found.steps_per_s == pytest.approx(rate)
    assert found.startup_s == silence
