"""A command's own words about its progress, and the rate, the whole run and the sentence that they make."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.jobs import Configuration, TaskFeatures
from schemas.runs import SERIES, RunEnd, RunProfile, WorkerSeries
from services.collector.profiler.progress.fit import UNSEEN, Pace
from services.collector.profiler.progress.reader import ProgressReader
from services.collector.profiler.progress.text import lines_of
from services.collector.profiler.rate import Unit, rate_of, rate_sentence, whole_run_of, with_estimates
from services.collector.profiler.recording import OutputFile
from services.collector.profiler.throughput import Method


def pace(lines: list[tuple[float, str]], resolution_s: float = 1.0) -> Pace | None:
    reader = ProgressReader(resolution_s)
    for elapsed_s, line in lines:
        reader.take(line, elapsed_s)
    return reader.pace()


def found(lines: list[tuple[float, str]]) -> Pace:
    told = pace(lines)
    assert told is not None
    return told


def profile(seconds: int = 60, workers: int = 1, end: RunEnd = RunEnd.TIMED_OUT, **task: object) -> RunProfile:
    columns = {name: np.ones(seconds).tobytes() for name in SERIES}
    return RunProfile(
        run="my-run",
        task=TaskFeatures.model_validate({"task": "train"} | task),
        configuration=Configuration(instance_type="local", workers=workers),
        duration_s=float(seconds),
        end=end,
        workers=tuple(WorkerSeries(worker=f"w{at}", **columns) for at in range(workers)),
    )


EPOCH_LINES = [
    "epoch {0}: accuracy 0.912 in 0.32 s",  # docs/examples/train.py
    "Epoch {0}/50, loss 0.31",
    "Epoch [{0}/50] lr 0.1",
    "INFO epoch={0} step=400 loss=0.2",
    "{{'loss': 0.31, 'learning_rate': 5e-05, 'epoch': {0}.0}}",
    '{{"epoch": {0}, "val_loss": 0.2}}',
    "Epochs:  10%|█         | {0}/50 [00:12<01:48, 1.2s/it]",
]


@pytest.mark.parametrize("line", EPOCH_LINES)
def test_epochs_as_people_write_them(line: str) -> None:
    """One every 4 s, the first after 10 s of start-up."""
    told = found([(10.0 + 4.0 * number, line.format(number)) for number in range(1, 12)])
    assert told.epochs
    assert told.per_s == pytest.approx(0.25)
    assert told.total == (50 if "50" in line else 0)


def test_steps_within_epochs_are_parts_of_them() -> None:
    """Two epochs of 500 steps each, a step every 0.2 s: an epoch takes 100 s, and less than one is enough to see it."""
    lines = [(10.0 + step / 5.0, f"epoch 1/2 step {step}/500 loss 0.3") for step in range(50, 251, 50)]
    told = found(lines)
    assert (told.epochs, told.total) == (True, 2)
    # an epoch may have a validation that was not seen yet
    assert told.per_s == pytest.approx(0.01 / UNSEEN)
    assert abs(told.per_s / 0.01 - 1.0) < 1.96 * told.relative_error


def test_bars_that_begin_anew_are_epochs() -> None:
    lines = [
        (epoch * 20.0 + step / 10.0, f" {step // 2}%|██   | {step}/200 [00:10<00:10, 10.0it/s]")
        for epoch in range(3)
        for step in range(20, 201, 20)
    ]
    told = found(lines)
    assert told.epochs
    # 200 steps in 20 s
    assert told.per_s == pytest.approx(0.05, rel=0.1)


def test_steps_alone_are_steps() -> None:
    told = found([(float(at), f"step {30 * at}: loss 0.3") for at in range(1, 20)])
    assert (told.epochs, told.total) == (False, 0)
    assert told.per_s == pytest.approx(30.0)


@pytest.mark.parametrize(
    "lines",
    [
        ["loss 0.3", "loss 0.2"],
        ["epochs: 50", "batch size 32", "num_epochs=50"],  # settings, not progress
        ["epoch 1", "epoch 2"],  # two marks are no rate
        ["epoch 1", "epoch 2", "epoch 3", "epoch 1", "epoch 2"],  # folds of a cross-validation
    ],
)
def test_words_that_are_no_progress(lines: list[str]) -> None:
    assert pace([(float(at), line) for at, line in enumerate(lines)]) is None


@given(
    epoch_s=st.floats(0.05, 30.0),
    startup_s=st.floats(0.0, 60.0),
    seed=st.integers(0, 99),
    noise=st.floats(0.0, 0.2),
)
def test_the_whole_run_is_found_within_its_error(epoch_s: float, startup_s: float, seed: int, noise: float) -> None:
    """Of a run that is cut after forty epochs, sampled each second: four standard errors hold the rate."""
    steps = np.random.default_rng(seed).normal(1.0, noise, 40).clip(0.2)
    ends = startup_s + epoch_s * np.cumsum(steps)
    told = pace([(float(np.ceil(end)), f"epoch {at + 1}") for at, end in enumerate(ends)])
    if told is None:  # all within two seconds
        assert epoch_s * steps.sum() < 5.0
        return
    assert abs(told.per_s * epoch_s * steps.mean() - 1.0) < 4 * told.relative_error + 0.15


def test_train_py_as_the_readme_runs_it_gives_its_rate_without_features() -> None:
    """1,000 epochs of 0.32 s after 9 s of imports; nobody told how many there are."""
    told = found([(float(np.ceil(9.0 + 0.32 * at)), f"epoch {at}: accuracy 0.9 in 0.32 s") for at in range(1, 150)])
    cut = profile()
    rate = rate_of(cut, told)
    assert rate is not None
    assert (rate.unit, rate.method) == (Unit.EPOCH, Method.OUTPUT)
    assert rate.per_s == pytest.approx(1 / 0.32, rel=0.03)
    assert whole_run_of(cut, rate) is None
    assert "of how many epochs is not known: give --epochs" in rate_sentence(cut, rate)
    named = profile(epochs=1000)
    whole = whole_run_of(named, rate)
    assert whole is not None
    assert whole.duration_s == pytest.approx(329.0, rel=0.03)
    attributes = with_estimates(named, told).configuration.attributes
    assert attributes["epoch_s"] == pytest.approx(0.32, rel=0.03)
    assert attributes["whole_run_s"] == pytest.approx(whole.duration_s)


def test_what_the_command_tells_of_its_epochs_is_the_tasks() -> None:
    told = found([(10.0 + 4.0 * number, f"Epoch {number}/50") for number in range(1, 12)])
    assert with_estimates(profile(), told).task.epochs == 50
    assert with_estimates(profile(epochs=7), told).task.epochs == 7
    # it ended after eleven, without output of more
    ended = found([(10.0 + 4.0 * number, f"epoch {number}") for number in range(1, 12)])
    assert with_estimates(profile(end=RunEnd.FINISHED), ended).task.epochs == 11


def test_without_any_rate_it_says_what_would_tell() -> None:
    said = rate_sentence(profile(), None)
    assert "no rate of training was found" in said
    assert "--features features.json" in said
    assert "epoch 3/50" in said


def test_a_repetition_in_the_series_is_a_hint_and_no_rate() -> None:
    """A single worker whose processor rests every fifth second; said with how plain it is."""
    busy = np.tile([1.0, 1.0, 1.0, 1.0, 0.0], 20)
    alone = profile(100)
    worker = alone.workers[0].model_copy(update={"cpu_cores": busy.tobytes()})
    alone = alone.model_copy(update={"workers": (worker,)})
    said = rate_sentence(alone, rate_of(alone))
    assert "processor's use repeats every 5 s, autocorrelation 0.9" in said
    assert "which of them is unknown" in said


def test_lines_come_as_they_are_written() -> None:
    assert lines_of(b"a\rb\r\nc") == (["a", "b"], b"c")
    assert lines_of(b"") == ([], b"")


def test_a_file_that_grows(tmp_path) -> None:
    file = OutputFile(tmp_path / "master.out")
    assert list(file.new_lines()) == []
    file.path.write_text("epoch 1\nepo")
    assert list(file.new_lines()) == ["epoch 1"]
    with file.path.open("a") as more:
        more.write("ch 2\n")
    assert list(file.new_lines()) == ["epoch 2"]
    assert list(file.new_lines()) == []
