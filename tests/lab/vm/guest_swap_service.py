"""`turnbuckle swap` and the memory service as a user starts them, on a real kernel.

Run by tests/lab/test_remote_memory_vm.py in the machine. NATS, two hosts that lend memory and one that swaps are all in
it: each service is a process with a name and a directory of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.remote_memory import MemoryHostInfo
from schemas.streams import MEMORY_HOSTS
from services._host.host_load import read_available
from services._runtime.bus.api import BusError
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.options import BusOptions
from services._runtime.child_process import AnsweringChild
from services._runtime.command.connection import connected
from services._runtime.command.errors import UnavailableError
from services._runtime.service.interpreter import isolated_command
from services.memory.adapters.programs import run
from services.memory.core.mapping import Slab, State
from services.memory.swap_devices import SwapDevices
from tests.lab.vm.guest_remote_memory import (
    DISK,
    MIB,
    SLAB,
    checked,
    figure,
    modules,
    nothing_is_left,
    worker,
    written,
)
from tests.support.cgroup_lab import wait_until

__all__ = ["modules", "worker"]
SLOW_S = 240.0
SLABS = 2
LENDERS = ("first", "second", "third")
"""Hosts that the one that swaps trusts, there or not."""


class Hosts:
    """Services and the command, with their directories."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url
        self.devices = SwapDevices(directory / "small")
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self, node: str, **settings: str) -> dict[str, str]:
        given = {"NODE": node, "STATE_DIRECTORY": str(self.directory / node), **settings}
        ours = {f"TURNBUCKLE_MEMORY__{name}": value for name, value in given.items()}
        return dict(os.environ) | ours | {"TURNBUCKLE_NATS_URL": self.url, "TURNBUCKLE_HEALTH_PORT": "0"}

    def start(self, node: str, **settings: str) -> None:
        with (self.directory / f"{node}.log").open("ab") as log:
            command = isolated_command("services.memory")
            environment = self.environment(node, **settings)
            self.running[node] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def lend(self, node: str, headroom_bytes: int = 0) -> None:
        self.start(
            node, OFFER_BYTES="64MiB", PER_HOST_BYTES="64MiB", ADDRESS="127.0.0.1", HEADROOM_BYTES=str(headroom_bytes)
        )

    def swap(self) -> None:
        self.start("small", TRUSTED_HOSTS=",".join(LENDERS), MAP_ABOVE_PAGES_PER_S="1")

    def kill(self, node: str) -> None:
        process = self.running.pop(node)
        process.kill()
        process.wait()

    def log(self, node: str) -> list[dict[str, Any]]:
        lines = (self.directory / f"{node}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def command(self, *words: str) -> dict[str, Any]:
        command = [*isolated_command("services.cli"), "swap", *words, "--json"]
        ended = subprocess.run(command, env=self.environment("small"), capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return dict(json.loads(ended.stdout))

    def slabs(self) -> tuple[Slab, ...]:
        record = self.devices.record("swap")
        return record.slabs if record is not None else ()

    async def lending(self) -> set[str]:
        """Hosts that are registered with an offer."""
        try:
            async with connected(BusOptions(servers=(self.url,))) as bus:
                entries = await bus.bucket(MEMORY_HOSTS).entries()
        except (BusError, UnavailableError):  # no service has made the bucket yet
            return set()
        infos = [entry.message for entry in entries.values()]
        return {info.node for info in infos if isinstance(info, MemoryHostInfo) and info.offered_bytes >= SLAB}

    def all_remote(self) -> bool:
        return all(slab.state is State.REMOTE for slab in self.slabs())

    def said(self) -> str:
        """Slabs and the mapping service's last events, for the message of a failed test."""
        return f"{self.slabs()}\n{self.log('small')[-5:]}"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    store = tmp_path / "store"
    store.mkdir()
    # The streams together may take a gigabyte: more than JetStream sees free in half of this machine's memory.
    run(["mount", "-t", "tmpfs", "-o", "size=8g", "store", str(store)])
    nats = EmbeddedNats(store_directory=store)
    nats.ready_timeout_s = SLOW_S
    asyncio.run(nats.start())
    made = Hosts(tmp_path, nats.url)
    try:
        yield made
        if "swap" in made.devices.names():
            made.command("detach")
    finally:
        for node in list(made.running):
            made.kill(node)
        nats.kill()
        run(["umount", str(store)])


@contextmanager
def swapping(worker: AnsweringChild) -> Iterator[Callable[[], int]]:
    """The process reads and writes its pages over and over; yields how often it has found all of them right."""
    stop, passes, failures = threading.Event(), [0], []

    def work() -> None:
        try:
            while not stop.is_set():
                checked(worker)
                passes[0] += 1
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield lambda: passes[0]
    finally:
        stop.set()
        thread.join()
    assert failures == []


def until(condition: Callable[[], object], what: str, hosts: Hosts, within_s: float = SLOW_S) -> float:
    """Seconds until it holds; a service that has ended meanwhile ends the wait."""
    began_s = time.monotonic()

    def holds() -> object:
        ended = {node: process.returncode for node, process in hosts.running.items() if process.poll() is not None}
        assert not ended, f"services have ended: {ended}"
        return condition() or time.sleep(0.2)

    try:
        wait_until(holds, within_s=within_s, what=what)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{hosts.said()}") from error
    return time.monotonic() - began_s


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_host_swaps_to_others_through_eviction_and_kills_of_daemon_and_mapper(
    hosts: Hosts, worker: AnsweringChild
) -> None:
    assert hosts.command("status") == {"service_runs": False, "devices": []}
    attached = hosts.command("attach", DISK, "--size", str(SLABS * SLAB), "--slab-size", str(SLAB))
    assert (attached["slabs"], attached["size_bytes"]) == (SLABS, SLABS * SLAB)
    free_bytes = read_available()
    assert free_bytes is not None
    hosts.lend("first")
    hosts.lend("second", headroom_bytes=free_bytes - 900 * MIB)
    until(lambda: asyncio.run(hosts.lending()) == {"first", "second"}, "both hosts lend", hosts)
    hosts.swap()
    written(worker, 1)
    with swapping(worker) as passes:
        seconds = until(hosts.all_remote, "all slabs remote", hosts)
        figure(f"{SLABS} slabs mapped by the service {seconds:.0f} s after the processes were started")
        assert len({slab.daemon for slab in hosts.slabs()}) == SLABS, "hosts without a slab come first"

        # A daemon is killed: its slab falls back, and is mapped again, wherever there is room.
        before = attempts(hosts)
        for pid in children(hosts.running["first"].pid):
            os.kill(pid, signal.SIGKILL)
        seconds = until(lambda: attempts(hosts) > before and hosts.all_remote(), "its slab is mapped again", hosts)
        figure(f"a slab of a daemon that was killed mapped again {seconds:.0f} s later")

        # The service that maps is killed while the swap is in use, and started again.
        hosts.kill("small")
        known, done = hosts.slabs(), passes()
        until(lambda: passes() > done, "swapping goes on without it", hosts)
        hosts.swap()
        until(lambda: len(started(hosts)) == 2, "it is started", hosts)
        until(lambda: passes() > done + 2, "pages are read with it", hosts)
        # Whatever has left a daemon meanwhile (it did not answer for 5 s) says why.
        assert all(now == then or now.reason for now, then in zip(hosts.slabs(), known, strict=True)), hosts.said()

        # The second host needs its memory.
        began_s = time.monotonic()
        used = Path("/dev/shm/used")  # written, not mapped: User-Mode Linux would kill a process with so many pages
        with used.open("wb", buffering=0) as file:
            for _ in range(1_100):
                file.write(bytes(MIB))
        until(lambda: said_by_second(hosts), "its slab has left", hosts)
        used.unlink()
        figure(f"a slab evicted {time.monotonic() - began_s:.0f} s after its host began to use memory")
        done = passes()
        until(lambda: passes() > done, "all pages read after it", hosts)
    checked(worker)
    status = hosts.command("status")
    assert status["service_runs"] is True
    assert [slab["pages"] > 0 for slab in status["devices"][0]["slabs"]] == [True] * SLABS
    assert hosts.command("detach") == {"name": "swap", "detached": True}
    checked(worker)
    nothing_is_left()


def attempts(hosts: Hosts) -> int:
    return sum(slab.attempt for slab in hosts.slabs())


def said_by_second(hosts: Hosts) -> list[dict[str, Any]]:
    return [line for line in hosts.log("small") if "second needs its memory" in str(line.get("reason"))]


def started(hosts: Hosts) -> list[dict[str, Any]]:
    return [line for line in hosts.log("small") if line.get("event") == "memory_started"]
