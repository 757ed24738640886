"""Publishes container events on the bus and in the log."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.containers import ContainerChange, ContainerEvent, ContainerSource, LimitWriter
from schemas.subjects import CONTAINER_EVENTS
from services._runtime.service.app import Runtime
from services.agent.containers.incarnation import Incarnation
from services.agent.memory.records import Drift
from services.agent.ports import FoundContainer, RejectedContainer
from services.agent.settings import AgentSettings

REASON_CHARACTERS = 1_000
"""Of an event, which may quote a label; an event of the stream has 8 KiB."""
_UNNAMED = "unnamed"


@dataclass(frozen=True, slots=True)
class Detail:
    """What events differ in; see `schemas.containers.ContainerEvent`."""

    quota_us: int = -1
    limit_bytes: int = -1
    oom_kills: int = 0
    reason: str = ""
    writer: LimitWriter | None = None


class ContainerEvents:
    """Publishes a node's container events as durable events."""

    def __init__(self, runtime: Runtime[AgentSettings], incarnation: Incarnation) -> None:
        self._clock = runtime.clock
        self._bus = runtime.bus
        self._log = runtime.log
        self._incarnation = incarnation
        self._rejected: set[str] = set()

    def publish(self, found: FoundContainer, change: ContainerChange, detail: Detail) -> None:
        """One event, now."""
        node, number = self._incarnation.node, self._incarnation.number
        event = ContainerEvent(
            change=change,
            app=found.app,
            node=node,
            container=found.key,
            name=found.name,
            source=ContainerSource(found.source),
            time_ns=self._clock.time_ns(),
            incarnation=number,
            quota_us=detail.quota_us,
            limit_bytes=detail.limit_bytes,
            oom_kills=detail.oom_kills,
            reason=detail.reason[:REASON_CHARACTERS],
            writer=detail.writer,
        )
        subject = CONTAINER_EVENTS.subject(self._bus.root, app=found.app, node=node)
        self._bus.publish_event(subject, event, message_id=f"{number}-{found.key}-{change}-{event.time_ns}")

    def drifted(self, drift: Drift) -> None:
        """Its limits were modified externally."""
        writer = drift.writer
        by = None
        if writer is not None:
            by = LimitWriter(pid=writer.pid, comm=writer.comm, cgroup=writer.cgroup[-REASON_CHARACTERS:])
        detail = Detail(drift.quota_us, drift.limit_bytes, reason=drift.reason, writer=by)
        self.publish(drift.found, ContainerChange.DRIFTED, detail)

    def reject(self, rejected: RejectedContainer) -> None:
        """Publish that it is left alone; once until `forget_rejection`."""
        if rejected.container_id in self._rejected:
            return
        self._rejected.add(rejected.container_id)
        app = rejected.app[:60] or _UNNAMED
        found = FoundContainer(rejected.container_id, app, rejected.name[:60] or _UNNAMED, rejected.source)
        self.publish(found, ContainerChange.REJECTED, Detail(reason=rejected.reason))
        self._log.warning("container_rejected", container=rejected.container_id[:12], reason=rejected.reason)

    def forget_rejection(self, container_id: str) -> None:
        """The container has stopped: if it is rejected again, that is published again."""
        self._rejected.discard(container_id)
