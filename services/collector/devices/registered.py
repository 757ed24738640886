"""Machines whose agents are registered on the bus, as far as an agent knows its machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from schemas.containers import NodeInfo
from services.collector.devices.found import FoundCluster, FoundDevice, FoundMachine


def with_nodes(cluster: FoundCluster, nodes: Sequence[NodeInfo], hostname: str) -> FoundCluster:
    """A cluster, and the registered nodes that are none of its machines.

    An agent knows processors and memory, not GPUs, and nothing says that two machines are equally fast: each node's
    processors are a kind of their own.

    Args:
        cluster: whose first machine is this one.
        nodes: that are registered.
        hostname: of this machine: a node of that name is this machine, whatever it is called in the cluster.
    """
    own, *others = cluster.machines
    if hostname in {node.node for node in nodes}:
        own = replace(own, node=hostname)
    known = {own.node, *(machine.name for machine in (own, *others)), hostname}
    further = [_machine(node) for node in nodes if node.node not in known]
    return replace(cluster, machines=(own, *others, *further))


def _machine(node: NodeInfo) -> FoundMachine:
    cores = "1 core" if node.host_cpus == 1 else f"{node.host_cpus} cores"
    about = f"{cores}, by its agent, which knows no GPUs: turnbuckle devices there lists them"
    device = FoundDevice(f"cpu-{node.node}", 1, node.memory_bytes, about)
    note = f"kind: as another machine's where both are equally fast; else turnbuckle layers --kind {device.kind}"
    return FoundMachine(node.node, (device,), node.node, notes=(note,))
