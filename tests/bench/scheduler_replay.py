"""How long a start of the scheduler takes over a log of a hundred thousand entries on a real nats-server.

A part of ``make bench-scheduler``. Measured is what `services.scheduler.service.Scheduler.start` does to know its
state, with a snapshot as old as one can be and without any, over a connection of its own: wall time, and processor time
of this process, which is the scheduler's; the server's is on the other core. And what it costs to store one.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any, Final

from schemas.codec import encode
from schemas.scheduling import (
    AttemptStart,
    ClusterNode,
    JobSpec,
    JobSubmitted,
    ScheduleDecision,
    ScheduleEvent,
    Trigger,
    WorkerChange,
    WorkEvent,
)
from schemas.streams import SNAPSHOTS
from schemas.subjects import SCHEDULE
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services._runtime.clock import SystemClock
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import get_logger
from services._runtime.telemetry.telemetry import Telemetry
from services.scheduler.core.snapshot import Snapshot
from services.scheduler.core.snapshot import decode as decode_snapshot
from services.scheduler.core.snapshot import encode as encode_snapshot
from services.scheduler.core.state import State
from services.scheduler.leading import Lead, rare_collections
from services.scheduler.settings import SchedulerSettings
from services.scheduler.snapshots import Snapshots
from tests.bench.figures import Spread
from tests.bench.outcome import say

ENTRIES: Final = 100_000
ENTRIES_PER_JOB: Final = 4
NODES: Final = 1_000
REPLAYS: Final = 5
_IN_FLIGHT: Final = 500
_STALLED_S: Final = 60.0
_TICK_S: Final = 0.001


def stored_log(count: int = ENTRIES) -> list[bytes]:
    """Entries as they are stored: jobs of two workers, one after another on 1,000 nodes, that all have ended."""
    nodes = tuple(ClusterNode(node=f"n{place:04}", slots=8, rack=f"rack-{place // 40}") for place in range(NODES))
    entries, at_ns = [ScheduleEvent(leader="s", time_ns=1, nodes=nodes)], 1
    for number in range(count // ENTRIES_PER_JOB):
        for part in _job(f"j{number}", nodes[number % NODES].node):
            at_ns += 1_000_000_000
            entries.append(ScheduleEvent(leader="s", time_ns=at_ns, **part))
    return [encode(entry) for entry in entries]


def _job(job: str, node: str) -> list[dict[str, Any]]:
    """A submission with the decision that starts it, and what its two workers did: parts of four entries."""
    spec = JobSpec(job=job, workers=2, command=("python", "train.py"), directory="/srv/train")
    start = AttemptStart(job=job, attempt=1, nodes=(node, node))
    decision = ScheduleDecision(trigger=Trigger.SUBMITTED, policy="index", starts=(start,))
    parts: list[dict[str, Any]] = [{"submitted": (JobSubmitted(spec=spec),), "decision": decision}]
    for change in (WorkerChange.STARTED, WorkerChange.READY, WorkerChange.ENDED):
        events = [
            WorkEvent(job=job, attempt=1, rank=rank, node=node, change=change, time_ns=1, ran_s=60.0)
            for rank in range(2)
        ]
        parts.append({"worked": tuple(events)})
    return parts


def replay_s(count: int = ENTRIES, replays: int = REPLAYS) -> dict[str, Spread]:
    """Seconds of the wall clock, and of this process' processor time."""
    return asyncio.run(_replays(stored_log(count), replays))


def snapshot_of(state: State) -> dict[str, Spread]:
    """What it costs to write a snapshot of a state, and to read it: seconds, and mebibytes."""
    return asyncio.run(_snapshots(state))


def figures(measured: dict[str, Spread]) -> dict[str, dict[str, Any]]:
    """For pages (`scripts.generate_figures`)."""
    behind = SchedulerSettings().snapshot_entries
    what = {
        "wall": f"a start's replay of {ENTRIES:,} entries of the log, without a snapshot",
        "cpu": "processor time of that, without the server's",
        "snapshot_wall": f"a start from a snapshot that is {behind:,} of {ENTRIES:,} entries old",
        "snapshot_cpu": "processor time of that, without the server's",
        "encode": "a snapshot of 10,000 waiting and 1,000 running jobs, made in a thread",
        "delay": "longest time that decisions wait meanwhile",
        "decode": "that snapshot, read at a start",
        "size": "its size",
    }
    return {
        key: {
            "what": what[key],
            "unit": "mib" if key == "size" else "s",
            "median": spread.median,
            "min": spread.least,
            "max": spread.most,
        }
        for key, spread in measured.items()
    }


async def _replays(stored: list[bytes], replays: int) -> dict[str, Spread]:
    server = await EmbeddedNats().start()
    options = BusOptions(servers=(server.url,), connect_deadline_s=_STALLED_S)
    bus = await NatsBus.connect(options)
    first = len(stored) - SchedulerSettings().snapshot_entries
    try:
        await _store(bus, stored[:first], 0)
        await _keep_snapshot(options)
        await _store(bus, stored[first:], first)
        behind = [await _replay(options, len(stored), first) for _ in range(replays)]
        for name in await bus.objects(SNAPSHOTS).names():
            await bus.objects(SNAPSHOTS).delete(name)
        whole = [await _replay(options, len(stored), 0) for _ in range(replays)]
    finally:
        await bus.close(5.0)
        await server.stop()
    return {
        f"{prefix}{key}": Spread.of([each[place] for each in taken])
        for prefix, taken in (("", whole), ("snapshot_", behind))
        for place, key in enumerate(("wall", "cpu"))
    }


async def _snapshots(state: State) -> dict[str, Spread]:
    snapshot = Snapshot(1, 1, 1, mentions={job: tuple(range(1, 21)) for job in state.live}, state=state)
    taken: dict[str, list[float]] = {"encode": [], "delay": [], "decode": [], "size": []}
    for _ in range(REPLAYS):
        begin_s = time.perf_counter()
        writing = asyncio.ensure_future(asyncio.to_thread(encode_snapshot, snapshot))
        taken["delay"].append(await _longest_delay_s(writing))
        taken["encode"].append(time.perf_counter() - begin_s)
        data = await writing
        begin_s = time.perf_counter()
        with rare_collections():
            decode_snapshot(data)
        taken["decode"].append(time.perf_counter() - begin_s)
        taken["size"].append(len(data) / (1 << 20))
    return {key: Spread.of(values) for key, values in taken.items()}


async def _longest_delay_s(work: asyncio.Future[bytes]) -> float:
    """How much later than asked for the event loop goes on, at most, until the work is done."""
    longest_s = 0.0
    while not work.done():
        begin_s = time.perf_counter()
        await asyncio.sleep(_TICK_S)
        longest_s = max(longest_s, time.perf_counter() - begin_s - _TICK_S)
    return longest_s


async def _store(bus: NatsBus, stored: list[bytes], begin: int) -> None:
    """With the headers that an append has."""
    jetstream = bus.connection.jetstream(publish_async_max_pending=_IN_FLIGHT)
    subject = SCHEDULE.subject(bus.root).text
    for number, data in enumerate(stored, begin):
        headers = {"Nats-Msg-Id": f"replica-abcdef.{number}", "Nats-Expected-Last-Sequence": str(number)}
        await jetstream.publish_async(subject, data, wait_stall=_STALLED_S, headers=headers)
    await jetstream.publish_async_completed()
    say(f"{len(stored):,} entries of {sum(map(len, stored)) / len(stored):.0f} bytes are stored")


def _replica(bus: NatsBus) -> tuple[Lead, Snapshots]:
    runtime = Runtime(SchedulerSettings(), bus, SystemClock(), Telemetry(), get_logger("bench"))
    lead = Lead(runtime)
    return lead, Snapshots(runtime, lead)


async def _keep_snapshot(options: BusOptions) -> None:
    """Of the log until now."""
    bus = await NatsBus.connect(options)
    lead, snapshots = _replica(bus)
    for subscription in await lead.start():
        await subscription.stop()
    begin_s = time.perf_counter()
    await snapshots.store()
    say(f"a snapshot at entry {snapshots.sequence:,} was stored in {time.perf_counter() - begin_s:.2f} s")
    await bus.close(5.0)


async def _replay(options: BusOptions, entries: int, kept: int) -> tuple[float, float]:
    """One start: wall and processor time. `kept`: sequence of the snapshot that there is; 0: there is none."""
    bus = await NatsBus.connect(options)
    lead, snapshots = _replica(bus)
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    subscriptions = await lead.start(await snapshots.newest())
    taken = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    if snapshots.sequence != kept:
        raise RuntimeError(f"it began at entry {snapshots.sequence}, not at the snapshot of {kept}")
    if lead.sequence != entries or lead.state.live:
        raise RuntimeError(f"replayed {lead.sequence} of {entries} entries, and {len(lead.state.live)} jobs are left")
    for subscription in subscriptions:
        await subscription.stop()
    await bus.close(5.0)
    return taken


def record(measured: dict[str, Spread]) -> dict[str, Any]:
    """What is written: rows for pages, and the repetitions."""
    return {"figures": figures(measured), "replay_s": {key: asdict(spread) for key, spread in measured.items()}}
