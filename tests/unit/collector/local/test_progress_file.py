"""The file that a training may write for the profiler, and the lines of docs/advisor.md that write it."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.collector.profiler.progress.choice import Known
from services.collector.profiler.progress.file import VARIABLE
from services.collector.profiler.progress.fit import Pace
from services.collector.profiler.progress.reader import ProgressReader
from services.collector.profiler.recording import MOST_BYTES, OutputFile
from services.collector.profiler.workers import progress_file

PAGE = Path(__file__).parents[4] / "docs" / "advisor.md"


def reader(lines: list[str], known: Known | None = None) -> ProgressReader:
    """One line a second, from the fifth one on."""
    made = ProgressReader(1.0, known or Known())
    for at, line in enumerate(lines):
        made.take_record(line, 5.0 + at)
    return made


def found(lines: list[str], known: Known | None = None) -> Pace:
    pace = reader(lines, known).pace()
    assert pace is not None
    return pace


def test_steps_of_the_whole_training() -> None:
    pace = found([f'{{"step": {20 * at}, "steps": 5000}}' for at in range(60)])
    assert (pace.epochs, pace.total, pace.optimizer_steps) == (False, 5000, True)
    assert abs(pace.per_s / 20.0 - 1.0) < 1.96 * pace.relative_error
    assert found([f'{{"step": {20 * at}}}' for at in range(60)], Known(steps=5000)).total == 5000


def test_parts_of_epochs() -> None:
    """An epoch takes 10 s."""
    pace = found([f'{{"epoch": {at / 10}, "epochs": 20}}' for at in range(45)])
    assert (pace.epochs, pace.total) == (True, 20)
    assert pace.per_s == pytest.approx(0.1, rel=0.02)


def test_whole_epochs() -> None:
    pace = found([f'{{"epoch": {at}, "epochs": 20}}' for at in range(1, 8)])
    assert (pace.per_s, pace.total, pace.seen) == (pytest.approx(1.0), 20, 7)


def test_it_goes_before_what_is_printed() -> None:
    made = reader([f'{{"step": {20 * at}, "steps": 5000}}' for at in range(60)])
    for at in range(60):
        made.take(f"Epoch {at}/100 loss 0.3", float(at))
    pace = made.pace()
    assert pace is not None
    assert pace.total == 5000


def test_a_file_without_a_usable_line_is_said_and_output_is_read() -> None:
    made = reader(
        ["hello", "{", "[1, 2]", '{"loss": 0.3}', '{"step": "12"}', '{"step": true}', '{"step": -1}', "9" * 5000]
    )
    assert "TURNBUCKLE_PROGRESS_FILE has no line such as" in made.choice().why
    assert made.records.refused == 8
    for at in range(20):
        made.take(f"Epoch {at}/100 loss 0.3", float(at))
    assert made.pace() is not None


def test_counts_that_go_backwards_are_not_known() -> None:
    made = reader([f'{{"step": {at % 10}, "steps": 10}}' for at in range(30)])
    assert made.pace() is None
    assert "counts step backwards" in made.choice().why


def test_too_few_lines_are_said() -> None:
    assert "too few for a rate" in reader(['{"step": 1, "steps": 10}']).choice().why


@given(
    st.lists(st.text(max_size=60) | st.sampled_from(['{"step": 1e400}', '{"epoch": NaN}', '{"step": 3}', "[" * 900]))
)
def test_any_file_is_read(lines: list[str]) -> None:
    reader(lines).choice()


def test_a_line_that_is_half_written_waits_for_its_end(tmp_path: Path) -> None:
    file = OutputFile(progress_file(tmp_path, "master"))
    assert list(file.new_lines()) == []
    file.path.write_text('{"step": 1')
    assert list(file.new_lines()) == []
    with file.path.open("a") as more:
        more.write('20, "steps": 5000}\n')
    assert list(file.new_lines()) == ['{"step": 120, "steps": 5000}']


def test_of_more_than_can_be_read_the_end_counts(tmp_path: Path) -> None:
    """Else a line would be read later than it was written, and the rate be that of reading."""
    file = OutputFile(tmp_path / "master.out")
    written = [f"step {number:09d}" for number in range(200_000)]
    file.path.write_text("\n".join(written) + "\n")
    lines = list(file.new_lines())
    assert lines[-1] == written[-1]
    assert lines[1] in written
    assert lines[0] in {"", *written}
    assert file.skipped_bytes == file.path.stat().st_size - MOST_BYTES
    assert list(file.new_lines()) == []


def documented(name: str) -> str:
    code = re.search(rf"<!-- progress: {name} -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    return "import os\n" + code[1]


def written_by(path: Path) -> Pace:
    return found(path.read_text(encoding="utf-8").splitlines())


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "master.progress"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_the_documented_lines_of_a_loop_write_it(path: Path) -> None:
    opened, written = documented("torch").replace("import os\n", "").splitlines()
    names: dict[str, Any] = {"os": __import__("os"), "steps": 500}
    exec(opened, names)
    for step in range(1, 40):
        names["step"] = step
        exec(written, names)
    names["progress"].close()
    assert written_by(path).total == 500


@pytest.mark.parametrize(("name", "base"), [("transformers", "TrainerCallback"), ("lightning", "Callback")])
def test_the_documented_callbacks_write_it(name: str, base: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the arguments of transformers 5.24.0 and lightning 2.6.6, which are not installed here."""
    module = types.ModuleType(name)
    setattr(module, base, type(base, (), {}))
    monkeypatch.setitem(sys.modules, name, module)
    names: dict[str, Any] = {}
    exec(f"import {name}\n" + documented(name), names)
    callback = names["Progress"]()
    for step in range(1, 40):
        state = types.SimpleNamespace(global_step=step, max_steps=500, estimated_stepping_batches=500)
        if name == "transformers":
            callback.on_step_end(None, state, None, model=None, optimizer=None)
        else:
            callback.on_train_batch_end(state, None, {}, None, step)
    assert written_by(path).total == 500


def test_without_the_profiler_the_lines_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    names: dict[str, Any] = {"step": 1, "steps": 2}
    exec(documented("torch"), names)
    names["progress"].close()
