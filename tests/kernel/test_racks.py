"""Emulated racks on real namespaces: reach, the uplinks' rate, a runner's workers inside, and nothing left behind."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from schemas.scheduling import Preemption, WorkerChange
from services._host.netns import command_in, inside
from services._jobs.sandbox.network import NetworkUnavailableError
from services._jobs.sandbox.racks import RackNetwork, RackPlan
from tests.support.runner_lab import RunnerLab, job_spec, run_order

pytestmark = [pytest.mark.root, pytest.mark.netns]

RATE = 40_000_000
SENT_BYTES = 5_000_000
RECEIVE = """
import socket
listener = socket.create_server(("", 5000))
print("listens", flush=True)
connection, _ = listener.accept()
while connection.recv(1 << 16): pass
connection.sendall(b"k")
"""
WHERE = "readlink /proc/self/ns/net; id -un; echo $GLOO_SOCKET_IFNAME; echo $MASTER_ADDR"


@pytest.fixture
def racks() -> Iterator[RackNetwork]:
    network = RackNetwork.create(RackPlan.of(["n1", "n2", "n3"], 2, RATE))
    try:
        yield network
    finally:
        network.close()


def namespace(network: RackNetwork, node: str) -> str:
    """As processes in it see it."""
    return str(Path(f"/proc/self/fd/{network.nodes[node].descriptor}").readlink())


def namespaces_held() -> set[str]:
    """Network namespaces of which this process has a descriptor."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing
            found.add(str(entry.readlink()))
    return {target for target in found if target.startswith("net:")}


def own_network() -> str:
    """This process' network namespace."""
    return str(Path("/proc/self/ns/net").readlink())


def transfer_s(network: RackNetwork, sender: str, receiver: str) -> float:
    """How long `SENT_BYTES` take until the receiver has them all."""
    command = command_in(str(network.path(receiver)), [sys.executable, "-S", "-c", RECEIVE])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        begin_s = time.monotonic()
        with inside(str(network.path(sender))):
            connection = socket.create_connection((network.plan.address(receiver), 5000), timeout=60)
        with connection:
            connection.sendall(bytes(SENT_BYTES))
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b"k"
        took_s = time.monotonic() - begin_s
        process.communicate(timeout=60)
    return took_s


@pytest.mark.parametrize(("sender", "receiver"), [("n1", "n3"), ("n3", "n2")])
def test_an_uplink_keeps_its_rate_in_each_direction(racks: RackNetwork, sender: str, receiver: str) -> None:
    # 40 Mbit of data, 3 per cent of headers, at 40 Mbit/s; the bucket's 16 kB pass at once
    assert 0.95 < transfer_s(racks, sender, receiver) < 60.0


def test_nodes_of_one_rack_do_not_share_its_uplink(racks: RackNetwork) -> None:
    transfer_s(racks, "n1", "n2")
    with inside(f"/proc/self/fd/{racks.switches.descriptor}"):
        counted = {
            line.split(":")[0].strip(): line for line in Path("/proc/thread-self/net/dev").read_text().splitlines()
        }

    # what the uplink has sent: no more than broadcasts
    assert int(counted["rack-1-up"].split(":")[1].split()[8]) < 10_000
    assert int(counted["n1"].split(":")[1].split()[0]) > SENT_BYTES


async def test_workers_of_a_runner_live_in_a_nodes_network(racks: RackNetwork, tmp_path: Path) -> None:
    """The runner itself stays outside, and a worker is no root there."""
    own = own_network()
    lab = RunnerLab(tmp_path, run_as="nobody", network_namespace=str(racks.path("n3")), address="10.77.0.3")
    spec = job_spec(Path("/"), ("sh", "-c", WHERE), preemption=Preemption.NEVER)

    assert (await lab.run_to_the_end(spec)).change is WorkerChange.ENDED
    assert lab.files().log.read_text().split() == [namespace(racks, "n3"), "nobody", "eth0", "127.0.0.1"]
    assert own_network() == own


async def test_a_worker_whose_network_is_gone_is_not_started(racks: RackNetwork, tmp_path: Path) -> None:
    # A number so high that nothing else which this process opens gets it once it is closed.
    entry = fcntl.fcntl(racks.nodes["n1"].descriptor, fcntl.F_DUPFD_CLOEXEC, 900)
    path = f"/proc/{os.getpid()}/fd/{entry}"
    lab = RunnerLab(tmp_path, network_namespace=path, address=racks.plan.address("n1"))
    await lab.listen()
    async with lab.runner():
        os.close(entry)
        await lab.ask(run_order(job_spec(lab.work)))
        failed = await lab.until_change(WorkerChange.FAILED)

    assert failed.reason == f"its network namespace {path} cannot be entered: No such file or directory"


def test_no_namespace_is_left_of_it() -> None:
    """Only descriptors keep it: with them it goes, also where it cannot be made whole."""
    before = namespaces_held()
    network = RackNetwork.create(RackPlan.of(["a", "b"], 2, RATE))
    assert len(namespaces_held() - before) == 3
    network.close()
    with pytest.raises(NetworkUnavailableError):
        RackNetwork.create(RackPlan.of(["a", "a-name-too-long-for-a-device"], 2, RATE))

    assert namespaces_held() == before
