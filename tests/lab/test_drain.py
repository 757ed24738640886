"""`turnbuckle fabric drain` in the dual-ToR lab: traffic leaves an uplink, which is taken down, with no packet lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.fabric.model import HostFile
from services.cli.lab.faults import Fault
from services.cli.lab.hosts import host_file
from services.cli.lab.lab import Lab
from services.cli.lab.meter import Aim, OutageMeter
from services.cli.main import app
from tests.support.cgroup_lab import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.slow]


def command(file: Path, *arguments: str) -> dict[str, dict[str, object]]:
    """Its outcome by uplink."""
    shown = CliRunner().invoke(app, ["fabric", "drain", str(file), *arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    return {each["uplink"]: each for each in json.loads(shown.stdout)["uplinks"]}


@pytest.fixture
def file(whole: Lab, tmp_path: Path) -> Path:
    host: HostFile = host_file(whole.topology, whole.topology.hosts[0], realtime=whole.realtime)
    path = tmp_path / "host.yaml"
    path.write_text(host.model_dump_json(exclude_defaults=True), encoding="utf-8")
    return path


def lost(meter: OutageMeter) -> list[int]:
    """Packets of each direction since the last reset, of some thousands."""
    reports = meter.report()
    assert all(report.sent > 1_000 for report in reports)
    return [report.sent - report.received for report in reports]


@pytest.mark.parametrize("aim", Aim)
def test_maintenance_of_a_drained_uplink_loses_no_packet(whole: Lab, file: Path, aim: Aim) -> None:
    with OutageMeter(whole) as meter:
        carrying = meter.loaded_uplinks()[meter.directions[aim is Aim.IN]]
        uplink, other = f"p{carrying}", f"p{3 - carrying}"
        meter.reset()
        found = command(file, uplink)
        assert (found[uplink]["drained"], found[uplink]["routes"], found[other]["drained"]) == (True, 0, False)
        wait_until(
            lambda: whole.next_hops(1, 2) == whole.next_hops(2, 1) == {other}, what="both directions' way around"
        )
        assert set(meter.loaded_uplinks().values()) == {3 - carrying}
        with whole.fault(Fault.link_down(1, carrying)):
            meter.loaded_uplinks()  # for as long as this takes, packets flow
        wait_until(lambda: command(file, "--status")[uplink]["drained"], what="the drain, after the link is back")
        assert command(file, uplink, "--undo")[uplink]["drained"] is False
        whole.wait_wide(30.0)
        assert lost(meter) == [0, 0]


def test_a_drained_node_goes_on_carrying(whole: Lab, file: Path) -> None:
    with OutageMeter(whole) as meter:
        meter.loaded_uplinks()
        meter.reset()
        assert all(state["drained"] for state in command(file).values())
        meter.loaded_uplinks()
        assert not any(state["drained"] for state in command(file, "--undo").values())
        whole.wait_wide(30.0)
        meter.loaded_uplinks()
        assert lost(meter) == [0, 0]


def test_a_restarted_frr_has_forgotten_the_drain_and_status_says_so(whole: Lab, file: Path) -> None:
    command(file, "p1")
    whole.restart_frr(whole.topology.hosts[0].netns)
    whole.wait_ready(40.0)
    assert not command(file, "--status")["p1"]["drained"]
