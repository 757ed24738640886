"""Faults in an order that a seed draws, while a process swaps to other hosts; run in the machine.

By ``make soak-swap`` with many seeds within one boot, four minutes each. NATS and the three hosts that lend serve all;
swap device, mapping service and the process that swaps are new for each.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from services._host.host_load import read_available
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.child_process import AnsweringChild
from services.memory.adapters.programs import run
from services.memory.core.mapping import Slab, State
from tests.lab.vm.guest_remote_memory import DISK, MIB, SLAB, figure, modules, nothing_is_left, worker
from tests.lab.vm.guest_swap_service import LENDERS, Hosts, children, started, until

__all__ = ["modules", "worker"]
pytestmark = pytest.mark.timeout(3_000)
SLOW_S: Final = 600.0
"""For one step: it takes seconds; several minutes were seen where other machines took all of the processor."""
SLABS: Final = 3
MARGIN_MIB: Final = 900
"""Above the headroom of each host that lends, and what takes them below it."""
PRESSURE_MIB: Final = 1_100
SEEDS: Final = os.environ.get("SWAP_SOAK_SEEDS", "1")
"""FIRST or FIRST-LAST."""
ROWS: Final = "seeds.jsonl"


@dataclass(slots=True)
class Row:
    """What was done with one seed."""

    seed: int
    faults: list[str]
    end: str
    seconds: float = 0.0
    pages_checked: int = 0
    corrupt: int = 0
    mappings: int = 0
    """Of slabs to other hosts."""
    failure: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def text(self) -> str:
        """One line."""
        return (
            f"seed {self.seed}: {self.seconds:.0f} s, {self.pages_checked:,} pages checked, {self.corrupt} corrupt, "
            f"{self.mappings} mappings; {', '.join(self.faults)}; {self.end}"
            + (f"; FAILED: {self.failure.splitlines()[0]}" if self.failure else "")
        )


@dataclass(slots=True)
class Ground:
    """What serves all seeds."""

    hosts: Hosts
    nats: EmbeddedNats
    headroom_bytes: int

    def lend_all(self) -> None:
        for node in LENDERS:
            if node not in self.hosts.running:
                self.hosts.lend(node, headroom_bytes=self.headroom_bytes)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    directory = tmp_path_factory.mktemp("soak")
    store = directory / "store"
    store.mkdir()
    # The streams together may take a gigabyte: more than JetStream sees free in half of this machine's memory.
    run(["mount", "-t", "tmpfs", "-o", "size=8g", "store", str(store)])
    nats = EmbeddedNats(store_directory=store)
    nats.ready_timeout_s = SLOW_S
    asyncio.run(nats.start())
    free_bytes = read_available()
    assert free_bytes is not None
    made = Ground(Hosts(directory, nats.url), nats, free_bytes - MARGIN_MIB * MIB)
    try:
        yield made
    finally:
        for node in list(made.hosts.running):
            made.hosts.kill(node)
        nats.kill()
        run(["umount", str(store)])


class Work:
    """The process writes and checks its pages over and over, in a thread."""

    def __init__(self, worker: AnsweringChild, row: Row) -> None:
        self.passes = 0
        self.failures: list[BaseException] = []
        self._worker = worker
        self._row = row
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def check(self) -> None:
        answer = self._worker.ask("check", SLOW_S)
        self._row.pages_checked += answer["pages"]
        self._row.corrupt += answer["corrupt"]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._worker.ask(f"write {self.passes}", SLOW_S)
                self.check()
                self.passes += 1
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            self.failures.append(error)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
        assert self.failures == []


@dataclass(slots=True)
class Faults:
    """One seed's; each method returns once the fault is over, and swapping has gone on."""

    ground: Ground
    work: Work
    generator: random.Random

    @property
    def hosts(self) -> Hosts:
        return self.ground.hosts

    def cause(self, name: str) -> None:
        self.until(lambda: any(self.remote()), f"a slab remote, before: {name}")
        FAULTS[name](self)
        self.until_passed(name)

    def until(self, condition: Callable[[], object], what: str) -> None:
        until(lambda: self.work.failures or condition(), what, self.hosts, SLOW_S)
        assert self.work.failures == [], what

    def until_passed(self, what: str) -> None:
        """Until a pass over all pages that has begun since has ended."""
        done = self.work.passes
        self.until(lambda: self.work.passes > done + 1, f"all pages written and read: {what}")

    def remote(self) -> list[Slab]:
        return [slab for slab in self.hosts.slabs() if slab.state is State.REMOTE]

    def left(self, host: str, before: list[Slab]) -> bool:
        """No mapping to this host is used that was before."""
        there = {(slab.number, slab.attempt) for slab in before if slab.host == host}
        return not there & {(slab.number, slab.attempt) for slab in self.remote()}

    def signal_a_daemon(self, number: int) -> tuple[str, list[int], list[Slab]]:
        """One that has a slab; its host, processes, and where slabs were."""
        before = self.remote()
        host = self.generator.choice(sorted({slab.host for slab in before}))
        pids = children(self.hosts.running[host].pid)
        for pid in pids:
            os.kill(pid, number)
        return host, pids, before

    def kill_daemon(self) -> None:
        host, _, before = self.signal_a_daemon(signal.SIGKILL)
        self.until(lambda: self.left(host, before), f"slabs back from {host}, whose daemon was killed")

    def freeze_daemon(self) -> None:
        host, pids, before = self.signal_a_daemon(signal.SIGSTOP)
        try:
            self.until(lambda: self.left(host, before), f"slabs back from {host}, whose daemon is stopped")
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):  # its service has given it up
                    os.kill(pid, signal.SIGCONT)

    def evict_all(self) -> None:
        """Memory of the hosts that lend runs out: every slab goes back to the disk, until there is some again."""
        used = Path("/dev/shm/used")  # written, not mapped: User-Mode Linux would kill a process with so many pages
        try:
            with used.open("wb", buffering=0) as file:
                for _ in range(PRESSURE_MIB):
                    file.write(bytes(MIB))
            self.until(lambda: not any(self.remote()), "every slab back on the disk")
            self.until_passed("disk alone")
        finally:
            used.unlink()

    def restart_mapper(self) -> None:
        self.hosts.kill("small")
        self.until_passed("without the service that maps")
        self.start_mapper()

    def start_mapper(self) -> None:
        known = len(started(self.hosts))
        self.hosts.swap()
        self.until(lambda: len(started(self.hosts)) > known, "the service that maps is started")

    def kill_mapper_within_mapping(self) -> None:
        self.signal_a_daemon(signal.SIGKILL)
        self.until(lambda: any(slab.state is State.MAPPING for slab in self.hosts.slabs()), "a mapping under way")
        time.sleep(self.generator.uniform(0.0, 0.5))  # the moment is part of the draw
        self.restart_mapper()

    def restart_nats(self) -> None:
        self.ground.nats.kill()
        self.until_passed("without NATS")
        asyncio.run(self.ground.nats.start())

    def kill_everything(self) -> None:
        """Of ours, but for the process that swaps; then the mapping service alone is started."""
        for node in list(self.hosts.running):
            pids = children(self.hosts.running[node].pid)
            self.hosts.kill(node)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.until_passed("without any process of ours")
        self.start_mapper()


FAULTS: Final[dict[str, Callable[[Faults], None]]] = {
    "daemon killed": Faults.kill_daemon,
    "daemon stopped": Faults.freeze_daemon,
    "evicted": Faults.evict_all,
    "mapper killed": Faults.restart_mapper,
    "mapper killed within a mapping": Faults.kill_mapper_within_mapping,
    "NATS restarted": Faults.restart_nats,
}
ENDS: Final = ("detached", "all killed, then detached")


def seeds() -> range:
    first, _, last = SEEDS.partition("-")
    return range(int(first), int(last or first) + 1)


def drawn(seed: int) -> tuple[Row, random.Random]:
    generator = random.Random(seed)
    faults = generator.sample(sorted(FAULTS), len(FAULTS))
    return Row(seed, faults, generator.choice(ENDS)), generator


@pytest.mark.parametrize("seed", seeds())
def test_no_page_is_lost_through_faults_in_any_order(ground: Ground, worker: AnsweringChild, seed: int) -> None:
    row, generator = drawn(seed)
    began_s = time.monotonic()
    try:
        survive(ground, worker, row, generator)
    except BaseException as error:
        row.failure = str(error) or type(error).__name__
        raise
    finally:
        row.seconds = time.monotonic() - began_s
        figure(row.text())
        if directory := os.environ.get("JOB_DIRECTORY"):
            with (Path(directory) / ROWS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row.as_dict()) + "\n")
        if "swap" in ground.hosts.devices.names():
            ground.hosts.command("detach")
        if "small" in ground.hosts.running:
            ground.hosts.kill("small")


def survive(ground: Ground, worker: AnsweringChild, row: Row, generator: random.Random) -> None:
    hosts = ground.hosts
    hosts.command("attach", DISK, "--size", str(SLABS * SLAB), "--slab-size", str(SLAB), "--force")
    ground.lend_all()
    work = Work(worker, row)
    faults = Faults(ground, work, generator)
    hosts.swap()
    with work.going_on():
        for name in row.faults:
            faults.cause(name)
        row.mappings = sum(slab.attempt for slab in hosts.slabs())
        if row.end == "all killed, then detached":
            faults.kill_everything()
        assert hosts.command("detach") == {"name": "swap", "detached": True}
        nothing_is_left()
        faults.until_passed("nothing of ours left")
    work.check()
    assert row.corrupt == 0
    assert row.mappings > SLABS, "faults that were meant for remote memory met none"
