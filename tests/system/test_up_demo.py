"""`turnbuckle up`: the services as processes, the demo, its report, and how everything ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services._host.cgroupfs import detect
from services.agent.doctor import running_watchdogs
from services.cli.toolkit.supervisor import free_port
from services.cli.up.demo import plan_demo
from tests.support.up_process import environment, state_directory, until, up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(360)]

FIGURES = {
    "containers",
    "periods",
    "decisions",
    "quota_writes",
    "no_op_writes",
    "oom_kills",
    "throttled_share",
    "median_cpu_slack_cores",
    "median_memory_slack_bytes",
    "peak_memory_bytes",
    "memory_events",
    "drifts",
}


@pytest.fixture
def managed_root() -> Iterator[str]:
    """A directory of our own below each controller, so that runs beside this one are not touched."""
    root = f"tb-test-{uuid.uuid4().hex[:8]}"
    yield root
    left = leftovers(root)
    assert left == [], f"control groups were left behind: {left}"
    until(lambda: watchdogs_of(root) == [], "no watchdog is left behind")
    shutil.rmtree(state_directory(root), ignore_errors=True)


def watchdogs_of(root: str) -> list[int]:
    """Watchdogs of this managed root's agents."""
    return [seen.pid for seen in running_watchdogs() if Path(seen.root_directory).name == root]


def leftovers(root: str) -> list[str]:
    layout = detect()
    return [str(path) for mount in layout.distinct_mounts() for path in Path(mount.directory, root).rglob("*-*")]


def report_of(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out), err


def services_of(process: subprocess.Popen[str]) -> dict[str, int]:
    """Process ids of the services that this `up` has started, by name."""
    found: dict[str, int] = {}
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        command = Path(f"/proc/{child}/cmdline").read_bytes().decode().replace("\0", " ")
        if match := re.search(r"-m services\.(agent|allocator) ", command):
            found[match[1]] = int(child)
        elif "nats-server" in command:
            found["nats"] = int(child)
    return found


def allocators_of(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the allocators, in the order of their start."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"services.allocator" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def ready(process: subprocess.Popen[str], directory: Path) -> dict[str, int]:
    log = directory / "turnbuckle-run" / "agent.log"
    until(lambda: log.exists() and '"agent_started"' in log.read_text(), "the agent has started", within_s=180)
    return services_of(process)


def wait_until_up(process: subprocess.Popen[str]) -> None:
    """Until every service runs, and an interrupt or a death is answered in order; its stderr up to there is read."""
    assert process.stderr is not None
    while line := process.stderr.readline():
        if "turnbuckle is up" in line:
            return
    raise AssertionError(f"it has ended: {process.wait(60)}")


def check_report(report: dict[str, Any], maker: str) -> None:
    for side in (report, report["static"]):
        assert side.keys() >= FIGURES
        assert side["containers"] == 5
        assert side["periods"] > 20
        assert 0 <= side["throttled_share"] <= 1
        assert side["median_cpu_slack_cores"] >= 0
        assert side["median_memory_slack_bytes"] >= 0
        assert side["no_op_writes"] == 0
    assert report["maker"] == maker
    assert report["decisions"] > 0
    # Where the processors are full, no quota is lowered, and who gets no processor needs no higher one (decision 40).
    assert report["quota_writes"] + report["memory_writes"] > 0
    assert report["static"]["quota_writes"] == 0
    assert report["oom_kills"] == 0
    assert Path(report["picture"]).read_bytes().startswith(b"\x89PNG")


def test_the_demo_on_a_simulated_host(tmp_path: Path) -> None:
    """No root, no Docker; stdout holds the report and nothing else."""
    port = free_port()
    arguments = ("--demo", "--simulate", "--for", "6", "--json", "--port", str(port))
    with up(tmp_path, *arguments, env=environment()) as process:
        report, err = report_of(process)

    assert "simulated host, as asked" in err
    assert report["simulated"]
    assert report["machine"]["telemetry_source"] == "simulated"
    check_report(report, "simulated")
    assert report["quota_writes"] > 0
    assert json.loads((tmp_path / "turnbuckle-run" / "report.json").read_text()) == report


@pytest.mark.machine
@pytest.mark.root
def test_the_demo_on_real_control_groups(tmp_path: Path, managed_root: str) -> None:
    port = str(free_port())
    arguments = ("--demo", "--containers", "processes", "--for", "12", "--json", "--port", port)
    with up(tmp_path, *arguments, env=environment(managed_root)) as process:
        report, _ = report_of(process)

    assert not report["simulated"]
    assert report["machine"]["cgroup_version"] in {1, 2}
    check_report(report, "processes")
    # No grant need be among it: beside other work memory grows so slowly that the allocator's raises come in time.
    first_limit = plan_demo().limits.memory_bytes
    assert report["static"]["peak_memory_bytes"] <= first_limit < report["peak_memory_bytes"]
    assert report["memory_events"]["kills"] == 0
    assert report["static"]["memory_events"]["grants"] == 0
    assert report["static"]["oom_kills"] > 0, "what grows beyond the first limit is killed where that stays"


@pytest.mark.machine
@pytest.mark.root
@pytest.mark.docker
def test_the_demo_with_docker(tmp_path: Path, managed_root: str) -> None:
    import docker  # noqa: PLC0415 - the other tests need no SDK

    env = environment(managed_root) | {"TURNBUCKLE_AGENT__DOCKER": "auto"}
    with up(
        tmp_path, "--demo", "--containers", "docker", "--for", "12", "--json", "--port", str(free_port()), env=env
    ) as process:
        pid = process.pid
        report, _ = report_of(process)

    check_report(report, "docker")
    client = docker.from_env()
    left = client.containers.list(all=True, filters={"label": f"turnbuckle.demo-pid={pid}"})
    client.close()
    assert left == []


def test_a_taken_port_is_said_and_the_next_one_used(tmp_path: Path) -> None:
    port = free_port()
    env = environment()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with up(tmp_path / "a", "--simulate", "--port", str(port), "--no-live", env=env) as first:
        ready(first, tmp_path / "a")
        with up(tmp_path / "b", "--simulate", "--port", str(port), "--for", "1", "--json", env=env) as second:
            report, err = report_of(second)

        assert f"port {port} is taken" in err
        assert not report["nats_url"].endswith(f":{port}")
        assert first.poll() is None


def test_an_interrupt_ends_everything_in_order(tmp_path: Path) -> None:
    with up(tmp_path, "--simulate", "--port", str(free_port()), "--no-live", env=environment()) as process:
        pids = ready(process, tmp_path)
        wait_until_up(process)

        assert pids.keys() == {"agent", "allocator", "nats"}

        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    for name in ("agent", "allocator"):
        assert '"stopped"' in (tmp_path / "turnbuckle-run" / f"{name}.log").read_text()


def test_a_dead_service_ends_up_with_its_log(tmp_path: Path) -> None:
    with up(tmp_path, "--simulate", "--port", str(free_port()), "--no-live", env=environment()) as process:
        pids = ready(process, tmp_path)
        wait_until_up(process)
        os.kill(pids["agent"], signal.SIGKILL)
        _, err = process.communicate(timeout=120)

    assert process.returncode == 70
    assert "agent has ended (signal 9)" in err
    assert "agent.log" in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


@pytest.mark.root
def test_a_second_up_on_one_host_is_refused_in_the_agents_words(tmp_path: Path, managed_root: str) -> None:
    env = environment(managed_root)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with up(tmp_path / "a", "--port", str(free_port()), "--no-live", env=env) as first:
        pid = ready(first, tmp_path / "a")["agent"]
        with up(tmp_path / "b", "--port", str(free_port()), "--no-live", env=env) as second:
            _, err = second.communicate(timeout=120)

        assert second.returncode == 78
        assert f"the agent does not start: the containers below {managed_root}/ are managed by another agent" in err
        assert f"pid {pid}" in err
        assert "TURNBUCKLE_AGENT__MANAGED_ROOT" in err
        assert "Traceback" not in err
        assert first.poll() is None
        until(lambda: len(watchdogs_of(managed_root)) == 1, "the first one's watchdog runs, and no other")


def test_another_allocator_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    env = environment()
    port = str(free_port())
    cli, server = [sys.executable, "-m", "services.cli"], ["--server", f"nats://127.0.0.1:{port}"]
    file = tmp_path / "app.yaml"
    file.write_text("name: shop\ncpu_limit: 1\nmemory_limit: 256MiB\n")

    def owner() -> str | None:
        done = subprocess.run([*cli, "apps", "--json", *server], env=env, capture_output=True, timeout=60, check=False)
        apps = json.loads(done.stdout)["apps"] if done.returncode == 0 else []
        return apps[0]["owner"] if apps else None

    with up(tmp_path, "--simulate", "--port", port, "--no-live", "--allocators", "2", env=env) as process:
        ready(process, tmp_path)
        wait_until_up(process)
        subprocess.run([*cli, "apply", str(file), *server], check=True, env=env, capture_output=True, timeout=60)
        before = until(owner, "somebody decides")
        logs = [tmp_path / "turnbuckle-run" / name for name in ("allocator.log", "allocator-2.log")]
        position = next(number for number, log in enumerate(logs) if f'"replica": "{before}"' in log.read_text())
        os.kill(allocators_of(process)[position], signal.SIGKILL)
        until(lambda: owner() not in {None, "", before}, "another one decides")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    assert "has ended (signal 9), the others take over" in err


def test_services_do_not_outlive_a_killed_up(tmp_path: Path) -> None:
    with up(tmp_path, "--simulate", "--port", str(free_port()), "--no-live", env=environment()) as process:
        pids = ready(process, tmp_path)
        process.kill()
        process.communicate(timeout=120)

        for name, pid in pids.items():
            until(lambda pid=pid: not Path(f"/proc/{pid}/exe").exists(), f"{name} has ended")


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    env = environment() | {"TURNBUCKLE_AGENT__NODDE": "x"}
    with up(tmp_path, "--simulate", "--port", str(free_port()), "--no-live", env=env) as process:
        _, err = process.communicate(timeout=120)

    assert process.returncode == 78
    assert "TURNBUCKLE_AGENT__NODE" in err


@pytest.mark.root
def test_exec_is_managed_by_a_running_up(tmp_path: Path, managed_root: str) -> None:
    """A process that burns CPU at a tenth of its demand gets more within a few periods."""
    env = environment(managed_root)
    port = str(free_port())
    server = ["--server", f"nats://127.0.0.1:{port}"]
    file = tmp_path / "app.yaml"
    file.write_text("name: burn\ncpu_limit: 0.8\nmemory_limit: 256MiB\n")
    cli = [sys.executable, "-m", "services.cli"]
    with up(tmp_path, "--port", port, "--no-live", env=env) as process:
        ready(process, tmp_path)
        subprocess.run([*cli, "apply", str(file), *server], check=True, env=env, capture_output=True, timeout=60)
        burn = [*cli, "exec", "--app", "burn", "--name", "one", "--cpus", "0.05", "--memory", "64MiB", "--"]
        with subprocess.Popen([*burn, sys.executable, "-c", "while True: pass"], env=env) as burner:
            try:
                quota = until(lambda: grown_quota(managed_root, above_us=50_000), "the quota follows the demand")
            finally:
                burner.terminate()
                burner.wait(60)

    assert quota <= 80_000


def grown_quota(root: str, above_us: int) -> int | None:
    layout = detect()
    file, position = ("cpu.cfs_quota_us", 0) if layout.version == 1 else ("cpu.max", 0)
    for path in Path(layout.mounts["cpu"].directory, root).glob(f"burn/one-*/{file}"):
        quota = path.read_text().split()[position]
        if quota != "max" and int(quota) > above_us:
            return int(quota)
    return None
