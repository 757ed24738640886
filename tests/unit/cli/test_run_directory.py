"""A second `turnbuckle up` does not write over the logs of the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from services._runtime.command.errors import CommandError
from services.cli.up.command import hold_run_directory


def test_the_next_free_directory_is_used_and_a_free_one_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with hold_run_directory(None) as first:
        assert first == tmp_path / "turnbuckle-run"
        with hold_run_directory(None) as second, hold_run_directory(None) as third:
            assert (second.name, third.name) == ("turnbuckle-run-2", "turnbuckle-run-3")
    with hold_run_directory(None) as again:
        assert again == first


def test_a_chosen_directory_in_use_is_refused(tmp_path: Path) -> None:
    with (
        hold_run_directory(tmp_path / "kept"),
        pytest.raises(CommandError, match="used by another `turnbuckle up`; choose another one with --store"),
        hold_run_directory(tmp_path / "kept"),
    ):
        pass


def test_one_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(CommandError, match="cannot be made or locked: Not a directory; use --store"),
        hold_run_directory(tmp_path / "file" / "run"),
    ):
        pass
