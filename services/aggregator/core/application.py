"""All aggregators as one application, by which allocator and agents limit them. Pure."""

from __future__ import annotations

from typing import Final

from pydantic import ByteSize

from schemas.aggregations import APPLICATION
from schemas.apps import AppSpec

INTERPRETER_BYTES: Final = 1 << 30
"""Of a process beside its jobs: PyTorch takes 300 MB of it. No figure of use, a bound against what runs away."""
LEAST_CORES: Final = 0.02
"""Of each; the kernel takes no quota below half of it."""
_SIGMA: Final = 0.2
"""Share of the memory limit that is kept for those near theirs (`AppSpec.sigma`)."""


def application(processes: int, cpu_cores: float | None, memory_bytes: int, *, in_groups: bool) -> AppSpec:
    """The application of all aggregators: enforced, so that their quotas follow what they use.

    Args:
        processes: aggregators at most.
        cpu_cores: of all together, `LEAST_CORES` for each at least; None: one for each.
        memory_bytes: of an aggregator for its jobs. With what its process takes beside them it is its fair share.
        in_groups: whether each aggregator has a control group, and is a container; else the service with all of its
            aggregators is one, or none.
    """
    of_each = (memory_bytes + INTERPRETER_BYTES) / (1 - _SIGMA)
    cores = float(processes) if cpu_cores is None else max(cpu_cores, LEAST_CORES * processes)
    return AppSpec(
        name=APPLICATION,
        cpu_limit=cores,
        memory_limit=ByteSize(int(of_each * processes)),
        sigma=_SIGMA,
        mode="enforce",
        announced_containers=processes if in_groups else 0,
        container_max_cpu=1.0 if in_groups else None,  # one thread computes
    )
