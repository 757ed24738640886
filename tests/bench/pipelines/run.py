"""A pipeline over a slow link: engine ministage beside FSDP2 over all, and torch's schedules. ``make bench-pipelines``.

Two machines are sandboxes with a CPU quota and two ranks each; between them is a link of 1/35 of what a connection
inside a machine sends, which is measured first. All ways are trained by the same four processes and take turns, a step
each, so that whatever else the machine does meets all of them. Nothing is asserted of times; losses have to agree.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from services._jobs.sandbox.network import DEVICE
from services._jobs.sandbox.sandbox import Output, Sandbox, Sandboxes, SandboxUnavailableError
from services.collector.layers.quota import PERIOD_US
from services.collector.profiler.worker_environment import MASTER_PORT, Rendezvous, worker_environment
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record
from tests.bench.pipelines.cases import BANDWIDTH_RATIO, CPU_CORES, FULL, MACHINES, QUICK, RATES, Extent
from tests.bench.pipelines.picture import draw
from tests.bench.pipelines.report import Result, Run, check_same, record, table

_DEADLINE_S: Final = 3_000.0
_POLL_S: Final = 0.2
_TAIL_CHARACTERS: Final = 3_000


class RanksFailedError(RuntimeError):
    """A rank has failed, or they do not come to an end; the message has what it wrote."""


def lines_of(ranks: list[Sandbox], arguments: list[str], directory: Path) -> list[dict[str, Any]]:
    """What rank 0 tells, once all have ended.

    Args:
        ranks: where each one runs.
        arguments: of `tests.bench.pipelines.ranks`.
        directory: for their output.

    Raises:
        RanksFailedError: a rank has failed.
    """
    rendezvous = Rendezvous(len(ranks), ranks[0].address, MASTER_PORT, DEVICE, threads=1)
    command = [sys.executable, "-m", "tests.bench.pipelines.ranks", *arguments]
    processes = [
        sandbox.spawn(
            command,
            worker_environment(os.environ, rank, rendezvous),
            output=Output(directory / f"out-{rank}", directory / f"errors-{rank}"),
        )
        for rank, sandbox in enumerate(ranks)
    ]
    told, deadline_s = 0, time.monotonic() + _DEADLINE_S
    while True:
        codes = [process.poll() for process in processes]
        lines = (directory / "out-0").read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        for line in whole[told:]:
            say(line.strip())
        told = len(whole)
        if any(codes) or time.monotonic() > deadline_s:
            errors = [(directory / f"errors-{rank}").read_text(encoding="utf-8") for rank in range(len(ranks))]
            raise RanksFailedError(f"exit codes {codes}\n" + "\n".join(text[-_TAIL_CHARACTERS:] for text in errors))
        if None not in codes:
            return [json.loads(line) for line in whole]
        time.sleep(_POLL_S)


def _machine(where: Sandboxes, name: str, bits_per_s: int | None) -> Sandbox:
    sandbox = where.create(name, None, None, bits_per_s)
    sandbox.limit_cpu(CPU_CORES, PERIOD_US)
    return sandbox


def measure(extent: Extent, directory: Path) -> Result:
    """Rates, then all steps."""
    with Sandboxes() as where:
        alone = _machine(where, "inside", None)
        (directory / "rates").mkdir()
        (found,) = lines_of([alone, alone], [RATES], directory / "rates")
        bits_per_s = round(8 * found["inside_bytes_per_s"] / BANDWIDTH_RATIO)
        where.remove(alone)
        made = [_machine(where, f"machine-{number}", bits_per_s) for number in range(len(MACHINES))]
        ranks = [sandbox for sandbox, members in zip(made, MACHINES, strict=True) for _ in members]
        (directory / "steps").mkdir()
        rates, *steps = lines_of(ranks, [extent.as_json()], directory / "steps")
    runs = [Run(**step) for step in steps]
    check_same(runs)
    # Other work of this machine only slows a connection: the faster of both is what it can do.
    inside = max(found["inside_bytes_per_s"], rates["inside_bytes_per_s"])
    return Result(extent, inside, rates["between_bytes_per_s"], runs)


def main() -> None:
    """Measure, print, write record and picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a third of the model (3 minutes)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="turnbuckle-pipelines-") as directory:
        try:
            result = measure(QUICK if options.quick else FULL, Path(directory))
        except SandboxUnavailableError as error:
            say(str(error))
            sys.exit(UNAVAILABLE)
    made = record(machine, result)
    written = [write_record(made, OUTPUT / "pipelines.json"), draw(machine, result, OUTPUT / "pipelines.png")]
    tell(table(machine, result), made, written, as_json=options.json)


if __name__ == "__main__":
    main()
