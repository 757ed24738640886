"""A distributed training job under edge faults (thesis 3.5.2): ``make bench-thorn-job ARGS=--quick``.

PyTorch DDP over gloo, one rank per host, a switch port down for 20 s and up for 20 s all the time. Runs:
  none          two uplinks per host, no faults: what the others are compared with
  thorn         the same, with faults: BGP and BFD re-route
  fast          as thorn, with the fast path
  restart       one uplink per host, with faults: the job dies, and is started again from its last checkpoint
  restart-once  as restart, with one fault
Nothing is asserted, and nothing calculated: restarts are real ones.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Literal, get_args

from services._runtime.command.errors import CommandError
from services.fabric.testbed.topology import LabSettings
from tests.bench.machine import Machine, this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record
from tests.bench.thorn_job_faults import FaultCycle
from tests.bench.thorn_job_figures import draw
from tests.bench.thorn_job_ground import FaultName, Ground, single_homed, why_not
from tests.bench.thorn_job_lab import dual_tor
from tests.bench.thorn_job_report import JobResult, table, target_accuracy
from tests.bench.thorn_job_supervisor import JobError, JobOptions, JobRun, Limits, Supervisor

RunName = Literal["none", "thorn", "fast", "restart-once", "restart"]
LAB_PREFIX: Final = "tbjob"
"""Always the same: what a killed run has left is named by the next, with the command that removes it."""
EXIT_FAILED: Final = 70
EXIT_INTERRUPTED: Final = 130
_TELL_EVERY_S: Final = 5.0
_LEAD_S: Final = 5.0
_SCALE: Final[dict[str, tuple[float, float]]] = {
    "iterations": (1500, 300),
    "timeout_s": (5.0, 2.0),
    "down_s": (20.0, 5.0),
    "up_s": (20.0, 10.0),
    "checkpoint_every": (50, 15),
    "limit_s": (900.0, 120.0),
}
"""What depends on --quick: whole, quick."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """What to run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.thorn_job",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--runs", default=",".join(get_args(RunName)), help="in order, also repeatedly; the first is the reference"
    )
    parser.add_argument("--quick", action="store_true", help="about 40 s a run, with shorter faults")
    parser.add_argument("--hosts", type=int, default=3, choices=(3, 4))
    parser.add_argument("--iterations", type=int, help="default 1500; quick: 300")
    parser.add_argument("--checkpoint-every", type=int, help="iterations; default 50; quick: 15")
    parser.add_argument("--timeout-s", type=float, help="a collective that takes longer fails; default 5; quick: 2")
    parser.add_argument("--down-s", type=float, help="default 20; quick: 5")
    parser.add_argument("--up-s", type=float, help="default 20; quick: 10")
    parser.add_argument("--limit-s", type=float, help="give a run up after this; default 900; quick: 120")
    parser.add_argument("--fault", choices=get_args(FaultName), default="blackhole", help="default %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    given.runs = given.runs.split(",")
    if unknown := set(given.runs) - set(get_args(RunName)):
        parser.error(f"no such run: {', '.join(sorted(unknown))}; there are {', '.join(get_args(RunName))}")
    for name, (whole, quick) in _SCALE.items():
        if getattr(given, name) is None:
            setattr(given, name, quick if given.quick else whole)
    return given


def ground_of(name: RunName, plan: argparse.Namespace) -> AbstractContextManager[Ground]:
    """The network that a run takes place on, made anew for each."""
    if name in ("restart", "restart-once"):
        return single_homed(plan.hosts, plan.fault)
    settings = LabSettings(prefix=LAB_PREFIX, hosts=plan.hosts, fast_path=name == "fast")
    return dual_tor(settings, plan.fault, say)


def cycle_of(name: RunName, plan: argparse.Namespace) -> FaultCycle | None:
    """The faults of a run."""
    if name == "none":
        return None
    return FaultCycle(_LEAD_S, plan.down_s, plan.up_s, at_most=1 if name == "restart-once" else None)


def measure(name: RunName, plan: argparse.Namespace, directory: Path) -> JobResult:
    """One run, from an empty directory to its result."""
    options = JobOptions(
        iterations=int(plan.iterations),
        checkpoint_every=int(plan.checkpoint_every),
        timeout_s=plan.timeout_s,
        rendezvous_s=max(60.0, 2 * plan.down_s),
        seed=plan.seed,
    )
    say(f"{name}: building")
    with ground_of(name, plan) as ground:
        limits = Limits(seconds=plan.limit_s)
        supervisor = Supervisor(ground, options, directory, cycle_of(name, plan), limits, Teller(name, options))
        return JobResult.of(name, supervisor.run())


class Teller:
    """Tells how far a run is: at every restart and every change of a port, else every five seconds."""

    def __init__(self, name: RunName, options: JobOptions) -> None:
        self._name = name
        self._of = options.iterations
        self._told: tuple[int, str | None] = (0, None)
        self._told_at = 0.0

    def __call__(self, run: JobRun, port_down: str | None) -> None:
        """Called often."""
        now, state = time.monotonic(), (len(run.attempts), port_down)
        if state == self._told and now - self._told_at < _TELL_EVERY_S:
            return
        self._told, self._told_at = state, now
        done = next((line["done"] for line in reversed(run.events) if "done" in line), 0)
        accuracy = next((line["accuracy"] for line in reversed(run.events) if "accuracy" in line), 0.0)
        port = "all ports up" if port_down is None else f"{port_down} down"
        seconds = now - run.attempts[0].started
        text = f"iteration {done} of {self._of}, accuracy {accuracy:.0%}, {port}, restarts {len(run.attempts) - 1}"
        say(f"{self._name}, {seconds:.0f} s: {text}")


def as_json(machine: Machine, plan: argparse.Namespace, results: list[JobResult]) -> dict[str, Any]:
    """Everything, single iterations included."""
    return {
        "machine": machine.as_dict(),
        "plan": vars(plan),
        "target_accuracy": target_accuracy(results),
        "runs": [result.as_dict() for result in results],
    }


def write(machine: Machine, plan: argparse.Namespace, results: list[JobResult], directory: Path) -> list[Path]:
    """JSON and pictures into a directory; returns what was written."""
    record = write_record(as_json(machine, plan, results), directory / "thorn_job.json")
    return [record, *draw(results, machine.line, directory)]


def measure_all(plan: argparse.Namespace) -> tuple[list[JobResult], int]:
    """All runs, and the exit code. A run that fails is told, and does not undo the others."""
    results: list[JobResult] = []
    code = 0
    with tempfile.TemporaryDirectory(prefix="thorn-job-") as directory:
        for number, name in enumerate(plan.runs):
            try:
                results.append(measure(name, plan, Path(directory) / f"{number}-{name}"))
            except KeyboardInterrupt:
                say(f"{name}: interrupted; its processes have ended and its network is gone")
                return results, EXIT_INTERRUPTED
            except (CommandError, JobError) as error:
                say(f"{name}: {error}")
                code = EXIT_FAILED
            else:
                say(f"{name}: {results[-1].total_s:.1f} s, {results[-1].restarts} restarts")
    return results, code


def main() -> int:
    """Measure and report; 69 where this machine does not allow it, 70 where a run failed."""
    plan = parse(sys.argv[1:])
    if reason := why_not():
        print(f"bench-thorn-job: {reason}", file=sys.stderr)
        return UNAVAILABLE
    for number in (signal.SIGINT, signal.SIGTERM):  # in the background SIGINT would be ignored
        signal.signal(number, signal.default_int_handler)
    machine = this_machine()
    results, code = measure_all(plan)
    if results:
        record, written = as_json(machine, plan, results), write(machine, plan, results, OUTPUT)
        tell(f"{machine.line}\n\n{table(results)}", record, written, as_json=plan.json)
    return code


if __name__ == "__main__":
    sys.exit(main())
