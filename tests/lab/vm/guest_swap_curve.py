"""Pages a second of a process of which 100, 75 or 50 % are in memory: swap on a slow disk, and on remote memory.

Run by `tests.bench.remote_memory_curve` in the machine: ``-m tests.lab.vm.guest_swap_curve JSON ROUNDS SECONDS``.
The disk is a RAM disk with a limit of requests per second (io.max of the process's control group); remote memory is
daemons in the same machine. The process reads pages at random, each as likely as the others, and writes none.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services._runtime.child_process import AnsweringChild
from services.memory.adapters.programs import run
from services.memory.journal import Journal
from services.memory.mapper import SwapDevice
from services.memory.swap_devices import kernel_host
from tests.lab.vm.guest_remote_memory import DISK, MIB, SLAB, SLOW_S, WORKER, daemon, mapped, nothing_is_left
from tests.support.cgroup_lab import wait_until

DISK_IOPS: Final = 200
DATA_MIB: Final = 48
SLABS: Final = 2 * DATA_MIB * MIB // SLAB
"""Twice the pages: with half of the swap free the kernel keeps a page's copy there when it reads the page."""
SHARES: Final = (100, 75, 50)
"""Per cent of the pages that fit in memory."""
GROUP: Final = Path("/sys/fs/cgroup/swaps")
SPARE_MIB: Final = 4
"""At 100 %: page tables, and what the kernel charges ahead."""


def load_modules() -> None:
    disk_kib = (SLABS * SLAB // MIB + 32) * 1024
    for module in (["nbd"], ["dm_mod"], ["dm_raid"], ["raid1"], ["brd", "rd_nr=1", f"rd_size={disk_kib}"]):
        run(["modprobe", *module])


@contextmanager
def working() -> Iterator[tuple[AnsweringChild, int]]:
    """The process, and the bytes that it needs beside its pages."""
    (GROUP.parent / "cgroup.subtree_control").write_text("+memory +io")
    GROUP.mkdir()
    child = AnsweringChild([sys.executable, "-S", "-P", str(WORKER), str(GROUP), str(DATA_MIB)])
    try:
        assert child.ask("read 1 0", SLOW_S)["pages"] == 0
        yield child, int((GROUP / "memory.current").read_text())
    finally:
        child.close(SLOW_S)
        wait_until(lambda: not (GROUP / "cgroup.procs").read_text(), within_s=SLOW_S, what="the group empty")
        GROUP.rmdir()


def limit_disk(iops: str) -> None:
    """Of requests of the group to the RAM disk; "max" for none."""
    (GROUP / "io.max").write_text(f"1:0 riops={iops} wiops={iops}")


def measured(child: AnsweringChild, own_bytes: int, share: int, rounds: int, seconds: float) -> list[float]:
    """Pages a second, of each round."""
    limit_disk("max")
    spare_bytes = SPARE_MIB * MIB if share == SHARES[0] else 0
    (GROUP / "memory.high").write_text(str(own_bytes + DATA_MIB * MIB * share // 100 + spare_bytes))
    # Written, then read twice: what has been swapped out since has its copy, and is dropped without another write.
    for request in ("write 1", "check", "check"):
        assert child.ask(request, SLOW_S)["corrupt"] == 0
    limit_disk(str(DISK_IOPS))
    rates = []
    for number in range(rounds):
        answer = child.ask(f"read {number + 1} {seconds}", SLOW_S)
        assert answer["corrupt"] == 0, answer
        rates.append(answer["pages"] / seconds)
    return rates


def main() -> None:
    """Measure, and write the pages a second by medium and share."""
    rounds, seconds = int(sys.argv[2]), float(sys.argv[3])
    load_modules()
    found: dict[str, dict[int, list[float]]] = {}
    with tempfile.TemporaryDirectory() as directory, daemon() as lender, working() as (child, own_bytes):
        device = SwapDevice("swap", Journal(Path(directory) / "swap.json"), kernel_host())
        device.attach(DISK, SLAB)
        try:
            for medium in ("disk", "remote"):
                found[medium] = {}
                for share in SHARES:
                    found[medium][share] = measured(child, own_bytes, share, rounds, seconds)
                    print(f"{medium}, {share} %: {found[medium][share]}", flush=True)  # noqa: T201 - progress
                if medium == "disk":
                    limit_disk("max")
                    for number in range(SLABS):
                        mapped(device, number, lender)
        finally:
            limit_disk("max")
            (GROUP / "memory.high").write_text("max")
            device.detach()
            nothing_is_left()
        found["memory"] = {100: [child.ask(f"read {n} {seconds}", SLOW_S)["pages"] / seconds for n in range(rounds)]}
    record = {
        "disk_iops": DISK_IOPS,
        "data_mib": DATA_MIB,
        "round_s": seconds,
        "pages_per_s": found,
    }
    Path(sys.argv[1]).write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    main()
