"""Measured runs on disk: written line by line, read back, and what is no run is named by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from services._jobs.measured_run_file import MAX_BYTES, append_run, default_file, read_runs
from services._runtime.command.errors import BadFileError, MissingFileError
from tests.support.measured_runs import measured_run


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    file, refused = tmp_path / "state" / "runs.jsonl", []
    runs = [measured_run(1.2), measured_run(0.8, ended_ns=2)]
    for run in runs:
        append_run(file, run)

    assert read_runs(file, refused.append) == runs
    assert refused == []
    assert runs[0].ratio == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("", "Invalid JSON"),
        ("{", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ("{}", "plan: Field required"),
        ("\x00\xff", "Invalid JSON"),
        (measured_run(1.0).model_dump_json().replace('"steps":50', '"steps":0'), "steps: Input should be greater"),
        (measured_run(1.0).model_dump_json().replace("10000.0", "NaN"), "Invalid JSON|Input should be"),
        (measured_run(1.0).model_dump_json().replace("12000.0", "1.0"), "are not in ascending order"),
        (measured_run(1.0).model_dump_json()[:-20], "Invalid JSON"),
    ],
)
def test_a_line_that_is_no_run_is_named_and_the_others_count(line: str, what: str, tmp_path: Path) -> None:
    file, refused = tmp_path / "runs.jsonl", []
    run = measured_run(1.2)
    file.write_text(f"{run.model_dump_json()}\n{line}\n{run.model_dump_json()}\n", encoding="utf-8")

    assert read_runs(file, refused.append) == [run, run]
    (sentence,) = refused
    assert sentence.startswith(f"{file}:2 is left out, it is no measured run: ")
    assert any(part in sentence for part in what.split("|"))


@pytest.mark.parametrize("torn", [b'{"plan":"p', b'{"plan":"\xe5\xbf'])
def test_a_run_behind_a_torn_line_is_read(torn: bytes, tmp_path: Path) -> None:
    file, refused = tmp_path / "runs.jsonl", []
    append_run(file, measured_run(1.2))
    with file.open("ab") as end:
        end.write(torn)
    assert read_runs(file, refused.append) == [measured_run(1.2)]
    append_run(file, measured_run(0.8))

    assert read_runs(file, refused.append) == [measured_run(1.2), measured_run(0.8)]
    assert [sentence.partition(" is left out")[0] for sentence in refused] == [f"{file}:2"] * 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"none\.jsonl cannot be read"):
        read_runs(tmp_path / "none.jsonl", print)
    with pytest.raises(BadFileError, match="cannot be read: Is a directory"):
        read_runs(tmp_path, print)
    large = tmp_path / "large.jsonl"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(BadFileError, match="is larger than 64 MiB: keep its last lines"):
        read_runs(large, print)


def test_the_default_file_is_in_the_users_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_file() == tmp_path / "turnbuckle" / "measured-runs.jsonl"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_file() == tmp_path / "home" / ".local" / "state" / "turnbuckle" / "measured-runs.jsonl"
