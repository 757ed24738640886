"""`turnbuckle fabric drain` in the dual-ToR lab: traffic leaves an uplink, which is taken down, with no packet lost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.fabric.model import HostFile
from services.fabric.testbed.hosts import host_file
from services.fabric.testbed.lab import Lab
from services.fabric.testbed.meter import FaultTarget, OutageMeter
from services.fabric.testbed.network import run_ip
from tests.support.cgroup_lab import wait_until
from tests.support.lab_faults import link_down, restart_frr

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.machine]
SERVICE = "10.77.0.1/32"


def command(file: Path, *arguments: str) -> dict[str, dict[str, object]]:
    """Its outcome by uplink."""
    shown = CliRunner().invoke(app, ["fabric", "drain", str(file), *arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    return {each["uplink"]: each for each in json.loads(shown.stdout)["uplinks"]}


@pytest.fixture
def file(whole: Lab, tmp_path: Path) -> Iterator[Path]:
    """Of the first host; a drain that a test leaves is taken back."""
    host: HostFile = host_file(whole.topology, whole.topology.hosts[0], realtime=whole.realtime)
    path = tmp_path / "host.yaml"
    path.write_text(host.model_dump_json(exclude_defaults=True), encoding="utf-8")
    yield path
    command(path, "--undo")


def lost(meter: OutageMeter) -> list[int]:
    """Packets of each direction since the last reset, of some thousands."""
    reports = meter.report()
    assert all(report.sent > 1_000 for report in reports)
    return [report.sent - report.received for report in reports]


def ask(netns: str, command: str) -> Any:
    """What FRR of one node answers in JSON."""
    said = subprocess.run(["vtysh", "-N", netns, "-c", command], capture_output=True, text=True, check=True)
    return json.loads(said.stdout)


def bfd_sessions_down(lab: Lab) -> str:
    """For who reads a failure: where BFD itself took a path away, as on a machine that stood still."""
    counts = {
        node.name: sum(peer["session-down"] for peer in ask(node.netns, "show bfd peers counters json"))
        for node in (*lab.topology.hosts, *lab.topology.switches)
    }
    return f"BFD sessions that went down since FRR's start: {counts}"


def preferences(lab: Lab, prefix: str) -> list[int | None]:
    """Local preference of the first host's route to a prefix, at each switch; None: FRR's default. Empty: no route."""
    found: list[int | None] = []
    for switch in lab.topology.switches:
        paths = ask(switch.netns, f"show bgp ipv4 unicast {prefix} json").get("paths", [])
        found += [path.get("locPrf") for path in paths if path["peer"].get("interface") == "d1"]
    return found


@pytest.mark.parametrize("aim", FaultTarget)
def test_maintenance_of_a_drained_uplink_loses_no_packet(whole: Lab, file: Path, aim: FaultTarget) -> None:
    with OutageMeter(whole) as meter:
        carrying = meter.loaded_uplinks()[meter.directions[aim is FaultTarget.IN]]
        uplink, other = f"p{carrying}", f"p{3 - carrying}"
        meter.reset()
        found = command(file, uplink)
        assert (found[uplink]["drained"], found[uplink]["routes"], found[other]["drained"]) == (True, 0, False)
        wait_until(
            lambda: whole.next_hops(1, 2) == whole.next_hops(2, 1) == {other}, what="both directions' way around"
        )
        assert set(meter.loaded_uplinks().values()) == {3 - carrying}
        with whole.fault(link_down(1, carrying)):
            meter.loaded_uplinks()  # for as long as this takes, packets flow
        wait_until(lambda: command(file, "--status")[uplink]["drained"], what="the drain, after the link is back")
        assert command(file, uplink, "--undo")[uplink]["drained"] is False
        whole.wait_for_both_uplinks(60.0)
        assert lost(meter) == [0, 0], bfd_sessions_down(whole)


def test_a_drained_node_goes_on_carrying(whole: Lab, file: Path) -> None:
    """Both at once made each switch send to the other for 50 ms in 7 of 12 drains: so it is done several times."""
    with OutageMeter(whole) as meter:
        for _ in range(3):
            meter.loaded_uplinks()
            meter.reset()
            assert all(state["drained"] for state in command(file).values())
            meter.loaded_uplinks()
            assert not any(state["drained"] for state in command(file, "--undo").values())
            whole.wait_for_both_uplinks(60.0)
            meter.loaded_uplinks()
            assert lost(meter) == [0, 0], bfd_sessions_down(whole)


def test_one_uplink_after_the_other_is_the_node_and_back(whole: Lab, file: Path) -> None:
    with OutageMeter(whole) as meter:
        meter.loaded_uplinks()
        meter.reset()
        assert command(file, "p1")["p1"]["routes"] == 0
        assert all(state["drained"] and state["routes"] for state in command(file, "p2").values()), "both carry again"
        whole.wait_for_both_uplinks(60.0)
        found = command(file, "p1", "--undo")
        assert (found["p1"]["drained"], found["p2"]["drained"]) == (False, True)
        wait_until(lambda: whole.next_hops(1, 2) == whole.next_hops(2, 1) == {"p1"}, what="both directions' way")
        assert not any(state["drained"] for state in command(file, "p2", "--undo").values())
        whole.wait_for_both_uplinks(60.0)
        assert lost(meter) == [0, 0], bfd_sessions_down(whole)


def test_what_else_a_drained_node_announces_is_less_preferred(whole: Lab, file: Path) -> None:
    here, vtep = whole.topology.hosts[0], f"{whole.topology.hosts[0].vtep}/32"
    run_ip(["-n", here.netns, "address", "add", SERVICE, "dev", "lo"])
    try:
        wait_until(lambda: set(preferences(whole, SERVICE)) == {None}, what="the service's address at both switches")
        command(file)
        wait_until(lambda: set(preferences(whole, SERVICE)) == {0}, what="its local preference")
        assert set(preferences(whole, vtep)) == {None}
        command(file, "--undo")
        wait_until(lambda: set(preferences(whole, SERVICE)) == {None}, what="its local preference after the drain")
    finally:
        run_ip(["-n", here.netns, "address", "delete", SERVICE, "dev", "lo"])


def test_a_restarted_frr_has_forgotten_the_drain_and_status_says_so(whole: Lab, file: Path) -> None:
    command(file, "p1")
    restart_frr(whole, whole.topology.hosts[0].netns)
    whole.wait_ready(60.0)
    assert not command(file, "--status")["p1"]["drained"]
