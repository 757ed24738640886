"""Swap to remote memory on a real kernel; run by tests/lab/test_remote_memory_vm.py in the machine.

Daemons run in the same machine, outside of the control group that swaps: what is real is the kernel's block path, not
the network.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from services._runtime.child_process import AnsweringChild
from services.memory.adapters.device_mapper import DeviceMapper
from services.memory.adapters.disk import BlockDisk
from services.memory.adapters.nbd_device import NbdDevices, connected
from services.memory.adapters.programs import run
from services.memory.adapters.remote_memory import NbdRemoteMemory
from services.memory.adapters.swap import Swap
from services.memory.core.mapping import Evicted, Lost, State
from services.memory.journal import Journal
from services.memory.mapper import Host, SwapDevice, SwapDeviceError
from tests.support.cgroup_lab import wait_until

MIB = 1 << 20
SLAB = 8 * MIB
SLABS = 4
DISK = "/dev/ram0"
SLOW_DISK = "/dev/mapper/slow"
SLOW_DISK_MS = 20
"""Per request, of any number at the same time."""
DISK_MIB = SLABS * 10
WORKER = Path(__file__).parents[2] / "support" / "swap_worker.py"
SLOW_S = 600.0
DATA_MIB = 24
LIMIT_MIB = 16


@pytest.fixture(scope="module", autouse=True)
def modules() -> None:
    for module in (
        ["nbd"],
        ["dm_mod"],
        ["dm_raid"],
        ["raid1"],
        ["dm_delay"],
        ["brd", "rd_nr=1", f"rd_size={DISK_MIB * 1024}"],
    ):
        run(["modprobe", *module])
    zswap = Path("/sys/module/zswap/parameters/enabled")
    if zswap.exists():
        zswap.write_text("N")


@contextmanager
def daemon() -> Iterator[AnsweringChild]:
    """Its address is in `address`."""
    command = [sys.executable, "-m", "services.memory.process", str(os.getpid()), "127.0.0.1:0", str(256 * MIB), "0"]
    child = AnsweringChild(command)
    child.address = child.ask(within_s=SLOW_S)["address"]  # type: ignore[attr-defined]
    try:
        yield child
    finally:
        child.close(SLOW_S)


def take(child: AnsweringChild) -> str:
    answer = child.ask(json.dumps({"command": "take", "bytes": SLAB, "owner": "guest"}), SLOW_S)
    assert "name" in answer, answer
    return str(answer["name"])


def held(child: AnsweringChild) -> int:
    """Slabs with an owner."""
    return sum(slab["connected"] for slab in child.ask('{"command": "offer"}', SLOW_S)["slabs"])


def figure(text: str) -> None:
    print(f"figure: {text}", flush=True)  # noqa: T201


def nothing_is_left() -> None:
    """Mapped, connected or swapped on, as the kernel says; by anybody."""
    mapped = run(["dmsetup", "info", "--columns", "--noheadings", "-o", "name"]).split()
    assert [name for name in mapped if name.startswith("swap")] == []
    assert connected("TURNBUCKLE") == {}
    assert Path("/proc/swaps").read_text().splitlines()[1:] == []


@pytest.fixture
def device(tmp_path: Path) -> Iterator[SwapDevice]:
    devices = NbdDevices()
    host = Host(DeviceMapper(), Swap(), NbdRemoteMemory(devices), BlockDisk())
    made = SwapDevice("swap", Journal(tmp_path / "swap.json"), host)
    yield made
    made.detach()
    nothing_is_left()
    devices.close()


@pytest.fixture
def worker() -> Iterator[AnsweringChild]:
    root = Path("/sys/fs/cgroup")
    (root / "cgroup.subtree_control").write_text("+memory")
    group = root / "swaps"
    group.mkdir()
    # Not memory.max: while a slab's table is exchanged, swap waits, for seconds on an emulated processor, and then the
    # kernel kills a process at memory.max whose pages are all being written (seen). At memory.high the process waits.
    (group / "memory.high").write_text(str(LIMIT_MIB * MIB))
    child = AnsweringChild([sys.executable, "-S", "-P", str(WORKER), str(group), str(DATA_MIB)])
    yield child
    child.close(SLOW_S)
    wait_until(lambda: not (group / "cgroup.procs").read_text(), within_s=SLOW_S, what="the group empty")
    group.rmdir()


def swapped_mib() -> int:
    return int(Path("/sys/fs/cgroup/swaps/memory.swap.current").read_text()) // MIB


def checked(worker: AnsweringChild) -> None:
    """All pages read as they were written."""
    print(f"... check, {swapped_mib()} MiB are swapped out", flush=True)  # noqa: T201 - where a slow machine is
    assert worker.ask("check", 600) == {"pages": DATA_MIB * 256, "corrupt": 0}


def written(worker: AnsweringChild, seed: int) -> None:
    assert worker.ask(f"write {seed}", 600)["corrupt"] == 0


def mapped(device: SwapDevice, number: int, child: AnsweringChild) -> float:
    """Map a slab; returns the seconds until reads go there."""
    began_s = time.monotonic()
    device.map_slab(number, child.address, take(child))  # type: ignore[attr-defined]
    assert device.wait_until_synchronized(number, SLOW_S).state is State.REMOTE
    return time.monotonic() - began_s


def fallen_back(device: SwapDevice, number: int) -> bool:
    for slab in device.silent():
        device.apply(slab.number, Lost(slab.attempt, "it does not answer"))
    assert device.advance() == []
    return device.slab(number).state is State.DISK


def test_no_page_is_lost_through_mapping_eviction_and_a_killed_daemon(
    device: SwapDevice, worker: AnsweringChild
) -> None:
    device.attach(DISK, SLAB)
    with daemon() as first, daemon() as second, ThreadPoolExecutor() as pool:
        written(worker, 1)
        assert swapped_mib() >= DATA_MIB - LIMIT_MIB
        checked(worker)
        seconds = [mapped(device, number, (first, second)[number % 2]) for number in range(SLABS)]
        figure(
            f"{SLABS} slabs of {SLAB // MIB} MiB mapped below pages in {min(seconds):.1f} to {max(seconds):.1f} s each"
        )
        checked(worker)
        written(worker, 2)
        checked(worker)
        assert (held(first), held(second)) == (2, 2)

        # A slab is evicted while pages are written and read.
        busy: Future[None] = pool.submit(written, worker, 3)
        began_s = time.monotonic()
        device.apply(0, Evicted(device.slab(0).attempt))
        assert device.advance() == []
        figure(f"a slab evicted under load in {time.monotonic() - began_s:.1f} s")
        assert device.slab(0).state is State.DISK
        busy.result()
        checked(worker)
        wait_until(lambda: held(first) == 1, within_s=SLOW_S, what="memory given back")

        # A daemon is killed while pages are read.
        busy = pool.submit(checked, worker)
        began_s = time.monotonic()
        second.process.kill()
        busy.result()
        checked(worker)
        figure(f"all pages read twice after kill -9 of a daemon in {time.monotonic() - began_s:.1f} s")
        wait_until(lambda: fallen_back(device, 1), within_s=SLOW_S, what="the mirror taken apart")
        assert device.slab(2).state is State.REMOTE

        # Mapped again, elsewhere; then the mapper is started anew.
        mapped(device, 1, first)
        written(worker, 4)
        checked(worker)
        again = SwapDevice("swap", device._journal, device._host)
        again.recover()
        assert [slab.state for slab in again.record.slabs] == [State.DISK, State.REMOTE, State.REMOTE, State.DISK]
        checked(worker)


@pytest.fixture
def slow_disk() -> Iterator[str]:
    sectors = DISK_MIB * MIB // 512
    DeviceMapper().create("slow", f"0 {sectors} delay {DISK} 0 {SLOW_DISK_MS}")
    yield SLOW_DISK
    DeviceMapper().remove("slow")
    assert not Path(SLOW_DISK).exists()


def reads(disk: str) -> int:
    """Requests that a block device has read (Documentation/block/stat.rst)."""
    number = Path(disk).stat().st_rdev
    return int(Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat").read_text().split()[0])


def test_pages_come_from_remote_memory_and_not_from_a_slow_disk(
    slow_disk: str, device: SwapDevice, worker: AnsweringChild
) -> None:
    device.attach(slow_disk, SLAB)
    with daemon() as child:
        written(worker, 1)
        before, began_s = reads(slow_disk), time.monotonic()
        checked(worker)
        from_disk_s = time.monotonic() - began_s
        assert reads(slow_disk) > before
        for number in range(SLABS):
            mapped(device, number, child)
        checked(worker)  # pages that were swapped out since: the kernel writes these to both

        before, began_s = reads(slow_disk), time.monotonic()
        checked(worker)
        remote_s = time.monotonic() - began_s

        assert reads(slow_disk) == before
    figure(f"one pass over {DATA_MIB} MiB with {LIMIT_MIB}: disk of {SLOW_DISK_MS} ms a request {from_disk_s:.1f} s")
    figure(f"one pass over {DATA_MIB} MiB with {LIMIT_MIB}: remote memory, emulated as the rest, {remote_s:.1f} s")


def test_devices_and_disks_of_others_are_left_alone(device: SwapDevice) -> None:
    run(["dmsetup", "create", "swap-1", "--noudevsync", "--noudevrules"], f"0 8 linear {DISK} 0")
    try:
        with pytest.raises(SwapDeviceError, match="device mapper has swap-1, which is not ours"):
            device.attach(DISK, SLAB)
        device.detach()
        assert DeviceMapper().foreign("swap") == ["swap-1"]
    finally:
        run(["dmsetup", "remove", "--retry", "--noudevsync", "--noudevrules", "swap-1"])

    run(["mkswap", DISK])
    with pytest.raises(SwapDeviceError, match="/dev/ram0 holds swap, which would be lost"):
        device.attach(DISK, SLAB)
    run(["swapon", DISK])
    try:
        with pytest.raises(SwapDeviceError, match="/dev/ram0 is in use"):
            device.attach(DISK, SLAB, overwrite=True)
    finally:
        run(["swapoff", DISK])
        BlockDisk().zero(DISK, MIB)
    with pytest.raises(SwapDeviceError, match="/proc/swaps is no block device"):
        device.attach("/proc/swaps", SLAB)


def test_a_half_made_swap_device_is_undone(device: SwapDevice, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    class Dying(Swap):
        def on(self, device: str, priority: int) -> None:
            raise Killed

        def off(self, device: str) -> None:
            raise Killed

    host = replace(device._host, swap=Dying())
    with pytest.raises(Killed):
        SwapDevice("swap", Journal(tmp_path / "swap.json"), host).attach(DISK, SLAB)
    assert "swap" in DeviceMapper().names("swap")

    SwapDevice("swap", Journal(tmp_path / "swap.json"), device._host).recover()

    assert DeviceMapper().names("swap") == []
