"""The node's registration in the bucket `nodes`."""

from __future__ import annotations

from schemas.containers import NodeInfo
from services.agent.backend import Backend
from services.agent.node import Node


def node_info(node: Node, backend: Backend, time_ns: int, version: str) -> NodeInfo:
    """The node as it is now."""
    host, docker = node.host, backend.discoveries.get("docker")
    pressure = host.read_pressure()
    return NodeInfo(
        node=node.name,
        incarnation=node.incarnation,
        time_ns=time_ns,
        host_cpus=host.cpu_count,
        memory_bytes=node.budget.capacity_bytes or host.memory_bytes,
        cgroup_version=host.cgroup_version,
        telemetry_source=host.telemetry_source,
        docker=docker is not None and docker.available,
        container_count=node.container_count,
        version=version,
        sources_pending=node.inventory.pending,
        memory_guard=host.memory_guard,
        holder=backend.holder,
        allocatable_memory_bytes=node.budget.allocatable_bytes,
        committed_memory_bytes=node.budget.committed_bytes(),
        committed_cpu_us=sum(max(each.quota_us, 0) for each in node.update_log.containers.values()),
        available_memory_bytes=host.read_available(),
        memory_pressure_percent=pressure.memory_percent,
        cpu_pressure_percent=pressure.cpu_percent,
    )
