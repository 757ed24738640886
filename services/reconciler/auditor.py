"""The path auditor: asks FRR and BFD, compares with the kernel, and tells of disagreements that last.

Convergence takes some 200 ms, so only what lasts longer than a second is told, and within two seconds of its begin.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from services._host.frr import FrrError
from services._host.netlink.objects import FdbEntry, Snapshot
from services._runtime.clock import Clock
from services.fastpath.values import Ownership
from services.reconciler.inaccessible import question, read_inaccessible, suspects
from services.reconciler.paths import Comparison, FrrView, Path, Sessions, destinations_of, read_routes, read_sessions
from services.reconciler.ports import Daemons

LASTING_S: Final = 1.0
"""Shorter disagreements are convergence."""
AFTER_EVENT_S: Final = 0.02
"""A route event: look again, but not at each of a burst."""
SHORTEST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
COST_SHARE: Final = 0.002
"""Of a core, for questions: a table of thousands of routes is asked for more rarely."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A change of what is known of a path, or of FRR itself."""

    path: Path | None
    """None: FRR went away or came back."""
    agree: bool
    lasted_s: float = 0.0
    """AGREEMENT: how long they had disagreed. FRR back: how long it was away."""
    trouble: str = ""
    """Why FRR does not answer."""


@dataclass(slots=True)
class _Doubt:
    since_s: float
    told: bool = False
    path: Path | None = None


class Judge:
    """What was told of each path. No I/O, no clock."""

    def __init__(self) -> None:
        self._doubts: dict[str, _Doubt] = {}
        self._away: _Doubt | None = None
        self.alarms = 0

    @property
    def disagreements(self) -> int:
        """Destinations whose disagreement lasts."""
        return sum(doubt.told for doubt in self._doubts.values())

    def judge(self, paths: list[Path], view: FrrView, now_s: float) -> list[Verdict]:
        """What is news."""
        news = self._frr(view, now_s)
        present = {path.destination for path in paths}
        for destination in [known for known in self._doubts if known not in present]:
            doubt = self._doubts.pop(destination)  # withdrawn: nothing is sent there any more
            if doubt.told and doubt.path is not None:
                news.append(Verdict(doubt.path, agree=True, lasted_s=now_s - doubt.since_s))
        for path in paths:
            news += self._path(path, now_s)
        return news

    def _frr(self, view: FrrView, now_s: float) -> list[Verdict]:
        if view.trouble:
            self._away = self._away or _Doubt(now_s)
            if self._away.told or now_s - self._away.since_s < LASTING_S:
                return []
            self._away.told = True
            return [Verdict(None, agree=False, trouble=view.trouble)]
        away, self._away = self._away, None
        return [Verdict(None, agree=True, lasted_s=now_s - away.since_s)] if away is not None and away.told else []

    def _path(self, path: Path, now_s: float) -> list[Verdict]:
        doubt = self._doubts.get(path.destination)
        if not path.reason:
            if doubt is None or path.frr is None or path.bfd_up is None:
                # Who cannot be asked takes no doubt back.
                if doubt is not None and not doubt.told:
                    del self._doubts[path.destination]
                return []
            del self._doubts[path.destination]
            return [Verdict(path, agree=True, lasted_s=now_s - doubt.since_s)] if doubt.told else []
        if doubt is None:
            doubt = self._doubts[path.destination] = _Doubt(now_s)
        before, doubt.path = doubt.path, path
        if now_s - doubt.since_s < LASTING_S or (doubt.told and before is not None and before.reason == path.reason):
            return []
        self.alarms += not doubt.told
        doubt.told = True
        return [Verdict(path, agree=False)]


class PathAuditor:
    """Asks FRR twice a second, and after route events."""

    def __init__(self, daemons: Daemons, clock: Clock, pause_s: float, fast_path: Ownership | None = None) -> None:
        self._daemons = daemons
        self._clock = clock
        self._pause_s = pause_s
        self._fast_path = fast_path
        self._changed = asyncio.Event()
        self._bfd_seen = False
        self._bgp_seen = False
        self._fdb: tuple[FdbEntry, ...] = ()
        self._vteps: tuple[str, ...] = ()
        self._gone: set[str] = set()
        self.judge = Judge()
        self.paths: list[Path] = []
        self.view = FrrView()
        self.on_verdict: Callable[[Verdict], None] = lambda _verdict: None

    def changed(self) -> None:
        """Routes have changed: look soon."""
        self._changed.set()

    async def run(self, look: Callable[[], Snapshot | None]) -> None:
        """For ever; cancel to stop.

        Args:
            look: the last look at the kernel; None while nothing is known of it, so nothing is judged.
        """
        while True:
            began_s, begun_s = self._clock.monotonic(), time.thread_time()
            await self._compare(look)
            cost_s = time.thread_time() - begun_s
            pause_s = max(self._pause_s, min(cost_s / COST_SHARE, LONGEST_PAUSE_S))
            await self._rest(began_s, began_s + pause_s)

    async def _compare(self, look: Callable[[], Snapshot | None]) -> None:
        view = await self.ask(with_ipv6=any(":" in path.destination for path in self.paths))
        self.view = view
        # After the answer: what the kernel does first, FRR hears of; so the kernel's side must be the younger one.
        snapshot = look()
        if snapshot is None:
            return
        if snapshot.fdb is not self._fdb:  # a glance keeps the table
            known, self._fdb, self._vteps = self._vteps, snapshot.fdb, destinations_of(snapshot)
            self._gone |= set(known) - set(self._vteps)
        self.paths = Comparison(snapshot, view, self._fast_path, self._vteps).paths()
        for verdict in self.judge.judge(self.paths, view, self._clock.monotonic()):
            self.on_verdict(verdict)

    async def ask(self, *, with_ipv6: bool = False) -> FrrView:
        """What FRR says now."""
        routes = sessions = None
        troubles = []
        try:
            routes = read_routes(await self._daemons.show_json("zebra", "show ip route json"))
            if with_ipv6:
                routes |= read_routes(await self._daemons.show_json("zebra", "show ipv6 route json"))
        except FrrError as error:
            troubles.append(str(error))
        try:
            sessions = read_sessions(await self._daemons.show_json("bfdd", "show bfd peers json"))
            self._bfd_seen = True
        except FrrError as error:
            # BFD is an option of FRR's: who never had it misses nothing.
            if self._bfd_seen or routes is None:
                troubles.append(str(error))
        inaccessible: dict[str, tuple[str, ...]] = {}
        if routes is not None and sessions is not None:
            try:
                inaccessible = await self._inaccessible(routes, sessions)
            except FrrError as error:
                if self._bgp_seen:  # routes may come from elsewhere
                    troubles.append(str(error))
        return FrrView(routes, sessions, inaccessible, "; ".join(troubles))

    async def _inaccessible(
        self, routes: Mapping[str, tuple[str, ...]], sessions: Sessions
    ) -> dict[str, tuple[str, ...]]:
        """Destinations and uplinks that bgpd alone holds for dead. Raises `FrrError`."""
        # With its last path a VTEP leaves the forwarding table: it is asked for once more, and while bgpd names it.
        before, self._gone = {*self.view.inaccessible, *self._gone}, set()
        found = {}
        for vtep in suspects(self._vteps, before, routes, sessions.up):
            answer = await self._daemons.show_json("bgpd", question(vtep))
            self._bgp_seen = True
            if uplinks := read_inaccessible(answer, sessions.up):
                found[vtep] = uplinks
        return found

    async def _rest(self, began_s: float, until_s: float) -> None:
        self._changed.clear()
        woken = asyncio.ensure_future(self._changed.wait())
        slept = asyncio.ensure_future(self._clock.sleep_until(until_s))
        try:
            await asyncio.wait({woken, slept}, return_when=asyncio.FIRST_COMPLETED)
            if woken.done() and not slept.done():
                await self._clock.sleep_until(max(self._clock.monotonic() + AFTER_EVENT_S, began_s + SHORTEST_PAUSE_S))
        finally:
            for waiting in (woken, slept):
                waiting.cancel()
