"""Path consistency check: queries FRR and BFD, compares with the kernel, reports mismatches that last.

Convergence takes about 200 ms: a mismatch is reported once it has lasted a second, at most two seconds after it began.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Final

from services._edge.frr import FrrError
from services._host.netlink.objects import FdbEntry, Snapshot
from services._runtime.clock import Clock
from services.reconciler.inaccessible import destinations_to_query, read_inaccessible, show_bgp_command
from services.reconciler.path_comparison import (
    FrrState,
    Path,
    PathComparison,
    Sessions,
    destinations_of,
    read_routes,
    read_sessions,
)
from services.reconciler.ports import FrrDaemons, MalformedReplyError

_QUERY_ERRORS: Final = (FrrError, MalformedReplyError)
MIN_DURATION_S: Final = 1.0
"""Shorter mismatches are convergence."""
EVENT_DELAY_S: Final = 0.02
"""Delay after a route event, so that a burst causes one check."""
MIN_INTERVAL_S: Final = 0.1
MAX_INTERVAL_S: Final = 10.0
COST_SHARE: Final = 0.002
"""Of a core, for queries: with thousands of routes the interval grows."""


@dataclass(frozen=True, slots=True)
class PathStatus:
    """A reported change: a path's mismatch, its end, or FRR's availability."""

    path: Path | None
    """None: FRR became unavailable or available."""
    agree: bool
    lasted_s: float = 0.0
    """At the end of a mismatch or of FRR's absence: its duration."""
    error: str = ""
    """FRR's error."""


@dataclass(slots=True)
class _Mismatch:
    since_s: float
    reported: bool = False
    path: Path | None = None


class MismatchTracker:
    """Pending and reported mismatches by destination. No I/O, no clock."""

    def __init__(self) -> None:
        self._mismatches: dict[str, _Mismatch] = {}
        self._unavailable: _Mismatch | None = None
        self.alarms = 0

    @property
    def disagreements(self) -> int:
        """Destinations with a reported mismatch."""
        return sum(mismatch.reported for mismatch in self._mismatches.values())

    def update(self, paths: list[Path], state: FrrState, now_s: float) -> list[PathStatus]:
        """Status changes to report."""
        news = self._frr(state, now_s)
        present = {path.destination for path in paths}
        for destination in [known for known in self._mismatches if known not in present]:
            mismatch = self._mismatches.pop(destination)  # withdrawn: no packets are sent there any more
            if mismatch.reported and mismatch.path is not None:
                news.append(PathStatus(mismatch.path, agree=True, lasted_s=now_s - mismatch.since_s))
        for path in paths:
            news += self._path(path, now_s)
        return news

    def _frr(self, state: FrrState, now_s: float) -> list[PathStatus]:
        if state.error:
            self._unavailable = self._unavailable or _Mismatch(now_s)
            if self._unavailable.reported or now_s - self._unavailable.since_s < MIN_DURATION_S:
                return []
            self._unavailable.reported = True
            return [PathStatus(None, agree=False, error=state.error)]
        unavailable, self._unavailable = self._unavailable, None
        return (
            [PathStatus(None, agree=True, lasted_s=now_s - unavailable.since_s)]
            if unavailable is not None and unavailable.reported
            else []
        )

    def _path(self, path: Path, now_s: float) -> list[PathStatus]:
        mismatch = self._mismatches.get(path.destination)
        if not path.reason:
            if mismatch is None or path.frr is None or path.bfd_up is None:
                # Unknown FRR or BFD state does not clear a reported mismatch.
                if mismatch is not None and not mismatch.reported:
                    del self._mismatches[path.destination]
                return []
            del self._mismatches[path.destination]
            return [PathStatus(path, agree=True, lasted_s=now_s - mismatch.since_s)] if mismatch.reported else []
        if mismatch is None:
            mismatch = self._mismatches[path.destination] = _Mismatch(now_s)
        before, mismatch.path = mismatch.path, path
        if now_s - mismatch.since_s < MIN_DURATION_S or (
            mismatch.reported and before is not None and before.reason == path.reason
        ):
            return []
        self.alarms += not mismatch.reported
        mismatch.reported = True
        return [PathStatus(path, agree=False)]


class PathAuditor:
    """Queries FRR twice a second, and after route events."""

    def __init__(self, daemons: FrrDaemons, clock: Clock, pause_s: float, override_tables: Container[int] = ()) -> None:
        self._daemons = daemons
        self._clock = clock
        self._pause_s = pause_s
        self._override_tables = override_tables
        self._changed = asyncio.Event()
        self._bfd_seen = False
        self._bgp_seen = False
        self._fdb: tuple[FdbEntry, ...] = ()
        self._vteps: tuple[str, ...] = ()
        self._gone: set[str] = set()
        self.tracker = MismatchTracker()
        self.paths: list[Path] = []
        self.state = FrrState()
        self.on_path_status: Callable[[PathStatus], None] = lambda _status: None

    def changed(self) -> None:
        """Routes have changed: check soon."""
        self._changed.set()

    async def run(self, current: Callable[[], Snapshot | None]) -> None:
        """Run until cancelled.

        Args:
            current: returns the last snapshot of the kernel; None while its state is unknown: no check then.
        """
        while True:
            began_s, begun_s = self._clock.monotonic(), time.thread_time()
            await self._compare(current)
            cost_s = time.thread_time() - begun_s
            pause_s = max(self._pause_s, min(cost_s / COST_SHARE, MAX_INTERVAL_S))
            await self._wait(began_s, began_s + pause_s)

    async def _compare(self, current: Callable[[], Snapshot | None]) -> None:
        state = await self.ask(with_ipv6=any(":" in path.destination for path in self.paths))
        self.state = state
        # Taken after FRR's reply: FRR follows the kernel, so the kernel's state must be the newer one.
        snapshot = current()
        if snapshot is None:
            return
        if snapshot.fdb is not self._fdb:  # a route-only reconcile keeps the table
            known, self._fdb, self._vteps = self._vteps, snapshot.fdb, destinations_of(snapshot)
            self._gone |= set(known) - set(self._vteps)
        self.paths = PathComparison(snapshot, state, self._override_tables, self._vteps).paths()
        for status in self.tracker.update(self.paths, state, self._clock.monotonic()):
            self.on_path_status(status)

    async def ask(self, *, with_ipv6: bool = False) -> FrrState:
        """Query FRR's and BFD's state."""
        routes = sessions = None
        errors = []
        try:
            routes = read_routes(await self._daemons.show_json("zebra", "show ip route json"))
            if with_ipv6:
                routes |= read_routes(await self._daemons.show_json("zebra", "show ipv6 route json"))
        except _QUERY_ERRORS as error:
            errors.append(str(error))
        try:
            sessions = read_sessions(await self._daemons.show_json("bfdd", "show bfd peers json"))
            self._bfd_seen = True
        except _QUERY_ERRORS as error:
            # BFD is optional in FRR: its absence is an error only once it was seen.
            if self._bfd_seen or routes is None:
                errors.append(str(error))
        inaccessible: dict[str, tuple[str, ...]] = {}
        if routes is not None and sessions is not None:
            try:
                inaccessible = await self._inaccessible(routes, sessions)
            except _QUERY_ERRORS as error:
                if self._bgp_seen:  # routes may come from elsewhere
                    errors.append(str(error))
        return FrrState(routes, sessions, inaccessible, "; ".join(errors))

    async def _inaccessible(
        self, routes: Mapping[str, tuple[str, ...]], sessions: Sessions
    ) -> dict[str, tuple[str, ...]]:
        """Uplinks, by destination, that only bgpd considers inaccessible. Raises `FrrError`."""
        # With its last path a VTEP leaves the forwarding table: query it once more, and as long as bgpd reports it.
        before, self._gone = {*self.state.inaccessible, *self._gone}, set()
        found = {}
        for vtep in destinations_to_query(self._vteps, before, routes, sessions.up):
            answer = await self._daemons.show_json("bgpd", show_bgp_command(vtep))
            self._bgp_seen = True
            if uplinks := read_inaccessible(answer, sessions.up):
                found[vtep] = uplinks
        return found

    async def _wait(self, began_s: float, until_s: float) -> None:
        self._changed.clear()
        woken = asyncio.ensure_future(self._changed.wait())
        slept = asyncio.ensure_future(self._clock.sleep_until(until_s))
        try:
            await asyncio.wait({woken, slept}, return_when=asyncio.FIRST_COMPLETED)
            if woken.done() and not slept.done():
                await self._clock.sleep_until(max(self._clock.monotonic() + EVENT_DELAY_S, began_s + MIN_INTERVAL_S))
        finally:
            for waiting in (woken, slept):
                waiting.cancel()
