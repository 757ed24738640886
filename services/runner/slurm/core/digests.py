"""Whether two orders are the same, and whether a job can be run as: one line about what cannot. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Final

from schemas.scheduling import JobSpec, WorkOrder
from services.runner.slurm.core.layout import shape

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def digest_spec(spec: JobSpec) -> str:
    """Of a job's spec with its environment."""
    return _digest(spec.model_dump(mode="json"))


def digest_run(order: WorkOrder) -> str:
    """Of what an order to run says, from any leader to any node."""
    assert order.spec is not None
    port = order.master_port
    return _digest([digest_spec(order.spec), order.attempt, list(order.nodes), order.master_address, port])


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def find_flaw(order: WorkOrder, *, gpus: bool = False) -> str:
    """Why an order to run cannot become a job of Slurm, for good; empty: it can.

    Args:
        order: to run.
        gpus: its slots are GPUs. Slurm 22.05 fills its first node with them, whatever distribution is asked for.
    """
    spec = order.spec
    if spec is None or not order.nodes:
        return "an order to run without a spec or nodes"
    if len(order.nodes) != spec.workers:
        return f"{len(order.nodes)} nodes are named for {spec.workers} workers"
    if gpus and len(set(shape(order.nodes))) > 1:
        return "Slurm cannot give nodes different numbers of GPUs: choose workers that fill nodes evenly"
    for name in spec.environment:
        if not _VARIABLE.fullmatch(name):
            return f"{name!r} is no name of an environment variable"
    if not spec.directory.startswith("/"):
        return f"the directory {spec.directory!r} is not absolute"
    texts = (*spec.command, spec.directory, spec.checkpoint_directory, *spec.environment.values())
    return "a value of the job holds a NUL character" if any("\0" in text for text in texts) else ""
