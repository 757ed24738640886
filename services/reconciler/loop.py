"""The loop: whatever happens, look at everything, write the difference, verify (design 5; thorn.md 5).

A lost event is made up for by the timer: by a probe of what is cheap each `timer_s`, and by a full look as often as a
small share of a core allows. The kernel loses events only with ENOBUFS, which makes a look due at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from services._host.netlink.objects import Snapshot
from services._runtime.clock import Clock
from services._runtime.telemetry.logging import Logger, LogLimiter, log_once
from services._runtime.telemetry.tracing import NEW_TRACE, Begin, Span, span
from services.reconciler.passes import Pass, Reconciliation
from services.reconciler.ports import Events, Network, UnreadableError
from services.reconciler.triggers import Burst, Timers

_REST: Final = 1.0
"""After a pass, events wait for its processor time once more (50 ms at most): nobody keeps us at it all the time."""
_LONGEST_REST_S: Final = 0.050
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Looked:
    """A pass, and why it was due."""

    outcome: Pass
    causes: dict[str, int]
    lag_s: float


@dataclass(slots=True)
class Counts:
    """Since the start."""

    passes: int = 0
    glances: int = 0
    failed: int = 0
    writes: int = 0
    refused_writes: int = 0
    overruns: int = 0


class Loop:
    """Runs passes on a thread of its own; tells of each on the event loop."""

    def __init__(
        self,
        network: Network,
        reconciliation: Reconciliation,
        clock: Clock,
        log: Logger,
        timers: Timers,
    ) -> None:
        self._network = network
        self._reconciliation = reconciliation
        self._clock = clock
        self._log = log
        self._limiter = LogLimiter(clock.monotonic)
        self._timers = timers
        self._burst = Burst()
        self._woken = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="netlink")
        self._events: Events | None = None
        self._rested_s = 0.0
        self.counts = Counts()
        self.last: Looked | None = None
        self.snapshot: Snapshot | None = None
        """The last look, with routes of the last glance."""
        self.looked_s = 0.0
        self.unreadable = "the kernel's state has not been read yet"
        """Why nothing is known now; empty: all is well."""
        self.on_pass: Callable[[Looked], None] = lambda _looked: None
        self.on_snapshot: Callable[[Snapshot], None] = lambda _snapshot: None

    def trigger(self, cause: str) -> None:
        """Make a look due, such as by a signal."""
        self._burst.note({cause: 1}, self._clock.monotonic())
        self._woken.set()

    async def run(self) -> None:
        """For ever; cancel to stop."""
        try:
            self._timers.started(self._clock.monotonic())
            self.trigger("start")
            while True:
                burst = await self._due()
                await self._work(burst)
        finally:
            self._unsubscribe()

    async def in_thread(self, work: Callable[[], _Value]) -> _Value:
        """Do what blocks between two passes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Let go of thread and sockets, after what is under way."""
        self._unsubscribe()
        await self.in_thread(self._network.close)
        self._thread.shutdown(wait=False)

    # -- when --------------------------------------------------------------------------------------------------

    async def _due(self) -> Burst:
        """Wait until a look is due; returns why."""
        while True:
            now_s = self._clock.monotonic()
            event_s = self._burst.due_s()
            if event_s is not None and max(event_s, self._rested_s) <= now_s:
                return self._burst.take()
            if self._timers.next_s() <= now_s:
                retry_s = self._timers.retry_s
                cause = "retry" if retry_s is not None and retry_s <= now_s else "timer"
                self._burst.note({cause: 1}, now_s)
                return self._burst.take()
            due_s = self._timers.next_s() if event_s is None else max(event_s, self._rested_s)
            await self._sleep(min(due_s, self._timers.next_s()), event_s is None)

    async def _sleep(self, deadline_s: float, until_woken: bool) -> None:
        if not until_woken:
            await self._clock.sleep_until(deadline_s)
            return
        self._woken.clear()
        woken = asyncio.ensure_future(self._woken.wait())
        slept = asyncio.ensure_future(self._clock.sleep_until(deadline_s))
        try:
            await asyncio.wait({woken, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in (woken, slept):
                waiting.cancel()

    # -- what --------------------------------------------------------------------------------------------------

    async def _work(self, burst: Burst) -> None:
        try:
            if self._events is None:
                await self._subscribe()
            if burst.only_paths and self.snapshot is not None and not self.unreadable:
                await self._glance()
            elif set(burst.causes) == {"timer"} and not self.unreadable and not await self._is_look_due():
                return
            else:
                await self._look(burst)
        except UnreadableError as error:
            self._failed(str(error))

    async def _is_look_due(self) -> bool:
        """At a tick of the timer: whether more than the cheap part has to be read."""
        now_s = self._clock.monotonic()
        if self._timers.look_s <= now_s:
            return True
        probe, cost_s = await self.in_thread(lambda: _costing(self._network.probe))
        self._timers.probed(self._clock.monotonic(), cost_s)
        return self.last is None or probe != self._network.probe_of(self.last.outcome.snapshot)

    async def _glance(self) -> None:
        assert self.snapshot is not None
        paths, cost_s = await self.in_thread(lambda: _costing(self._network.paths))
        self.counts.glances += 1
        self._rest(cost_s)
        self._show(replace(self.snapshot, **paths._asdict()))

    async def _look(self, burst: Burst) -> None:
        outcome = await self.in_thread(self._reconciliation.run)
        now_s = self._clock.monotonic()
        self.counts.passes += 1
        self.counts.writes += sum(not write.errno for write in outcome.writes)
        self.counts.refused_writes += sum(bool(write.errno) for write in outcome.writes)
        self._timers.looked(now_s, outcome.cost_s, failed=outcome.retry)
        self._rest(outcome.cost_s)
        self.unreadable = ""
        before, self.last = self.last, Looked(outcome, dict(burst.causes), now_s - burst.first_s)
        if outcome.wrote or before is None or before.outcome.verdict != outcome.verdict:
            with self._span(self.last):
                self._tell(self.last)
        else:
            self._tell(self.last)

    def _tell(self, looked: Looked) -> None:
        self.on_pass(looked)
        self._show(looked.outcome.snapshot)

    def _span(self, looked: Looked) -> AbstractContextManager[Span]:
        """Of a pass that changed something, from the first event on."""
        outcome = looked.outcome
        return span(
            "reconciler.reconcile",
            Begin(NEW_TRACE, begun_ns=self._clock.time_ns() - int(looked.lag_s * 1e9)),
            turnbuckle__causes=sorted(looked.causes),
            turnbuckle__rules__written=sum(not write.errno for write in outcome.writes),
            turnbuckle__rules__refused=sum(bool(write.errno) for write in outcome.writes),
            turnbuckle__rules__desired=outcome.tally.desired,
            turnbuckle__rules__in_sync=outcome.tally.right,
            turnbuckle__rules__verified=outcome.verified,
        )

    def _rest(self, cost_s: float) -> None:
        self._rested_s = self._clock.monotonic() + min(_REST * cost_s, _LONGEST_REST_S)

    def _show(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.looked_s = self._clock.monotonic()
        self.on_snapshot(snapshot)

    def _failed(self, reason: str) -> None:
        self.counts.failed += 1
        self.unreadable = reason
        self._unsubscribe()  # the next attempt begins with a subscription, so that nothing is missed in between
        self._timers.looked(self._clock.monotonic(), 0.0, failed=True)
        log_once(self._log.error, self._limiter, "kernel_unreadable", 10.0, reason=reason)

    # -- events ------------------------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        self._events = await self.in_thread(self._network.subscribe)
        asyncio.get_running_loop().add_reader(self._events.fileno(), self._read_events)

    def _unsubscribe(self) -> None:
        if self._events is not None:
            with suppress(RuntimeError):  # the event loop has ended
                asyncio.get_running_loop().remove_reader(self._events.fileno())
            self._events.close()
            self._events = None

    def _read_events(self) -> None:
        assert self._events is not None
        try:
            happened = self._events.read()
        except UnreadableError as error:
            self._failed(str(error))
            self._woken.set()
            return
        causes = dict(happened.causes)
        if happened.overrun:
            self.counts.overruns += 1
            causes["overrun"] = causes.get("overrun", 0) + 1
            log_once(self._log.warning, self._limiter, "kernel_events_lost", 10.0, remedy="everything is read anew")
        self._burst.note(causes, self._clock.monotonic())
        if causes:
            self._woken.set()


def _costing(work: Callable[[], _Value]) -> tuple[_Value, float]:
    """The result, and the processor time that it took."""
    begun_s = time.thread_time()
    return work(), time.thread_time() - begun_s
