"""What applications may use against what nodes have; nodes that are full or under pressure. Pure.

A node's agent refuses memory that its node does not have (docs/decisions/0036); processors are shared, so more of them
may be promised than there are, unless the node's settings say otherwise (0062). Both are said here, with figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from schemas.apps import PERIOD_US, AppSpec
from schemas.codec import to_plain
from schemas.containers import NodeInfo
from services._runtime.command.output import format_bytes, format_cores

MOST_NAMES: Final = 8
"""Applications that a warning names, the largest first."""
FULL_SHARE: Final = 0.95
"""A node with more of its memory, or CPU budget, committed is called nearly full."""
HIGH_PRESSURE_PERCENT: Final = 50.0
"""From here on pressure is told: some task waited for more than half of the last ten seconds."""


def allocatable_bytes(node: NodeInfo) -> int:
    """Memory for containers; of an agent that sets no bound, all of it."""
    return node.memory_bytes if node.allocatable_memory_bytes is None else node.allocatable_memory_bytes


def capacity_warnings(spec: AppSpec, announced: Mapping[str, AppSpec], nodes: Sequence[NodeInfo]) -> list[str]:
    """What of an application can never be had from the nodes, and what it promises together with the others.

    Args:
        spec: the application that is announced, or would be.
        announced: all that are, by name; ``spec`` replaces its own old limits.
        nodes: that are registered. None: nothing is known, and nothing is said.
    """
    if not nodes or spec.mode != "enforce":
        return []
    enforced = [each for name, each in announced.items() if each.mode == "enforce" and name != spec.name]
    together = sorted([*enforced, spec], key=lambda each: each.name)
    return [*_memory_warnings(spec, together, nodes), *_cpu_warnings(spec, together, nodes)]


def _memory_warnings(spec: AppSpec, together: list[AppSpec], nodes: Sequence[NodeInfo]) -> list[str]:
    capacity = sum(map(allocatable_bytes, nodes))
    has = f"{_nodes(nodes)} {format_bytes(capacity)} allocatable for containers"
    if spec.memory_limit > capacity:
        return [f"{spec.name} may use {format_bytes(spec.memory_limit)} of memory, {has}: agents refuse what is beyond"]
    promised = sum(int(each.memory_limit) for each in together)
    if promised <= capacity:
        return []
    names = _names(together, lambda each: int(each.memory_limit), lambda each: format_bytes(each.memory_limit))
    return [f"{names} together may use {format_bytes(promised)} of memory, {has}: agents refuse what is beyond"]


def _cpu_warnings(spec: AppSpec, together: list[AppSpec], nodes: Sequence[NodeInfo]) -> list[str]:
    bounds = [node.allocatable_cpu_us for node in nodes if node.allocatable_cpu_us is not None]
    bounded = len(bounds) == len(nodes)
    if not bounded and not any(node.warns_cpu_overcommit for node in nodes):
        return []
    cores = sum(bounds) / PERIOD_US if bounded else sum(node.host_cpus for node in nodes)
    has = f"{_nodes(nodes)} {cores:g} cores" + (" for CPU limits" if bounded else "")
    refused = "agents refuse what is beyond"
    if spec.cpu_limit > cores:
        outcome = refused if bounded else "its limit never holds it back"
        return [f"{spec.name} may use {spec.cpu_limit:g} cores, {has}: {outcome}"]
    promised = sum(each.cpu_limit for each in together)
    if promised <= cores:
        return []
    names = _names(together, lambda each: each.cpu_limit, lambda each: f"{each.cpu_limit:g} cores")
    outcome = refused if bounded else "they are overcommitted, and shared when all are busy"
    return [f"{names} together may use {promised:g} cores, {has}: {outcome}"]


def _nodes(nodes: Sequence[NodeInfo]) -> str:
    return f"the registered node {nodes[0].node} has" if len(nodes) == 1 else f"the {len(nodes)} registered nodes have"


def _names(apps: list[AppSpec], size: Any, text: Any) -> str:
    """``cache (2 GiB) and shop (2 GiB)``."""
    largest = sorted(apps, key=size, reverse=True)[:MOST_NAMES]
    named = [f"{each.name} ({text(each)})" for each in apps if each in largest]
    if more := len(apps) - len(named):
        named.append(f"{more} others")
    return " and ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else named[0]


def node_warnings(node: NodeInfo) -> list[str]:
    """Where a node is full, promises more cores than it has or may, or waits for memory or processors."""
    warnings = []
    allocatable, committed = node.allocatable_memory_bytes, node.committed_memory_bytes
    if allocatable is not None and committed is not None and committed > FULL_SHARE * allocatable:
        word = "above its memory budget" if committed > allocatable else "nearly full"
        warnings.append(
            f"node {node.node} is {word}: limits, reserves and what is in use beside them add up to "
            f"{format_bytes(committed)} of "
            f"{format_bytes(allocatable)} allocatable; what is beyond is refused"
        )
    if node.committed_cpu_us is not None and (warning := _cpu_warning(node, node.committed_cpu_us)):
        warnings.append(warning)
    for what, percent in (("memory", node.memory_pressure_percent), ("processors", node.cpu_pressure_percent)):
        if percent is not None and percent >= HIGH_PRESSURE_PERCENT:
            warnings.append(f"node {node.node}: tasks waited for {what} in {percent:.0f} % of the last 10 s (PSI)")
    return warnings


def _cpu_warning(node: NodeInfo, committed_us: int) -> str:
    """Empty: none."""
    bound_us, cores = node.allocatable_cpu_us, node.host_cpus
    add_up = f"CPU limits of its containers add up to {format_cores(committed_us)}"
    if bound_us is None:
        overcommitted = committed_us > cores * PERIOD_US and node.warns_cpu_overcommit
        return f"node {node.node} has {cores} cores, {add_up}: overcommitted" if overcommitted else ""
    if committed_us <= FULL_SHARE * bound_us:
        return ""
    word = "above" if committed_us > bound_us else "near"
    return (
        f"node {node.node} is {word} its CPU budget: {add_up} of {format_cores(bound_us)} cores, it has {cores}; "
        "what is beyond is refused"
    )


def plain_node(node: NodeInfo) -> dict[str, Any]:
    """As plain JSON types, with its warnings."""
    return to_plain(node) | {"warnings": node_warnings(node)}
