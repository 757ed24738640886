"""What `turnbuckle up` hands on of its options."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from services._jobs.sandbox.racks import RackPlan
from services._runtime.exit_code import ExitCode
from services.cli.main import app
from services.cli.toolkit.supervisor import READY_TIMEOUT_S
from services.cli.up.cluster import Cluster, parse_cluster, topology_text
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


def test_a_cluster_shares_this_machine() -> None:
    cluster = parse_cluster("4x2")

    assert cluster.names == ["n1", "n2", "n3", "n4"]
    assert cluster.slots == 2
    assert 4 * cluster.cores == len(os.sched_getaffinity(0))
    assert 4 * cluster.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize("text", ["4", "x2", "0x2", "4x0", "65x1", "4x2x1", "4 x 2", "-1x2"])
def test_what_is_no_cluster_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["up", f"--cluster={text}"])

    assert done.exit_code == 2
    assert "write NODESxSLOTS, such as 4x2" in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("--racks=2", "--uplink=1Gbit"), "belong together, and to --cluster"),
        (("--cluster=4x2", "--racks=2"), "belong together"),
        (("--cluster=4x2", "--uplink=1Gbit"), "belong together"),
        (("--cluster=4x2", "--racks=5", "--uplink=1Gbit"), "4 nodes make 2 to 4 racks, not 5"),
        (("--cluster=1x2", "--racks=2", "--uplink=1Gbit"), "1 nodes make"),
        (("--cluster=4x2", "--racks=2", "--uplink=100MB"), "'100MB' is no rate: write it such as 100Mbit"),
        (("--cluster=4x2", "--racks=2", "--uplink=1bit"), "is not within 8 kbit/s"),
    ],
)
def test_racks_that_cannot_be_are_refused(
    given: tuple[str, ...], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["up", *given])

    assert done.exit_code == ExitCode.USAGE
    assert reason in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_racks_need_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    done = CliRunner().invoke(app, ["up", "--cluster", "4x2", "--racks", "2", "--uplink", "1Gbit"])

    assert done.exit_code == ExitCode.UNAVAILABLE
    assert "sudo -E turnbuckle up" in " ".join(done.stderr.split())


def test_the_scheduler_is_told_of_each_uplink() -> None:
    plan = RackPlan.of(["n1", "n2", "n3", "n4"], 2, 100_000_000)

    assert yaml.safe_load(topology_text(plan)) == {
        "links": {
            "rack-1-up": {"rate": "100Mbit", "nodes": ["n1", "n2"]},
            "rack-2-up": {"rate": "100Mbit", "nodes": ["n3", "n4"]},
        }
    }
    assert "rack-1: n1 n2; rack-2: n3 n4; each rack's uplink carries 100Mbit/s" in Cluster(4, 2, plan).summary()


def test_the_default_in_the_help_is_the_one_that_is_used() -> None:
    shown = CliRunner().invoke(app, ["up", "--help"], env={"COLUMNS": "200"}).stdout
    assert f"default: {READY_TIMEOUT_S:g}" in shown
