"""Files and functions that one period of a steady loop passes: agent and allocator. ``python -m tests.bench.tick``.

Both run in this process over the bus in memory, the agent with the simulated host's five containers, traced with
`sys.setprofile` for ten seconds. Files of the simulation are left out. What is counted is how far the way of one sample
to its limit update is spread, not what it costs (`tests.bench.scale`).
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

import structlog

from schemas.apps import AppSpec
from schemas.streams import APPS
from services._host.simulation.load_profile import demo_scenario
from services.agent.service import Agent
from services.agent.settings import AgentSettings
from services.allocator.service import Allocator
from services.allocator.settings import AllocatorSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.service_in_process import run_in_process

ROOT: Final = Path(__file__).resolve().parents[2]
SIMULATION: Final = (
    "services/agent/cgroup/simulated.py",
    "services/_host/simulation/",
)
"""What stands in for the kernel: prefixes of paths."""
WARM_UP_S: Final = 6.0
TRACED_S: Final = 10.0
MOST_FREQUENT: Final = 12


@dataclass(slots=True)
class Trace:
    """Calls into our files, in the order in which they happened."""

    calls: Counter[str] = field(default_factory=Counter)
    """By file."""
    functions: set[tuple[str, str]] = field(default_factory=set)
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """From one file to another, by both."""
    _last: str = ""

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """For `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or not (name := _ours(code.co_filename)):
            return
        self.calls[name] += 1
        self.functions.add((name, code.co_qualname))
        if name != self._last:
            self.changes[self._last, name] += 1
            self._last = name


@dataclass(frozen=True, slots=True)
class Trip:
    """What one period passes."""

    periods: int
    files: int
    files_by_room: dict[str, int]
    functions: int
    calls_per_period: float
    changes_per_period: float
    most_frequent: list[tuple[str, str, float]]
    """Changes from one file to another a period."""


@functools.cache
def _ours(path: str) -> str:
    """The path in services or schemas; empty for others and for the simulation."""
    name = path.removeprefix(f"{ROOT}/")
    return name if name.startswith(("services/", "schemas/")) and not name.startswith(SIMULATION) else ""


@contextmanager
def _traced(trace: Trace) -> Iterator[None]:
    sys.setprofile(trace)
    try:
        yield
    finally:
        sys.setprofile(None)


async def measure() -> Trip:
    """Run both services and trace them once they are steady; takes 16 s."""
    trace, broker = Trace(), MemoryBroker()
    with tempfile.TemporaryDirectory() as directory:
        scenario = Path(directory) / "scenario.json"
        scenario.write_text(json.dumps([{"app": "demo", "scenario": demo_scenario().model_dump(mode="json")}]))
        await MemoryBus(broker).bucket(APPS).put("demo", AppSpec(name="demo", cpu_limit=0.75, memory_limit=1 << 30))
        settings = AgentSettings.load({}, node="n1", host="simulated", scenario_file=scenario)
        async with (
            run_in_process(Agent, settings, MemoryBus(broker)) as agent,
            run_in_process(Allocator, AllocatorSettings.load({}), MemoryBus(broker)),
        ):
            assert agent.node is not None
            await asyncio.sleep(WARM_UP_S)
            before = agent.node.sampler.samples_taken
            with _traced(trace):
                await asyncio.sleep(TRACED_S)
            return _trip(trace, agent.node.sampler.samples_taken - before)


def _trip(trace: Trace, periods: int) -> Trip:
    rooms = Counter("/".join(name.split("/")[: 2 if name.startswith("services") else 1]) for name in trace.calls)
    return Trip(
        periods=periods,
        files=len(trace.calls),
        files_by_room=dict(rooms.most_common()),
        functions=len(trace.functions),
        calls_per_period=round(trace.calls.total() / periods, 1),
        changes_per_period=round(trace.changes.total() / periods, 1),
        most_frequent=[(*pair, round(n / periods, 1)) for pair, n in trace.changes.most_common(MOST_FREQUENT)],
    )


def text(trip: Trip) -> str:
    """For people."""
    rooms = ", ".join(f"{room} {files}" for room, files in trip.files_by_room.items())
    return "\n".join(
        [
            f"one period of agent and allocator ({trip.periods} traced) passes {trip.files} files: {rooms}",
            f"{trip.functions} functions, {trip.calls_per_period} calls, {trip.changes_per_period} changes of file",
            *(f"  {count:>6} x {before or 'outside'} -> {after}" for before, after, count in trip.most_frequent),
        ]
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tick", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    as_json = parser.parse_args().json
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    trip = asyncio.run(measure())
    print(json.dumps(asdict(trip), indent=1) if as_json else text(trip))


if __name__ == "__main__":
    main()
