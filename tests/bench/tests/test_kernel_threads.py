"""Nodes of the interleaving benchmark that take packets in threads of the kernel's, on real devices."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from services._host.netns import socket_in
from services._jobs.sandbox.racks import RackNetwork, RackPlan
from tests.bench.interleave.kernel_threads import receive_in_threads
from tests.support.deadline import until

pytestmark = [pytest.mark.root, pytest.mark.netns]


def switches_of_threads() -> dict[str, int]:
    """How often each thread that takes packets of a node has been waited for, by process id."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if (directory / "comm").read_text().startswith("napi/eth0-"):
                status = (directory / "status").read_text()
                found[directory.name] = int(re.findall(r"^voluntary_ctxt_switches:\t(\d+)", status, re.MULTILINE)[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def test_nodes_take_packets_in_threads() -> None:
    """Each of the two: one takes data, the other acknowledgements."""
    before = switches_of_threads()
    racks = RackNetwork.create(RackPlan.of(["a", "b"], 2, 100_000_000))
    try:
        receive_in_threads({name: racks.path(name) for name in "ab"})
        idle = {process: count for process, count in switches_of_threads().items() if process not in before}
        with (
            socket_in(str(racks.path("b")), socket.AF_INET, socket.SOCK_STREAM) as server,
            socket_in(str(racks.path("a")), socket.AF_INET, socket.SOCK_STREAM) as sender,
        ):
            server.bind((racks.plan.address("b"), 7_000))
            server.listen()
            sender.connect(server.getsockname())
            connection, _ = server.accept()
            with connection:
                sender.sendall(bytes(1 << 16))
                assert len(connection.recv(1 << 16, socket.MSG_WAITALL)) == 1 << 16
        assert len(idle) >= 2

        def have_run() -> bool:
            now = switches_of_threads()
            return sum(now.get(process, 0) > count for process, count in idle.items()) >= 2

        await until(have_run, what="both threads")
    finally:
        racks.close()
