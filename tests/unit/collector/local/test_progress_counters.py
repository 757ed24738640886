"""Which counter of a log counts the training: the reports of wrong rates, and any nested log."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.collector.profiler.progress.choice import Choice, Known
from services.collector.profiler.progress.counters import MAX_COUNTERS, MAX_MARKS, MAX_RUNS
from services.collector.profiler.progress.fit import Pace
from services.collector.profiler.progress.reader import ProgressReader
from services.collector.profiler.progress.text import Unit, Use, clean, declared, readings
from tests.unit.collector.local.progress_formats import bar

Log = list[tuple[float, str]]


def choice(lines: Log, known: Known | None = None, resolution_s: float = 1.0) -> Choice:
    reader = ProgressReader(resolution_s, known or Known())
    for at_s, line in lines:
        reader.take(line, at_s)
    return reader.choice()


def found(lines: Log, known: Known | None = None) -> Pace:
    pace = choice(lines, known).pace
    assert pace is not None
    return pace


def two_bars(epochs: int) -> Log:
    """A training bar of 10 s and a validation bar of 2 s per epoch, without a word of epochs."""
    lines: Log = []
    for epoch in range(epochs):
        start_s = 10.0 + 12.0 * epoch
        lines += [(start_s + step / 50.0, bar(step, 500)) for step in range(0, 501, 25)]
        lines += [(start_s + 10.0 + step / 50.0, bar(step, 100)) for step in range(0, 101, 10)]
    return lines


def test_a_validation_bar_is_no_epoch() -> None:
    """Was 2 times off, with an error of 0 %."""
    assert found(two_bars(20)).per_s == pytest.approx(1 / 12, rel=0.01)


def test_bars_before_the_training_are_no_epochs() -> None:
    prefix = [(1.0 + at / 10, bar(at, 100, "Map")) for at in range(0, 101, 10)]
    prefix += [(13.0 + at / 10, bar(at, 100, "Map")) for at in range(0, 101, 10)]
    assert choice(prefix).pace is None
    training = [(30.0 + step / 10, bar(step, 1000, "Epoch 1/3")) for step in range(0, 301, 10)]
    pace = found(prefix + training)
    assert (pace.epochs, pace.total) == (True, 3)
    assert pace.first_s == 30.0


def test_zero_based_epochs_have_an_interval_for_both_numbers() -> None:
    lines = [
        (10.0 + 20.0 * epoch + step / 5, f"Epoch {epoch}/4 ━━━━ {step}/100 0:00:01 • 0:00:10 5.0it/s")
        for epoch in range(3)
        for step in range(0, 101, 5)
    ]
    pace = found(lines)
    whole_s = pace.last_s + (pace.total - pace.seen) / pace.per_s
    low_s, high_s = (whole_s * (1.0 + sign * 1.96 * pace.relative_error) for sign in (-1.0, 1.0))
    assert low_s < 90.0
    assert high_s > 110.0
    assert found(lines, Known(epochs=5)).total == 5
    assert found([*lines, (90.0, "Epoch 4/4 ━━━━ 0/100 0:00:00 • -:--:-- 0.0it/s")]).total == 5


@pytest.mark.parametrize("number", ["{:,}", "{:_}", "{:d}"])
def test_thousands_are_read(number: str) -> None:
    """Was 1,000 times off."""
    lines = [(at / 2, f"Step {number.format(1000 * at)}/{number.format(60_000)} loss 0.3") for at in range(1, 20)]
    assert found(lines).per_s == pytest.approx(2_000, rel=0.1)
    assert found(lines).total == 60_000


def test_a_scaled_bar_is_read() -> None:
    lines = [(float(at), f"steps: 10%|█  | {1.5 * at:.1f}k/60.0k [00:02<00:18, 1.5kit/s]") for at in range(1, 20)]
    assert found(lines).per_s == pytest.approx(1_500, rel=0.1)


def test_a_percentage_is_no_epoch() -> None:
    """Was 20 times off."""
    lines = [(20.0 * done, bar(done, 5, "Training epoch")) for done in range(4)]
    assert found(lines).per_s == pytest.approx(0.05)
    assert found(lines).total == 5


def test_an_evaluation_in_the_trainers_bar_adds_no_epoch() -> None:
    """Transformers: 'epoch': 1.0 and then the evaluation's 40/40."""
    lines: Log = []
    now_s = 5.0
    for epoch in range(3):
        for step in range(1, 101):
            now_s += 0.2
            lines.append((now_s, bar(epoch * 100 + step, 500)))
            if step % 25 == 0:
                lines.append((now_s, f"{{'loss': '0.3', 'epoch': '{epoch + step / 100:g}'}}"))
        for step in range(1, 41):
            now_s += 0.1
            lines.append((now_s, bar(step, 40)))
        lines.append((now_s, f"{{'eval_loss': '0.3', 'epoch': '{epoch + 1}'}}"))
    pace = found(lines)
    whole_s = pace.last_s + (pace.total - pace.seen) / pace.per_s
    assert whole_s == pytest.approx(5.0 + 5 * 24.0, rel=0.03)


def test_the_first_validation_is_no_warm_up() -> None:
    """A validation of 20 s after each 80 s, of which one was seen: was 20 % off, with an error of 2 %."""
    lines = [(10.0 + done + 20.0 * ((done + 20) // 80), f"iter {done}/4000 loss 0.3") for done in range(0, 140, 4)]
    pace = found(lines)
    assert abs(pace.per_s / 0.8 - 1.0) < 1.96 * pace.relative_error


def test_other_numbers_of_epochs_are_not_followed() -> None:
    lines: Log = []
    for epoch in range(1, 9):
        lines += [
            (20.0 * epoch, f"Epoch {epoch}/40 loss 0.3"),
            (20.0 * epoch, "Time per epoch: 20.03s"),
            (20.0 * epoch, f"Best val loss so far at epoch {max(1, 9 - epoch)}"),
        ]
    assert found(lines).per_s == pytest.approx(0.05)


def test_a_single_bar_without_a_name_is_not_known() -> None:
    lines = [(float(at), bar(at, 500)) for at in range(100)]
    known = choice(lines)
    assert known.pace is None
    assert "may be of the whole training or of the first epoch" in known.why
    assert [(one.name, one.value) for one in known.candidates] == [("#/500", 99.0)]
    assert known.candidates[0].per_s == pytest.approx(1.0)
    assert found(lines, Known(steps=500)).total == 500
    assert found(lines, Known(epochs=1)).total == 500
    assert found(lines, Known(label="#/500")).total == 500
    of_ten = found(lines, Known(steps=5_000))
    assert (of_ten.epochs, of_ten.total) == (True, 10.0)


def test_a_named_counter_is_the_trainings() -> None:
    lines = [(float(at), f"phase [{at}/300] and 3/{at + 7} besides") for at in range(60)]
    assert choice(lines).pace is None
    pace = found(lines, Known(label="phase [ #/300"))
    assert (pace.per_s, pace.total) == (pytest.approx(1.0, rel=0.1), 300)
    assert "none of its output is the counter 'nothing #'" in choice(lines, Known(label="nothing #")).why


def test_a_pattern_finds_a_counter_of_any_kind() -> None:
    reader = ProgressReader(1.0, Known(label="x"), re.compile(r"seen (\S+) out of all (\S+)"))
    for at in range(1, 40):
        reader.take(f"\x1b[32mseen\x1b[0m {1000 * at:,} out of all 90,000", float(at))
        reader.take("seen nothing out of all the rest", float(at))
    pace = reader.pace()
    assert pace is not None
    assert (pace.per_s, pace.total) == (pytest.approx(1_000, rel=0.1), 90_000)


def test_steps_without_a_total_have_the_command_lines() -> None:
    lines = [(5.0 + at, f"iter {100 * at}: loss 3.2, time 200.1ms, mfu 1.2%") for at in range(30)]
    assert found(lines).total == 0
    pace = found(lines, Known(steps=6_000))
    assert pace.total == 6_000
    assert pace.per_s == pytest.approx(100, rel=0.15)


def test_folds_are_not_known() -> None:
    lines = [(float(5 * fold + epoch), f"Epoch {epoch}/5 loss 0.1") for fold in range(3) for epoch in range(1, 6)]
    assert choice(lines).pace is None
    assert "begin anew" in choice(lines).why


def test_a_checkpoint_that_was_continued_is_not_the_rate() -> None:
    lines = [(10.0 + at, f"step {4000 + 10 * at}/10000 loss 0.3") for at in range(60)]
    pace = found(lines)
    assert pace.per_s == pytest.approx(10, rel=0.1)
    assert pace.seen == pytest.approx(600, abs=20)


def test_lost_lines_are_no_epochs() -> None:
    """Where output was skipped a bar may have begun anew without notice."""
    reader = ProgressReader(1.0, Known(epochs=30))
    for at_s, line in two_bars(6):
        reader.take(line, at_s)
    assert reader.pace() is not None
    reader.skip()
    assert reader.pace() is None


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("Epoch 3/50", [(Unit.EPOCH, 3, 50)]),
        ("Epoch: [0][ 10/5005] Time 0.2", [(Unit.EPOCH, 0, 0), (Unit.UNNAMED, 10, 5005)]),
        ("{'loss': '0.3', 'epoch': '0.25'}", [(Unit.EPOCH, 0.25, 0)]),
        ("\x1b[1m46/90\x1b[0m \x1b[32m━━━━\x1b[0m", [(Unit.UNNAMED, 46, 90)]),
        ("step 1.5k of 60k", [(Unit.STEP, 1500, 60_000)]),
        ("2024-01-02 10:11:12 lr 1e-3", []),
        ("Time per epoch: 20.03s", []),
        ("epoch took 20 s, 5.0 it/s", []),
        ("batch size 32, num_epochs=50", []),
        ("Accuracy: 9800/10000 (98%)", []),
        ("GPU mem 2/16, rank 0/4", []),
        ("12GB/24GB downloaded", []),
    ],
)
def test_numbers_of_a_line(line: str, seen: list[tuple[Unit, float, float]]) -> None:
    assert [(one.unit, one.value, one.total) for one in readings(clean(line))] == seen


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("Evaluating: 10%|█ | 1/10 [00:01<00:09]", Use.VALIDATION),
        ("Epoch(val)  [1][10/20]", Use.VALIDATION),
        ("Loading weights: 10%|█ | 1/10 [00:01<00:09]", Use.PREPARATION),
        ("eval_loss=0.3 Train: 1/10", Use.TRAINING),
    ],
)
def test_what_a_label_is_of(line: str, use: Use) -> None:
    assert readings(clean(line))[-1].use is use


@pytest.mark.parametrize(
    ("line", "total"),
    [
        ("  Total optimization steps = 1,000", 1000),
        ("  Num Epochs = 3", 3),
        ("Overriding: max_iters = 2000", 2000),
        ("Starting training for 100 epochs...", 100),
        ("max_steps = -1", None),
        ("loss 3", None),
    ],
)
def test_settings_that_are_printed(line: str, total: float | None) -> None:
    setting = declared(clean(line))
    assert (None if setting is None else setting.total) == total


def test_much_output_is_bounded() -> None:
    reader = ProgressReader(1.0)
    for at in range(30_000):
        word = "".join(chr(97 + at // 26**k % 26) for k in range(4))
        reader.take(f"{word} step {at} of {at + 5}", at / 100)
        reader.take(f"epoch 1/3 step {at}/100000 " + "x" * 50, at / 100)
        reader.take(f"{at % 2}/2", at / 100)
    counters = list(reader.counters)
    assert len(counters) <= 2 * MAX_COUNTERS
    assert max(len(run.marks) for one in counters for run in one.runs) <= MAX_MARKS + 1
    assert max(len(one.runs) for one in counters) <= MAX_RUNS + 1
    assert reader.counters.dropped > 0
    pace = reader.pace()
    assert pace is not None
    assert abs(pace.per_s / (100 / 100_000) - 1.0) < 1.96 * pace.relative_error + 0.05


@given(st.lists(st.text(max_size=200) | st.binary(max_size=80).map(lambda raw: raw.decode("latin-1")), max_size=30))
def test_any_text_is_read(lines: list[str]) -> None:
    reader = ProgressReader(1.0)
    for at, line in enumerate(lines):
        reader.take(line, float(at))
        reader.take_record(line, float(at))
    reader.choice()


WORDS = st.sampled_from(
    ["epoch", "step", "/", "of", "[", "]", "12", "0", "3/4", "%", ":", " ", "1,000", "k", "\x1b[1m", "|"]
)


@given(st.lists(st.lists(WORDS, max_size=12).map("".join), max_size=40), st.integers(0, 3), st.integers(0, 40))
def test_any_line_of_counters_is_read(lines: list[str], epochs: int, steps: int) -> None:
    known = choice([(float(at // 2), line) for at, line in enumerate(lines)], Known(epochs, steps))
    if known.pace is not None:
        assert math.isfinite(known.pace.per_s)
        assert known.pace.per_s > 0
        assert known.pace.relative_error > 0


@dataclass(frozen=True, slots=True)
class Shape:
    """A nested log: epochs of steps and a validation, and how they are printed."""

    epochs: int
    steps: int
    step_s: float
    share: float
    """Validation steps over training steps."""
    style: str
    """``word``, ``line`` before each epoch, at its ``end``, ``nested`` bars, or ``bare`` bars."""
    named: bool
    """Whether the validation's bar has a name."""
    prefix: bool
    seed: int

    def lines(self) -> Iterator[tuple[float, str]]:
        """Every line, with its time."""
        random = np.random.default_rng(self.seed)
        now_s = float(random.uniform(1.0, 40.0))
        for done in range(0, 51, 5) if self.prefix else ():
            now_s += 0.5
            yield now_s, bar(done, 50, "Map")
        for epoch in range(self.epochs):
            yield (
                now_s,
                {
                    "nested": bar(epoch, self.epochs, "Epochs"),
                    "line": f"Epoch {epoch + 1}/{self.epochs}",
                }.get(self.style, ""),
            )
            for end_s, step in self._ends(now_s, self.steps, random):
                now_s = end_s
                word = f"epoch {epoch + 1}/{self.epochs} step {step}/{self.steps} loss {random.random():.3f}"
                yield now_s, word if self.style == "word" else bar(step, self.steps)
                yield now_s, f"lr {random.random():.2e} saved {epoch}.pt at step {step}, 12:30:0{step % 10}"
            for end_s, step in self._ends(now_s, int(self.share * self.steps), random):
                now_s = end_s
                yield now_s, bar(step, int(self.share * self.steps), "Validation" if self.named else "")
            yield now_s, f"Epoch {epoch + 1}/{self.epochs}: loss 0.{epoch}" if self.style == "end" else ""

    def _ends(self, now_s: float, steps: int, random: np.random.Generator) -> Iterator[tuple[float, int]]:
        every = max(1, self.steps // 20)
        for step in range(1, steps + 1):
            now_s += self.step_s * float(random.uniform(0.8, 1.2))
            if step % every == 0 or step == steps:
                yield now_s, step


SHAPES = st.builds(
    Shape,
    epochs=st.integers(2, 10),
    steps=st.integers(20, 300),
    step_s=st.floats(0.05, 1.0),
    share=st.sampled_from([0.0, 0.1, 0.2, 0.3]),
    style=st.sampled_from(["word", "line", "end", "nested", "bare"]),
    named=st.booleans(),
    prefix=st.booleans(),
    seed=st.integers(0, 1_000),
)


@settings(max_examples=200)
@given(SHAPES, st.floats(0.05, 0.95))
def test_any_nested_log_has_its_whole_duration_in_the_interval_or_is_not_known(shape: Shape, part: float) -> None:
    lines = list(shape.lines())
    true_s = lines[-1][0]
    cut_s = lines[0][0] + part * (true_s - lines[0][0])
    read = [(float(math.ceil(at_s)), line) for at_s, line in lines if math.ceil(at_s) <= cut_s]
    pace = choice(read, Known(epochs=shape.epochs if shape.style == "bare" else 0)).pace
    if pace is None or not pace.total or pace.relative_error > 0.5:
        return
    whole_s = pace.last_s + (pace.total - pace.seen) / pace.per_s
    # Of 95 % intervals some miss by a little: three standard errors, and 5 % for where a line stands in its interval.
    assert abs(whole_s - true_s) <= 3.0 * pace.relative_error * whole_s + 0.05 * true_s + 2.0, (whole_s, true_s, pace)
