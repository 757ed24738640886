"""Wiring of the reconciler service: kernel events and timers in, tc rules out, events and replies on the bus."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import suppress
from importlib.metadata import version
from typing import ClassVar

from schemas.network import ReconcilerInfo
from schemas.streams import RECONCILERS
from schemas.subjects import RECONCILER_DIFF, RECONCILER_RULES, RECONCILER_STATE
from services._edge.frr import Frr
from services._edge.override_tables import OverrideTables
from services._host.instance_lock import InstanceLock, namespace_lock_path, namespace_words
from services._host.netlink.objects import Snapshot
from services._runtime.bus.name_registration import Holder, NameHolder
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services._runtime.settings_error import UnusableSettingsError
from services._runtime.telemetry.logging import LogLimiter, log_once
from services.reconciler.adapters.network import KernelNetwork, missing_capability
from services.reconciler.audit_checkpoint import CheckpointFile
from services.reconciler.drain_watch import DrainWatch
from services.reconciler.events import BACKLOG_EVENTS, LONG_BACKLOG_EVENTS, EventPublisher
from services.reconciler.fast_path_guard import FastPathGuard, RemovedOverrides
from services.reconciler.full_reconcile import CompletedReconcile, Reconciliation
from services.reconciler.hint_listener import HintListener
from services.reconciler.hints import RouteHints
from services.reconciler.loop import ReconcileLoop
from services.reconciler.path_auditor import PathAuditor, PathStatus
from services.reconciler.path_comparison import FrrState, Path, own_vtep
from services.reconciler.ports import FrrDaemons, Network, UnreadableError
from services.reconciler.queries import Queries
from services.reconciler.settings import ReconcilerSettings
from services.reconciler.triggers import ResyncTimers
from services.reconciler.watcher import Watcher

OUTBOX_POLL_S = 0.5
"""Between two polls of the outbox."""
MAC_EVENT_INTERVAL_S = 1.0
"""While the bus has a backlog, changes of remote MACs are published this often at most."""


class Reconciler:
    """Keeps tc rules in sync with the forwarding state that FRR computes; publishes changed and inconsistent paths."""

    name: ClassVar[str] = "reconciler"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = ReconcilerSettings
    bus_wait_s: ClassVar[float] = 1.0
    """Forwarding does not depend on NATS."""

    def __init__(self, runtime: Runtime[ReconcilerSettings]) -> None:
        self._runtime = runtime
        self._settings = settings = runtime.settings
        self._log = runtime.log
        self._clock = runtime.clock
        self._bus = runtime.bus
        self._incarnation = self._clock.time_ns()
        self._lock: InstanceLock | None = None
        self._holder: Holder | None = None
        self._limiter = LogLimiter()
        self._name: NameHolder | None = None
        self._fast_path = OverrideTables(settings.fast_path_table)
        self._watcher = Watcher(frozenset(self._fast_path.numbers))
        self._macs_published_s = 0.0
        self._auditor: PathAuditor | None = None
        self._guard: FastPathGuard | None = None
        self._checkpoint: CheckpointFile | None = None
        self._drains: DrainWatch | None = None
        self._listener = HintListener(self._bus, self._clock, self._log, RouteHints(settings.node))
        self.loop: ReconcileLoop | None = None
        self.publisher = EventPublisher(self._bus, self._clock, settings.node, self._incarnation)

    async def start(self) -> None:
        """Take the lock and start to reconcile; the bus may be unreachable."""
        settings = self._settings
        self._take_lock()
        network = self._network()
        reconciliation = Reconciliation(network, settings.forwarding())
        timers = ResyncTimers(settings.resync_interval_s, settings.resync_cpu_share)
        loop = self.loop = ReconcileLoop(network, reconciliation, self._clock, self._log, timers)
        loop.on_reconciled, loop.on_snapshot = self._reconciled, self._snapshot_read
        queries = Queries(
            settings,
            self._incarnation,
            self._clock,
            loop,
            reconciliation,
            self._paths,
            self._problems,
            self._listener.suspects,
            lambda: self._drains.drained if self._drains is not None else (),
        )
        self._reconciliation = reconciliation
        self._open_checkpoint()
        if settings.path_audit == "on":
            self._auditor = PathAuditor(self._daemons(), self._clock, settings.path_audit_s, self._fast_path.numbers)
            self._auditor.on_path_status = self._path_status_changed
            self._runtime.spawn(self._auditor.run(self._current_snapshot), name="path auditor")
            self._drains = DrainWatch(self._daemons(), self._clock, self.publisher.publish_drain)
            self._runtime.spawn(self._drains.run(self._current_snapshot), name="drain watch")
            self._listener.vteps = lambda: {path.destination for path in self._paths()[0]}
            self._listener.on_hint = lambda: loop.trigger("hint")
            self._runtime.spawn(self._listener.run(), name="route hints")
        self._guard_fast_path()
        self._register_metrics(loop)
        with suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread: a test
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, loop.trigger, "signal")
        name = self._name = self._name_holder(queries)
        await name.try_hold(self._info())
        self._runtime.spawn(loop.run(), name="loop")
        self._runtime.spawn(self._poll_outbox(), name="event outbox")
        self._runtime.spawn(self._send_heartbeats(name), name="heartbeat")
        self._log.info(
            "reconciler_started",
            node=settings.node,
            netns=settings.netns,
            ports=list(settings.forwarding().application_macs),
            encapsulation_device=settings.encapsulation_device,
            offload=settings.offload,
        )

    def _name_holder(self, queries: Queries) -> NameHolder:
        node = self._settings.node
        responders = {RECONCILER_STATE: queries.state, RECONCILER_DIFF: queries.diff, RECONCILER_RULES: queries.rules}
        served = {template.subject(self._bus.root, node=node): responder for template, responder in responders.items()}
        return NameHolder(self._bus, RECONCILERS, self.name, node, self._clock, self._log, served)

    def _open_checkpoint(self) -> None:
        """Read the previous incarnation's checkpoint; record this one's before each write."""
        path = namespace_lock_path(self._settings.state_directory, self._settings.netns).with_suffix(".audit")
        try:
            checkpoint = self._checkpoint = CheckpointFile(path, self._incarnation)
        except OSError as error:
            self._log.warning("audit_gaps_not_published", file=str(path), error=error.strerror)
            return
        self.publisher.previous = checkpoint.previous
        self._reconciliation.before_write = lambda: checkpoint.begin(self.publisher.pass_id + 1)
        if checkpoint.previous is not None and checkpoint.previous.gap:
            self._log.warning(
                "audit_gap", incarnation=checkpoint.previous.incarnation, pass_id=checkpoint.previous.pass_id
            )

    def _update_checkpoint(self) -> None:
        """Record what the bus has stored."""
        self.publisher.poll()
        if self._checkpoint is not None:
            self._checkpoint.acknowledge(self.publisher.acknowledged_pass_id)
            if self._checkpoint.error:
                log_once(
                    self._log.warning, self._limiter, "audit_gaps_not_published", 60.0, error=self._checkpoint.error
                )

    def _guard_fast_path(self) -> None:
        """Start the guard of the fast path's overrides, if this process has the rights."""
        try:
            guard = self._guard = FastPathGuard(self._settings.netns, self._fast_path, self._clock)
        except OSError as error:
            self._log.warning("fast_path_not_monitored", error=str(error))
            return
        guard.on_removed = self._overrides_removed
        guard.on_error = lambda reason: self._log.warning("fast_path_not_monitored", error=reason)
        self._runtime.spawn(guard.run(), name="fast path guard")

    def _network(self) -> Network:
        return KernelNetwork(self._settings.netns, event_buffer_bytes=self._settings.event_buffer_bytes)

    def _daemons(self) -> FrrDaemons:
        return Frr(self._settings.frr_pathspace, directory=self._settings.frr_directory)

    def _take_lock(self) -> None:
        settings = self._settings
        if (reason := missing_capability(settings.netns)) is not None:
            raise UnusableSettingsError(reason)
        try:
            path = namespace_lock_path(settings.state_directory, settings.netns)
        except OSError as error:
            raise UnusableSettingsError(
                f"there is no network namespace {settings.netns!r} ({error.strerror}): turnbuckle fabric up makes it, "
                "or correct TURNBUCKLE_RECONCILER__NETNS"
            ) from error
        self._lock = InstanceLock(
            path,
            role="reconciler",
            node=settings.node,
            managed=namespace_words(settings.netns),
            remedy="stop it (kill {pid}), or set TURNBUCKLE_RECONCILER__NETNS",
            setting="TURNBUCKLE_RECONCILER__STATE_DIRECTORY",
        )
        self._holder = Holder(settings.state_directory / "holders", "reconciler", settings.node)

    async def stop(self) -> None:
        """Keep or remove the rules, as configured, and stop."""
        if self._name is not None:
            await self._name.stop_serving()
        await self._runtime.cancel_tasks()
        if self.loop is not None:
            if self._settings.on_shutdown == "flush":
                await self._flush(self.loop)
            self.publisher.flush()
            await self.loop.close()
        self._update_checkpoint()
        if self._checkpoint is not None:
            self._checkpoint.close()
        if self._name is not None:
            await self._name.release()
        for lock in (self._holder, self._lock):
            if lock is not None:
                lock.release()
        self._log.info("reconciler_stopped", rules=self._settings.on_shutdown)

    async def _flush(self, loop: ReconcileLoop) -> None:
        try:
            result = await loop.in_thread(self._reconciliation.flush)
        except UnreadableError as error:
            self._log.error("rules_not_removed", reason=str(error))
            return
        self.publisher.publish_reconcile(CompletedReconcile(result, {"shutdown": 1}, result.duration_s))
        self._log.info("rules_removed", writes=len(result.writes), left=result.tally.managed)

    def not_ready(self) -> str | None:
        """Why the rules are not in sync, or None."""
        loop = self.loop
        if loop is None or loop.unreadable:
            return loop.unreadable if loop is not None else "not started"
        problems = self._problems()
        if problems:
            return problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
        if loop.last is not None and not loop.last.result.verified:
            return "rules differ from what they should be"
        return None

    # -- callbacks -----------------------------------------------------------------------------------------

    def _reconciled(self, completed: CompletedReconcile) -> None:
        result = completed.result
        published = self.publisher.publish_reconcile(completed)
        if self._checkpoint is not None and result.writes:
            self._checkpoint.begin(self.publisher.pass_id)  # a reconcile whose every write was rejected leaves no gap
        if not published:
            return
        failed = sum(bool(write.errno) for write in result.writes)
        log = self._log.warning if failed or result.problems else self._log.info
        log(
            "reconciled",
            causes=completed.causes,
            writes=len(result.writes),
            failed=failed,
            rules=result.tally.in_sync,
            desired=result.tally.desired,
            verified=result.verified,
            lag_ms=round(completed.lag_s * 1e3, 1),
            duration_ms=round(result.duration_s * 1e3, 1),
            problems=[problem.text for problem in result.problems][:5],
        )

    def _snapshot_read(self, snapshot: Snapshot) -> None:
        now_s, waiting = self._clock.monotonic(), self.publisher.pending_events
        self.publisher.vtep = self._listener.hints.own_vtep = own_vtep(snapshot)
        defer_macs = waiting > BACKLOG_EVENTS and now_s < self._macs_published_s + MAC_EVENT_INTERVAL_S
        if not defer_macs:
            self._macs_published_s = now_s
        for change in self._watcher.update(snapshot, defer_macs=defer_macs, defer_all=waiting > LONG_BACKLOG_EVENTS):
            self.publisher.publish_change(change)
        if self._auditor is not None:
            self._auditor.changed()

    def _path_status_changed(self, status: PathStatus) -> None:
        self.publisher.publish_path_status(status)
        log = self._log.info if status.agree else self._log.warning
        path = status.path
        log(
            "paths_agree" if status.agree else "paths_disagree",
            destination=path.destination if path is not None else "",
            kernel=path.kernel if path is not None else (),
            reason=path.reason if path is not None else status.error,
            lasted_s=round(status.lasted_s, 3),
        )

    def _overrides_removed(self, removed: RemovedOverrides) -> None:
        self.publisher.publish_removed_overrides(removed)
        self._log.warning(
            "fast_path_unresponsive",
            overrides=len(removed.destinations),
            destinations=removed.destinations[:5],
            silent_s=round(removed.silent_s, 3),
            table=removed.tables.table,
        )

    def _current_snapshot(self) -> Snapshot | None:
        return self.loop.snapshot if self.loop is not None and not self.loop.unreadable else None

    def _paths(self) -> tuple[list[Path], FrrState]:
        return (self._auditor.paths, self._auditor.state) if self._auditor is not None else ([], FrrState())

    def _problems(self) -> tuple[str, ...]:
        loop = self.loop
        if loop is None or loop.last is None:
            return ()
        first = (loop.unreadable,) if loop.unreadable else ()
        return first + tuple(problem.text for problem in loop.last.result.problems)

    # -- the bus -----------------------------------------------------------------------------------------------

    def _info(self) -> ReconcilerInfo:
        return ReconcilerInfo(
            node=self._settings.node,
            incarnation=self._incarnation,
            time_ns=self._clock.time_ns(),
            version=self.version,
            holder=self._holder.token if self._holder is not None else "",
        )

    async def _send_heartbeats(self, name: NameHolder) -> None:
        """Send heartbeats; register at the first connection, if there was none at the start."""
        while True:
            await name.heartbeat(self._info())

    async def _poll_outbox(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + OUTBOX_POLL_S)
            self._update_checkpoint()

    # -- metrics -----------------------------------------------------------------------------------------------

    def _register_metrics(self, loop: ReconcileLoop) -> None:
        telemetry, counts = self._runtime.telemetry, loop.counts
        observe, prefix = telemetry.observe, "turnbuckle_reconciler"
        telemetry.observe_by_label(f"{prefix}_rules", "set", self._rule_counts)
        telemetry.observe_by_label(f"{prefix}_problems", "kind", self._problem_counts)
        observe(f"{prefix}_offloaded_rules", lambda: loop.last.result.tally.in_hw if loop.last else 0)
        observe(f"{prefix}_full_reconciles_total", lambda: counts.full)
        observe(f"{prefix}_route_reconciles_total", lambda: counts.route_only)
        observe(f"{prefix}_failed_reconciles_total", lambda: counts.failed)
        observe(f"{prefix}_writes_total", lambda: counts.writes)
        observe(f"{prefix}_refused_writes_total", lambda: counts.refused_writes)
        observe(f"{prefix}_overruns_total", lambda: counts.overruns)
        observe(f"{prefix}_last_full_reconcile_seconds", lambda: loop.last.result.duration_s if loop.last else 0.0)
        observe(f"{prefix}_last_lag_seconds", lambda: loop.last.lag_s if loop.last else 0.0)
        observe(f"{prefix}_unpublished_operations", lambda: self.publisher.unpublished_operations)
        guard = self._guard
        if guard is not None:
            observe(f"{prefix}_flushed_overrides_total", lambda: guard.removed_total)
        auditor = self._auditor
        if auditor is not None:
            observe(f"{prefix}_paths", lambda: len(auditor.paths))
            observe(f"{prefix}_path_disagreements", lambda: auditor.tracker.disagreements)
            observe(f"{prefix}_path_alarms_total", lambda: auditor.tracker.alarms)
            observe(f"{prefix}_frr_answers_info", lambda: float(auditor.state.routes is not None))

    def _rule_counts(self) -> dict[str, float]:
        if self.loop is None or self.loop.last is None:
            return {}
        tally = self.loop.last.result.tally
        return {
            "desired": tally.desired,
            "in_sync": tally.in_sync,
            "managed": tally.managed,
            "unmanaged": tally.unmanaged,
        }

    def _problem_counts(self) -> dict[str, float]:
        if self.loop is None or self.loop.last is None:
            return {}
        return dict(Counter(str(problem.kind) for problem in self.loop.last.result.problems))
