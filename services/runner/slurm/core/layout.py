"""How many workers of a gang run on each node, and what the environment of all of them says. Pure."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence

from schemas.scheduling import WorkOrder


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
