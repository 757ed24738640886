"""A compose project of our own: real docker-compose, real images, and a look at its containers from outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import docker
import pytest
from docker.models.containers import Container

from services._host.cgroupfs import CgroupLayout, detect, paths_of_pid
from services.cli.toolkit.supervisor import free_port
from tests.support.limit_observer import read_limits

ROOT: Final = Path(__file__).resolve().parents[2]
COMPOSE: Final = ROOT / "compose"
LIGHT: Final = ("agent", "allocator", "reconciler", "cli")
"""Images without PyTorch."""
RUNNING: Final = ("nats", "agent", "allocator", "reconciler")
LOADS: Final = ("web", "api", "worker", "cache", "batch")
START_S: Final = 180.0
WEIGHT: Final = 16
NICENESS: Final = -10
"""Of compose, and `WEIGHT` times the usual share for containers: other work on the machine is not to be measured."""
_BUILD_S: Final = 600.0
_COMMAND_S: Final = 120.0


def compose_commands() -> list[list[str]]:
    """Every compose that is installed: version 2 as a plugin, version 1 as a program."""
    found = []
    if (
        shutil.which("docker")
        and not subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode
    ):
        found.append(["docker", "compose"])
    if program := shutil.which("docker-compose"):
        found.append([program])
    return found


def require(*commands: str) -> None:
    """Skip where a program is missing."""
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: apt-get install {' '.join(missing)}")


def plain_environment() -> dict[str, str]:
    """What compose needs of ours, and no setting."""
    names = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONFIG")
    return {name: os.environ[name] for name in names if name in os.environ}


def make_images(*services: str) -> None:
    """As `make images-offline`; quick where nothing has changed."""
    script = ROOT / "scripts" / "make_images_offline.sh"
    done = subprocess.run([script, *services], cwd=ROOT, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@contextmanager
def preferred(layout: CgroupLayout) -> Iterator[None]:
    """Give Docker's containers together as many processors as they can use.

    All containers share one group, which counts as much as a single process outside. Quotas are not touched.
    """
    shares = Path(layout.mounts["cpu"].directory, "docker", "cpu.shares")
    if layout.version == 2 or not shares.exists():
        yield
        return
    before = shares.read_text()
    shares.write_text(str(WEIGHT * 1024))
    try:
        yield
    finally:
        shares.write_text(before)


class Limits(NamedTuple):
    """Of one container in the kernel; `limit_observer.UNLIMITED` where there is none."""

    quota_us: int
    memory_bytes: int


def limits_of(container: Container, layout: CgroupLayout) -> Limits | None:
    """None: it does not run."""
    container.reload()
    return limits_of_pid(int(container.attrs["State"]["Pid"]), layout)


def limits_of_pid(pid: int, layout: CgroupLayout) -> Limits | None:
    """By any process of the container."""
    paths = paths_of_pid(layout, pid)
    cpu, memory = paths["cpu"], paths["memory"]
    if not pid or cpu is None or memory is None:
        return None
    try:
        return Limits(*read_limits(layout.version, cpu, memory))
    except OSError:
        return None


class SumWatch:
    """Samples the limits of some containers 50 times a second, in a thread, and keeps the largest sums.

    A sample counts only if two readings in a row agree: a cut in one file and a raise in the next between two reads
    would look like a sum that never was.
    """

    def __init__(self, pids: list[int], layout: CgroupLayout) -> None:
        self.samples = 0
        self.highest_quota_us = 0
        self.highest_memory_bytes = 0
        self._pids = pids
        self._layout = layout
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sum watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.02):
            seen = [limits_of_pid(pid, self._layout) for pid in self._pids]
            if seen != [limits_of_pid(pid, self._layout) for pid in self._pids]:
                continue
            known = [limits for limits in seen if limits is not None]
            self.samples += 1
            self.highest_quota_us = max(self.highest_quota_us, sum(limits.quota_us for limits in known))
            self.highest_memory_bytes = max(self.highest_memory_bytes, sum(limits.memory_bytes for limits in known))


class ComposeProject:
    """One project, under a name, ports and a state directory of its own."""

    def __init__(self, *overlays: str, directory: Path = COMPOSE) -> None:
        self.name = f"tbtest{os.getpid()}"
        self._directory = directory
        self.layout = detect()
        self.nats_port = free_port()
        self.state_directory = Path("/run", f"turnbuckle-{self.name}")
        self.client = docker.from_env()
        files = [part for file in ("compose.yaml", *overlays) for part in ("-f", file)]
        self._command = ["nice", "-n", str(NICENESS), *compose_commands()[0], *files]
        offline = dict(line.split("=", 1) for line in _lines(COMPOSE / "offline.env"))
        self.environment = (
            plain_environment()
            | offline
            | {
                "COMPOSE_PROJECT_NAME": self.name,
                "COMPOSE_PROFILES": "advisor",  # `config` and `down` know it; `up` is told what to start
                "TURNBUCKLE_NATS_PORT": str(self.nats_port),
                "TURNBUCKLE_RECONCILER_HEALTH_PORT": str(free_port()),
                "TURNBUCKLE_STATE_DIRECTORY": str(self.state_directory),
                "TURNBUCKLE_NODE": self.name,
            }
        )

    @property
    def url(self) -> str:
        """Of NATS, from here."""
        return f"nats://127.0.0.1:{self.nats_port}"

    def run(self, *arguments: str) -> str:
        """One compose command; returns what it printed."""
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=self._directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def up(self, *arguments: str) -> None:
        """Start, from the images that are there."""
        self.run("up", "--detach", "--no-build", *arguments)

    def containers(self, service: str, *, every: bool = False) -> list[Container]:
        """Of one service, running ones only unless `every`."""
        labels = [f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}"]
        return list(self.client.containers.list(all=every, ignore_removed=True, filters={"label": labels}))

    def container(self, service: str) -> Container:
        """The only one."""
        [container] = self.containers(service)
        return container

    def health(self, service: str) -> list[str]:
        """Of every replica: starting, healthy, unhealthy."""
        return [each.attrs["State"].get("Health", {}).get("Status", "none") for each in self.containers(service)]

    def wait_healthy(self, *services: str, replicas: int = 1, within_s: float = START_S) -> None:
        """Until every replica of these is; tells what the sick ones say."""
        deadline = time.monotonic() + within_s
        while sick := [name for name in services if self.health(name) != ["healthy"] * replicas]:
            assert time.monotonic() < deadline, f"not healthy within {within_s:g} s:\n" + "\n".join(
                f"{name}: {self.health(name)} {self._says(name)}" for name in sick
            )
            time.sleep(0.05)

    def _says(self, service: str) -> str:
        containers = self.containers(service, every=True)
        checks = [
            check["Output"] for each in containers for check in each.attrs["State"].get("Health", {}).get("Log", [])
        ]
        return "".join(checks[-1:]) + "".join(each.logs(tail=5).decode(errors="replace") for each in containers)

    def streams(self) -> dict[str, dict[str, Any]]:
        """State of every JetStream stream, as the server's monitoring tells it."""
        url = "http://127.0.0.1:8222/jsz?streams=true"
        _, output = self.container("nats").exec_run(["wget", "-q", "-O", "-", url])
        details = json.loads(output).get("account_details", [])
        return {stream["name"]: stream["state"] for account in details for stream in account["stream_detail"]}

    def metric(self, service: str, name: str) -> float:
        """Summed over replicas and labels; asked for inside, as no port is published."""
        code = (
            "import os, urllib.request as u; e = os.environ; "
            "print(u.urlopen(f\"http://127.0.0.1:{e['TURNBUCKLE_HEALTH_PORT']}/metrics\").read().decode())"
        )
        total = 0.0
        for container in self.containers(service):
            _, output = container.exec_run(["python", "-c", code])
            samples = [line.rpartition(" ") for line in output.decode().splitlines() if not line.startswith("#")]
            total += sum(float(value) for head, _, value in samples if head.partition("{")[0] == name)
        return total

    def load_pids(self) -> list[int]:
        """Of the demo's containers."""
        return [int(self.container(name).attrs["State"]["Pid"]) for name in LOADS]

    def remove(self) -> None:
        """Everything of it, whatever state it is in."""
        self.run("down", "--volumes", "--remove-orphans", "--timeout", "15")
        self.client.close()
        shutil.rmtree(self.state_directory, ignore_errors=True)


def _lines(path: Path) -> Iterator[str]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield line
