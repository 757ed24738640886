"""What is told on the bus: every write (`evt.tc`), every change of a path (`evt.route`), numbered without gaps.

Facts wait in the bus's outbox while there is no server, and that holds 10,000. So while it is behind, passes are put
together into fewer, fuller facts; no operation is left out before `most_waiting` of them wait.
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
from services.reconciler.audit_mark import Mark
from services.reconciler.auditor import Verdict
from services.reconciler.core.operation import Operation, Target
from services.reconciler.core.plan import tunnel_of
from services.reconciler.fast_path_guard import Emptied
from services.reconciler.loop import Looked
from services.reconciler.passes import Pass, Write
from services.reconciler.watcher import MOST_TOGETHER, Change

OPERATIONS_PER_FACT: Final = 150
"""Of 320 bytes at most; a fact of the stream has 64 KiB (`schemas.streams.TC_STREAM`)."""
PASSES_PER_FACT: Final = 1_000
BEHIND: Final = 32
"""Facts that wait: more are put together from here on."""
FAR_BEHIND: Final = 5_000
MOST_WAITING: Final = 500_000
"""Operations in the outbox, some 200 bytes each."""
_PROBLEMS: Final = 5


@dataclass(slots=True)
class _Pending:
    """Passes that wait to be told together."""

    first_pass_id: int
    event: TcEvent
    passes: int = 1

    def absorb(self, event: TcEvent) -> None:
        """Add a pass behind."""
        mine = self.event
        self.event = event.model_copy(
            update={
                "causes": dict(Counter(mine.causes) + Counter(event.causes)),
                "digest_before": mine.digest_before or event.digest_before,
                "digest_after": event.digest_after or mine.digest_after,
                "lag_us": max(mine.lag_us, event.lag_us),
                "duration_us": mine.duration_us + event.duration_us,
                "operations": mine.operations + event.operations,
                "lost_operations": mine.lost_operations + event.lost_operations,
                "first_pass_id": self.first_pass_id,
            }
        )
        self.passes += 1


class _Handed(NamedTuple):
    """A fact in the outbox."""

    published: int
    """Facts that are stored once it is."""
    operations: int
    pass_id: int
    """All passes up to this one are stored then."""


@dataclass(slots=True)
class Teller:
    """Sends facts of one incarnation."""

    bus: Bus
    clock: Clock
    node: str
    incarnation: int
    most_waiting: int = MOST_WAITING
    vtep: str = ""
    """This host's own, as of the last look."""
    previous: Mark | None = None
    """Where the incarnation before has left off."""
    pass_id: int = 0
    """Of the last pass that was told."""
    acknowledged_pass_id: int = 0
    """Up to this one the bus has stored all, as of the last `poll`."""
    _route_seq: int = 0
    _pending: _Pending | None = None
    _verdict: tuple[object, ...] | None = None
    _waiting: list[_Handed] = field(default_factory=list)
    """What was handed to the outbox and is not stored yet."""
    lost_operations: int = 0
    _lost_untold: int = 0

    # -- passes ------------------------------------------------------------------------------------------------

    def told_pass(self, looked: Looked) -> bool:
        """Tell of a pass that wrote or brought news; False: it did neither."""
        outcome = looked.outcome
        known, self._verdict = self._verdict, outcome.verdict
        if not outcome.wrote and outcome.verdict == known:
            return False
        self.pass_id += 1
        operations = tuple(_operation(write, outcome.link_names, self.pass_id) for write in outcome.writes)
        self._tell(self._event(looked, outcome), operations)
        return True

    def _event(self, looked: Looked, outcome: Pass) -> TcEvent:
        tally = outcome.tally
        problems = [problem.text for problem in outcome.problems]
        more = f"; and {len(problems) - _PROBLEMS} more" if len(problems) > _PROBLEMS else ""
        return TcEvent(
            node=self.node,
            incarnation=self.incarnation,
            pass_id=self.pass_id,
            first_pass_id=self.pass_id,
            time_ns=self.clock.time_ns(),
            causes=looked.causes,
            digest_before=outcome.digest_before,
            digest_after=outcome.digest_after,
            desired=tally.desired,
            installed=tally.right,
            foreign=tally.foreign,
            in_hw=tally.in_hw,
            lag_us=max(int(looked.lag_s * 1e6), 0),
            duration_us=int(outcome.duration_s * 1e6),
            verified=outcome.verified,
            problem="; ".join(problems[:_PROBLEMS]) + more,
            **self._before(),
        )

    def _before(self) -> dict[str, Any]:
        """What pass 1 tells of the incarnation before."""
        previous = self.previous
        if previous is None or self.pass_id != 1:
            return {}
        return {
            "previous_incarnation": previous.incarnation,
            "previous_pass_id": previous.pass_id,
            "gap": previous.gap,
        }

    def _tell(self, event: TcEvent, operations: tuple[TcOperation, ...]) -> None:
        room = max(self.most_waiting - self.waiting_operations, 0)
        if len(operations) > room:
            self._lost_untold += len(operations) - room
            self.lost_operations += len(operations) - room
            operations = operations[:room]
        event = event.model_copy(update={"lost_operations": self._lost_untold})
        self._lost_untold = 0
        if len(operations) > OPERATIONS_PER_FACT:
            self.flush()
            parts = [operations[i : i + OPERATIONS_PER_FACT] for i in range(0, len(operations), OPERATIONS_PER_FACT)]
            for number, part in enumerate(parts, 1):
                self._send(event.model_copy(update={"part": number, "parts": len(parts), "operations": part}))
            return
        event = event.model_copy(update={"operations": operations})
        pending = self._pending
        if pending is None:
            self._pending = _Pending(event.pass_id, event)
        elif len(pending.event.operations) + len(operations) > OPERATIONS_PER_FACT or pending.passes >= PASSES_PER_FACT:
            self.flush()
            self._pending = _Pending(event.pass_id, event)
        else:
            pending.absorb(event)
        if self.pending_facts <= BEHIND:
            self.flush()

    def flush(self) -> None:
        """Hand what waits here to the outbox."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._send(pending.event)

    def poll(self) -> None:
        """Called now and then: the outbox may have emptied."""
        self._note_stored()
        if self._pending is not None and self.pending_facts <= BEHIND:
            self.flush()

    def _send(self, event: TcEvent) -> None:
        message_id = f"{self.incarnation}-tc-{event.first_pass_id}-{event.pass_id}-{event.part}"
        self.bus.publish_fact(TC_EVENTS.subject(self.bus.root, node=self.node), event, message_id=message_id)
        # Of a pass in parts only the last one ends it.
        ended = event.pass_id if event.part == event.parts else event.pass_id - 1
        published = self.bus.counters.get("facts_published", 0) + self.pending_facts
        self._waiting.append(_Handed(published, len(event.operations), ended))

    @property
    def pending_facts(self) -> int:
        """In the outbox."""
        return self.bus.counters.get("facts_pending", 0)

    @property
    def waiting_operations(self) -> int:
        """Not stored yet."""
        self._note_stored()
        here = len(self._pending.event.operations) if self._pending is not None else 0
        return here + sum(handed.operations for handed in self._waiting)

    def _note_stored(self) -> None:
        published = self.bus.counters.get("facts_published", 0)
        while self._waiting and self._waiting[0].published <= published:
            self.acknowledged_pass_id = self._waiting.pop(0).pass_id

    # -- paths -------------------------------------------------------------------------------------------------

    def tell_change(self, change: Change) -> None:
        """Tell of a link, a route, or remote MACs."""
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

    def tell_verdict(self, verdict: Verdict) -> None:
        """Tell of a disagreement, its end, or of FRR itself."""
        lasted_us, path = int(verdict.lasted_s * 1e6), verdict.path
        if path is None:
            present = ("present",) if verdict.agree else ("away",)
            reason = verdict.trouble or f"FRR answers again after {verdict.lasted_s:.1f} s"
            self._route(
                kind=RouteKind.FRR, source="auditor", after=present, latency_us=lasted_us,
                alarm=not verdict.agree, reason=reason,
            )  # fmt: skip
            return
        agreed = f"kernel, FRR and BFD agree again after {verdict.lasted_s:.1f} s"
        self._route(
            kind=RouteKind.AGREEMENT if verdict.agree else RouteKind.DISAGREEMENT,
            source="auditor",
            destination=path.destination,
            after=path.kernel,
            frr=path.frr or (),
            bfd=path.bfd_up or (),
            latency_us=lasted_us,
            alarm=not verdict.agree,
            reason=agreed if verdict.agree else path.reason,
        )

    def tell_drain(self, uplink: str, drained: bool) -> None:
        """Tell of an uplink that was taken out of use before maintenance, or carries again."""
        said = "is drained: use its host's other uplinks" if drained else "carries again"
        kind = RouteKind.DRAIN if drained else RouteKind.UNDRAIN
        self._route(kind=kind, source="auditor", interface=uplink, cause="operator", reason=f"{uplink} {said}")

    def tell_emptied(self, emptied: Emptied) -> None:
        """Tell of overrides of a silent fast path that were deleted."""
        names = emptied.destinations
        reason = (
            f"no sign of life of the fast path for {emptied.silent_s:.1f} s: {len(names)} overrides deleted from table "
            f"{emptied.own.table}, FRR alone is in charge; see its processes"
        )
        for first in range(0, len(names), MOST_TOGETHER):
            part = names[first : first + MOST_TOGETHER]
            self._route(
                kind=RouteKind.OVERRIDE_REMOVED, source="guard", destination=part[0], also=tuple(part[1:]),
                cause="fast_path_unresponsive", alarm=True, reason=reason,
            )  # fmt: skip

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
        self.bus.publish_fact(ROUTE_EVENTS.subject(self.bus.root, node=self.node), event, message_id=message_id)


def tc_operation(operation: Operation, names: Mapping[int, str]) -> TcOperation:
    """An operation that was not carried out, for people."""
    return _operation(Write(operation, 0, 1), names, 0)


def _operation(write: Write, names: Mapping[int, str], pass_id: int) -> TcOperation:
    operation, target = write.operation, write.operation.target
    ifindex = 0 if isinstance(target, Action) else target.ifindex
    index = target.index if isinstance(target, Action) else 0
    if isinstance(target, Filter):
        index = _tunnel_index(target)
    gone = operation.kind == "delete"
    # Not validated: thousands of these are made in one pass, from values of our own.
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
        after="" if gone else _content(target, names),
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
    """What an object means, in few words."""
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
