"""What the node's registration in the bucket `nodes` says."""

from __future__ import annotations

from schemas.containers import NodeInfo
from services.agent.backend import Backend
from services.agent.limits.update_executor import LimitExecutor
from services.agent.memory.node_budget import NodeBudget


def node_info(limits: LimitExecutor, budget: NodeBudget, backend: Backend, time_ns: int, version: str) -> NodeInfo:
    """The node as it is now."""
    containers, cpu_budget = limits.containers, limits.cpu_budget
    host, docker = containers.host, backend.discoveries.get("docker")
    pressure = host.read_pressure()
    return NodeInfo(
        node=containers.node,
        incarnation=containers.incarnation.number,
        time_ns=time_ns,
        host_cpus=host.cpu_count,
        memory_bytes=budget.capacity_bytes or host.memory_bytes,
        cgroup_version=host.cgroup_version,
        telemetry_source=host.telemetry_source,
        docker=docker is not None and docker.available,
        container_count=len(containers.managed),
        version=version,
        sources_pending=containers.inventory.pending,
        memory_guard=host.memory_guard,
        holder=backend.holder,
        allocatable_memory_bytes=budget.allocatable_bytes,
        committed_memory_bytes=budget.committed_bytes(),
        committed_cpu_us=cpu_budget.committed_us(),
        allocatable_cpu_us=cpu_budget.allocatable_us,
        warns_cpu_overcommit=cpu_budget.warns,
        available_memory_bytes=host.read_available(),
        memory_pressure_percent=pressure.memory_percent,
        cpu_pressure_percent=pressure.cpu_percent,
    )
