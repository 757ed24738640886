"""Everything dies at random moments, under load. ``make soak ARGS="--seed 7 --seconds 60"``.

Two agents, three allocators, one nats-server, six containers of two applications that burn, grow, shrink, come and go.
Processes are ended by SIGKILL or frozen, some at the same time, and started again. An independent observer follows the
control files, and `tests.support.invariant_rules` says what must hold. At the end everything must settle, every
container must be known and obey, and graceful stops must put back the limits that the containers came with.

One application has reserves that outlast every outage: nothing of it may be killed at all. The other one has nearly
none, so that its tasks wait: they may be killed when their deadline is over and nobody could be asked, and it is said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from schemas.apps import AppSpec
from schemas.oom import OomKind
from services._host.cgroupfs import CgroupUnavailableError, can_manage, detect
from services._runtime.bus.api import BusError
from tests.bench.machine import this_machine
from tests.soak.faults import Faults
from tests.soak.loads import LEAST_MIB, RATES, Loads, Place
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer, ServiceProcess, poll
from tests.support.invariant_checker import InvariantChecker
from tests.support.invariant_rules import EXPLAINED_S, Rules

DEFAULT_S = 600.0
DEADLINE_S = 2.0
SETTLED_S = 30.0
AMPLE = AppSpec(name="ample", cpu_limit=0.3, memory_limit=1536 * MIB, sigma=0.6)
SCARCE = AppSpec(name="scarce", cpu_limit=0.2, memory_limit=512 * MIB, sigma=0.05, policy="escra")
EXPLAINS = {OomKind.GRANT_DENIED, OomKind.OOM_KILLER_ENABLED, OomKind.KILL}
OUTPUT = Path("bench-results")


@dataclass
class SoakReport:
    """What came of it. All but the first block must be empty or 0."""

    seed: int
    seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    grown: int = 0
    replaced: int = 0
    oom_events: dict[str, int] = field(default_factory=dict)
    pauses: int = 0
    longest_pause_s: float = 0.0
    killed_with_reason: list[str] = field(default_factory=list)
    """Of the application with hardly any reserve: exhausted, or nobody could be asked in time."""
    killed_at_deadline: list[str] = field(default_factory=list)
    """Waited for the whole deadline with an empty reserve, and all that time nobody was there who could have answered:
    every allocator had been disturbed within the time that a takeover may take, or the server was out."""
    samples: int = 0
    batches: int = 0

    lost: list[str] = field(default_factory=list)
    """Containers that run and are not known, or not managed, at the end."""
    wrongly_killed: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    ended_by_themselves: list[str] = field(default_factory=list)
    not_restored: list[str] = field(default_factory=list)
    no_op_writes: float = 0
    fault_log: list[str] = field(default_factory=list)
    timelines: list[str] = field(default_factory=list)
    """What happened around each sum above its limit."""

    @property
    def troubles(self) -> list[str]:
        """Everything that must not be."""
        named = {
            "lost": self.lost,
            "wrongly killed": self.wrongly_killed,
            "hung": self.hung,
            "violation": self.violations,
            "ended by itself": self.ended_by_themselves,
            "not restored": self.not_restored,
            "writes that change nothing": [str(self.no_op_writes)] if self.no_op_writes else [],
        }
        return [f"{name}: {what}" for name, found in named.items() for what in found]

    @property
    def text(self) -> str:
        """For people."""
        return "\n".join(
            [
                f"seed {self.seed}, {self.seconds:.0f} s: {sum(self.faults.values())} faults",
                *(f"  {count:>5} {name}" for name, count in sorted(self.faults.items())),
                f"loads: {self.grown} times grown or shrunk as told, {self.replaced} replaced",
                f"memory: {self.oom_events}, {self.pauses} waits at the limit, longest {self.longest_pause_s:.2f} s",
                f"checked: {self.samples} samples of all control files, {self.batches} batches",
                f"lost containers {len(self.lost)}, hung tasks {len(self.hung)}, not restored {len(self.not_restored)}",
                f"wrongly killed {len(self.wrongly_killed)} (with reason: {len(self.killed_with_reason)})",
                f"killed at the deadline, nobody left who could have answered: {len(self.killed_at_deadline)}",
                f"invariant violations {len(self.violations)}",
                f"services ended by themselves {len(self.ended_by_themselves)}",
                *self.troubles,
                *self.timelines,
            ]
        )


class Soak:
    """One run in one cluster."""

    def __init__(self, cluster: ClusterLab, seed: int) -> None:
        self.cluster = cluster
        self.report = SoakReport(seed)
        chance = random.Random(seed)
        self.faults = Faults(cluster, random.Random(chance.random()))
        self.loads = Loads(cluster, random.Random(chance.random()))
        here, there = cluster.root, f"{cluster.root}-b"
        self.roots = {"n1": here, "n2": there}
        self.places = [
            Place(AMPLE, here, 100, 160 * MIB),
            Place(AMPLE, here, 100, None),
            Place(AMPLE, there, 100, None),
            Place(AMPLE, there, 100, 160 * MIB),
            Place(SCARCE, here, 200, None),
            Place(SCARCE, there, 200, None),
        ]

    async def run(self, seconds: float) -> SoakReport:
        """Soak, settle, stop."""
        for spec in (AMPLE, SCARCE):
            await self.cluster.announce(spec)
        for node, root in self.roots.items():
            self.faults.add(f"agent {node}", lambda node=node, root=root: self.cluster.launch_agent(node, root))
        for number in range(3):
            self.faults.add(f"allocator {number}", self._launch_allocator)
        await self.faults.ready()
        checker = InvariantChecker(self.cluster, [AMPLE, SCARCE], list(self.roots.values()), DEADLINE_S)
        timeline = self.faults.timeline
        checker.on_sample = timeline.sample
        async with asynccontextmanager(checker.run)(), asynccontextmanager(timeline.follow)(self.cluster.bus):
            await self._trouble(seconds)
            await self._calm(checker)
        self._judge(checker)
        timeline.write(self.cluster.directory / "timeline.log")
        for excess in checker.rules.excesses:
            self.report.timelines += [
                f"-- around {excess.since_s:.2f} s",
                *timeline.around(excess.since_s, excess.until_s),
            ]
        await self._stop()
        return self.report

    def _launch_allocator(self) -> ServiceProcess:
        """It takes slack back soon, so that loads outgrow their limits again and again."""
        return self.cluster.launch_allocator(ALLOCATOR__RECLAIM_EVERY_S="1")

    async def _trouble(self, seconds: float) -> None:
        start_s = time.monotonic()
        loads = asyncio.create_task(self.loads.run(self.places))
        faults = asyncio.create_task(self.faults.run())
        await asyncio.wait({loads, faults}, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in (faults, loads):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self.faults.heal()
        self.report.seconds = time.monotonic() - start_s

    async def _calm(self, checker: InvariantChecker) -> None:
        """Every load still obeys, every container is known, and the sums agree."""
        for container in list(self.loads.containers):
            await self._obeys(container)
        with suppress(AssertionError):
            await poll(self._none_lost, within_s=SETTLED_S, what="every container managed again")
        self.report.lost = await self._lost()
        try:
            await checker.settled(SETTLED_S)
        except AssertionError as error:
            states = await self.cluster.states()
            sums = {name: (s.owner, s.memory_committed_bytes, s.memory_free_bytes) for name, s in states.items()}
            self.report.violations.append(f"at the end: {error}: {sums}")
        self.report.no_op_writes = await self.cluster.no_op_writes()

    async def _lost(self) -> list[str]:
        """Containers that run, and are not known, not admitted or not guarded."""
        known = {row.container: row for state in (await self.cluster.states()).values() for row in state.containers}
        return [
            f"{container.key}: {known.get(container.key)}"
            for container in self.loads.containers
            if container.alive and not (container.key in known and known[container.key].admitted and container.guarded)
        ]

    async def _none_lost(self) -> bool:
        try:
            return not await self._lost()
        except BusError:
            return False

    async def _obeys(self, container: LabContainer) -> None:
        """It may be in the middle of an order: its answer comes first."""
        container.tell("idle")
        for _ in range(2):
            if await self.loads.holds(container, LEAST_MIB, RATES[0]):
                return
        if container.alive:
            self.report.hung.append(f"{container.key} does not obey at the end: {container.read()}")

    def _judge(self, checker: InvariantChecker) -> None:
        rules, report = checker.rules, self.report
        report.violations += rules.finish()
        for kill in rules.kills:
            reasons = rules.reasons_of(kill) or ["exhausted"] * kill.exhausted
            forsaken = self._forsaken(rules, kill.container, kill.time_s)
            self._judge_kill(kill.container, kill.app, reasons, forsaken=forsaken)
        counted = {kill.container for kill in rules.kills}
        for container, app in self.loads.killed:
            if container not in counted:  # its group was gone before the observer could read it
                told = [event for _, event in rules.events if event.container == container and event.kind in EXPLAINS]
                self._judge_kill(container, app, [event.reason for event in told if event.reason], forsaken=False)
        report.faults, report.fault_log = dict(self.faults.counts), self.faults.log
        report.ended_by_themselves = self.faults.ended_by_themselves
        report.grown, report.replaced = self.loads.grown, self.loads.replaced
        report.hung += self.loads.hung
        report.oom_events = dict(Counter(f"{event.kind}" for _, event in rules.events))
        report.pauses, report.longest_pause_s = rules.pauses, rules.longest_pause_s
        report.samples, report.batches = rules.samples, rules.batches

    def _forsaken(self, rules: Rules, container: str, killed_s: float) -> bool:
        """Whether it waited until the deadline, the reserve empty, and nobody could have answered all that time."""
        gave_up = any(
            event.container == container
            and event.kind is OomKind.OOM_KILLER_ENABLED
            and event.blocked_us >= DEADLINE_S * 1e6
            and not event.reserve_bytes
            and abs(time_s - killed_s) < EXPLAINED_S
            for time_s, event in rules.events
        )
        return gave_up and not self.faults.somebody_could_answer(killed_s - DEADLINE_S, killed_s)

    def _judge_kill(self, container: str, app: str, reasons: list[str], *, forsaken: bool) -> None:
        if app == AMPLE.name and reasons and forsaken:
            self.report.killed_at_deadline.append(f"{container}: {reasons[-1]}")
        elif app == AMPLE.name or not reasons:
            self.report.wrongly_killed.append(f"{container} of {app}: {reasons}")
        else:
            self.report.killed_with_reason.append(f"{container}: {reasons[0]}")

    async def _stop(self) -> None:
        """Agents stop gracefully: every container has what it came with."""
        for slot in self.faults.slots:
            code = await slot.process.signal(signal.SIGTERM)
            if code:
                self.report.ended_by_themselves.append(f"{slot.name} stopped with {code}")
        for container, wanted in self.loads.containers.items():
            if container.read().limits != wanted or container.guarded:
                self.report.not_restored.append(f"{container.key}: {container.read()}, came with {wanted}")


async def _soak(seed: int, seconds: float, directory: Path) -> SoakReport:
    cluster = ClusterLab(directory)
    try:
        await cluster.start()
        return await Soak(cluster, seed).run(seconds)
    finally:
        await cluster.close()


def why_not() -> str | None:
    """Why control groups cannot be made here, or None."""
    if os.geteuid() != 0:
        return "needs root: control groups are made and limited"
    try:
        return can_manage(detect())
    except CgroupUnavailableError as error:
        return str(error)


class Report(Protocol):
    """What a soak has found."""

    fault_log: list[str]

    @property
    def troubles(self) -> list[str]:
        """Everything that must not be."""

    @property
    def text(self) -> str:
        """For people."""


def command(run: Callable[[int, float, Path], Coroutine[Any, Any, Report]], name: str, summary: str) -> int:
    """A soak as a program; 1 where something went wrong, 69 where this machine does not allow it.

    Args:
        run: with a seed, for so many seconds of faults, with logs in this directory; its report is a data class.
        name: of the record in bench-results, and of the program in messages.
        summary: of `--help`.
    """
    parser = argparse.ArgumentParser(prog=f"make {name}", description=summary)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="default: another one each time")
    parser.add_argument("--seconds", type=float, default=DEFAULT_S, help="of faults (default %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep logs and samples in it")
    given = parser.parse_args()
    if reason := why_not():
        print(f"{name}: {reason}", file=sys.stderr)
        return 69
    machine = this_machine()
    print(f"{machine.line}\nseed {given.seed}", flush=True)
    directory = given.keep or Path(tempfile.mkdtemp(prefix=f"turnbuckle-{name}-"))
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    report = asyncio.run(run(given.seed, given.seconds, directory))
    print(report.text)
    if report.troubles:
        print("\n".join(["faults:", *report.fault_log, f"logs and samples: {directory}"]))
    elif given.keep is None:
        shutil.rmtree(directory)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    record = OUTPUT / f"{name}.json"
    found = asdict(cast("Any", report))
    record.write_text(json.dumps({"machine": machine.as_dict()} | found, indent=1), encoding="utf-8")
    print(f"written: {record}", file=sys.stderr)
    return 1 if report.troubles else 0


def main() -> int:
    """As `command`."""
    return command(_soak, "soak", (__doc__ or "").partition("\n")[0])


if __name__ == "__main__":
    sys.exit(main())
