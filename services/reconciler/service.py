"""The reconciler's wiring: kernel events and timers in, rules out, facts and answers on the bus."""

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
from services._host.frr import Frr
from services._host.namespace_lock import NamespaceLock, lock_path
from services._host.netlink.objects import Snapshot
from services._runtime.bus.api import BusError, NotPermittedError, Subscription
from services._runtime.bus.name_registration import Holder, NameTakenError, Registration, tell_not_permitted
from services._runtime.service.app import Runtime, UnusableSettingsError
from services._runtime.service.settings import CommonSettings
from services._runtime.telemetry.logging import LogLimiter, log_once
from services.fastpath.values import Ownership
from services.reconciler.adapters.network import KernelNetwork
from services.reconciler.adapters.rights import why_not_allowed
from services.reconciler.audit import BEHIND, FAR_BEHIND, Teller
from services.reconciler.audit_mark import AuditMark
from services.reconciler.auditor import PathAuditor, Verdict
from services.reconciler.drain_watch import DrainWatch
from services.reconciler.fast_path_guard import Emptied, FastPathGuard
from services.reconciler.hint_listener import HintListener
from services.reconciler.hints import RouteHints
from services.reconciler.loop import Looked, Loop
from services.reconciler.passes import Reconciliation
from services.reconciler.paths import FrrView, Path, own_vtep
from services.reconciler.ports import Daemons, Network, UnreadableError
from services.reconciler.queries import Queries
from services.reconciler.settings import ReconcilerSettings
from services.reconciler.triggers import Timers
from services.reconciler.watcher import Watcher

JOIN_RETRY_S = 0.5
HEARTBEAT_S = 5.0
TELL_S = 0.5
"""Between looks whether the outbox has emptied."""
MACS_AGAIN_S = 1.0
"""While the bus is behind, remote MACs are told of once in so long."""


class Reconciler:
    """Keeps tc rules equal to the forwarding state that FRR computes, and tells of paths that changed or disagree."""

    name: ClassVar[str] = "reconciler"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = ReconcilerSettings
    bus_patience_s: ClassVar[float] = 1.0
    """Forwarding never waits for NATS."""

    def __init__(self, runtime: Runtime[ReconcilerSettings]) -> None:
        self._runtime = runtime
        self._settings = settings = runtime.settings
        self._log = runtime.log
        self._clock = runtime.clock
        self._bus = runtime.bus
        self._incarnation = self._clock.time_ns()
        self._lock: NamespaceLock | None = None
        self._holder: Holder | None = None
        self._limiter = LogLimiter()
        self._registration = Registration(self._bus, RECONCILERS, settings.node, self._clock)
        self._subscriptions: list[Subscription] = []
        self._fast_path = Ownership(settings.fast_path_table)
        self._watcher = Watcher(frozenset(self._fast_path.tables))
        self._macs_told_s = 0.0
        self._queries: Queries | None = None
        self._auditor: PathAuditor | None = None
        self._guard: FastPathGuard | None = None
        self._mark: AuditMark | None = None
        self._drains: DrainWatch | None = None
        self._listener = HintListener(self._bus, self._clock, self._log, RouteHints(settings.node))
        self.loop: Loop | None = None
        self.teller = Teller(self._bus, self._clock, settings.node, self._incarnation)

    async def start(self) -> None:
        """Take the lock, begin to reconcile; the bus may come later."""
        settings = self._settings
        self._take_lock()
        network = self._network()
        reconciliation = Reconciliation(network, settings.forwarding())
        timers = Timers(settings.resync_interval_s, settings.resync_cpu_share)
        loop = self.loop = Loop(network, reconciliation, self._clock, self._log, timers)
        loop.on_pass, loop.on_snapshot = self._passed, self._looked
        self._queries = Queries(
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
        self._continue_audit()
        if settings.path_audit == "on":
            self._auditor = PathAuditor(self._daemons(), self._clock, settings.path_audit_s, self._fast_path)
            self._auditor.on_verdict = self._judged
            self._runtime.spawn(self._auditor.run(self._known), name="path auditor")
            self._drains = DrainWatch(self._daemons(), self._clock, self.teller.tell_drain)
            self._runtime.spawn(self._drains.run(self._known), name="drain watch")
            self._listener.vteps = lambda: {path.destination for path in self._paths()[0]}
            self._listener.on_hint = lambda: loop.trigger("hint")
            self._runtime.spawn(self._listener.run(), name="route hints")
        self._guard_fast_path()
        self._register_metrics(loop)
        with suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread: a test
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, loop.trigger, "signal")
        await self._join_if_possible()
        self._runtime.spawn(loop.run(), name="loop")
        self._runtime.spawn(self._tell_what_waits(), name="teller")
        self._runtime.spawn(self._stay_joined(), name="heartbeat")
        self._log.info(
            "reconciler_started",
            node=settings.node,
            netns=settings.netns,
            ports=list(settings.forwarding().application_macs),
            encapsulation_device=settings.encapsulation_device,
            offload=settings.offload,
        )

    def _continue_audit(self) -> None:
        """Tell where the incarnation before has left off; note on disk how far this one is, before it writes."""
        path = lock_path(self._settings.state_directory, self._settings.netns).with_suffix(".audit")
        try:
            mark = self._mark = AuditMark(path, self._incarnation)
        except OSError as error:
            self._log.warning("audit_gaps_not_published", file=str(path), error=error.strerror)
            return
        self.teller.previous = mark.previous
        self._reconciliation.before_write = lambda: mark.begin(self.teller.pass_id + 1)
        if mark.previous is not None and mark.previous.gap:
            self._log.warning("audit_gap", incarnation=mark.previous.incarnation, pass_id=mark.previous.pass_id)

    def _note_audit(self) -> None:
        """Note what the bus has; passes that came to nothing are not missing."""
        self.teller.poll()
        if self._mark is not None:
            self._mark.acknowledge(self.teller.acknowledged_pass_id)
            if self._mark.trouble:
                log_once(self._log.warning, self._limiter, "audit_gaps_not_published", 60.0, error=self._mark.trouble)

    def _guard_fast_path(self) -> None:
        """Look after overrides whose author is silent, wherever this process may."""
        try:
            guard = self._guard = FastPathGuard(self._settings.netns, self._fast_path, self._clock)
        except OSError as error:
            self._log.warning("fast_path_not_monitored", error=str(error))
            return
        guard.on_emptied = self._emptied
        guard.on_trouble = lambda trouble: self._log.warning("fast_path_not_monitored", error=trouble)
        self._runtime.spawn(guard.run(), name="fast path guard")

    def _network(self) -> Network:
        return KernelNetwork(self._settings.netns, event_buffer_bytes=self._settings.event_buffer_bytes)

    def _daemons(self) -> Daemons:
        return Frr(self._settings.frr_pathspace, directory=self._settings.frr_directory)

    def _take_lock(self) -> None:
        settings = self._settings
        if (reason := why_not_allowed(settings.netns)) is not None:
            raise UnusableSettingsError(reason)
        try:
            path = lock_path(settings.state_directory, settings.netns)
        except OSError as error:
            raise UnusableSettingsError(
                f"there is no network namespace {settings.netns!r} ({error.strerror}): turnbuckle fabric up makes it, "
                "or correct TURNBUCKLE_RECONCILER__NETNS"
            ) from error
        self._lock = NamespaceLock(path, node=settings.node, netns=settings.netns)
        self._holder = Holder(settings.state_directory / "holders", "reconciler", settings.node)

    async def stop(self) -> None:
        """Leave the rules, or remove them; then go."""
        for subscription in self._subscriptions:
            await subscription.stop()
        await self._runtime.cancel_tasks()
        if self.loop is not None:
            if self._settings.on_shutdown == "flush":
                await self._flush(self.loop)
            self.teller.flush()
            await self.loop.close()
        self._note_audit()
        if self._mark is not None:
            self._mark.close()
        try:
            await self._registration.release()
        except BusError as error:
            self._log.debug("deregistration_failed", error=str(error))
        for lock in (self._holder, self._lock):
            if lock is not None:
                lock.release()
        self._log.info("reconciler_stopped", rules=self._settings.on_shutdown)

    async def _flush(self, loop: Loop) -> None:
        try:
            outcome = await loop.in_thread(self._reconciliation.flush)
        except UnreadableError as error:
            self._log.error("rules_not_removed", reason=str(error))
            return
        self.teller.told_pass(Looked(outcome, {"shutdown": 1}, outcome.duration_s))
        self._log.info("rules_removed", writes=len(outcome.writes), left=outcome.tally.own)

    def not_ready(self) -> str | None:
        """Why rules are not as they should be, or None."""
        loop = self.loop
        if loop is None or loop.unreadable:
            return loop.unreadable if loop is not None else "not started"
        problems = self._problems()
        if problems:
            return problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
        if loop.last is not None and not loop.last.outcome.verified:
            return "rules differ from what they should be"
        return None

    # -- what happened -----------------------------------------------------------------------------------------

    def _passed(self, looked: Looked) -> None:
        outcome = looked.outcome
        told = self.teller.told_pass(looked)
        if self._mark is not None and outcome.writes:
            self._mark.begin(self.teller.pass_id)  # of a pass in which every write was refused nothing is missing
        if not told:
            return
        failed = sum(bool(write.errno) for write in outcome.writes)
        log = self._log.warning if failed or outcome.problems else self._log.info
        log(
            "reconciled",
            causes=looked.causes,
            writes=len(outcome.writes),
            failed=failed,
            rules=outcome.tally.right,
            desired=outcome.tally.desired,
            verified=outcome.verified,
            lag_ms=round(looked.lag_s * 1e3, 1),
            duration_ms=round(outcome.duration_s * 1e3, 1),
            problems=[problem.text for problem in outcome.problems][:5],
        )

    def _looked(self, snapshot: Snapshot) -> None:
        now_s, waiting = self._clock.monotonic(), self.teller.pending_facts
        self.teller.vtep = self._listener.hints.own_vtep = own_vtep(snapshot)
        hold_back_macs = waiting > BEHIND and now_s < self._macs_told_s + MACS_AGAIN_S
        if not hold_back_macs:
            self._macs_told_s = now_s
        for change in self._watcher.look(snapshot, hold_back_macs=hold_back_macs, hold_back_all=waiting > FAR_BEHIND):
            self.teller.tell_change(change)
        if self._auditor is not None:
            self._auditor.changed()

    def _judged(self, verdict: Verdict) -> None:
        self.teller.tell_verdict(verdict)
        log = self._log.info if verdict.agree else self._log.warning
        path = verdict.path
        log(
            "paths_agree" if verdict.agree else "paths_disagree",
            destination=path.destination if path is not None else "",
            kernel=path.kernel if path is not None else (),
            reason=path.reason if path is not None else verdict.trouble,
            lasted_s=round(verdict.lasted_s, 3),
        )

    def _emptied(self, emptied: Emptied) -> None:
        self.teller.tell_emptied(emptied)
        self._log.warning(
            "fast_path_unresponsive",
            overrides=len(emptied.destinations),
            destinations=emptied.destinations[:5],
            silent_s=round(emptied.silent_s, 3),
            table=emptied.own.table,
        )

    def _known(self) -> Snapshot | None:
        return self.loop.snapshot if self.loop is not None and not self.loop.unreadable else None

    def _paths(self) -> tuple[list[Path], FrrView]:
        return (self._auditor.paths, self._auditor.view) if self._auditor is not None else ([], FrrView())

    def _problems(self) -> tuple[str, ...]:
        loop = self.loop
        if loop is None or loop.last is None:
            return ()
        first = (loop.unreadable,) if loop.unreadable else ()
        return first + tuple(problem.text for problem in loop.last.outcome.problems)

    # -- the bus -----------------------------------------------------------------------------------------------

    async def _join(self) -> bool:
        """Register, or renew that; answer, once it is certain that nobody else does so under our name."""
        queries, bus, node = self._queries, self._bus, self._settings.node
        assert queries is not None
        if not await self._hold_name():
            return False
        if self._subscriptions:
            return True
        answers = (
            (RECONCILER_STATE, queries.state),
            (RECONCILER_DIFF, queries.diff),
            (RECONCILER_RULES, queries.rules),
        )
        subscriptions: list[Subscription] = []
        try:
            for template, responder in answers:
                subscriptions.append(await bus.serve(template.subject(bus.root, node=node), responder))
        except BusError:
            for subscription in subscriptions:
                await subscription.stop()
            raise
        self._subscriptions = subscriptions
        return True

    async def _hold_name(self) -> bool:
        node = self._settings.node
        holder = self._holder.token if self._holder is not None else ""
        info = ReconcilerInfo(
            node=node, incarnation=self._incarnation, time_ns=self._clock.time_ns(), version=self.version, holder=holder
        )
        doubted = self._registration.contested
        try:
            held = await self._registration.hold(info)
        except NotPermittedError as error:
            tell_not_permitted(self._log, self._limiter, error)
            raise
        except NameTakenError as error:
            raise UnusableSettingsError(
                f"a reconciler of the node name {node!r} is at work already ({error}): "
                "stop it, or set TURNBUCKLE_RECONCILER__NODE to another name here"
            ) from error
        if self._registration.contested and not doubted:
            self._log.warning("duplicate_node_name_suspected", node=node, reason="registered by another reconciler")
        return held

    async def _join_if_possible(self) -> bool:
        """One heartbeat. False: it could not be stored."""
        try:
            return await self._join()
        except BusError as error:
            self._log.debug("registration_failed", error=str(error))
            return False

    async def _stay_joined(self) -> None:
        """Heartbeats; the first connection, where there was none at the start."""
        held = bool(self._subscriptions)
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + (HEARTBEAT_S if held else JOIN_RETRY_S))
            held = await self._join_if_possible()

    async def _tell_what_waits(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + TELL_S)
            self._note_audit()

    # -- metrics -----------------------------------------------------------------------------------------------

    def _register_metrics(self, loop: Loop) -> None:
        telemetry, counts = self._runtime.telemetry, loop.counts
        observe, prefix = telemetry.observe, "turnbuckle_reconciler"
        telemetry.observe_by_label(f"{prefix}_rules", "set", self._rule_counts)
        telemetry.observe_by_label(f"{prefix}_problems", "kind", self._problem_counts)
        observe(f"{prefix}_offloaded_rules", lambda: loop.last.outcome.tally.in_hw if loop.last else 0)
        observe(f"{prefix}_full_reconciles_total", lambda: counts.passes)
        observe(f"{prefix}_route_reconciles_total", lambda: counts.glances)
        observe(f"{prefix}_failed_reconciles_total", lambda: counts.failed)
        observe(f"{prefix}_writes_total", lambda: counts.writes)
        observe(f"{prefix}_refused_writes_total", lambda: counts.refused_writes)
        observe(f"{prefix}_overruns_total", lambda: counts.overruns)
        observe(f"{prefix}_last_full_reconcile_seconds", lambda: loop.last.outcome.duration_s if loop.last else 0.0)
        observe(f"{prefix}_last_lag_seconds", lambda: loop.last.lag_s if loop.last else 0.0)
        observe(f"{prefix}_unpublished_operations", lambda: self.teller.waiting_operations)
        guard = self._guard
        if guard is not None:
            observe(f"{prefix}_flushed_overrides_total", lambda: guard.emptied_total)
        auditor = self._auditor
        if auditor is not None:
            observe(f"{prefix}_paths", lambda: len(auditor.paths))
            observe(f"{prefix}_path_disagreements", lambda: auditor.judge.disagreements)
            observe(f"{prefix}_path_alarms_total", lambda: auditor.judge.alarms)
            observe(f"{prefix}_frr_answers_info", lambda: float(auditor.view.routes is not None))

    def _rule_counts(self) -> dict[str, float]:
        if self.loop is None or self.loop.last is None:
            return {}
        tally = self.loop.last.outcome.tally
        return {"desired": tally.desired, "in_sync": tally.right, "managed": tally.own, "unmanaged": tally.foreign}

    def _problem_counts(self) -> dict[str, float]:
        if self.loop is None or self.loop.last is None:
            return {}
        return dict(Counter(str(problem.kind) for problem in self.loop.last.outcome.problems))
