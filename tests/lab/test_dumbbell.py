"""The dumbbell by hand: pairs share one uplink, `up` refuses what stands, `down` removes it and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from services._host.netns import NETNS_DIRECTORY
from services._runtime.exit_code import ExitCode
from services.cli.main import app
from services.fabric.testbed import dumbbell, network, state_file
from services.fabric.testbed.dumbbell import DumbbellSettings, DumbbellState
from tests.support.dual_tor import own_prefix

pytestmark = [pytest.mark.netns, pytest.mark.slow]
runner = CliRunner()
TRAFFIC = "docs/examples/jobs/traffic.py"


@pytest.fixture
def prefix() -> Iterator[str]:
    """Removed at the end whatever stands there."""
    own = own_prefix("y")
    yield own
    assert runner.invoke(app, ["lab", "down", "dumbbell", "--prefix", own]).exit_code == 0


def standing(prefix: str) -> set[str]:
    return {path.name for path in NETNS_DIRECTORY.glob(f"{prefix}-*")}


def worker(netns: str, rank: int, *options: str) -> subprocess.Popen[str]:
    variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500"}
    command = ["ip", "netns", "exec", netns, sys.executable, "-S", TRAFFIC, *options]
    return subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True)


def test_a_pair_sends_at_the_uplinks_rate_with_the_routes_congestion_control(prefix: str) -> None:
    """2.5 MB at 40 Mbit/s take half a second."""
    made = runner.invoke(app, ["lab", "up", "dumbbell", "--prefix", prefix, "--pairs", "2", "--rate", "40Mbit"])
    assert made.exit_code == 0, made.output
    assert f"ip netns exec {prefix}-l1 env RANK=0" in made.stdout
    route = next(line.split() for line in made.stdout.splitlines() if "route replace" in line)
    subprocess.run([word.replace("cubic", "reno") for word in route], check=True)

    workers = [
        worker(f"{prefix}-{side}1", rank, "--compute", "0", "--bytes", "2500000", "--iterations", "2")
        for rank, side in enumerate("lr")
    ]
    first, _ = (process.communicate(timeout=120)[0] for process in workers)
    lines = [json.loads(line) for line in first.splitlines()]

    assert [process.returncode for process in workers] == [0, 0]
    assert [line["congestion_control"] for line in lines] == ["reno", "reno"]
    assert all(line["end_s"] - line["sending_s"] > 0.45 for line in lines)


def test_it_is_made_once_and_removed_whole(prefix: str) -> None:
    up = ["lab", "up", "dumbbell", "--prefix", prefix, "--pairs", "1", "--json"]
    made = runner.invoke(app, up)
    again = runner.invoke(app, up)
    down = runner.invoke(app, ["lab", "down", "dumbbell", "--prefix", prefix, "--json"])

    assert json.loads(made.stdout)["namespaces"] == [f"{prefix}-{host}" for host in ("switches", "l1", "r1")]
    assert again.exit_code == ExitCode.FAILED
    assert "stands already" in again.stderr
    assert json.loads(down.stdout) == {"removed": True, "left": []}
    assert standing(prefix) == set()
    assert not state_file.directory_of(f"dumbbell-{prefix}").exists()


def test_what_a_crash_has_left_is_removed_and_what_others_made_is_not(prefix: str) -> None:
    settings = DumbbellSettings(prefix=prefix, pairs=1)
    switches, left, right = settings.namespaces
    for name in (switches, left):
        network.make_namespace(name)
    another = state_file.inode_of(left)
    assert another is not None
    DumbbellState(settings=settings, namespaces={switches: None, left: another + 1, right: None}).save()

    told = dumbbell.down(prefix)

    assert told == [f"namespace {left} is another one now, not made by this lab"]
    assert standing(prefix) == {left}
    refused = runner.invoke(app, ["lab", "up", "dumbbell", "--prefix", prefix, "--pairs", "1"])
    network.remove_namespace(left)
    assert refused.exit_code == ExitCode.FAILED
    assert f"other namespaces have its names: {left}" in " ".join(refused.stderr.split())
