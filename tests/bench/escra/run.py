"""Our allocation against no limits, static ones, Autopilot, VPA and Captain: ``make bench-escra``; quick: 5 minutes.

Real servers in containers, an open-loop client, one agent and allocator through which every policy acts; as root, with
Docker and the image of `tests.bench.escra.image.build`. A run that was ended, however, goes on where it was: a finished
cell is never measured twice (``--fresh`` begins anew). Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import docker
from docker.errors import DockerException, ImageNotFound

from services._host.cgroupfs import CgroupUnavailableError, can_manage, detect
from tests.bench.escra import report, sensitivity
from tests.bench.escra.apps.application import BatchApplication
from tests.bench.escra.apps.registry import APPLICATIONS
from tests.bench.escra.image.packages import IMAGE
from tests.bench.escra.load import trace
from tests.bench.escra.load.arrivals import KINDS, TRACES
from tests.bench.escra.plan import (
    BATCH_LOAD,
    FULL_LOADS,
    LIMITS,
    REFERENCE,
    TUNING_APPS,
    TUNING_LOADS,
    Block,
    Cell,
    Plan,
    estimated_s,
    window_for,
)
from tests.bench.escra.policies import POLICIES, parse
from tests.bench.escra.processes import ProcessError
from tests.bench.escra.rig import SwitchError, open_rig
from tests.bench.escra.session import Bench, open_session
from tests.bench.escra.store import Store
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell

FULL_MINUTES: Final = 85.0
"""What peers kill is started anew and warmed up, which no plan knows: runs took up to 6 % longer than planned."""
QUICK_MINUTES: Final = 5.0
TIGHT_POLICIES: Final = (
    REFERENCE,
    "static-1.5",
    "autopilot-1s",
    "vpa",
    "captain-0.02",
    "captain-0.1",
    "escra",
    "waterfill",
)
"""At a matched and a tight limit: one of each kind, Captain's ends of what it is good with."""
TIGHT_LOADS: Final = ("burst",)
SENSITIVITY_LOADS: Final = ("exponential", "burst")
BATCH_POLICIES: Final = ("none", "static-1.5", "autopilot-1s", "captain-0.1", "escra", "waterfill")
LOCK: Final = Path(tempfile.gettempdir()) / "turnbuckle-bench-escra.lock"
STOPPED: Final = 128 + signal.SIGINT
TRIES: Final = 2
"""Of a cell that fails, or that others disturb."""
AGAIN_SHARE: Final = 0.1
"""Cells that are measured again at most."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for on the command line."""

    plan: Plan
    output: Path
    traces: Path
    fresh: bool
    as_json: bool
    only_report: bool


def parse_arguments(arguments: Sequence[str]) -> Wish:
    """The plan and the rest."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.escra.run", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="5 minutes: the shop under bursts, all policies")
    add("--tuning", action="store_true", help="only what may be tuned on: shop and cache, with the bursty trace")
    add(
        "--minutes",
        type=float,
        help=f"the windows are chosen to fit (default {FULL_MINUTES:g}; quick: {QUICK_MINUTES:g})",
    )
    add("--sensitivity", action="store_true", help="our constants, one changed at a time, on what may be tuned on")
    add("--seconds", type=float, help="window of each cell, instead of what fits")
    add("--repetitions", type=int, default=3, help="default 3")
    add("--apps", help=f"of {', '.join(APPLICATIONS)}")
    add("--loads", help=f"of {', '.join(KINDS)}")
    add("--limits", help=f"of {', '.join(LIMITS)}: all policies at each of them")
    add("--only", help="policies, also variants such as waterfill:HEADROOM_US=10000; separate those with spaces")
    add("--rate", type=float, default=1.0, help="times the applications' base rates")
    add("--seed", type=int, default=2026, help="of everything random (default 2026)")
    add("--traces", help=f"directory of the load traces (default ${trace.DIRECTORY_VARIABLE})")
    add("--output", type=Path, default=OUTPUT / "escra", help="default bench-results/escra")
    add("--fresh", action="store_true", help="measure everything anew")
    add("--report", action="store_true", help="report what is there, and measure nothing")
    add("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    try:
        plan = _plan(given)
    except ValueError as error:
        parser.error(str(error))
    return Wish(plan, given.output, trace.directory(given.traces), given.fresh, given.json, given.report)


def _plan(given: argparse.Namespace) -> Plan:
    blocks = _blocks(given)
    for block in blocks:
        for policy in block.policies:
            parse(policy)
        if unknown := [app for app in block.apps if app not in APPLICATIONS]:
            raise ValueError(f"no application {unknown[0]!r}: there are {', '.join(APPLICATIONS)}")
        if unknown := [load for load in block.loads if load not in (*KINDS, BATCH_LOAD)]:
            raise ValueError(f"no load {unknown[0]!r}: there are {', '.join(KINDS)}")
    minutes = given.minutes or (QUICK_MINUTES if given.quick else FULL_MINUTES)
    window_s = given.seconds or window_for(blocks, given.repetitions, minutes)
    return Plan(tuple(blocks), given.repetitions, given.seed, window_s, rate=given.rate)


def _blocks(given: argparse.Namespace) -> list[Block]:
    """What is crossed with what."""
    served = tuple(name for name, app in APPLICATIONS.items() if not isinstance(app, BatchApplication))
    batches = tuple(name for name, app in APPLICATIONS.items() if isinstance(app, BatchApplication))
    loads: tuple[str, ...] = TUNING_LOADS if given.tuning else FULL_LOADS
    policies = tuple(POLICIES)
    if given.quick:
        served, batches, loads = ("shop",), (), ("burst",)
    if given.sensitivity:
        loads, policies = SENSITIVITY_LOADS, (REFERENCE, *sensitivity.variants())
    if given.tuning or given.sensitivity:
        served, batches = tuple(app for app in served if app in TUNING_APPS), ()
    if given.apps:
        chosen = tuple(given.apps.split(","))
        served, batches = (tuple(app for app in chosen if (app in batches) == batch) for batch in (False, True))
    if given.loads:
        loads = tuple(given.loads.split(","))
    if given.only:
        policies = tuple(given.only.split() if " " in given.only or ":" in given.only else given.only.split(","))
    narrowed = given.quick or given.sensitivity or given.only or given.limits or given.loads
    limits = tuple(given.limits.split(",")) if given.limits else ("ample",)
    if unknown := set(limits) - set(LIMITS):
        raise ValueError(f"no limit {unknown.pop()!r}: there are {', '.join(LIMITS)}")
    blocks = [Block(served, loads, limits, policies)] if served else []
    if not narrowed and served:
        blocks.append(Block(served, TIGHT_LOADS, ("matched", "tight"), TIGHT_POLICIES))
    if batches:
        blocks.append(Block(batches, (BATCH_LOAD,), limits, policies if given.only else BATCH_POLICIES))
    return blocks


def why_not(wish: Wish) -> str | None:
    """Why nothing can be measured here, or None."""
    if os.geteuid() != 0:
        return "needs root: the agent writes control groups"
    try:
        reason = can_manage(detect())
        with closing(docker.from_env()) as engine:
            engine.images.get(IMAGE)
        for name in {load for block in wish.plan.blocks for load in block.loads if load in TRACES}:
            trace.read_trace(name, wish.traces)
    except ImageNotFound:
        return f"there is no image {IMAGE}: python -m tests.bench.escra.image.build"
    except DockerException as error:
        return f"no Docker Engine answers: {error}"
    except (CgroupUnavailableError, trace.TraceError) as error:
        return str(error)
    return reason


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    plan: Plan
    todo: Sequence[Cell]
    begin_s: float = field(default_factory=time.monotonic)
    done: list[Cell] = field(default_factory=list)
    again: int = 0
    """Cells that were measured again because others disturbed them."""
    troubles: list[str] = field(default_factory=list)

    def tell(self, cell: Cell, record: dict[str, Any]) -> None:
        """One more is done."""
        self.done.append(cell)
        # By what cells were planned to take: a batch takes ten times as long as a window of requests.
        whole_s, done_s = estimated_s(self.plan, self.todo), estimated_s(self.plan, self.done)
        left_s = (time.monotonic() - self.begin_s) * (whole_s / done_s - 1)
        share = f"{len(self.done)}/{len(self.todo)}"
        say(f"{share} {cell.name}: {report.brief(record)}; {left_s / 60:.1f} min left")

    def may_measure_again(self) -> bool:
        """Only so many, or a busy machine would never come to an end."""
        return self.again < AGAIN_SHARE * len(self.todo)


async def measure(wish: Wish, store: Store) -> list[str]:
    """Measure what is not there yet; what could not be measured, in words."""
    plan = wish.plan
    if outdated := store.forget_outdated(plan.order()):
        say(f"{outdated} cells were measured with other code: again")
    todo = [cell for cell in plan.order() if not store.is_finished(cell)]
    say(f"{len(todo)} of {len(plan.order())} cells to measure, {plan.window_s:g} s each: {store.directory}")
    progress = Progress(plan, todo)
    if not todo:
        return []
    async with open_rig(store.directory) as rig:
        bench = Bench(rig, plan, store, wish.traces)
        for (app, _), group in groupby(todo, key=lambda cell: (cell.app, cell.repetition)):
            waiting = deque((cell, 1) for cell in group)
            while waiting:
                try:
                    await _session(bench, app, waiting, progress)
                except (SwitchError, ProcessError, DockerException, OSError, RuntimeError, TimeoutError) as error:
                    rig.check()  # without agent and allocator nothing goes on
                    _put_back(waiting, progress, error)
    return progress.troubles


def _put_back(waiting: deque[tuple[Cell, int]], progress: Progress, error: Exception) -> None:
    """The first of those that wait has failed: it comes again at the end, or never."""
    cell, tries = waiting.popleft()
    said = f"{cell.name}: {type(error).__name__}: {error}"
    say(said)
    if tries < TRIES:
        waiting.append((cell, tries + 1))
    else:
        progress.troubles.append(said)


async def _session(bench: Bench, app: str, waiting: deque[tuple[Cell, int]], progress: Progress) -> None:
    """Deploy, and measure until nothing waits, or containers were killed so often that they are started late."""
    async with open_session(bench, app) as session:
        await session.warm_up()
        profiled = {cell.profile_name: cell for cell, _ in waiting}
        for name in sorted(profiled):
            await session.profile(profiled[name])
        while waiting:
            cell, tries = waiting[0]
            record = await session.measure(cell)
            bench.store.finish(cell, record)
            waiting.popleft()
            if record["disturbed"] and tries < TRIES and progress.may_measure_again():
                say(f"{cell.name}: disturbed, {record['disturbance']['foreign_cores']:.2f} cores were used by others")
                progress.again += 1
                waiting.append((cell, tries + 1))
            else:
                progress.tell(cell, record)
            if record["restarts"] and not await session.heal():
                return


@contextmanager
def alone() -> Iterator[bool]:
    """Whether no other run is under way on this machine; none begins meanwhile."""
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM and SIGINT both end a run in order, its containers and services with it; in the background too.

    A shell without job control starts background jobs with SIGINT ignored.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio cancels the run when it sees this one
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(wish: Wish) -> list[str]:
    """Measure, and note what is measured; what could not be measured, in words."""
    store = Store(wish.output, wish.plan)
    if wish.fresh:
        shutil.rmtree(store.directory)
        store = Store(wish.output, wish.plan)
    store.note("plan", wish.plan.as_dict() | {"machine": this_machine().as_dict(), "image": IMAGE})
    say(f"about {estimated_s(wish.plan, wish.plan.order()) / 60:.0f} minutes in all, deployments left out")
    return asyncio.run(measure(wish, store))


def main() -> int:
    """Measure and report; 69 where this machine does not allow it."""
    wish = parse_arguments(sys.argv[1:])
    troubles: list[str] = []
    if not wish.only_report:
        with alone() as allowed:
            reason = why_not(wish) if allowed else "another run is under way on this machine: both would be spoilt"
            if reason:
                print(f"bench-escra: {reason}", file=sys.stderr)
                return UNAVAILABLE
            try:
                with stoppable():
                    troubles = run(wish)
            except KeyboardInterrupt:
                print("bench-escra: stopped; the same command goes on where it was", file=sys.stderr)
                return STOPPED
    store = Store(wish.output, wish.plan)
    results = report.collect(store, wish.plan, this_machine(), troubles)
    written = report.write(results, store, wish.output)
    tell(report.table(results), report.as_json(results), written, as_json=wish.as_json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
