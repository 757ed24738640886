"""Where each worker of a gang runs, and what its environment says about that. Pure."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.scheduling import WorkOrder


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place."""

    node: str
    local_rank: int
    """Among those on its node."""
    local_size: int
    node_rank: int
    """Of its node among those of the job, in the order of ranks."""


def seats(nodes: Sequence[str]) -> tuple[Seat, ...]:
    """The place of each worker, by rank."""
    sizes, seen = Counter(nodes), Counter[str]()
    ranks = {node: rank for rank, node in enumerate(dict.fromkeys(nodes))}
    found = []
    for node in nodes:
        found.append(Seat(node, seen[node], sizes[node], ranks[node]))
        seen[node] += 1
    return tuple(found)


def shape(nodes: Sequence[str]) -> tuple[int, ...]:
    """Workers on each node, by the nodes' names."""
    return tuple(count for _, count in sorted(Counter(nodes).items()))


def common_environment(order: WorkOrder) -> dict[str, str]:
    """Variables that all workers of an attempt share; the names are torchrun's where it has one."""
    spec = order.spec
    assert spec is not None
    checkpoints = spec.checkpoint_directory or f"turnbuckle-checkpoints/{order.job}"
    batch = {"TURNBUCKLE_BATCH": str(spec.batch)} if spec.batch else {}
    return batch | {
        "WORLD_SIZE": str(len(order.nodes)),
        "MASTER_ADDR": order.master_address,
        "MASTER_PORT": str(order.master_port),
        "TURNBUCKLE_JOB": order.job,
        "TURNBUCKLE_ATTEMPT": str(order.attempt),
        "TURNBUCKLE_CHECKPOINT_DIR": posixpath.join(spec.directory, checkpoints),
    }
