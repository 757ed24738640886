"""The lab itself: what faults do to ports, what `up` refuses, and that `down` removes all of it and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services._host.netns import NETNS_DIRECTORY, command_in
from services._host.readiness import readable
from services._runtime.command.errors import CommandError
from services._runtime.exit_code import ExitCode
from services.cli.main import app
from services.fabric.testbed import frr_daemons, state_file
from services.fabric.testbed.faults import Direction
from services.fabric.testbed.lab import Lab
from services.fabric.testbed.topology import DualTor, LabSettings
from tests.support.cgroup_lab import wait_until
from tests.support.dual_tor import own_prefix
from tests.support.lab_faults import blackhole, link_down, switch_dead

pytestmark = [pytest.mark.netns, pytest.mark.slow]
runner = CliRunner()


def ip(netns: str, *arguments: str) -> str:
    return subprocess.run(["ip", "-n", netns, *arguments], capture_output=True, text=True, check=True).stdout


def filters(netns: str, port: str) -> set[str]:
    """Sides of a port on which classic BPF drops, and ``other`` for any filter that is none of that."""
    found = set()
    for side in ("ingress", "egress"):
        command = ["tc", "-n", netns, "-j", "filter", "show", "dev", port, side]
        for row in json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout or "[]"):
            if "options" in row:
                found.add(side if row["kind"] == "bpf" else "other")
    return found


def carrier(netns: str, port: str) -> bool:
    return "LOWER_UP" in json.loads(ip(netns, "-j", "link", "show", port))[0]["flags"]


@pytest.fixture
def scratch() -> Iterator[str]:
    """A prefix, removed at the end whatever stands there."""
    prefix = own_prefix("z")
    yield prefix
    assert runner.invoke(app, ["lab", "down", "dual-tor", "--prefix", prefix]).exit_code == 0


def test_a_link_down_is_seen_and_a_blackhole_is_not(whole: Lab) -> None:
    host, switch = whole.topology.hosts[0].netns, whole.topology.switches[0].netns

    with whole.fault(link_down(1, 1)):
        wait_until(lambda: not carrier(host, "p1"), what="loss of carrier")
        assert carrier(host, "p2")
    wait_until(lambda: carrier(host, "p1"), what="carrier")
    with whole.fault(blackhole(1, 1)):
        assert carrier(host, "p1")
        assert filters(switch, "d1") == {"ingress", "egress"}
    assert filters(switch, "d1") == set()


def test_a_blackhole_leaves_other_filters_of_the_port_alone(whole: Lab) -> None:
    switch = whole.topology.switches[1].netns
    with whole.fault(blackhole(2, 2, Direction.TO_HOST)):
        add = ["filter", "add", "dev", "d2", "egress", "pref", "9", "u32", "match", "u32", "0", "0"]
        subprocess.run(["tc", "-n", switch, *add], check=True)
        assert filters(switch, "d2") == {"egress", "other"}

    assert filters(switch, "d2") == {"other"}
    subprocess.run(["tc", "-n", switch, "filter", "delete", "dev", "d2", "egress", "pref", "9"], check=True)


def test_a_dead_switch_has_no_process_and_no_link_and_comes_back(whole: Lab) -> None:
    switch = whole.topology.switches[1]
    with whole.fault(switch_dead(2)):
        assert frr_daemons.running(switch.netns) == {}
        wait_until(
            lambda: not any(carrier(host.netns, "p2") for host in whole.topology.hosts), what="loss of every carrier"
        )
        assert len(frr_daemons.running(whole.topology.switches[0].netns)) == 3
    assert len(frr_daemons.running(switch.netns)) == 3


def test_faults_by_command(whole: Lab) -> None:
    prefix = ["--prefix", whole.settings.prefix]

    assert runner.invoke(app, ["lab", "fault", "dual-tor", "isl-lost", *prefix]).exit_code == 0
    again = runner.invoke(app, ["lab", "fault", "dual-tor", "isl-lost", *prefix])
    status = json.loads(runner.invoke(app, ["lab", "status", "dual-tor", "--json", *prefix]).stdout)
    restored = runner.invoke(app, ["lab", "fault", "dual-tor", "--restore", *prefix])
    unknown = runner.invoke(app, ["lab", "fault", "dual-tor", "isl-lost", "--restore", *prefix])

    assert (again.exit_code, unknown.exit_code) == (ExitCode.FAILED, ExitCode.FAILED)
    assert "in force already" in again.stderr
    assert status["faults"] == ["isl-lost"]
    assert [path["uplinks"] for path in status["paths"]] == [["p1", "p2"], ["p1", "p2"]]
    assert restored.exit_code == 0
    assert Lab.attach(whole.settings.prefix).faults == ()


def test_a_fault_for_a_while_and_a_floor_by_command(whole: Lab) -> None:
    prefix = ["--prefix", whole.settings.prefix]

    twice = ["isl-lost", "--for", "0.1", "--times", "2", "--json"]
    broken = runner.invoke(app, ["lab", "fault", "dual-tor", *twice, *prefix])
    metered = runner.invoke(app, ["lab", "meter", "dual-tor", "--for", "2", "--json", *prefix])

    assert "2 faults, all restored" in broken.stderr
    told = json.loads(broken.stdout)
    assert (told["in_force"], [one["fault"] for one in told["occurrences"]]) == ([], ["isl-lost", "isl-lost"])
    assert all(one["restored_ns"] - one["injected_ns"] >= 0.1e9 for one in told["occurrences"])
    floor = json.loads(metered.stdout)["floor"]
    # 6 flows of 500 packets per second for 1.8 s each way: a tenth of them where the machine stands still.
    assert all(one["sent"] > 500 for one in floor.values())
    assert set(floor) == {"h1->h2", "h2->h1"}


def test_a_second_lab_of_the_same_name_is_refused(whole: Lab) -> None:
    with pytest.raises(CommandError, match="stands already"):
        Lab.up(whole.settings)
    assert whole.next_hops(1, 2) == {"p1", "p2"}


def test_a_namespace_of_somebody_else_is_left_alone(scratch: str) -> None:
    foreign = f"{scratch}-s1"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        with pytest.raises(CommandError, match=f"other namespaces.*{foreign}"):
            Lab.up(LabSettings(prefix=scratch))
        assert (NETNS_DIRECTORY / foreign).exists()
        assert state_file.load(scratch) is None
    finally:
        subprocess.run(["ip", "netns", "delete", foreign], check=True)


def test_what_a_killed_up_has_left_is_removed_and_what_others_put_there_is_named(whole: Lab, scratch: str) -> None:
    command = [sys.executable, "-m", "services.cli", "lab", "up", "dual-tor", "--prefix", scratch]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as up:
        said = b""
        while b"switches run" not in said:
            assert readable([up.stderr], 60.0), said
            part = os.read(up.stderr.fileno(), 4_096)
            assert part, f"it has ended: {said!r}"
            said += part
        up.kill()
    names = DualTor.of(LabSettings(prefix=scratch)).namespaces
    assert all((NETNS_DIRECTORY / name).exists() for name in names)
    stranger = subprocess.Popen(command_in(names[0], ["sleep", "60"]))
    try:
        namespace = NETNS_DIRECTORY / names[0]
        process = Path(f"/proc/{stranger.pid}")
        wait_until(
            lambda: (
                (process / "ns/net").stat().st_ino == namespace.stat().st_ino
                and (process / "comm").read_text() == "sleep\n"
            ),
            what="the stranger's entry",
        )
        refused = runner.invoke(app, ["lab", "status", "dual-tor", "--prefix", scratch])
        down = runner.invoke(app, ["lab", "down", "dual-tor", "--prefix", scratch, "--json"])

        assert refused.exit_code == ExitCode.FAILED
        assert f"lab down dual-tor --prefix {scratch}" in refused.stderr
        assert json.loads(down.stdout) == {
            "removed": True,
            "left": [f"process {stranger.pid} (sleep) still lives in what was {names[0]}"],
        }
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert not [name for name in names if (NETNS_DIRECTORY / name).exists()]
    assert not [
        name
        for name in names
        for parent in (frr_daemons.CONFIGURATION, frr_daemons.RUNTIME)
        if (parent / name).exists()
    ]
    assert not state_file.directory_of(scratch).exists()
    # The other lab, with FRR daemons of the same names, has noticed nothing.
    assert whole.next_hops(1, 2) == {"p1", "p2"}
    assert len(frr_daemons.running(whole.topology.hosts[0].netns)) == 3
