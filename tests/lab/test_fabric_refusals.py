"""What `fabric up` refuses on a real host, each with its remedy, and with nothing written."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from services.fabric.apply import up
from services.fabric.frr_text import FrrPaths, TorSwitch, host_configuration, tor_configuration
from services.fabric.journal import JournalError, locked
from services.fabric.model import HostFile
from services.fabric.paths import FabricPaths
from services.fabric.preflight import PreflightError
from tests.support.fabric_lab import ip, standing

pytestmark = [pytest.mark.netns, pytest.mark.root]


@pytest.fixture
def lab(tmp_path):
    with standing(tmp_path) as lab:
        yield lab


def refused(lab, file=None):
    """The text of a refusal, which must leave everything as it is."""
    before = lab.picture(1)
    with pytest.raises(PreflightError) as error:
        up(file or lab.file(1), paths=lab.paths)
    assert lab.picture(1) == before
    return str(error.value)


def test_what_does_not_suit_the_host_is_named_with_its_remedy(lab):
    netns = lab.host(1)
    assert refused(lab, lab.file(1, uplinks=["p9"])) == "there is no uplink p9: devices here are p1"
    assert "too small for the applications' 1451 and VXLAN's 50" in refused(lab, lab.file(1, mtu=1451))
    assert f"ip -n {netns} link set p1 mtu 1501" in refused(lab, lab.file(1, mtu=1451))
    gone = lab.file(1, netns="no-such-netns")
    assert refused(lab, gone).startswith("there is no network namespace no-such-netns: ip netns add")

    ip("-n", netns, "link", "add", "x0", "type", "veth", "peer", "name", "x1")
    ip("-n", netns, "address", "add", "10.255.0.1/24", "dev", "x0")
    assert f"is there already, as 10.255.0.1/24 on x0: ip -n {netns} address del" in refused(lab)
    ip("-n", netns, "link", "set", "x1", "address", "02:00:00:00:00:01")
    assert "port rep0's MAC 02:00:00:00:00:01 is that of x1 here" in refused(lab)
    ip("-n", netns, "link", "del", "x0")

    ip("-n", netns, "link", "add", "other", "type", "vxlan", "id", "100", "local", "10.9.9.9", "dstport", "4789")
    assert "other uses UDP port 4789 and VNI 100 already" in refused(lab)
    ip("-n", netns, "link", "del", "other")

    ip("-n", netns, "link", "add", "br7", "type", "bridge")
    ip("-n", netns, "link", "set", "p1", "master", "br7")
    assert f"uplink p1 is a port of br7, so it cannot route: ip -n {netns} link set p1 nomaster" in refused(lab)
    ip("-n", netns, "link", "set", "p1", "nomaster")

    ip("-n", netns, "link", "add", "br0", "type", "veth", "peer", "name", "y1")
    assert (
        f"{netns}: device br0 is there already, not made by turnbuckle (veth): ip -n {netns} link del br0"
        in refused(lab)
    )
    ip("-n", netns, "link", "del", "br0")

    ip("netns", "add", lab.application(1))
    ip("-n", lab.application(1), "link", "add", "eth0", "type", "veth", "peer", "name", "y1")
    ip("-n", lab.application(1), "address", "add", "172.16.0.77/16", "dev", "eth0")
    assert "has 172.16.0.77/16, which overlaps port rep0's 172.16.0.0/24" in refused(lab)


def test_missing_frr_is_named(lab, tmp_path):
    empty = FabricPaths(state=lab.paths.state, frr=FrrPaths(binaries=str(tmp_path)))
    with pytest.raises(PreflightError, match=r"FRR's zebra is not in .*: apt-get install frr"):
        up(lab.file(1), paths=empty)
    nowhere = FabricPaths(state=lab.paths.state, frr=FrrPaths(configuration=str(tmp_path / "etc")))
    with pytest.raises(PreflightError, match=r"FRR is not installed .*: apt-get install frr"):
        up(lab.file(1), paths=nowhere)


@pytest.mark.parametrize("command", ["plan", "up", "check", "down"])
def test_missing_rights_are_named(lab, tmp_path, command):
    """An ordinary user learns what is missing, and nothing happens."""
    file = tmp_path / "host.yaml"
    file.write_text(lab.file(1).model_dump_json(exclude_defaults=True))
    before = lab.picture(1)
    words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-m", "services.cli", "fabric"]
    done = subprocess.run([*words, command, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 69, done.stderr
    assert "no right to change this host's network (CAP_NET_ADMIN and CAP_SYS_ADMIN): sudo" in done.stderr
    assert lab.picture(1) == before


CONFIGURATIONS = {
    "host": host_configuration(HostFile(name="h", asn=1, vtep="10.0.0.1", uplinks=["p1", "p2"], vni=1)),
    "carries others": host_configuration(
        HostFile(name="h", asn=1, vtep="10.0.0.1", uplinks=["p1"], vni=1, transit=True)
    ),
    "without BFD": host_configuration(HostFile(name="h", asn=1, vtep="10.0.0.1", uplinks=["p1"], vni=1, bfd=None)),
    "switch": tor_configuration(TorSwitch("s", 65101, "10.255.0.101", ("d1", "isl"))),
}


TEXTS = {
    (daemon, getattr(CONFIGURATIONS[kind], daemon)): f"{daemon}, {kind}"
    for kind in reversed(CONFIGURATIONS)
    for daemon in ("zebra", "bgpd", "bfdd")
}
"""Each once: not all kinds differ for each daemon."""


@pytest.mark.parametrize(("daemon", "text"), TEXTS, ids=TEXTS.values())
def test_frr_takes_every_line(daemon, text):
    # Not below tmp_path, which the user frr may not enter.
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(text)
        file.flush()
        Path(file.name).chmod(0o644)
        command = [f"/usr/lib/frr/{daemon}", "--dryrun", "-f", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "config" in line] == []


def test_a_second_zebra_in_the_namespace_is_refused(lab):
    """Two of them remove each other's routes."""
    up(lab.file(1), paths=lab.paths)
    other = lab.file(1, name=f"{lab.prefix}-x", ports=[], encapsulation=None)
    with pytest.raises(PreflightError, match=r"another zebra \(process \d+\) runs in this network namespace"):
        up(other, paths=lab.paths)


def test_one_at_a_time(lab):
    file = lab.file(1)
    with locked(lab.paths.state, file.name), pytest.raises(JournalError, match="is at work on"):
        up(file, paths=lab.paths)
