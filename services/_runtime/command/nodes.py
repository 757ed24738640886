"""Nodes whose agents are registered on the bus."""

from __future__ import annotations

from schemas.containers import NodeInfo
from schemas.streams import NODES
from services._runtime.bus.api import Bus


async def read_nodes(bus: Bus) -> list[NodeInfo]:
    """The nodes that are registered now, by name.

    Raises:
        BusError: the bucket is not there, or cannot be read.
    """
    found = [entry.message for entry in (await bus.bucket(NODES).entries()).values()]
    return sorted((node for node in found if isinstance(node, NodeInfo)), key=lambda node: node.node)
