"""Modules that a user names: found where they would be in training, and run once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services._jobs.user_module import UserCodeError, call, load


@pytest.fixture(autouse=True)
def modules_as_they_were(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The current directory is the user's; what is imported is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_file_is_run_once_for_all_that_is_asked_of_it(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text("runs = []\nruns.append(1)\nclass Model: pass\ndef build(): return Model()\n")

    model = call(load("counted.py:build"), "build")

    assert isinstance(model, load("counted.py:Model"))
    assert load(f"{tmp_path}/counted.py:runs") == [1]


def test_another_file_of_the_same_name_is_another_module(tmp_path: Path) -> None:
    for place, value in {"first": 1, "second": 2}.items():
        (tmp_path / place).mkdir()
        (tmp_path / place / "same.py").write_text(f"value = {value}\n")

    assert [load(f"{place}/same.py:value") for place in ("first", "second")] == [1, 2]


def test_a_file_that_fails_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "mended.py").write_text("value = missing\n")
    with pytest.raises(UserCodeError, match=r"importing mended\.py fails: NameError"):
        load("mended.py:value")
    (tmp_path / "mended.py").write_text("value = 'a longer text than before'\n")

    assert load("mended.py:value") == "a longer text than before"


def test_arguments_are_handed_on() -> None:
    assert call(max, "max", 2, 3) == 3


def test_a_script_that_exits_when_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "exits.py").write_text("raise SystemExit(3)")
    with pytest.raises(UserCodeError, match=r"importing exits\.py fails: SystemExit: 3"):
        load("exits.py:build")
    with pytest.raises(UserCodeError, match=r"f\(\) fails: TypeError"):
        call(lambda wanted: wanted, "f")


def test_a_module_of_pythonpath_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool itself takes nothing from there; the module that it is asked about is found there, as in training."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine_elsewhere.py").write_text("value = 7\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)

    assert load("mine_elsewhere:value") == 7
    del sys.modules["mine_elsewhere"]
