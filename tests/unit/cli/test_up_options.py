"""What `turnbuckle up` hands on of its options."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.toolkit.supervisor import READY_TIMEOUT_S
from services.cli.up.up_run import UpRun


@pytest.mark.parametrize(("given", "expected_s"), [((), READY_TIMEOUT_S), (("--ready-timeout", "180"), 180.0)])
def test_processes_may_take_as_long_to_start_as_was_asked(
    given: tuple[str, ...], expected_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[UpRun] = []

    async def run_up(run: UpRun, _view: object) -> None:
        runs.append(run)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("services.cli.up.up_run.run_up", run_up)
    done = CliRunner().invoke(app, ["up", "--simulate", "--json", *given])

    assert done.exit_code == 0, done.output
    assert [run.options.ready_timeout_s for run in runs] == [expected_s]


def test_the_default_in_the_help_is_the_one_that_is_used() -> None:
    shown = CliRunner().invoke(app, ["up", "--help"], env={"COLUMNS": "200"}).stdout
    assert f"default: {READY_TIMEOUT_S:g}" in shown
