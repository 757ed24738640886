"""Requests and replies of the micro services (``nats service ls`` shows them). JSON is accepted and answered too."""

from __future__ import annotations

from typing import ClassVar

from schemas.apps import AppSpec
from schemas.message import Message


class StateRequest(Message):
    """Ask for the allocator's view; without an application for all of them."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.StateRequest"
    app: str | None = None


class ContainerState(Message):
    """One container as the allocator sees it."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.ContainerState"
    container: str
    node: str
    quota_us: int
    """In the kernel, by the newest report; -1: unlimited."""
    ordered_us: int
    held_us: int
    """The largest quota that may be in force: what counts against the limit."""
    used_us: int
    throttled: bool
    memory_usage_bytes: int
    memory_limit_bytes: int
    memory_held_bytes: int
    admitted: bool
    refusal: str = ""
    report_age_s: float


class AppState(Message):
    """One application with its pools. Invariant: held + free = limit."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.AppState"
    spec: AppSpec
    cpu_held_us: int
    cpu_free_us: int
    memory_held_bytes: int
    memory_free_bytes: int
    memory_reserved_bytes: int = 0
    """Part of what is held: the nodes' reserves."""
    epoch: int = 0
    owner: str = ""
    """The allocator replica that holds its lease; empty: none at present. Only it knows containers and pools."""
    containers: tuple[ContainerState, ...]


class StateReply(Message):
    """Answer to StateRequest."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.StateReply"
    epoch: int
    steps: int
    superseded: bool
    """Whether the replica that answered has lost its lease."""
    replica: str = ""
    apps: tuple[AppState, ...]


class ExplainRequest(Message):
    """Ask why an application's limits are what they are."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.ExplainRequest"
    app: str
    container: str | None = None
    last: int = 5
    """Decisions per container."""


class Explanation(Message):
    """One decision in words."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.Explanation"
    time_ns: int
    container: str
    resource: str
    """``cpu`` (values in microseconds per period) or ``memory`` (bytes)."""
    before: int
    after: int
    reason: str
    sentence: str


class ExplainReply(Message):
    """Answer to ExplainRequest."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.ExplainReply"
    app: str
    summary: str
    decisions: tuple[Explanation, ...]
    owner: str = ""
    """Not empty: another replica decides for it; ask that one (`cmd.replica_explain`)."""


class QueryError(Message):
    """What a micro service answers when it cannot serve a request."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.QueryError"
    code: int
    """As HTTP: 400 the request is wrong, 404 unknown application, 500 internal error."""
    message: str
