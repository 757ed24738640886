"""Limit updates, their replies, and the decisions behind them."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

from schemas.apps import Mode
from schemas.message import ColumnarMessage, Count, Float64Column, Int64Column, UInt8Column, renamed

REFUSED_RETRY_MAX_S: Final = 30.0
"""Longest pause before a limit that the kernel has refused is ordered again."""


class RowStatus(IntEnum):
    """Outcome of one row of a LimitUpdate."""

    APPLIED = 0
    UNCHANGED = 1
    """The kernel had these values already: nothing was written."""
    STALE_SEQ = 2
    """A newer update for this container was applied before; this one is discarded."""
    SUPERSEDED = 3
    """A newer update arrived while this one was pending until its period boundary."""
    UNKNOWN_CONTAINER = 4
    STALE_EPOCH = 5
    """The application has a newer owner."""
    FAILED = 6
    """The kernel rejected it, for example a memory limit below usage (EBUSY); the reply has the current limits."""
    NODE_BUDGET = 7
    """A budget of the node does not allow the increase of memory or CPU, or a part of it; the reply has the current
    limits."""


class LimitUpdate(ColumnarMessage):
    """New limits for containers of one node. A value of 0 leaves that limit alone.

    With no rows it is a *fence*: it claims the applications for this epoch and requests their current limits. A fence
    may set reserves: memory that the agent may grant to the application's containers by itself. Reserves are
    cumulative, so a duplicate or an update concurrent with a grant is harmless: available is given - used.
    """

    type_name: ClassVar[str] = "turnbuckle.limits.v1.LimitUpdate"

    node: str
    incarnation: Count
    """Incarnation of the addressed agent; another one rejects the update."""
    epoch: Count
    """Fencing epoch: increases with each owner of an application; agents reject rows of an older one."""
    seq: Count
    """Increases with each update of an epoch; agents reject a row not newer than the container's last."""
    time_ns: Count
    apps: tuple[str, ...]
    """Applications of the rows; all of them are claimed for this epoch."""
    reserve_given_bytes: tuple[Count, ...] = ()
    """Per application in `apps`: cumulative reserve (at least what is used). Empty: reserves are unchanged."""
    container_max_bytes: tuple[Count, ...] = ()
    """Per application in `apps`: upper bound of a container's limit after a grant. Sent with the reserves."""
    fair_share_bytes: tuple[Count, ...] = ()
    """Per application in `apps`: a container's fair share of the memory limit. Sent with the reserves, or empty."""
    fair_growth_bytes: tuple[Count, ...] = ()
    """Per application in `apps`, sent with the shares: 0. Older agents keep so much for containers that do not ask."""
    quota_us: Int64Column
    limit_bytes: Int64Column

    @model_validator(mode="after")
    def _check_reserves(self) -> Self:
        if len(self.reserve_given_bytes) != len(self.container_max_bytes):
            raise ValueError("reserve_given_bytes and container_max_bytes differ in length")
        if len(self.fair_share_bytes) != len(self.fair_growth_bytes):
            raise ValueError("fair_share_bytes and fair_growth_bytes differ in length")
        if self.fair_share_bytes and len(self.fair_share_bytes) != len(self.reserve_given_bytes):
            raise ValueError("fair shares are sent with the reserves, one per application")
        if self.reserve_given_bytes and (self.containers or len(self.reserve_given_bytes) != len(self.apps)):
            raise ValueError("reserves are one per application, and only in an update without rows")
        return self


EPOCHS_AHEAD_MS: Final = 3_600_000


class LimitReply(ColumnarMessage):
    """Outcome of a LimitUpdate and current limits; sent when every row is done, after at most one period.

    Rows: those of the update, or for a fence every container of the named applications.
    """

    type_name: ClassVar[str] = "turnbuckle.limits.v1.LimitReply"

    node: str
    incarnation: Count
    report_seq: Count
    epoch: Count
    seq: Count
    rejection: Annotated[str | None, renamed("rejection", "refusal")] = None
    """Why the whole update was rejected (wrong incarnation, not managed), or None."""
    stale_apps: tuple[str, ...] = ()
    """Applications that belong to a newer epoch."""
    stale_epochs: tuple[Count, ...] = ()
    """Per application in `stale_apps`: that epoch. Empty: an agent of a version that does not tell it."""
    inventory_complete: bool = True
    """Whether every source of containers of the node (Docker Engine, container runtime, ...) has answered since the
    agent's start, or timed out. False: a container that is not listed here may still exist."""
    apps: tuple[str, ...] = ()
    """Reply to a fence: its applications; reserves and rows were read at the same time."""
    reserve_given_bytes: tuple[Count, ...] = ()
    """Per application in `apps`."""
    reserve_used_bytes: tuple[Count, ...] = ()
    reserve_update_seq: Annotated[tuple[Count, ...], renamed("reserve_update_seq", "reserve_order_seq")] = ()
    node_headroom_bytes: Annotated[int, Field(ge=-1, le=(1 << 62) - 1)] = -1
    """As in `schemas.cfs.CfsBatch`, after the update."""
    node_cpu_headroom_us: Annotated[int, Field(ge=-1, le=(1 << 62) - 1)] = -1
    """As in `schemas.cfs.CfsBatch`, after the update."""
    node_budget_reason: Annotated[str, renamed("node_budget_reason", "node_refusal")] = ""
    """Why rows are `NODE_BUDGET`, or a reserve was given less, with the measured value and the threshold."""
    refused_cpu: dict[str, str] = Field(default_factory=dict)
    """Containers of FAILED rows whose CPU limit the kernel refused, with the reason. `quota_us` has what holds: the
    nearest quota that it accepts, as far as the agent finds one, or the earlier one."""
    refused_memory: dict[str, str] = Field(default_factory=dict)
    """The same of memory limits; the earlier one holds."""
    quota_us: Int64Column
    limit_bytes: Int64Column
    limit_update_seq: Annotated[Int64Column, renamed("limit_update_seq", "order_seq")]
    status: UInt8Column

    def newer_epochs(self) -> dict[str, int]:
        """The applications in `stale_apps` with their epochs: at least one above the update's.

        Where the agent does not tell them, an hour above: epochs begin as milliseconds of a wall clock, so this exceeds
        any that is less ahead.
        """
        epochs = self.stale_epochs or (self.epoch + EPOCHS_AHEAD_MS,) * len(self.stale_apps)
        return {app: max(epoch, self.epoch + 1) for app, epoch in zip(self.stale_apps, epochs, strict=True)}

    @model_validator(mode="after")
    def _check_reserves(self) -> Self:
        if self.stale_epochs and len(self.stale_epochs) != len(self.stale_apps):
            raise ValueError("the newer epochs of a reply are one per stale application")
        lengths = {len(self.reserve_given_bytes), len(self.reserve_used_bytes), len(self.reserve_update_seq)}
        if lengths != {len(self.apps)}:
            raise ValueError("the reserves of a reply are one per application")
        return self


class LimitDecisions(ColumnarMessage):
    """Changes decided for one application in one step, with the pools after it. None is sent out in mode `observe`."""

    type_name: ClassVar[str] = "turnbuckle.limits.v1.LimitDecisions"

    app: str
    mode: Mode
    policy: str
    epoch: Count
    step: int
    time_ns: Count
    container_count: int
    cpu_limit_us: int
    cpu_allocated_us: int
    """Sum over containers of the largest quota that may be in force (held), or would be in mode `observe`."""
    memory_limit_bytes: int
    memory_allocated_bytes: int
    """Reserves included."""
    memory_reserved_bytes: int = 0
    """Sum of the nodes' reserves."""
    update_seq_first: Count = 0
    """Sequence of the first limit update that carries changes of this message, in the same epoch; 0: none is sent."""
    update_seq_last: Count = 0
    """Of the last one. A LimitsApplied of this epoch with a sequence from first to last has the outcome."""
    node_warnings: tuple[str, ...] = ()
    """Which nodes keep limits from rising, or are left out, and why: sentences."""

    quota_from_us: Int64Column
    quota_to_us: Int64Column
    """0: CPU not changed in this row."""
    quota_reason: UInt8Column
    quota_measured: Float64Column
    quota_threshold: Float64Column
    limit_from_bytes: Int64Column
    limit_to_bytes: Int64Column
    """0: memory not changed in this row."""
    limit_reason: UInt8Column
    limit_measured: Float64Column
    limit_threshold: Float64Column


class LimitsApplied(ColumnarMessage):
    """Limits in force after a limit update, and the outcome of each of its rows: one application on one node.

    Published after the reply to the allocator, with the reply's values. None is published where every row is UNCHANGED.
    It may arrive before the LimitDecisions that names it: the allocator sends a limit first and publishes why
    afterwards.
    """

    type_name: ClassVar[str] = "turnbuckle.limits.v1.LimitsApplied"

    app: str
    node: str
    incarnation: Count
    report_seq: Count
    """Of the reply: counts together with the batches (`schemas.cfs.CfsBatch`); the larger one is the newer state."""
    epoch: Count
    seq: Count
    """Of the limit update: between `update_seq_first` and `update_seq_last` of a LimitDecisions of the same epoch."""
    time_ns: Count

    quota_us: Int64Column
    """Quota in force, per period; -1: unlimited; 0: the agent has no such container any more."""
    limit_bytes: Int64Column
    """Memory limit in force; -1: unlimited; 0: the agent has no such container any more."""
    status: UInt8Column
