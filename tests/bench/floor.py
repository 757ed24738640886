"""What a tick costs before anything of ours is done in it. ``make bench-floor``.

An agent and an allocator with 100 containers wake up ten times a second and do a little: in between, other programs
have had the processor's caches. This measures what such a wake-up costs in Python over NATS with next to no work, and
what the allocator's own step costs in a tight loop and once per period: the floor under `tests.bench.scale`'s figures,
and how far they are above it. Every program is a process of its own, and its CPU time is the kernel's. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Final

import numpy as np

from schemas.apps import AppSpec
from schemas.codec import decode, encode
from schemas.subjects import CFS
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import AllocationCycle
from tests.bench.cluster import open_cluster
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, write_record
from tests.bench.synthetic_agents import Load, SyntheticNode
from tests.support.lossy_cluster import end_warm_up

CONTAINERS: Final = 100
PERIOD_S: Final = 0.1
SETTLE_S: Final = 3.0
STEPS: Final = 60
CHANGE_SHARE: Final = 0.05
LOAD: Final = Load(CONTAINERS, CONTAINERS, CONTAINERS, CHANGE_SHARE)
BARE: Final = {
    "sleeps": "wakes up",
    "receives": "receives a batch of 100 containers, and leaves it at that",
    "decodes": "receives and decodes it",
    "sends": "sends such a batch",
}


async def bare(kind: str, url: str) -> None:
    """One of `BARE`, until killed; what sends paces who receives."""
    node = SyntheticNode("node0", 0, LOAD, np.random.default_rng(1))
    bus = await NatsBus.connect(BusOptions(servers=(url,)))
    (batch,) = node.batches(time.time_ns())
    subject, data = CFS.subject(bus.root, app="app0", node="node0").text, encode(batch)
    if kind == "decodes":
        await bus.subscribe(CFS.pattern(bus.root), _ignore)
    elif kind == "receives":
        await bus.connection.subscribe(subject, cb=_swallow)
    due_s = time.monotonic()
    while True:
        due_s += PERIOD_S if kind in {"sleeps", "sends"} else 3600.0
        await asyncio.sleep(due_s - time.monotonic())
        if kind == "sends":
            bus.connection.send_now(subject, data)


def _ignore(_delivery: Delivery) -> None:
    pass


async def _swallow(_message: object) -> None:
    pass


def steps(rest_s: float) -> Iterator[float]:
    """CPU of one step with a fresh batch of 100 containers after another, us; decoding is not part of it."""
    allocation, node = AllocationCycle(), SyntheticNode("node0", 0, LOAD, np.random.default_rng(1))
    allocation.acquire("app0", 1, 0)
    allocation.set_spec("app0", AppSpec(name="app0", cpu_limit=0.4 * CONTAINERS, memory_limit=CONTAINERS * (128 << 20)))
    for number in range(1, STEPS + 1):
        wall_ns = time.time_ns()
        batches = [decode(encode(batch)) for batch in node.batches(wall_ns)]
        step_time = StepTime(number * int(PERIOD_S * 1e9), wall_ns)
        time.sleep(rest_s)
        began_ns = time.thread_time_ns()
        outcome = allocation.step(batches, step_time)  # type: ignore[arg-type]
        yield (time.thread_time_ns() - began_ns) / 1e3
        for update in (*outcome.updates, *allocation.fences_due(step_time)):
            allocation.replies.record(node.carry_out(update), update, step_time.now_ns)
            end_warm_up(allocation, "app0")


async def measure(seconds: float) -> dict[str, float]:
    """CPU us per tick, by what is done."""
    found: dict[str, float] = {}
    async with open_cluster() as cluster, AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(
                cluster.run("tests.bench.floor", {"BENCH_BARE": json.dumps([kind, cluster.server.url])}, kind)
            )
            for kind in BARE
        ]
        await asyncio.sleep(SETTLE_S)
        window = await cluster.measure(seconds, *running)
        found |= {kind: window.cpu_us[kind] / window.periods for kind in BARE}
    for name, rest_s in (("step, tight loop", 0.0), ("step, once per period", PERIOD_S)):
        found[name] = statistics.median(list(steps(rest_s))[STEPS // 2 :])
    return found


def table(found: dict[str, float]) -> Iterator[str]:
    """For people."""
    texts: dict[str, str] = BARE | {
        "step, tight loop": "the allocator's step for 100 containers, back to back",
        "step, once per period": "the same, ten times a second",
    }
    yield f"{'us per tick':>12} {'per container':>14}  a process that"
    for name, cost_us in found.items():
        yield f"{cost_us:>12.0f} {cost_us / CONTAINERS:>14.1f}  {texts[name]}"
    both = found["sends"] + found["decodes"]
    most = 1e5 / both * CONTAINERS
    yield f"\nAn agent that only sends and an allocator that only decodes: {most:,.0f} containers a core"


def main(arguments: list[str], say: Callable[[str], object] = print) -> int:
    """Run, print, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.floor", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the window")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    machine, found = this_machine(), asyncio.run(measure(given.seconds))
    path = write_record({"machine": machine.as_dict(), "us_per_tick": found}, OUTPUT / "floor.json")
    say(path.read_text() if given.json else "\n".join([machine.line, "", *table(found)]))
    return 0


if __name__ == "__main__":
    if "BENCH_BARE" in os.environ:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        asyncio.run(bare(*json.loads(os.environ["BENCH_BARE"])))
    else:
        sys.exit(main(sys.argv[1:]))
