"""One node's agent without bus and clock: sampler, limit executor and memory controller over one set of containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.containers import ContainerSource
from services.agent.containers.container_set import ContainerSet
from services.agent.containers.incarnation import Incarnation
from services.agent.containers.pending_sources import Inventory
from services.agent.lifecycle import ContainerLifecycle
from services.agent.limits.accepted_updates import CpuBudget, NodeCpuBudget
from services.agent.limits.drift import DriftDetector
from services.agent.limits.update_executor import LimitExecutor
from services.agent.memory.controller import MemoryController
from services.agent.memory.node_budget import MemoryBudget, NodeBudget
from services.agent.memory.records import EventBuffer
from services.agent.memory.reserve import Reserves
from services.agent.ports import Host, ReserveStore
from services.agent.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node treats its containers."""

    oom_wait_timeout_ns: int = 2_000_000_000
    """No task waits longer at its memory limit."""
    reassert: bool = True
    """Limits that were modified externally: revert them, or else adopt the new ones."""
    source_deadlines_ns: Mapping[ContainerSource, int] = field(default_factory=dict)
    """Sources of containers, and when (monotonic) their silence no longer leaves the inventory incomplete."""
    memory_budget: MemoryBudget | None = None
    """What may be promised of the node's memory; None: nothing is refused for it."""
    cpu_budget: CpuBudget | None = None
    """What may be promised of the node's cores; None: nothing is refused for it."""
    warns_of_overcommit: bool = True
    """Whether CPU quotas beyond the cores are worth a warning."""


@dataclass(frozen=True, slots=True)
class Node:
    """The parts, wired."""

    containers: ContainerSet
    lifecycle: ContainerLifecycle
    sampler: Sampler
    limits: LimitExecutor
    memory: MemoryController
    budget: NodeBudget


def assemble(incarnation: Incarnation, host: Host, store: ReserveStore, options: NodeOptions = NodeOptions()) -> Node:
    """Wire the parts over a host without containers; memory events and requests wait in ``memory.events``."""
    containers = ContainerSet(incarnation, host, Inventory(options.source_deadlines_ns))
    reserves, events = Reserves(store), EventBuffer()
    drift = DriftDetector(containers, reserves, events, reassert=options.reassert)
    memory = MemoryController(containers, reserves, events, drift.check, options.oom_wait_timeout_ns)
    cpu = NodeCpuBudget(options.cpu_budget, containers, warns=options.warns_of_overcommit)
    budget = NodeBudget(options.memory_budget, containers, reserves, events)
    limits = LimitExecutor(containers, budget, cpu, memory, drift)
    sampler = Sampler(containers, limits, memory, drift, budget)
    lifecycle = ContainerLifecycle(containers, memory, limits, budget)
    return Node(containers, lifecycle, sampler, limits, memory, budget)
