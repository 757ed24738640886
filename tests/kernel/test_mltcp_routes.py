"""MLTCP by the routes of a network namespace: given, put back at the end and after kill -9, others left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services._host.bpf.congestion import AVAILABLE, DEFAULT, CongestionPrograms
from services._host.kernel_programs import kernel_directory
from services._host.netns import command_in
from services._jobs.sandbox.racks import RackNetwork, RackPlan
from services._runtime.telemetry.logging import get_logger
from services.runner.worker_network import WorkerNetwork
from services.runner.worker_routes import MARKER, WorkerRoutes
from tests.support.cgroup_lab import wait_until
from tests.support.runner_lab import RunnerLab, job_spec, python, run_order

pytestmark = [pytest.mark.root, pytest.mark.netns]
HOST_DEFAULT = DEFAULT.read_text(encoding="ascii").strip()
LISTEN = """
import socket
listener = socket.create_server(("", 5000))
print("listens", flush=True)
while True: listener.accept()
"""
CONNECT = """
import socket
connection = socket.create_connection(("10.77.0.2", 5000), timeout=60)
print(connection.getsockopt(6, 13, 16).partition(b"\\0")[0].decode(), flush=True)
"""
HOLD = """
import sys
from pathlib import Path
from services._host.bpf.congestion import CongestionPrograms
from services._host.kernel_programs import kernel_directory
from services._runtime.telemetry.logging import get_logger
from services.runner.worker_network import WorkerNetwork
from services.runner.worker_routes import WorkerRoutes
programs = CongestionPrograms(kernel_directory(None), "restricted")
name = programs.registered["mltcp"]
WorkerRoutes(Path(sys.argv[1]), WorkerNetwork(sys.argv[2], "eth0"), get_logger("runner")).give(name)
print(name, flush=True)
sys.stdin.read()
"""


class Node:
    """One of two emulated nodes."""

    def __init__(self, network: RackNetwork, name: str) -> None:
        self.path = str(network.path(name))
        self.address = network.plan.address(name)

    def run(self, *command: str) -> str:
        """What a command in its network prints."""
        return subprocess.run(command_in(self.path, command), capture_output=True, text=True, check=True).stdout

    @property
    def routes(self) -> str:
        """As ip-route(8) shows them."""
        return self.run("ip", "-d", "route", "show")

    def used(self) -> str:
        """The congestion control of a new connection from here to the other node."""
        return self.run(sys.executable, "-S", "-E", "-c", CONNECT).strip()

    def worker_routes(self, directory: Path) -> WorkerRoutes:
        """Of a runner whose workers are here."""
        return WorkerRoutes(directory, WorkerNetwork(self.path, "eth0"), get_logger("runner"))


@pytest.fixture
def node() -> Iterator[Node]:
    """A node with routes of several kinds; another one listens."""
    network = RackNetwork.create(RackPlan.of(["n1", "n2"], 2, 100_000_000))
    made, other = Node(network, "n1"), Node(network, "n2")
    made.run("ip", "route", "add", "10.98.0.0/16", "via", other.address, "mtu", "1400", "metric", "5")
    made.run("ip", "route", "add", "10.99.0.0/16", "dev", "eth0", "congctl", "reno", "src", made.address)
    made.run("ip", "route", "add", "10.100.0.0/16", "dev", "lo")
    listen = command_in(other.path, [sys.executable, "-S", "-E", "-c", LISTEN])
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        yield made
        process.kill()
    network.close()


@pytest.fixture
def programs() -> Iterator[CongestionPrograms]:
    loaded = CongestionPrograms(kernel_directory(None), "restricted")
    yield loaded
    loaded.close()


async def test_a_runners_workers_have_it_by_their_routes(node: Node, tmp_path: Path) -> None:
    """They have no control groups; that the job asked for another congestion control is logged."""
    before = node.routes
    lab = RunnerLab(tmp_path, network_namespace=node.path, address=node.address, control_groups="off")
    await lab.listen()
    async with lab.runner() as runner:
        assert runner.congestion is not None
        assert (runner.congestion.names, runner.congestion.why_not) == (("mltcp",), "")
        changed = node.routes
        await lab.ask(run_order(job_spec(lab.work, python(CONNECT), congestion_control="auto")))
        await lab.until_log("mltcp")

    assert [line.count("congctl mltcp") for line in changed.splitlines()] == [1, 1, 1, 0]
    assert changed.count("mtu 1400") == 1
    assert node.routes == before
    assert node.used() == HOST_DEFAULT


def test_after_kill_9_the_next_start_puts_them_back(node: Node, tmp_path: Path) -> None:
    """Until then connections have the default; the routes would give it again as soon as one of its name is there."""
    before = node.routes
    hold = [sys.executable, "-c", HOLD, str(tmp_path), node.path]
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        name = runner.stdout.readline().strip()
        assert node.used() == name
        os.kill(runner.pid, signal.SIGKILL)
    wait_until(lambda: name not in AVAILABLE.read_text(encoding="ascii").split(), what="the end of its loader")
    assert node.used() == HOST_DEFAULT

    node.worker_routes(tmp_path).put_back()

    assert not (tmp_path / MARKER).exists()
    again = CongestionPrograms(kernel_directory(None), "restricted")
    try:
        assert again.registered["mltcp"] == name
        assert node.routes == before, "a route that names it still would show it now"
    finally:
        again.close()


def test_a_route_that_others_have_changed_since_is_theirs(
    node: Node, programs: CongestionPrograms, tmp_path: Path
) -> None:
    routes = node.worker_routes(tmp_path)
    routes.give(programs.registered["mltcp"])
    node.run("ip", "route", "replace", "10.98.0.0/16", "dev", "eth0", "metric", "5")
    node.run("ip", "route", "replace", "10.99.0.0/16", "dev", "eth0", "congctl", "cubic", "src", node.address)
    node.run("ip", "route", "delete", "10.77.0.0/16")

    routes.put_back()

    assert [line.split()[1] for line in node.routes.splitlines()] == ["10.98.0.0/16", "10.99.0.0/16", "10.100.0.0/16"]
    assert "congctl mltcp" not in node.routes
    assert node.routes.count("congctl cubic") == 1
    assert "mtu" not in node.routes
