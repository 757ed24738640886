"""What the agent's service does with its node once a period, without the service."""

from __future__ import annotations

from schemas.cfs import CfsBatch
from services.agent.ports import FoundContainer
from tests.support.agent_node import Node


def tick(node: Node, now_ns: int, wall_ns: int) -> tuple[list[CfsBatch], list[FoundContainer]]:
    """Sample, then read back; returns what the sample does."""
    sampled = node.sample(now_ns, wall_ns)
    node.read_back(now_ns)
    return sampled
