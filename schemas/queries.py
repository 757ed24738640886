"""Requests and replies of the micro services (``nats service ls`` lists them). JSON requests get JSON replies."""

from __future__ import annotations

from typing import Annotated, ClassVar

from schemas.apps import AppSpec
from schemas.message import Message, renamed


class StateRequest(Message):
    """Query for the allocator's state of one application, or of all."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.StateRequest"
    app: str | None = None


class ContainerState(Message):
    """One container in the allocator's state."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.ContainerState"
    container: str
    node: str
    quota_us: int
    """Quota in the kernel, by the newest report; -1: unlimited."""
    assigned_us: Annotated[int, renamed("assigned_us", "ordered_us")]
    committed_us: Annotated[int, renamed("committed_us", "held_us")]
    """The largest quota that may be in force: it counts against the limit."""
    used_us: int
    throttled: bool
    memory_usage_bytes: int
    memory_limit_bytes: int
    memory_committed_bytes: Annotated[int, renamed("memory_committed_bytes", "memory_held_bytes")]
    admitted: bool
    """False: it has no limits of the owner's yet, or no more than its floor of CPU or of memory."""
    rejection: Annotated[str, renamed("rejection", "refusal")] = ""
    """Why it has no more than its floor."""
    report_age_s: float
    kernel_refusal: str = ""
    """Which limits of it the kernel refuses at present, and why."""


class AppState(Message):
    """One application with its capacity. Invariant: held + free = limit."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.AppState"
    spec: AppSpec
    cpu_committed_us: Annotated[int, renamed("cpu_committed_us", "cpu_held_us")]
    cpu_free_us: int
    memory_committed_bytes: Annotated[int, renamed("memory_committed_bytes", "memory_held_bytes")]
    memory_free_bytes: int
    memory_reserved_bytes: int = 0
    """Part of the held memory: the nodes' reserves."""
    epoch: int = 0
    owner: str = ""
    """The allocator replica that decides for it; empty: none. Only it knows containers and capacity."""
    containers: tuple[ContainerState, ...]
    node_warnings: tuple[str, ...] = ()
    """Which nodes keep limits from rising, or are left out, and why: sentences."""


class StateReply(Message):
    """Reply to StateRequest."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.StateReply"
    epoch: int
    steps: int
    superseded: bool
    """Whether the replying replica may not decide at present."""
    replica: str = ""
    members: tuple[str, ...] = ()
    """The replicas that share the applications, as the replying one knows them."""
    members_epoch: int = 0
    """Epoch of their record, which rises with every change."""
    members_since_ns: int = 0
    """When the record was written, by its writer's clock, ns since 1970."""
    apps: tuple[AppState, ...]


class ExplainRequest(Message):
    """Query for the decisions behind an application's limits."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.ExplainRequest"
    app: str
    container: str | None = None
    last: int = 5
    """Decisions per container."""


class Explanation(Message):
    """One decision as a sentence."""

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
    """Reply to ExplainRequest."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.ExplainReply"
    app: str
    summary: str
    decisions: tuple[Explanation, ...]
    owner: str = ""
    """Not empty: another replica is the owner; query that one (`cmd.replica_explain`)."""


class QueryError(Message):
    """Error reply of a micro service."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.QueryError"
    code: int
    """As HTTP: 400 the request is wrong, 404 unknown application, 500 internal error."""
    message: str
