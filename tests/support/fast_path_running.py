"""A fast path of a host's namespace, within the test's event loop, and what it has told."""

from __future__ import annotations

from contextlib import asynccontextmanager

from schemas.streams import ROUTE_STREAM
from services.fastpath.service import FastPath
from services.fastpath.settings import FastPathSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.service_in_process import run_in_process

KEY = "0123456789abcdef0123456789abcdef"


class Running:
    """A fast path, its host and what it has told."""

    def __init__(self, host, service, events):
        self.host, self.service, self.events = host, service, events
        self.bus = service._runtime.bus

    @property
    def daemon(self):
        return self.service.supervisor.pids[0]

    @property
    def watchdog(self):
        return self.service.supervisor.pids[1]

    def uplink(self, name):
        """As it last reported, each second: ifindex, carrier, state of BFD, switch."""
        return self.service._state["uplinks"][name]

    def of(self, kind, cause=None):
        return [event for event in self.events if event.kind is kind and cause in {None, event.cause}]

    async def overrides(self, expected, within_s=60):
        await until(lambda: self.host.overrides() == expected, within_s=within_s, what=f"overrides {expected}")

    async def told(self, kind, cause, count=1):
        await until(lambda: len(self.of(kind, cause)) >= count, what=f"{count} {kind} for {cause}")
        return self.of(kind, cause)[-1]


@asynccontextmanager
async def running(host, tmp_path, **changes):
    """A fast path that sees, and knows its switches."""
    broker = MemoryBroker()
    events = []

    async def take(delivery):
        events.append(delivery.message)

    theirs, ours = MemoryBus(broker), MemoryBus(broker)
    await ours.replay(ROUTE_STREAM, take)
    values = {"node": f"n{host.number}", "netns": host.name, "uplinks": tuple(host.uplinks), "vtep": host.vtep}
    values |= {"fabric_key": KEY, "frr_directory": host.directory, "state_directory": tmp_path / "state"}
    # Longer than a busy machine stands still: who has been silent for so long has its overrides taken away.
    values |= {"realtime_priority": 0, "watchdog_timeout_s": 4.0}
    settings = FastPathSettings.load({}, **(values | changes))
    async with run_in_process(FastPath, settings, theirs) as service:
        made = Running(host, service, events)
        await until(lambda: service.not_ready() is None, what="a fast path that sees")
        if settings.fabric_key:
            await until(
                lambda: all(row[3] for row in service._state.get("uplinks", {"": [0] * 4}).values()), what="switches"
            )
        yield made
    for bus in (theirs, ours):
        await bus.close(1.0)
