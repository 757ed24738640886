"""The fabric on real namespaces with real FRR: up, again, checked, refused, killed, down."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services._host.netns import inside, socket_in
from services._host.readiness import readable
from services.cli.main import app
from services.fabric.apply import ApplyError, down, plan, up
from services.fabric.check import check
from services.fabric.frr_text import FrrPaths
from services.fabric.host_file import parse_host_file
from services.fabric.model import HostFile
from services.fabric.plan import Action
from tests.support.cgroup_lab import wait_until
from tests.support.fabric_lab import ip, standing
from tests.support.fake_nic import FakeNic

pytestmark = [pytest.mark.netns, pytest.mark.root]


@pytest.fixture
def lab(tmp_path):
    with standing(tmp_path) as lab:
        yield lab


def test_two_hosts_have_a_session_and_their_applications_speak(lab):
    """Up on both hosts: BGP, EVPN and BFD stand, a full packet makes the way; again: nothing; down: as before."""
    before = [lab.picture(number) for number in (1, 2)]
    files = [lab.file(number) for number in (1, 2)]
    for file in files:
        assert any(step.writes for step in plan(file, lab.paths))
        up(file, paths=lab.paths)
    # 1500 of the uplink - 50 for VXLAN - 28 of IP and UDP: the largest that is not cut to pieces.
    lab.exchange(1422)
    for file in files:
        lab.wait_until_whole(file)
        assert not any(step.writes for step in plan(file, lab.paths))
        assert not any(step.writes for step in up(file, paths=lab.paths))
    for file in files:
        down(file, paths=lab.paths)
    assert [lab.picture(number) for number in (1, 2)] == before
    assert list(lab.paths.state.iterdir()) == []
    assert down(files[0], paths=lab.paths) == []


def test_numbered_uplinks(lab):
    """Sessions between addresses instead of interfaces, with the switch's AS number given."""
    files = []
    for number in (1, 2):
        own, peer = f"192.0.2.{number - 1}/31", f"192.0.2.{2 - number}"
        uplink = {"name": "p1", "address": own, "peer": peer, "peer_asn": 65003 - number}
        files.append(lab.file(number, uplinks=[uplink]))
        up(files[-1], paths=lab.paths)
    lab.exchange(1422)
    for file in files:
        lab.wait_until_whole(file)


def test_daemons_run_with_their_priorities_and_without_a_tcp_terminal(lab):
    up(lab.file(1), paths=lab.paths)
    for name, priority in (("zebra", 15), ("bgpd", 15), ("bfdd", 30)):
        pid = int(Path(f"/var/run/frr/{lab.host(1)}/{name}.pid").read_text())
        assert (os.sched_getscheduler(pid), os.sched_getparam(pid).sched_priority) == (os.SCHED_RR, priority)
    ports = subprocess.run(
        ["nsenter", f"--net=/run/netns/{lab.host(1)}", "ss", "-Htln"], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[3].rpartition(":")[2] for line in ports.splitlines()] in (["179"], ["179", "179"])


def test_the_encapsulation_device_only_sends(lab):
    """A packet that somebody sends to its UDP port does not reach this host's own sockets."""
    for number in (1, 2):
        up(lab.file(number), paths=lab.paths)
    lab.exchange(100)
    mac = json.loads(ip("-n", lab.host(1), "-j", "link", "show", "vxenc0"))[0]["address"]
    udp = struct.pack("!HHHH", 9, 9, 8 + 4, 0) + b"evil"
    addresses = socket.inet_aton("10.255.0.2") + socket.inet_aton("10.255.0.1")
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0)
    sum_ = sum(struct.unpack("!10H", head + addresses))
    head = head[:10] + struct.pack("!H", ~(sum_ + (sum_ >> 16)) & 0xFFFF)
    frame = bytes.fromhex(mac.replace(":", "")) + bytes.fromhex("020000000002") + b"\x08\x00" + head + addresses + udp
    packet = struct.pack("!II", 0x08 << 24, 7 << 8) + frame

    with (
        socket_in(lab.host(1), socket.AF_INET, socket.SOCK_DGRAM) as inside_host,
        socket_in(lab.host(2), socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        inside_host.bind(("10.255.0.1", 9))
        inside_host.settimeout(0.5)

        def arrives():
            sender.sendto(packet, ("10.255.0.1", 4790))
            try:
                return inside_host.recv(100) == b"evil"
            except TimeoutError:
                return False

        assert not arrives()
        # With the door open it does arrive: the packet is right, and the test can fail.
        for name in ("all", "vxenc0"):
            with inside(lab.host(1)):
                Path(f"/proc/sys/net/ipv4/conf/{name}/rp_filter").write_text("0")
        wait_until(arrives, what="the packet, with the door open")


def test_check_names_what_differs_and_up_mends_it(lab):
    file, netns = lab.file(1), lab.host(1)
    up(file, paths=lab.paths)
    ip("-n", netns, "link", "set", "br0", "mtu", "1400")
    ip("-n", netns, "link", "del", "rep0")
    pid = int(Path(f"/var/run/frr/{netns}/bfdd.pid").read_text())
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert readable([handle], 60), "bfdd did not end"
    os.close(handle)
    vtysh = ["vtysh", "-N", netns, "-c", "configure", "-c", "zebra nexthop kernel enable"]
    subprocess.run(vtysh, check=True, capture_output=True)
    found = {difference.name: difference for difference in check(file, lab.paths)}
    mtu = found[f"{netns}: mtu of br0"]
    assert (mtu.found, mtu.wanted) == ("1400", "1450")
    assert mtu.remedy == f"turnbuckle fabric up, or: ip -n {netns} link set br0 mtu 1450"
    assert found[f"{netns}: device rep0"].found == "absent"
    assert found[f"{netns}: daemon bfdd"].found == "not running"
    nexthops = found["FRR's 'no zebra nexthop kernel enable'"]
    subprocess.run(nexthops.remedy.split(), check=True, capture_output=True)
    # The other host is not up: no session.
    assert found["BGP session on p1 (IPv4)"].wanted == "Established"

    changed = {step.name for step in up(file, paths=lab.paths) if step.writes}
    assert {f"{netns}: mtu of br0", f"{netns}: device rep0", f"{netns}: daemon bfdd"} <= changed
    left = {difference.name for difference in check(file, lab.paths)}
    assert not left & {*changed, nexthops.name}


def test_a_failed_step_takes_everything_back(lab, tmp_path):
    """One daemon does not start: devices, files, daemons and namespaces that were made for it are gone again."""
    binaries = tmp_path / "frr"
    binaries.mkdir()
    for name in ("zebra", "bfdd"):
        shutil.copy(f"/usr/lib/frr/{name}", binaries / name)
    (binaries / "bgpd").write_text("#!/bin/sh\necho 'no memory' >&2\nexit 3\n")
    (binaries / "bgpd").chmod(0o755)
    paths = replace(lab.paths, frr=FrrPaths(binaries=str(binaries)))
    before = lab.picture(1)
    with pytest.raises(ApplyError) as error:
        up(lab.file(1), paths=paths)
    assert "daemon bgpd: bgpd refuses its configuration: no memory; what had been done is undone" in str(error.value)
    assert lab.picture(1) == before
    assert list(paths.state.iterdir()) == []


def test_a_line_that_frr_does_not_know_is_no_half_configuration(lab, monkeypatch):
    """FRR skips such a line with a warning and goes on; we do not."""
    from services.fabric import layout  # noqa: PLC0415

    real = layout.host_configuration
    monkeypatch.setattr(
        layout, "host_configuration", lambda host: replace(real(host), bgpd="router bgp 1\n nonsense\n")
    )
    before = lab.picture(1)
    with pytest.raises(ApplyError, match="No such command on config line 2:  nonsense"):
        up(lab.file(1), paths=lab.paths)
    assert lab.picture(1) == before


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from services.fabric.apply import up
    from services.fabric.host_file import parse_host_file
    from services.fabric.paths import FabricPaths

    def progress(step):
        progress.left -= step.writes
        if not progress.left:
            os.kill(os.getpid(), signal.SIGKILL)

    progress.left = int(sys.argv[1])
    up(parse_host_file(sys.argv[2]), progress, FabricPaths(state=Path(sys.argv[3])))
"""


@pytest.mark.parametrize("writes", [12, 39])
def test_killed_in_the_middle_and_then_down(lab, writes):
    """After SIGKILL `down` undoes what was done, a part or nearly all; `up` would have gone on from there."""
    before, file = lab.picture(1), lab.file(1)
    text = file.model_dump_json(exclude_defaults=True)
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(writes), text, str(lab.paths.state)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert lab.picture(1) != before
    if writes == 12:
        assert len([step for step in up(file, paths=lab.paths) if step.writes]) < 39
    down(file, paths=lab.paths)
    assert lab.picture(1) == before


def test_what_was_there_before_stays(lab):
    """A bridge, an address and a setting of somebody else's are used, and are as they were after `down`."""
    netns = lab.host(1)
    ip("-n", netns, "link", "add", "br0", "mtu", "1300", "type", "bridge")
    ip("-n", netns, "link", "set", "lo", "up")
    ip("-n", netns, "address", "add", "10.255.0.1/32", "dev", "lo")
    ip("netns", "add", lab.application(1))
    before = lab.picture(1)
    steps = {step.name: step.action for step in up(lab.file(1), paths=lab.paths)}
    assert steps[f"{netns}: device br0"] is Action.KEEP
    assert steps[f"{netns}: mtu of br0"] is Action.CHANGE
    down(lab.file(1), paths=lab.paths)
    assert lab.picture(1) == before


def test_another_file_replaces_what_cannot_be_changed(lab):
    """A new VNI makes the tunnel anew; a port that is gone from the file goes from the host."""
    before = lab.picture(1)
    up(lab.file(1), paths=lab.paths)
    other = lab.file(1, vni=200, vxlan={"name": "vx100"}, ports=[])
    steps = {step.name: step.action for step in up(other, paths=lab.paths)}
    assert steps[f"{lab.host(1)}: device vx100"] is Action.REPLACE
    assert steps[f"{lab.host(1)}: device rep0"] is Action.REMOVE
    assert not any(step.writes for step in up(other, paths=lab.paths))
    down(other, paths=lab.paths)
    assert lab.picture(1) == before


def test_for_a_running_frr_a_file_is_written_and_loaded_by_hand(lab):
    """`frr: {start: false}`: FRR of somebody else's; the command that is told puts the file into force."""
    netns = lab.host(1)
    steps = up(lab.file(1), paths=lab.paths)
    assert steps
    other = {"name": f"{lab.prefix}-w", "frr": {"start": False, "pathspace": netns}, "bfd": {"interval_ms": 100}}
    file = lab.file(1, **other)
    up(file, paths=lab.paths)
    command = next(d.remedy for d in check(file, lab.paths) if d.name == "BFD session on p1").partition("else ")[2]
    written = f"/etc/frr/{netns}/turnbuckle-{lab.prefix}-w.conf"
    assert command == f"vtysh -N {netns} -f {written}"
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    running = subprocess.run(
        ["vtysh", "-N", netns, "-c", "show running-config"], capture_output=True, text=True, check=True
    )
    assert "  transmit-interval 100\n" in running.stdout
    down(file, paths=lab.paths)
    assert not Path(written).exists()
    assert not any(step.writes for step in plan(lab.file(1), lab.paths) if step.action is not Action.KEEP)


def test_a_virtual_function_becomes_the_applications_device(lab, tmp_path, monkeypatch):
    """Switchdev mode, functions, representor, move into the namespace; only sysfs, devlink and ethtool are faked."""
    nic = FakeNic(tmp_path, "p1")
    monkeypatch.setenv("PATH", f"{nic.commands}:{os.environ['PATH']}")
    netns = lab.host(1)
    # What a driver would make when functions are asked for: a representor and a function's device.
    ip("-n", netns, "link", "add", "eth5", "type", "veth", "peer", "name", "p1v0")
    nic.add_device("eth5", "pf0vf0")
    nic.add_function(0, "p1v0")
    text = lab.file(1).model_dump(mode="json", exclude_defaults=True)
    port = text["ports"][0] | {"type": "vf", "vf": {"nic": "p1", "number": 0}}
    file = HostFile.model_validate({key: value for key, value in text.items() if key != "netns"} | {"ports": [port]})
    paths = replace(lab.paths, sysfs=nic.sysfs)
    before = lab.picture(1)
    with inside(netns):
        up(file, lambda step: nic.rename("eth5", "rep0") if step.name.startswith("representor") else None, paths)
        nic.take_function(0, "p1v0")
        assert (nic.mode, nic.function_count) == ("switchdev", 1)
        assert not any(step.writes for step in up(file, paths=paths))
    inner = ip("-n", lab.application(1), "address", "show", "app")
    assert "02:00:00:00:00:01" in inner
    assert "172.16.0.1/24" in inner
    assert "master br0" in ip("-n", netns, "link", "show", "rep0")
    with inside(netns):
        down(file, paths=paths)
    assert (nic.mode, nic.function_count) == ("legacy", 0)
    # The function's device would go with the function; here it is a veth, which comes back with its namespace's end.
    after = lab.picture(1)
    assert after["namespaces"] == before["namespaces"]
    assert after["addresses"] == before["addresses"]
    assert after["sysctls"] == before["sysctls"]


def test_the_command(lab, tmp_path):
    """plan, up, check and down as a person runs them, with exit codes."""
    file = tmp_path / "host.yaml"
    netns = lab.host(1)
    file.write_text(lab.file(1, frr={"start": True, "realtime": False}).model_dump_json(exclude_defaults=True))
    assert parse_host_file(file.read_text()).name == netns

    def run(*words):
        done = CliRunner().invoke(app, ["fabric", *words])
        return done.exit_code, done.stdout, done.stderr

    try:
        code, out, _ = run("plan", str(file))
        assert code == 0
        assert f"ip -n {netns} link add br0 type bridge\n" in out
        assert "TURNBUCKLE_RECONCILER__PORTS=rep0=02:00:00:00:00:01\n" in out
        assert run("up", str(file))[0] == 0
        code, _, said = run("up", str(file))
        assert code == 0
        assert f"{netns}: nothing to do" in said
        code, out, _ = run("check", str(file), "--json")
        assert code == 1  # the other host is not up
        assert '"name": "BGP session on p1 (IPv4)"' in out
    finally:
        code, _, said = run("down", str(file))
    assert code == 0
    assert "steps taken" in said
    file.write_text("name: x\n")
    assert run("up", str(file))[0] == 78
