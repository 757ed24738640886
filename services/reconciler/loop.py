"""Level-triggered reconcile loop: on any event dump the state, apply the difference, verify (design 5; thorn.md 5).

The resync timers repair what a lost event left: a cheap probe each `interval_s`, and a full reconcile as often as a
small share of a core allows. ENOBUFS, the kernel's sign of lost events, triggers a full reconcile at once.
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
from services.reconciler.full_reconcile import CompletedReconcile, Reconciliation
from services.reconciler.ports import Events, Network, UnreadableError
from services.reconciler.triggers import EventBatch, ResyncTimers

_RATE_LIMIT_FACTOR: Final = 1.0
"""Rate limit: after a reconcile, events are delayed by its processor time (50 ms at most), so that a flood of events
cannot occupy a whole core."""
_MAX_RATE_LIMIT_S: Final = 0.050
_Value = TypeVar("_Value")


@dataclass(slots=True)
class Counts:
    """Totals since the start."""

    full: int = 0
    route_only: int = 0
    failed: int = 0
    writes: int = 0
    refused_writes: int = 0
    overruns: int = 0


class ReconcileLoop:
    """Runs reconciles on a thread of its own; calls back on the event loop."""

    def __init__(
        self,
        network: Network,
        reconciliation: Reconciliation,
        clock: Clock,
        log: Logger,
        timers: ResyncTimers,
    ) -> None:
        self._network = network
        self._reconciliation = reconciliation
        self._clock = clock
        self._log = log
        self._limiter = LogLimiter(clock.monotonic)
        self._timers = timers
        self._batch = EventBatch()
        self._woken = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="netlink")
        self._events: Events | None = None
        self._not_before_s = 0.0
        self.counts = Counts()
        self.last: CompletedReconcile | None = None
        self.snapshot: Snapshot | None = None
        """Of the last full reconcile, with the routes of the last route-only one."""
        self.read_s = 0.0
        self.unreadable = "the kernel's state has not been read yet"
        """Why the kernel's state is unknown; empty: it is known."""
        self.on_reconciled: Callable[[CompletedReconcile], None] = lambda _reconcile: None
        self.on_snapshot: Callable[[Snapshot], None] = lambda _snapshot: None

    def trigger(self, cause: str) -> None:
        """Request a full reconcile, for example on a signal."""
        self._batch.add({cause: 1}, self._clock.monotonic())
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            self._timers.started(self._clock.monotonic())
            self.trigger("start")
            while True:
                batch = await self._next_batch()
                await self._handle(batch)
        finally:
            self._unsubscribe()

    async def in_thread(self, work: Callable[[], _Value]) -> _Value:
        """Run blocking work on the netlink thread, between two reconciles."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Close thread and sockets once the running work has ended."""
        self._unsubscribe()
        await self.in_thread(self._network.close)
        self._thread.shutdown(wait=False)

    # -- when --------------------------------------------------------------------------------------------------

    async def _next_batch(self) -> EventBatch:
        """Wait until a reconcile is due; returns the events that caused it."""
        while True:
            now_s = self._clock.monotonic()
            event_s = self._batch.due_s()
            if event_s is not None and max(event_s, self._not_before_s) <= now_s:
                return self._batch.take()
            if self._timers.next_s() <= now_s:
                retry_s = self._timers.retry_s
                cause = "retry" if retry_s is not None and retry_s <= now_s else "timer"
                self._batch.add({cause: 1}, now_s)
                return self._batch.take()
            due_s = self._timers.next_s() if event_s is None else max(event_s, self._not_before_s)
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

    async def _handle(self, batch: EventBatch) -> None:
        try:
            if self._events is None:
                await self._subscribe()
            if batch.only_routes and self.snapshot is not None and not self.unreadable:
                await self._reconcile_routes()
            elif set(batch.causes) == {"timer"} and not self.unreadable and not await self._needs_full_reconcile():
                return
            else:
                await self._reconcile(batch)
        except UnreadableError as error:
            self._failed(str(error))

    async def _needs_full_reconcile(self) -> bool:
        """On a timer: whether a full reconcile is due, or the probe differs from the last snapshot."""
        now_s = self._clock.monotonic()
        if self._timers.full_s <= now_s:
            return True
        probe, cpu_s = await self.in_thread(lambda: _with_cpu_time(self._network.probe))
        self._timers.probed(self._clock.monotonic(), cpu_s)
        return self.last is None or probe != self._network.probe_of(self.last.result.snapshot)

    async def _reconcile_routes(self) -> None:
        assert self.snapshot is not None
        routes, cpu_s = await self.in_thread(lambda: _with_cpu_time(self._network.route_state))
        self.counts.route_only += 1
        self._limit_rate(cpu_s)
        self._set_snapshot(replace(self.snapshot, **routes._asdict()))

    async def _reconcile(self, batch: EventBatch) -> None:
        result = await self.in_thread(self._reconciliation.run)
        now_s = self._clock.monotonic()
        self.counts.full += 1
        self.counts.writes += sum(not write.errno for write in result.writes)
        self.counts.refused_writes += sum(bool(write.errno) for write in result.writes)
        self._timers.reconciled(now_s, result.cpu_s, failed=result.retry)
        self._limit_rate(result.cpu_s)
        self.unreadable = ""
        before, self.last = self.last, CompletedReconcile(result, dict(batch.causes), now_s - batch.first_s)
        if result.wrote or before is None or before.result.status != result.status:
            with self._span(self.last):
                self._notify(self.last)
        else:
            self._notify(self.last)

    def _notify(self, completed: CompletedReconcile) -> None:
        self.on_reconciled(completed)
        self._set_snapshot(completed.result.snapshot)

    def _span(self, completed: CompletedReconcile) -> AbstractContextManager[Span]:
        """Trace span of a reconcile that changed something; begins at the first event."""
        result = completed.result
        return span(
            "reconciler.reconcile",
            Begin(NEW_TRACE, begun_ns=self._clock.time_ns() - int(completed.lag_s * 1e9)),
            turnbuckle__causes=sorted(completed.causes),
            turnbuckle__rules__written=sum(not write.errno for write in result.writes),
            turnbuckle__rules__refused=sum(bool(write.errno) for write in result.writes),
            turnbuckle__rules__desired=result.tally.desired,
            turnbuckle__rules__in_sync=result.tally.in_sync,
            turnbuckle__rules__verified=result.verified,
        )

    def _limit_rate(self, cpu_s: float) -> None:
        self._not_before_s = self._clock.monotonic() + min(_RATE_LIMIT_FACTOR * cpu_s, _MAX_RATE_LIMIT_S)

    def _set_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.read_s = self._clock.monotonic()
        self.on_snapshot(snapshot)

    def _failed(self, reason: str) -> None:
        self.counts.failed += 1
        self.unreadable = reason
        self._unsubscribe()  # the retry subscribes before it dumps, so that no event is missed between the two
        self._timers.reconciled(self._clock.monotonic(), 0.0, failed=True)
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
            counts_by_cause = self._events.read()
        except UnreadableError as error:
            self._failed(str(error))
            self._woken.set()
            return
        causes = dict(counts_by_cause.causes)
        if counts_by_cause.overrun:
            self.counts.overruns += 1
            causes["overrun"] = causes.get("overrun", 0) + 1
            log_once(self._log.warning, self._limiter, "kernel_events_lost", 10.0, remedy="everything is read anew")
        self._batch.add(causes, self._clock.monotonic())
        if causes:
            self._woken.set()


def _with_cpu_time(work: Callable[[], _Value]) -> tuple[_Value, float]:
    """Return the result and the processor time, in seconds."""
    begun_s = time.thread_time()
    return work(), time.thread_time() - begun_s
