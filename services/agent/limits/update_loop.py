"""Limit updates on the event loop: AppSpecs are read, rows applied, lower quotas timed, failures logged and traced.

No limit update passes the limits of the AppSpecs (`SpecReader`). They are read from the bucket `apps`, seldom: when a
container starts, every half minute, and before an update that would pass the known limits: the AppSpec may have been
written, or raised, since it was read. Containers of an enforced application that have no limits are given their floor
with each reading, and also where none succeeds.

Spans are made of updates that change memory, or fail. CPU follows usage ten times a second: where that succeeds the
allocator's span of the request is enough, and one of the agent's beside it would be a third of what tracing costs a
host. Warnings of rows not applied come once per container and reason, then they are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from schemas.apps import AppSpec
from schemas.limits import LimitReply, LimitUpdate, RowStatus
from schemas.streams import APPS
from schemas.subjects import LIMITS_APPLIED
from services._host.cgroup_snapshot import Limits
from services._runtime.bus.api import BusError
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import Logger, LogLimiter
from services._runtime.telemetry.tracing import MAX_APPS, Span, drop_span, is_on, span
from services.agent.limits.accepted_updates import Refusal, SpecLimit
from services.agent.limits.update_executor import FailedRow, LimitExecutor, applied_limits
from services.agent.settings import AgentSettings

DECREASE_SPACING_S: Final = 0.0005
"""Between polls of pending decreases: those that are due close together are written together."""


class LimitLoop:
    """Applies limit updates between samples."""

    def __init__(
        self,
        runtime: Runtime[AgentSettings],
        executor: LimitExecutor,
        flush: Callable[[], None],
        on_refusal: Callable[[Refusal], None],
        on_floors: Callable[[str], None],
    ) -> None:
        """Begin.

        Args:
            runtime: of the agent.
            executor: writes.
            flush: called once an update's rows are begun: memory control may have something to publish.
            on_refusal: called with a raise that the node's CPU budget refuses.
            on_floors: called with an application of which containers were given their floor.
        """
        self.specs = SpecReader(runtime, executor, on_floors)
        self._bus = runtime.bus
        self._clock = runtime.clock
        self._executor = executor
        self._flush = flush
        self._on_refusal = on_refusal
        self._failed_rows = FailedRows(runtime.log, runtime.clock.monotonic)
        self._update_s = runtime.telemetry.histogram("turnbuckle_agent_limit_update_seconds")
        self._timer: asyncio.TimerHandle | None = None
        runtime.telemetry.observe("turnbuckle_agent_failed_limit_update_rows_total", lambda: self._failed_rows.count)

    def stop(self) -> None:
        """Decreases that are pending are not written any more."""
        if self._timer is not None:
            self._timer.cancel()

    async def apply(self, update: LimitUpdate) -> LimitReply:
        """Apply an update; returns once each of its rows is settled."""
        received_s = self._clock.monotonic()
        is_within = await self.specs.refresh(update)
        with update_span(self._executor.containers.node, update) as current:
            reply = await self._apply_rows(update, is_within=is_within)
            record_reply(current, reply, update.apps)
        self._update_s.observe(self._clock.monotonic() - received_s)
        self._failed_rows.warn(self._executor.take_failures())
        # The reply goes out in this step of the loop, before anything is made for observers.
        asyncio.get_running_loop().call_soon(self._publish_applied, update, reply)
        return reply

    def _publish_applied(self, update: LimitUpdate, reply: LimitReply) -> None:
        for applied in applied_limits(reply, update.apps, self._clock.time_ns(), self._executor.app_of):
            subject = LIMITS_APPLIED.subject(self._bus.root, app=applied.app, node=applied.node)
            self._bus.publish(subject, applied)

    async def _apply_rows(self, update: LimitUpdate, *, is_within: bool) -> LimitReply:
        settled: asyncio.Future[LimitReply] = asyncio.get_running_loop().create_future()
        self._executor.apply(update, self._clock.monotonic_ns(), settled.set_result, is_within=is_within)
        self.specs.count_rejections()
        self._flush()
        for refusal in self._executor.cpu_budget.take_refusals():
            self._on_refusal(refusal)
        if not settled.done():
            self._schedule_decreases()
        return await settled

    def _schedule_decreases(self) -> None:
        """Wake when the next pending decrease is due; a timer costs half of what two tasks do."""
        if self._timer is not None:
            self._timer.cancel()
        wake_ns = self._executor.decreases.next_wake_ns()
        if wake_ns is None:
            self._timer = None
            return
        delay_s = max(wake_ns / 1e9 - self._clock.monotonic(), DECREASE_SPACING_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._write_decreases)

    def _write_decreases(self) -> None:
        try:
            self._executor.poll_decreases(self._clock.monotonic_ns())
        finally:
            self._schedule_decreases()


READ_INTERVAL_S: Final = 30.0
MIN_READ_INTERVAL_S: Final = 0.05
"""Updates over the known limits have it read again no sooner; those of an allocator come a period apart."""
_READ_TIMEOUT_S: Final = 1.0
_SPEC_WARN_INTERVAL_S: Final = 10.0


class SpecReader:
    """Keeps a node's bounds up to date."""

    def __init__(
        self, runtime: Runtime[AgentSettings], executor: LimitExecutor, on_floors: Callable[[str], None]
    ) -> None:
        self.rejected_updates = 0
        self._on_floors = on_floors
        self._runtime = runtime
        self._clock = runtime.clock
        self._containers = executor.containers
        self._executor = executor
        self._limits: dict[str, SpecLimit | None] = {}
        self._read_s: dict[str, float] = {}
        self._reading: dict[str, asyncio.Event] = {}
        """Reads under way; set when they end."""
        self._limiter = LogLimiter(runtime.clock.monotonic)
        executor.spec_limits = self._limits
        runtime.telemetry.observe("turnbuckle_agent_rejected_limit_updates_total", lambda: self.rejected_updates)

    def read_soon(self, app: str) -> None:
        """A container of it has started: one that has no limits gets its floor, by the AppSpec of now."""
        self._spawn_reads([app])

    async def refresh(self, update: LimitUpdate) -> bool:
        """To be awaited before each update: read again the AppSpecs whose limits it would pass. True: none."""
        over_limit = self._executor.over_limit_apps(update)
        for app in sorted(over_limit):
            if (under_way := self._reading.get(app)) is not None:
                await under_way.wait()
            else:
                await self._read_once(app, after_s=self._read_s.get(app, 0.0) + MIN_READ_INTERVAL_S)
        return not over_limit

    def count_rejections(self) -> None:
        """To be called after each update."""
        over_limit = self._executor.take_over_limit()
        self.rejected_updates += bool(over_limit)
        for app in sorted(over_limit):
            self._warn(app)

    async def run(self) -> None:
        """Read every AppSpec from time to time; cancel to stop."""
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + READ_INTERVAL_S)
            here = self._containers.apps
            for app in self._read_s.keys() - here:
                del self._read_s[app]
                self._limits.pop(app, None)
            self.read_all()

    def read_all(self) -> None:
        """Read the AppSpecs of all applications that have containers here, say after the bus has connected."""
        self._spawn_reads(sorted(self._containers.apps))

    def _warn(self, app: str) -> None:
        if self._limiter.admit(app, _SPEC_WARN_INTERVAL_S) is not None:
            reason = "beyond its announced limits" if self._limits.get(app) else "not announced, as far as is known"
            self._runtime.log.warning("limit_update_rejected", app=app, reason=reason, orders=self.rejected_updates)

    def _spawn_reads(self, apps: Iterable[str]) -> None:
        for app in apps:
            if app not in self._reading:
                self._read_s[app] = self._clock.monotonic()
                self._runtime.spawn(self._read_once(app), name=f"announced limits {app}")

    async def _read_once(self, app: str, after_s: float = 0.0) -> None:
        """Not before ``after_s`` (monotonic). What cannot be read leaves what is known."""
        self._reading[app] = ended = asyncio.Event()
        try:
            if after_s > self._clock.monotonic():
                await self._clock.sleep_until(after_s)
            self._read_s[app] = self._clock.monotonic()
            await self._read(app)
            if self._executor.write_floors(app, self._clock.monotonic_ns()):
                self._on_floors(app)
        finally:
            if self._reading.get(app) is ended:
                del self._reading[app]
            ended.set()

    async def _read(self, app: str) -> None:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                entry = await self._runtime.bus.bucket(APPS).get(app)
        except (BusError, TimeoutError) as error:
            self._runtime.log.debug("app_spec_not_read", app=app, error=str(error))
            return
        spec = entry.message if entry is not None else None
        if isinstance(spec, AppSpec) and spec.name == app:
            floor = Limits(spec.floor_quota_us, int(spec.container_floor_memory)) if spec.mode == "enforce" else None
            self._limits[app] = SpecLimit(spec.cpu_limit_us, int(spec.memory_limit), floor)
        else:
            self._limits[app] = None


WARN_INTERVAL_S: Final = 60.0
"""The same container and reason are logged again no sooner."""
MAX_NAMED: Final = 5
"""Containers in one warning; more are counted."""


class FailedRows:
    """Logs what failed, grouped by reason."""

    def __init__(self, log: Logger, monotonic: Callable[[], float]) -> None:
        self.count = 0
        """Rows so far."""
        self._log = log
        self._monotonic = monotonic
        self._limiter = LogLimiter(monotonic)
        self._limiter_since_s = monotonic()

    def warn(self, failures: Iterable[FailedRow]) -> None:
        """Log them."""
        by_reason: dict[str, list[str]] = {}
        suppressed = 0
        for failed in failures:
            self.count += 1
            before = self._current_limiter().admit(f"{failed.container} {failed.reason}", WARN_INTERVAL_S)
            if before is not None:
                by_reason.setdefault(failed.reason, []).append(failed.container)
                suppressed += before
        for reason, containers in by_reason.items():
            self._log.warning(
                "limits_not_applied",
                reason=reason,
                containers=containers[:MAX_NAMED],
                rows=len(containers),
                suppressed=suppressed,
            )

    def _current_limiter(self) -> LogLimiter:
        """A new one each hour, so that containers that have gone are forgotten."""
        now_s = self._monotonic()
        if now_s - self._limiter_since_s > 60 * WARN_INTERVAL_S:
            self._limiter, self._limiter_since_s = LogLimiter(self._monotonic), now_s
        return self._limiter


_NOT_APPLIED: Final = frozenset(
    {RowStatus.STALE_SEQ, RowStatus.UNKNOWN_CONTAINER, RowStatus.STALE_EPOCH, RowStatus.FAILED}
)
_NO_SPAN: Final = Span()


def update_span(node: str, update: LimitUpdate) -> AbstractContextManager[Span]:
    """Around applying an update."""
    if not update.reserve_given_bytes and not update.column("limit_bytes").any():
        return _NO_SPAN
    return _span(node, update, update.apps)


def record_reply(current: Span, reply: LimitReply, apps: Sequence[str]) -> None:
    """What became of an update of these applications; a span of its own where it failed and had none."""
    if not is_on():
        return
    failed = sum(status in _NOT_APPLIED for status in reply.column("status").tolist())
    if current is not _NO_SPAN:
        _note_failure(current, reply, failed)
    elif failed or reply.rejection:
        with _span(reply.node, reply, apps) as late:
            _note_failure(late, reply, failed)
    else:
        drop_span()


def _span(node: str, message: LimitUpdate | LimitReply, apps: Sequence[str]) -> AbstractContextManager[Span]:
    return span(
        "agent.apply_limits",
        turnbuckle__node=node,
        turnbuckle__epoch=message.epoch,
        turnbuckle__limit_update_seq=message.seq,
        turnbuckle__rows=message.row_count,
        turnbuckle__apps=tuple(apps)[:MAX_APPS],
    )


def _note_failure(current: Span, reply: LimitReply, failed: int) -> None:
    if failed:
        current.set(turnbuckle__rows_failed=failed)
        current.fail("rows_failed", f"{failed} of {reply.row_count} rows were not carried out")
    if reply.rejection:
        current.set(turnbuckle__rejection=reply.rejection)
        current.fail("refused", reply.rejection)
