"""Publishes every write (`evt.tc`) and every change of a path (`evt.route`), numbered without gaps.

Without a server events queue in the bus's outbox, which holds 10,000. With a backlog, reconciles
are merged into fewer, larger events; operations are dropped only beyond `max_unpublished` of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from schemas.network import RouteEvent, RouteKind, TcEvent, TcObject, TcOperation, TcOperationKind
from schemas.subjects import ROUTE_EVENTS, TC_EVENTS
from services._host.netlink.objects import Action, Clsact, FdbEntry, Filter
from services._runtime.bus.api import Bus
from services._runtime.clock import Clock
from services.reconciler.audit_checkpoint import Checkpoint
from services.reconciler.core.operation import Operation, Target
from services.reconciler.core.ownership import tunnel_of
from services.reconciler.fast_path_guard import RemovedOverrides
from services.reconciler.full_reconcile import CompletedReconcile, ReconcileResult, WriteResult
from services.reconciler.path_auditor import PathStatus
from services.reconciler.watcher import MAX_DESTINATIONS, Change

OPERATIONS_PER_EVENT: Final = 150
"""Of 320 bytes at most; an event of the stream has 64 KiB (`schemas.streams.TC_STREAM`)."""
PASSES_PER_EVENT: Final = 1_000
BACKLOG_EVENTS: Final = 32
"""Queued events above which reconciles are merged."""
LONG_BACKLOG_EVENTS: Final = 5_000
MAX_UNPUBLISHED_OPERATIONS: Final = 500_000
"""Operations in the outbox, about 200 bytes each."""
_PROBLEMS: Final = 5


@dataclass(slots=True)
class _Pending:
    """Reconciles merged into one unpublished event."""

    first_pass_id: int
    event: TcEvent
    passes: int = 1

    def absorb(self, event: TcEvent) -> None:
        """Merge the event of a later reconcile."""
        merged = self.event
        self.event = event.model_copy(
            update={
                "causes": dict(Counter(merged.causes) + Counter(event.causes)),
                "digest_before": merged.digest_before or event.digest_before,
                "digest_after": event.digest_after or merged.digest_after,
                "lag_us": max(merged.lag_us, event.lag_us),
                "duration_us": merged.duration_us + event.duration_us,
                "operations": merged.operations + event.operations,
                "lost_operations": merged.lost_operations + event.lost_operations,
                "first_pass_id": self.first_pass_id,
            }
        )
        self.passes += 1


class _Unacknowledged(NamedTuple):
    """An event in the outbox that the bus has not stored yet."""

    published: int
    """Number of events stored once this one is."""
    operations: int
    pass_id: int
    """All reconciles up to this one are stored then."""


@dataclass(slots=True)
class EventPublisher:
    """Publishes the events of one incarnation of the reconciler."""

    bus: Bus
    clock: Clock
    node: str
    incarnation: int
    max_unpublished: int = MAX_UNPUBLISHED_OPERATIONS
    vtep: str = ""
    """This host's VTEP, as of the last snapshot."""
    previous: Checkpoint | None = None
    """Checkpoint of the previous incarnation."""
    pass_id: int = 0
    """Of the last published reconcile."""
    acknowledged_pass_id: int = 0
    """The bus has stored all reconciles up to this one, as of the last `poll`."""
    _route_seq: int = 0
    _pending: _Pending | None = None
    _last_status: tuple[object, ...] | None = None
    _unacknowledged: list[_Unacknowledged] = field(default_factory=list)
    """Events in the outbox, oldest first."""
    lost_operations: int = 0
    _lost_unreported: int = 0

    # -- reconciles ------------------------------------------------------------------------------------------------

    def publish_reconcile(self, completed: CompletedReconcile) -> bool:
        """Publish a reconcile that wrote or changed the status; False: it did neither."""
        result = completed.result
        known, self._last_status = self._last_status, result.status
        if not result.wrote and result.status == known:
            return False
        self.pass_id += 1
        operations = tuple(_operation(write, result.link_names, self.pass_id) for write in result.writes)
        self._publish_tc(self._event(completed, result), operations)
        return True

    def _event(self, completed: CompletedReconcile, result: ReconcileResult) -> TcEvent:
        tally = result.tally
        problems = [problem.text for problem in result.problems]
        more = f"; and {len(problems) - _PROBLEMS} more" if len(problems) > _PROBLEMS else ""
        return TcEvent(
            node=self.node,
            incarnation=self.incarnation,
            pass_id=self.pass_id,
            first_pass_id=self.pass_id,
            time_ns=self.clock.time_ns(),
            causes=completed.causes,
            digest_before=result.digest_before,
            digest_after=result.digest_after,
            desired=tally.desired,
            installed=tally.in_sync,
            unmanaged=tally.unmanaged,
            in_hw=tally.in_hw,
            lag_us=max(int(completed.lag_s * 1e6), 0),
            duration_us=int(result.duration_s * 1e6),
            verified=result.verified,
            problem="; ".join(problems[:_PROBLEMS]) + more,
            **self._before(),
        )

    def _before(self) -> dict[str, Any]:
        """Fields of the first event about the previous incarnation."""
        previous = self.previous
        if previous is None or self.pass_id != 1:
            return {}
        return {
            "previous_incarnation": previous.incarnation,
            "previous_pass_id": previous.pass_id,
            "gap": previous.gap,
        }

    def _publish_tc(self, event: TcEvent, operations: tuple[TcOperation, ...]) -> None:
        free = max(self.max_unpublished - self.unpublished_operations, 0)
        if len(operations) > free:
            self._lost_unreported += len(operations) - free
            self.lost_operations += len(operations) - free
            operations = operations[:free]
        event = event.model_copy(update={"lost_operations": self._lost_unreported})
        self._lost_unreported = 0
        if len(operations) > OPERATIONS_PER_EVENT:
            self.flush()
            parts = [operations[i : i + OPERATIONS_PER_EVENT] for i in range(0, len(operations), OPERATIONS_PER_EVENT)]
            for number, part in enumerate(parts, 1):
                self._send(event.model_copy(update={"part": number, "parts": len(parts), "operations": part}))
            return
        event = event.model_copy(update={"operations": operations})
        pending = self._pending
        if pending is None:
            self._pending = _Pending(event.pass_id, event)
        elif (
            len(pending.event.operations) + len(operations) > OPERATIONS_PER_EVENT or pending.passes >= PASSES_PER_EVENT
        ):
            self.flush()
            self._pending = _Pending(event.pass_id, event)
        else:
            pending.absorb(event)
        if self.pending_events <= BACKLOG_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Move the merged event to the outbox."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._send(pending.event)

    def poll(self) -> None:
        """Publish the merged event once the outbox has drained. Call periodically."""
        self._note_stored()
        if self._pending is not None and self.pending_events <= BACKLOG_EVENTS:
            self.flush()

    def _send(self, event: TcEvent) -> None:
        message_id = f"{self.incarnation}-tc-{event.first_pass_id}-{event.pass_id}-{event.part}"
        self.bus.publish_event(TC_EVENTS.subject(self.bus.root, node=self.node), event, message_id=message_id)
        # Of a reconcile in several parts only the last one completes it.
        ended = event.pass_id if event.part == event.parts else event.pass_id - 1
        published = self.bus.counters.get("events_published", 0) + self.pending_events
        self._unacknowledged.append(_Unacknowledged(published, len(event.operations), ended))

    @property
    def pending_events(self) -> int:
        """Events in the outbox."""
        return self.bus.counters.get("events_pending", 0)

    @property
    def unpublished_operations(self) -> int:
        """Operations that the bus has not stored yet."""
        self._note_stored()
        here = len(self._pending.event.operations) if self._pending is not None else 0
        return here + sum(handed.operations for handed in self._unacknowledged)

    def _note_stored(self) -> None:
        published = self.bus.counters.get("events_published", 0)
        while self._unacknowledged and self._unacknowledged[0].published <= published:
            self.acknowledged_pass_id = self._unacknowledged.pop(0).pass_id

    # -- paths -------------------------------------------------------------------------------------------------

    def publish_change(self, change: Change) -> None:
        """Publish a change of a link, a route, or remote MACs."""
        self._route(
            kind=change.kind,
            source="watcher",
            destination=change.destinations[0] if change.destinations else "",
            also=change.destinations[1:],
            interface=change.interface,
            before=change.before,
            after=change.after,
            alarm=change.kind is RouteKind.ROUTE and bool(change.before) and not change.after,
        )

    def publish_path_status(self, status: PathStatus) -> None:
        """Publish a path's mismatch, its end, or a change of FRR's availability."""
        lasted_us, path = int(status.lasted_s * 1e6), status.path
        if path is None:
            present = ("present",) if status.agree else ("away",)
            reason = status.error or f"FRR answers again after {status.lasted_s:.1f} s"
            self._route(
                kind=RouteKind.FRR,
                source="auditor",
                after=present,
                latency_us=lasted_us,
                alarm=not status.agree,
                reason=reason,
            )
            return
        agreed = f"kernel, FRR and BFD agree again after {status.lasted_s:.1f} s"
        self._route(
            kind=RouteKind.AGREEMENT if status.agree else RouteKind.DISAGREEMENT,
            source="auditor",
            destination=path.destination,
            after=path.kernel,
            frr=path.frr or (),
            bfd=path.bfd_up or (),
            latency_us=lasted_us,
            alarm=not status.agree,
            reason=agreed if status.agree else path.reason,
        )

    def publish_drain(self, uplink: str, drained: bool) -> None:
        """Publish that an uplink was drained or undrained."""
        said = "is drained: use its host's other uplinks" if drained else "carries again"
        kind = RouteKind.DRAIN if drained else RouteKind.UNDRAIN
        self._route(kind=kind, source="auditor", interface=uplink, cause="operator", reason=f"{uplink} {said}")

    def publish_removed_overrides(self, removed: RemovedOverrides) -> None:
        """Publish that overrides of an unresponsive fast path were deleted."""
        names = removed.destinations
        reason = (
            f"no sign of life of the fast path for {removed.silent_s:.1f} s: {len(names)} overrides deleted from table "
            f"{removed.tables.table}, FRR alone is in charge; see its processes"
        )
        for first in range(0, len(names), MAX_DESTINATIONS):
            part = names[first : first + MAX_DESTINATIONS]
            self._route(
                kind=RouteKind.OVERRIDE_REMOVED,
                source="guard",
                destination=part[0],
                also=tuple(part[1:]),
                cause="fast_path_unresponsive",
                alarm=True,
                reason=reason,
            )

    def _route(self, **fields: object) -> None:
        self._route_seq += 1
        event = RouteEvent.model_validate(
            {
                "node": self.node,
                "incarnation": self.incarnation,
                "seq": self._route_seq,
                "time_ns": self.clock.time_ns(),
                "vtep": self.vtep,
                **fields,
            }
        )
        message_id = f"{self.incarnation}-route-{self._route_seq}"
        self.bus.publish_event(ROUTE_EVENTS.subject(self.bus.root, node=self.node), event, message_id=message_id)


def tc_operation(operation: Operation, names: Mapping[int, str]) -> TcOperation:
    """A planned operation, for display."""
    return _operation(WriteResult(operation, 0, 1), names, 0)


def _operation(write: WriteResult, names: Mapping[int, str], pass_id: int) -> TcOperation:
    operation, target = write.operation, write.operation.target
    ifindex = 0 if isinstance(target, Action) else target.ifindex
    index = target.index if isinstance(target, Action) else 0
    if isinstance(target, Filter):
        index = _tunnel_index(target)
    deleted = operation.kind == "delete"
    # Not validated: one reconcile makes thousands of these from validated values.
    return TcOperation.model_construct(
        operation=TcOperationKind(operation.kind.value),
        object=_KINDS[type(target)],
        device=names.get(ifindex, "") if ifindex else "",
        ifindex=ifindex,
        pref=target.pref if isinstance(target, Filter) else 0,
        handle=target.handle if isinstance(target, Filter) else 0,
        index=index,
        mac=target.mac or "" if isinstance(target, Filter | FdbEntry) else "",
        before=_content(operation.before, names) if operation.before is not None else "",
        after="" if deleted else _content(target, names),
        errno=write.errno,
        attempt=write.attempt,
        in_hw=write.in_hw,
        reason=operation.reason,
        pass_id=pass_id,
    )


_KINDS: Final[dict[type, TcObject]] = {
    Clsact: TcObject.CLSACT,
    Action: TcObject.ACTION,
    Filter: TcObject.FILTER,
    FdbEntry: TcObject.FDB,
}


def _tunnel_index(rule: Filter) -> int:
    return rule.actions[0].index if rule.actions else 0


def _content(target: Target, names: Mapping[int, str]) -> str:
    """An object's meaning as a short text."""
    match target:
        case Filter():
            tunnel = tunnel_of(target)
            return tunnel.destination if tunnel is not None else "nowhere"
        case Action(tunnel=tunnel) if tunnel is not None:
            return f"{tunnel.source} > {tunnel.destination} vni {tunnel.vni} port {tunnel.port}"
        case Action():
            return names.get(target.redirect_to, "nowhere")
        case FdbEntry():
            return f"{'static' if target.static else 'learned'} on {names.get(target.ifindex, target.ifindex)}"
        case Clsact():
            return "present"
