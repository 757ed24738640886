"""What is known of a node: the newest report of its agent, its headroom, which epochs it has acknowledged. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.cfs import CfsBatch
from schemas.limits import LimitReply
from services.allocator.arrays.limit_values import NO_BOUND
from services.allocator.state.report_freshness import ReportFreshness


@dataclass(slots=True)
class NodeState:
    """Newest report of one agent."""

    name: str
    incarnation: int
    fenced: dict[str, int] = field(default_factory=dict)
    """Sequence of the report that acknowledged this owner's epoch, by application. An earlier report is no upper bound:
    an update of a previous owner may have raised limits since."""
    last_seen_ns: int = 0
    headroom_bytes: int = NO_BOUND
    """Bytes by which memory limits and reserves on the node may still rise, as last reported."""
    cpu_headroom_us: int = NO_BOUND
    """Microseconds per period by which CPU quotas on the node may still rise, as last reported."""
    headroom_seq: int = 0
    """Sequence of the report that both come from."""
    idle_percent: int = -1
    """Idle share of the time of its processors, as last reported; -1: unknown."""
    freshness: ReportFreshness = field(default_factory=ReportFreshness)

    def record_headroom(self, report: CfsBatch | LimitReply) -> None:
        """Record the headroom of a report; -1: unbounded."""
        if report.report_seq > self.headroom_seq:
            memory_bytes, cpu_us = report.node_headroom_bytes, report.node_cpu_headroom_us
            self.headroom_seq = report.report_seq
            self.headroom_bytes = NO_BOUND if memory_bytes < 0 else memory_bytes
            self.cpu_headroom_us = NO_BOUND if cpu_us < 0 else cpu_us
