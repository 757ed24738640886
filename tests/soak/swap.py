"""Daemons, the mapping service and NATS die while a process swaps to other hosts: ``make soak-swap``.

In a machine of User-Mode Linux, which is booted once for all seeds: a real kernel with NBD, device mapper and swap, no
root needed. Each seed draws an order of faults: kill -9 and SIGSTOP of a daemon, eviction of every slab under load,
kill -9 of the mapping service, also within a mapping, NATS killed; and whether everything is killed before the swap
device is detached. The process must read every page as it was written; nothing may be left mapped, connected or
swapped on.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, write_record
from tests.lab.vm.guest import Guest, Job
from tests.lab.vm.guest_pytest import OPTIONS, python
from tests.lab.vm.guest_swap_soak import ROWS, Row
from tests.lab.vm.machine import build_user_mode, missing

SEEDS: Final = 20
SEED_WITHIN_S: Final = 3_000.0
BOOT_WITHIN_S: Final = 600.0
TEST: Final = "tests/lab/vm/guest_swap_soak.py"


def rows(job: Job, within_s: float) -> Iterator[Row]:
    """Each seed's as soon as it has ended.

    Raises:
        MachineError: the machine went away, or a seed does not end.
    """
    known = 0
    while True:
        ended = job.ended.wait(1.0)
        file = job.directory / ROWS
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
        for line in [line for line in lines if line.endswith("\n")][known:]:
            known += 1
            yield Row(**json.loads(line))
        if ended:
            return
        within_s -= 1.0
        if within_s < 0:
            job.wait(0.0)


def survive(seed: int, count: int) -> tuple[list[Row], int, str]:
    """What was done with each seed, pytest's exit code, and the end of what it wrote.

    Raises:
        MachineError: the machine cannot be built, does not boot, or hangs.
    """
    with tempfile.TemporaryDirectory(prefix="turnbuckle-vm-") as directory:
        guest = Guest(build_user_mode(Path(directory)), Path(directory))
        try:
            job = guest.machine(BOOT_WITHIN_S).start(
                [python(), "-m", "pytest", "-s", TEST, *OPTIONS],
                {"CI": "true", "SWAP_SOAK_SEEDS": f"{seed}-{seed + count - 1}"},
            )
            found = []
            for row in rows(job, SEED_WITHIN_S * (count + 1)):
                found.append(row)
                print(f"{len(found)}/{count}  {row.text()}", file=sys.stderr, flush=True)
            ended = job.wait(0.0)
            return found, ended.exit_code, ended.output[-8000:]
        finally:
            guest.close()


def summary(found: list[Row], count: int) -> dict[str, Any]:
    """Over all seeds."""
    return {
        "seeds": count,
        "passed": sum(not row.failure for row in found),
        "failed": [row.seed for row in found if row.failure],
        "pages_checked": sum(row.pages_checked for row in found),
        "corrupt_pages": sum(row.corrupt for row in found),
        "mappings": sum(row.mappings for row in found),
        "seconds": round(sum(row.seconds for row in found)),
    }


def main() -> int:
    """0: every seed has passed; 1: not; 69: no machine can be built here."""
    parser = argparse.ArgumentParser(
        description="faults drawn by seeds while a process swaps to other hosts",
        epilog="examples: make soak-swap; make soak-swap ARGS='--seed 7 --count 1'",
    )
    parser.add_argument("--seed", type=int, default=1, help="the first (default: 1)")
    parser.add_argument("--count", type=int, default=SEEDS, help=f"how many, one after the other (default: {SEEDS})")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a line")
    options = parser.parse_args()
    if options.count < 1 or options.seed < 0:
        parser.error("--count has to be 1 or more, --seed 0 or more")
    if reason := missing():
        print(f"soak-swap: {reason}", file=sys.stderr)
        return UNAVAILABLE
    found, exit_code, output = survive(options.seed, options.count)
    total = summary(found, options.count)
    record = total | {"machine": this_machine().as_dict(), "rows": [row.as_dict() for row in found]}
    path = write_record(record, OUTPUT / "swap-soak.json")
    if options.json:
        print(json.dumps(record))
    else:
        print(
            f"{total['passed']} of {total['seeds']} seeds passed in {total['seconds']} s: "
            f"{total['pages_checked']:,} pages checked, {total['corrupt_pages']} corrupt, {total['mappings']} mappings"
        )
    if exit_code:
        print(output, file=sys.stderr)
    for seed in total["failed"]:
        print(f"seed {seed} failed; alone: make soak-swap ARGS='--seed {seed} --count 1'", file=sys.stderr)
    print(f"written: {path}", file=sys.stderr)
    return 0 if exit_code == 0 and total["passed"] == total["seeds"] else 1


if __name__ == "__main__":
    sys.exit(main())
