"""Events of the network edge as one line for people: `turnbuckle tap --text`, `turnbuckle rules --diff`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from schemas.message import Message
from schemas.network import RouteEvent, RouteKind, TcEvent, TcObject, TcOperation
from services._runtime.command.output import format_duration

_LISTED = 3


def network_line(message: Message) -> str | None:
    """The line of an event of `evt.route` or `evt.tc`; None: it is another message."""
    if isinstance(message, RouteEvent):
        return route_line(message)
    if isinstance(message, TcEvent):
        return tc_line(message)
    return None


def route_line(event: RouteEvent) -> str:
    """What happened to a path."""
    what = event.destination or event.interface or "FRR"
    if event.also:
        what += f" and {len(event.also)} more"
    head = f"{event.node} {event.source} {event.kind.value} {what}"
    match event.kind:
        case RouteKind.ROUTE | RouteKind.LINK | RouteKind.FDB:
            text = f"{head}: {_listed(event.before)} -> {_listed(event.after)}"
        case RouteKind.OVERRIDE:
            text = f"{head}: {_listed(event.after)} without {event.interface} ({event.cause}), " + _latency(event)
        case RouteKind.OVERRIDE_REMOVED:
            text = f"{head}: {event.cause} after {format_duration(event.latency_us)}"
        case _:
            text = head
    if event.reason:
        text += f": {event.reason}"
    return f"ALARM {text}" if event.alarm else text


def tc_line(event: TcEvent) -> str:
    """What a pass wrote."""
    passes = f"passes {event.first_pass_id}-{event.pass_id}" if 0 < event.first_pass_id < event.pass_id else ""
    part = f" part {event.part}/{event.parts}" if event.parts > 1 else ""
    causes = ", ".join(f"{cause} {count}" for cause, count in sorted(event.causes.items()))
    writes = Counter(f"{o.operation.value} {o.object.value}" for o in event.operations if not o.errno)
    failed = sum(bool(operation.errno) for operation in event.operations)
    done = ", ".join(f"{count} {what}" for what, count in writes.items()) or "no write"
    text = (
        f"{event.node} {passes or f'pass {event.pass_id}'}{part} ({causes}): {done}"
        f"{f', {failed} failed' if failed else ''}; {event.installed}/{event.desired} rules"
        f"{'' if event.verified else ', not verified'} after {format_duration(event.lag_us)}"
    )
    if event.gap:
        text += (
            f"; the audit may lack passes up to {event.previous_pass_id} of incarnation {event.previous_incarnation}"
        )
    few = [operation_line(operation) for operation in event.operations[:_LISTED]]
    if 0 < len(event.operations) <= _LISTED:
        text += f": {'; '.join(few)}"
    return f"{text}: {event.problem}" if event.problem else text


def operation_line(operation: TcOperation) -> str:
    """One write."""
    where = {
        TcObject.FILTER: f"{operation.mac} on {operation.device}",
        TcObject.ACTION: f"index {operation.index}",
        TcObject.FDB: f"{operation.mac} on {operation.device}",
        TcObject.CLSACT: operation.device,
    }[operation.object]
    change = f": {operation.before or 'nothing'} -> {operation.after or 'nothing'}"
    failed = f" FAILED {os.strerror(operation.errno)}" if operation.errno else ""
    reason = f" ({operation.reason})" if operation.reason else ""
    return f"{operation.operation.value} {operation.object.value} {where}{change}{failed}{reason}"


def _listed(values: Iterable[str]) -> str:
    return ", ".join(values) or "nothing"


def _latency(event: RouteEvent) -> str:
    peers = f", peers after {format_duration(event.peer_ack_us)}" if event.peer_ack_us else ""
    return f"in the kernel after {format_duration(event.latency_us)}{peers}"
