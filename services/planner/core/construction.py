"""Memory of workers while the user's `build()` makes the model as a whole, before each keeps its part of it. Pure.

Most models are made parameter by parameter (`services._jobs.recorded_build`), and never need more than a step does.
Of the others a layer profile says what is there at once. A GPU has no part in that: `build()` runs on its host.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.planner.core.inputs import REDUCE_BYTES, Inputs, is_processor
from services.planner.core.profile import GIB, Infeasible, total

_GIB_WITHIN = 1e-9
"""Rounding of sums."""


def construction_gib(inputs: Inputs, shares: Sequence[float]) -> list[float]:
    """Of each device: an idle worker, the whole model, its part of parameters and gradients; 0: it is never whole."""
    item_bytes = inputs.model.dtype.item_bytes + REDUCE_BYTES
    needed = []
    for device, share in zip(inputs.request.cluster.devices, shares, strict=True):
        profile = inputs.profiles[device.kind]
        is_whole = profile.construction_bytes > 0 and is_processor(device.kind)
        whole_bytes = profile.reserved_bytes + profile.construction_bytes + share * inputs.parameters * item_bytes
        needed.append(whole_bytes / GIB if is_whole else 0.0)
    return needed


def too_large_to_build(inputs: Inputs, shares: Sequence[float]) -> Infeasible | None:
    """Which devices have no room for it; None: all have."""
    request = inputs.request
    rows = [
        (needed, request.memory_share * device.memory_bytes / GIB, device.rank)
        for needed, device in zip(construction_gib(inputs, shares), request.cluster.devices, strict=True)
    ]
    over = [row for row in rows if row[0] > row[1] + _GIB_WITHIN]
    if not over:
        return None
    needed, allowed, rank = max(over, key=lambda row: (row[0] - row[1], row[2]))
    return Infeasible(
        f"rank {rank} needs {needed:.1f} of {allowed:.1f} GiB at its start, where build() makes the whole model at "
        "once: turnbuckle layers says why it cannot be made in parts",
        total(needed - allowed for needed, allowed, _ in over),
    )
