"""A fast path on every host of the dual-ToR lab, in an event loop of their own, and what they have told."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any, Self

from schemas.network import RouteEvent, RouteKind
from schemas.streams import ROUTE_STREAM
from services._runtime.bus.api import Delivery
from services.fabric.testbed.lab import Lab
from services.fastpath.service import FastPath
from services.fastpath.settings import FastPathSettings
from tests.support.bgp_sessions import bfd_guards
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.cgroup_lab import wait_until
from tests.support.fast_path_lab import overrides_in
from tests.support.service_in_process import run_in_process

KEY = "a key for the lab of this very test run"
T_MAX_S = 3.0
PATIENT = {"hold_s": T_MAX_S, "watchdog_timeout_s": 5.0}
"""FRR converges within `hold_s`, and nobody takes a machine that stands still for a moment for a dead process."""


class HostFastPath:
    """One host's."""

    def __init__(self, netns: str, vtep: str) -> None:
        self.netns = netns
        self.vtep = vtep
        self.events: list[RouteEvent] = []
        self.service: FastPath | None = None

    @property
    def hot_pid(self) -> int:
        """Of the data-plane process."""
        assert self.service is not None
        assert self.service.supervisor is not None
        return self.service.supervisor.pids[0]

    @property
    def state(self) -> dict[str, Any]:
        """As it last reported."""
        assert self.service is not None
        return self.service._state

    def ready(self) -> bool:
        """Whether it sees, and knows its switches."""
        return (
            self.service is not None
            and self.service.not_ready() is None
            and all(row[2] == "up" and row[3] for row in self.state["uplinks"].values())
        )

    def overrides(self) -> dict[str, list[str]]:
        """Devices by destination, in its table."""
        return overrides_in(self.netns)

    def told(self, kind: RouteKind, cause: str | None = None) -> list[RouteEvent]:
        """Events so far."""
        return [event for event in list(self.events) if event.kind is kind and cause in {None, event.cause}]


class FastPaths:
    """All of a lab's; use as a context manager."""

    def __init__(self, lab: Lab, state_directory: Path, **settings: Any) -> None:
        self.hosts = [HostFastPath(host.netns, host.vtep) for host in lab.topology.hosts]
        self._lab = lab
        self._settings = {"state_directory": state_directory, "fabric_key": KEY} | PATIENT | settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._live(),))

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            for made in self.hosts:
                tasks.create_task(self._live_one(made))

    async def _live_one(self, made: HostFastPath) -> None:
        broker = MemoryBroker()

        async def take(delivery: Delivery) -> None:
            assert isinstance(delivery.message, RouteEvent)
            made.events.append(delivery.message)

        theirs, ours = MemoryBus(broker), MemoryBus(broker)
        await ours.replay(ROUTE_STREAM, take)
        values = {"node": made.netns, "netns": made.netns, "vtep": made.vtep, "frr_pathspace": made.netns}
        settings = FastPathSettings.load({}, uplinks=("p1", "p2"), **values, **self._settings)
        async with run_in_process(FastPath, settings, theirs) as service:
            made.service = service
            await self._stop.wait()
        for bus in (theirs, ours):
            await bus.close(1.0)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: all(made.ready() for made in self.hosts), within_s=60, what="fast paths that see")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def wait_quiet(self, within_s: float = 60.0) -> None:
        """Until nothing is overridden, both uplinks carry, and new faults would be answered.

        By states that are reported from then on: the last one, a second old, may be from before a fault. What was told
        before such a state has come with it. And by BFD as bgpd has it: a session of BGP that it has yet to close takes
        that of BFD away, and a fault would not be told.
        """
        self._lab.wait_for_both_uplinks(within_s)
        wait_until(
            lambda: all(bfd_guards(made.netns) for made in self.hosts), within_s=within_s, what="BFD up on all uplinks"
        )
        wait_until(
            lambda: not any(made.overrides() for made in self.hosts), within_s=within_s, what="no override on any host"
        )
        old = [made.state for made in self.hosts]
        wait_until(
            lambda: all(
                made.state is not stale and made.ready() and not made.overrides()
                for made, stale in zip(self.hosts, old, strict=True)
            ),
            within_s=within_s,
            what="fast paths without overrides",
        )

    def forget(self) -> None:
        """Forget what was told."""
        for made in self.hosts:
            made.events.clear()

    def wait_told(
        self, host: int, kind: RouteKind, cause: str, *, count: int = 1, destination: str = ""
    ) -> list[RouteEvent]:
        """Wait for so many events of a host, by its number, and for one about a destination."""
        made = self.hosts[host - 1]

        def enough() -> bool:
            told = made.told(kind, cause)
            named = {name for event in told for name in (event.destination, *event.also)}
            return len(told) >= count and (not destination or destination in named)

        try:
            wait_until(enough, what=f"{count} {kind} for {cause} of host {host} {destination}")
        except AssertionError as error:
            raise AssertionError(f"{error}; there are {[(e.kind, e.cause) for e in made.events]}") from error
        return made.told(kind, cause)


def pause_until(deadline_s: float) -> None:
    """The rhythm of a fault that is part of a test; never to wait for an effect."""
    time.sleep(max(deadline_s - time.monotonic(), 0.0))
