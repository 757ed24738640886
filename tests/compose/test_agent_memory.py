"""What the agent's container takes with a hundred containers to look after, without and with exported traces."""

from __future__ import annotations

import http.server
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from docker.models.containers import Container

from tests.support import compose_lab
from tests.support.compose_lab import ROOT, ComposeProject, plain_environment
from tests.support.compose_load import bridge_address

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]
CONTAINERS = 100
MOST_BYTES = 90 * 10**6
SERVICES = ("nats", "agent", "allocator")
PERIODS = 200
"""Sampled before it is looked at: 20 s."""
APP = {"name": "many", "cpu_limit": 1.5, "memory_limit": "4GiB", "containers": [{"name": "c", "image": "c"}]}


class Sink(http.server.BaseHTTPRequestHandler):
    """Takes whatever is exported."""

    protocol_version = "HTTP/1.1"
    taken = 0

    def log_message(self, *_: object) -> None:
        return

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        Sink.taken += 1
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()


@pytest.fixture
def sink() -> Iterator[str]:
    client = compose_lab.docker.from_env()
    server = http.server.ThreadingHTTPServer((bridge_address(client), 0), Sink)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield "http://{}:{}".format(*server.server_address)
    server.shutdown()
    server.server_close()
    thread.join()
    client.close()


def exporting(path: Path, endpoint: str) -> Path:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_METRIC_EXPORT_INTERVAL": "5000",
    }
    path.write_text(yaml.safe_dump({"services": {"agent": {"environment": variables}}}), encoding="utf-8")
    return path


@pytest.fixture
def project(sink: str, tmp_path: Path, exported: bool) -> Iterator[ComposeProject]:
    """With an application that has a hundred idle containers."""
    compose_lab.require("docker-compose", "debootstrap")
    compose_lab.make_images(*compose_lab.LIGHT)
    project = ComposeProject(*([str(exporting(tmp_path / "otel.yaml", sink))] if exported else []))
    started: list[Container] = []
    try:
        project.up(*SERVICES)
        project.wait_healthy(*SERVICES)
        app = tmp_path / "app.yaml"
        app.write_text(yaml.safe_dump(APP), encoding="utf-8")
        apply = [sys.executable, "-m", "services.cli", "apply", "--limits-only", str(app)]
        subprocess.run(apply, cwd=ROOT, env=plain_environment() | {"NATS_URL": project.url}, check=True, timeout=60)
        started.extend(idle(project) for _ in range(CONTAINERS))
        yield project
    finally:
        for container in started:
            container.remove(force=True)
        project.remove()


def idle(project: ComposeProject) -> Container:
    return project.client.containers.run(
        "turnbuckle-nats:offline",
        ["/bin/busybox", "sleep", "100000"],
        labels={"turnbuckle.app": "many"},
        network_mode="none",
        detach=True,
    )


def wait(condition: Callable[[], bool], *, within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not hold within {within_s:g} s"
        time.sleep(0.5)


@pytest.mark.parametrize("exported", [False, True], ids=["plain", "exporting"])
def test_a_hundred_containers(project, exported):
    def metric(name: str) -> float:
        return project.metric("agent", f"turnbuckle_agent_{name}")

    Sink.taken = 0
    wait(lambda: metric("containers") == CONTAINERS, within_s=60, what="all found")
    before = metric("samples_total")
    wait(lambda: metric("samples_total") > before + PERIODS, within_s=120, what="some periods")
    highest_bytes = memory_of(int(project.container("agent").attrs["State"]["Pid"]))
    logging.getLogger("figures").info("agent, %d containers: %.1f MB", CONTAINERS, highest_bytes / 1e6)
    assert highest_bytes < MOST_BYTES
    assert (Sink.taken > 0) == exported


def memory_of(pid: int) -> int:
    """The most that a process had in memory, in bytes."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
