"""View model of `turnbuckle top`: a fold over batches, decisions, memory and container events. No clock, no I/O.

Messages are added in the order of arrival. Time is the newest timestamp of a message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch, SampleFlag
from schemas.containers import ContainerChange, ContainerEvent, NodeInfo
from schemas.leases import Members
from schemas.limits import LimitDecisions
from schemas.oom import OomEvent
from schemas.queries import AppState
from schemas.reasons import Resource, sentence
from services.cli.apps.capacity import node_warnings, plain_node
from services.cli.apps.memory_events import MemoryCounters, container_name, describe_event, plain_event

HISTORY_PERIODS: Final = 60
"""Length of the sparklines."""
THROTTLE_WINDOW_PERIODS: Final = 100
STALE_AFTER_S: Final = 3.0
"""A container that was in no batch for so long is dropped."""
NEWEST_EVENTS: Final = 50
"""Memory events that are kept, over all applications."""


@dataclass(slots=True)
class ContainerView:
    """One container, newest values and a short history."""

    container: str
    node: str
    quota_us: int = -1
    used_us: int = 0
    memory_usage_bytes: int = 0
    memory_limit_bytes: int = -1
    oom_kills: int = 0
    throttled_periods: int = 0
    """Since it was first seen."""
    last_reason: str = ""
    memory: MemoryCounters = field(default_factory=MemoryCounters)
    """Near or at its memory limit, since it was first seen."""
    last_memory_event: str = ""
    drifts: int = 0
    """How often its limits were modified externally, since it was first seen."""
    last_drift: str = ""
    refusal: str = ""
    """Why it has no more than its floor, or which limits the kernel refuses, now."""
    used_history_us: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_PERIODS))
    quota_history_us: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_PERIODS))
    recent_periods: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=THROTTLE_WINDOW_PERIODS))
    """Pairs of periods elapsed and periods throttled."""

    @property
    def name(self) -> str:
        """The container's name without the id that makes its key unique."""
        return container_name(self.container)

    @property
    def throttled_share(self) -> float:
        """Share of the recent periods in which it was throttled, 0 to 1."""
        elapsed = sum(periods for periods, _ in self.recent_periods)
        return min(1.0, sum(throttled for _, throttled in self.recent_periods) / elapsed) if elapsed else 0.0


@dataclass(slots=True)
class NodeView:
    """One application's containers on one node."""

    incarnation: int
    report_seq: int
    time_ns: int
    containers: dict[str, ContainerView] = field(default_factory=dict)
    reserve_given_bytes: int = 0
    reserve_used_bytes: int = 0

    @property
    def reserve_left_bytes(self) -> int:
        """What the agent can still grant without asking."""
        return max(0, self.reserve_given_bytes - self.reserve_used_bytes)


@dataclass(slots=True)
class AppView:
    """One application over all nodes."""

    app: str
    period_us: int = 100_000
    host_cpus: int = 1
    mode: str = ""
    policy: str = ""
    cpu_limit_us: int = 0
    cpu_allocated_us: int = 0
    memory_limit_bytes: int = 0
    memory_allocated_bytes: int = 0
    memory_reserved_bytes: int = 0
    """Part of what is allocated: the nodes' reserves, as the allocator counts them."""
    owner: str = ""
    """The allocator replica that decides for it; empty: unknown, or none."""
    epoch: int = 0
    memory: MemoryCounters = field(default_factory=MemoryCounters)
    drifts: int = 0
    refusals: dict[tuple[str, str], str] = field(default_factory=dict)
    """`ContainerView.refusal` by node and container: it may be known before the first batch."""
    node_warnings: tuple[str, ...] = ()
    """Which nodes keep its limits from rising, or are left out, by the allocator."""
    decisions: int = 0
    batches: int = 0
    missed_batches: int = 0
    """Batches that the agent must have sent by its period, and that did not arrive (or came late and were void)."""
    nodes: dict[str, NodeView] = field(default_factory=dict)

    @property
    def containers(self) -> list[ContainerView]:
        """All containers, by name."""
        every = [container for node in self.nodes.values() for container in node.containers.values()]
        return sorted(every, key=lambda container: container.container)

    def find(self, node: str, container: str) -> ContainerView | None:
        """A container in the newest batch of its node."""
        return self.nodes[node].containers.get(container) if node in self.nodes else None

    @property
    def reserve_left_bytes(self) -> int:
        """What the agents can still grant, by their newest batches."""
        return sum(node.reserve_left_bytes for node in self.nodes.values())


class ViewModel:
    """Every application, folded from the stream."""

    def __init__(self) -> None:
        self.apps: dict[str, AppView] = {}
        self.newest_events: deque[OomEvent] = deque(maxlen=NEWEST_EVENTS)
        self.time_ns = 0
        self.nodes: dict[str, NodeInfo] = {}
        """As registered; gone 30 s after an agent's last heartbeat."""
        self._members = Members()

    def register(self, name: str, node: NodeInfo | None) -> None:
        """Set a node's registration, as the `nodes` bucket holds it; None: expired."""
        self.nodes.pop(name, None)
        if node is not None:
            self.nodes[name] = node

    @property
    def node_warnings(self) -> list[str]:
        """Nodes that are full, overcommitted or under pressure, and those that an allocator does not count on."""
        registered = [warning for _, node in sorted(self.nodes.items()) for warning in node_warnings(node)]
        return [
            *registered,
            *(f"{name}: {each}" for name, app in sorted(self.apps.items()) for each in app.node_warnings),
        ]

    def announce(self, spec: AppSpec) -> None:
        """Set an application's limits, as the `apps` bucket holds them."""
        app = self._app(spec.name)
        app.mode, app.policy = spec.mode, spec.policy
        app.cpu_limit_us, app.memory_limit_bytes = spec.cpu_limit_us, int(spec.memory_limit)

    def seed(self, state: AppState) -> None:
        """Set the pools from the allocator's reply, so that they are known before the first decision."""
        self.announce(state.spec)
        app = self.apps[state.spec.name]
        app.cpu_allocated_us, app.memory_allocated_bytes = state.cpu_committed_us, state.memory_committed_bytes
        app.memory_reserved_bytes, app.owner = state.memory_reserved_bytes, state.owner
        app.node_warnings = state.node_warnings
        app.epoch = max(app.epoch, state.epoch)
        app.refusals = {
            (each.node, each.container): why
            for each in state.containers
            if (why := "; ".join(filter(None, (each.rejection, each.kernel_refusal))))
        }

    def _app(self, name: str) -> AppView:
        """An application, created at the first message that names it; its owner may be known already."""
        if name not in self.apps:
            self.apps[name] = AppView(name, owner=self._members.owner(name))
        return self.apps[name]

    def set_members(self, members: Members) -> None:
        """Set the allocator's replicas, as the `leases` bucket holds them: each application's owner follows."""
        self._members = members
        for name, app in self.apps.items():
            app.owner = members.owner(name)

    def forget(self, name: str) -> None:
        """Drop an application whose limits were withdrawn."""
        self.apps.pop(name, None)

    def add_batch(self, batch: CfsBatch) -> None:
        """Add one batch. Its rows replace all containers of that application on that node."""
        app = self._app(batch.app)
        node = app.nodes.get(batch.node)
        if node is None or batch.incarnation > node.incarnation:
            known = {} if node is None else node.containers
            node = app.nodes[batch.node] = NodeView(batch.incarnation, batch.report_seq, batch.time_ns, known)
        elif batch.incarnation < node.incarnation or batch.report_seq <= node.report_seq:
            return
        elif batch.is_early:
            node.report_seq = batch.report_seq
        else:
            gap = round((batch.time_ns - node.time_ns) / (batch.period_us * 1_000)) - 1
            app.missed_batches += max(0, gap)
            node.report_seq, node.time_ns = batch.report_seq, batch.time_ns
        if batch.is_early:
            _count_throttled(node, batch)
            return
        app.batches += 1
        app.period_us, app.host_cpus = batch.period_us, batch.host_cpus
        node.reserve_given_bytes, node.reserve_used_bytes = batch.reserve_given_bytes, batch.reserve_used_bytes
        node.containers = {row["container"]: _apply_row(node, batch, row) for row in batch.rows()}
        for container in node.containers.values():
            container.refusal = app.refusals.get((batch.node, container.container), "")
        self._advance(batch.time_ns)

    def add_decisions(self, decisions: LimitDecisions) -> None:
        """Add one application's decisions."""
        app = self._app(decisions.app)
        app.mode, app.policy = decisions.mode, decisions.policy
        app.cpu_limit_us, app.cpu_allocated_us = decisions.cpu_limit_us, decisions.cpu_allocated_us
        app.memory_limit_bytes = decisions.memory_limit_bytes
        app.memory_allocated_bytes = decisions.memory_allocated_bytes
        app.memory_reserved_bytes = decisions.memory_reserved_bytes
        app.node_warnings = decisions.node_warnings
        app.epoch = max(app.epoch, decisions.epoch)
        app.decisions += decisions.row_count
        by_key = {container.container: container for container in app.containers}
        for row in decisions.rows():
            if container := by_key.get(row["container"]):
                container.last_reason = describe_row(row)
        self._advance(decisions.time_ns)

    def add_oom_event(self, event: OomEvent) -> None:
        """Add an event of a container near or at its memory limit."""
        self.newest_events.append(event)
        app = self._app(event.app)
        app.memory.add(event)
        if (container := app.find(event.node, event.container)) is not None:
            container.memory.add(event)
            container.last_memory_event = describe_event(event)

    def add_container_event(self, event: ContainerEvent) -> None:
        """Count externally modified limits, keep what is refused; all other changes are in the batches."""
        match event.change:
            case ContainerChange.LIMIT_REFUSED | ContainerChange.REFUSED:
                self._app(event.app).refusals[event.node, event.container] = event.reason
            case ContainerChange.LIMIT_ACCEPTED | ContainerChange.EXITED | ContainerChange.RELEASED:
                if (known := self.apps.get(event.app)) is not None:
                    known.refusals.pop((event.node, event.container), None)
            case ContainerChange.DRIFTED:
                app = self._app(event.app)
                app.drifts += 1
                if (container := app.find(event.node, event.container)) is not None:
                    container.drifts += 1
                    container.last_drift = event.reason

    def snapshot(self) -> dict[str, Any]:
        """Everything as plain JSON types."""
        return {
            "time_ns": self.time_ns,
            "apps": [_plain_app(app) for _, app in sorted(self.apps.items())],
            "memory_events": [plain_event(event) for event in self.newest_events],
            "nodes": [plain_node(node) for _, node in sorted(self.nodes.items())],
        }

    def _advance(self, time_ns: int) -> None:
        self.time_ns = max(self.time_ns, time_ns)
        oldest_ns = self.time_ns - int(STALE_AFTER_S * 1e9)
        for app in self.apps.values():
            if any(node.time_ns < oldest_ns for node in app.nodes.values()):
                app.nodes = {name: node for name, node in app.nodes.items() if node.time_ns >= oldest_ns}


def describe_row(row: dict[str, Any]) -> str:
    """A row of LimitDecisions as a sentence: the CPU's reason if CPU changed, else the memory's."""
    resource: Resource = "cpu" if row["quota_to_us"] else "memory"
    prefix = "quota" if resource == "cpu" else "limit"
    return sentence(resource, row[f"{prefix}_reason"], row[f"{prefix}_measured"], row[f"{prefix}_threshold"])


def _count_throttled(node: NodeView, batch: CfsBatch) -> None:
    for key, throttled in zip(batch.keys, batch.column("throttled").tolist(), strict=True):
        if throttled and (container := node.containers.get(key)) is not None and container.recent_periods:
            periods, before = container.recent_periods.pop()
            container.recent_periods.append((periods, before + throttled))
            container.throttled_periods += throttled


def _apply_row(node: NodeView, batch: CfsBatch, row: dict[str, Any]) -> ContainerView:
    container = node.containers.get(row["container"]) or ContainerView(row["container"], batch.node)
    container.quota_us = row["quota_us"]
    container.memory_usage_bytes = row["memory_usage_bytes"]
    container.memory_limit_bytes = row["memory_limit_bytes"]
    container.oom_kills = row["oom_kills"]
    if row["periods"] or row["flags"] & (SampleFlag.IDLE | SampleFlag.WALL_CLOCK):
        container.used_us = row["used_us"]
        container.throttled_periods += row["throttled"]
        container.recent_periods.append((max(1, row["periods"]), row["throttled"]))
        container.used_history_us.append(container.used_us)
        container.quota_history_us.append(container.quota_us)
    return container


def _plain_app(app: AppView) -> dict[str, Any]:
    return {
        "app": app.app,
        "mode": app.mode,
        "policy": app.policy,
        "period_us": app.period_us,
        "cpu_limit_us": app.cpu_limit_us,
        "cpu_allocated_us": app.cpu_allocated_us,
        "cpu_free_us": app.cpu_limit_us - app.cpu_allocated_us,
        "memory_limit_bytes": app.memory_limit_bytes,
        "memory_allocated_bytes": app.memory_allocated_bytes,
        "memory_free_bytes": app.memory_limit_bytes - app.memory_allocated_bytes,
        "memory_reserved_bytes": app.memory_reserved_bytes,
        "reserves": [
            {
                "node": name,
                "given_bytes": node.reserve_given_bytes,
                "used_bytes": node.reserve_used_bytes,
                "left_bytes": node.reserve_left_bytes,
            }
            for name, node in sorted(app.nodes.items())
        ],
        "reserve_left_bytes": app.reserve_left_bytes,
        "owner": app.owner,
        "epoch": app.epoch,
        "memory": app.memory.plain(),
        "drifts": app.drifts,
        "node_warnings": list(app.node_warnings),
        "decisions": app.decisions,
        "batches": app.batches,
        "missed_batches": app.missed_batches,
        "containers": [_plain_container(container) for container in app.containers],
    }


def _plain_container(container: ContainerView) -> dict[str, Any]:
    return {
        "container": container.container,
        "node": container.node,
        "quota_us": container.quota_us,
        "used_us": container.used_us,
        "throttled_share": round(container.throttled_share, 4),
        "throttled_periods": container.throttled_periods,
        "memory_usage_bytes": container.memory_usage_bytes,
        "memory_limit_bytes": container.memory_limit_bytes,
        "oom_kills": container.oom_kills,
        "memory": container.memory.plain(),
        "last_memory_event": container.last_memory_event,
        "drifts": container.drifts,
        "last_drift": container.last_drift,
        "refusal": container.refusal,
        "last_reason": container.last_reason,
        "used_history_us": list(container.used_history_us),
        "quota_history_us": list(container.quota_history_us),
    }
