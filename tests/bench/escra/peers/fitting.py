"""What a peer wishes, made to fit: within every container's bounds, and in proportion within the application's limit.

The peers' originals know no sum over an application's containers. Where they ask for more than it may hold, what they
ask for above the minimum is scaled down by one factor; where it is enough, nothing is touched (policy.md section 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from schemas.reasons import Reason
from services.allocator.arrays.array_types import Bools, Floats, Ints
from services.allocator.arrays.grouping import per_app
from services.allocator.arrays.limit_values import MARGIN_BYTES, PAGE_BYTES
from services.allocator.arrays.proportional_share import scale_to_fit
from services.allocator.cpu.policy_interface import CpuTargets, CpuView
from services.allocator.memory.policy import MemoryTargets, MemoryView

NO_WISH: Final = 0
"""A slot's wish before it has one: the container keeps what was ordered."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """One step's memory as peers see it: what the product's policy sees, and who was killed."""

    view: MemoryView
    oom_kills: Ints
    """By the kernel since the container was found, shape N."""


def fit_cpu(view: CpuView, wished_us: Floats | Ints) -> tuple[CpuTargets, Bools]:
    """Targets out of wishes, and which rows (shape N) got less than they asked for because their application is short.

    Args:
        view: the step's observations.
        wished_us: shape N, microseconds per period; `NO_WISH` keeps what was ordered.
    """
    wished = np.where(wished_us > NO_WISH, np.rint(wished_us).astype(np.int64), view.ordered_us)
    wished = np.clip(wished, view.min_us, np.maximum(view.cap_us, view.min_us))
    apps = len(view.limit_us)
    above = wished - view.min_us
    target = view.min_us + scale_to_fit(view.app, above, view.limit_us - per_app(view.app, view.min_us, apps))
    targets = CpuTargets.none(len(target), target)
    held = per_app(view.app, view.ordered_us, apps)
    over = (held > view.limit_us)[view.app]
    raised, cut = target > view.ordered_us, target < view.ordered_us
    targets.give(raised, Reason.DEMAND_ROSE, wished, view.ordered_us)
    targets.give(cut & over, Reason.OVER_LIMIT, held[view.app], view.limit_us[view.app])
    left = np.maximum(view.ordered_us - view.used_us, 0)
    targets.give(cut & ~over, Reason.UNUSED, left, np.maximum(target - view.used_us, 0))
    return targets, target < wished


def fit_memory(sample: MemorySample, wished_bytes: Floats | Ints) -> MemoryTargets:
    """Targets in whole pages out of wishes (shape N, bytes; `NO_WISH` keeps what was ordered).

    A limit is never ordered below what is in use and cannot be dropped: the kernel refuses it (EBUSY). It follows usage
    down instead, and is not raised again on the way up, so that a wish below the usage of the moment is reached.
    """
    view = sample.view
    wished = np.where(wished_bytes > NO_WISH, np.rint(wished_bytes).astype(np.int64), view.ordered_bytes)
    wished = np.clip(wished, view.min_bytes, np.maximum(view.max_bytes, view.min_bytes)) // PAGE_BYTES
    least = -(-view.min_bytes // PAGE_BYTES)
    wished = np.maximum(wished, least)
    room = view.limit_bytes // PAGE_BYTES - per_app(view.app, least, len(view.limit_bytes))
    target = (least + scale_to_fit(view.app, wished - least, room)) * PAGE_BYTES
    in_use = view.usage_bytes - np.minimum(view.reclaimable_bytes, view.usage_bytes) + MARGIN_BYTES
    possible = np.minimum(view.ordered_bytes, -(-in_use // PAGE_BYTES) * PAGE_BYTES)
    return _explain_memory(view, np.maximum(target, possible))


def _explain_memory(view: MemoryView, target: Ints) -> MemoryTargets:
    free = view.ordered_bytes - view.usage_bytes
    targets = MemoryTargets.none(len(target), target)
    targets.give(target > view.ordered_bytes, Reason.MEMORY_GROWTH, view.usage_bytes, np.maximum(free, 0))
    targets.give(target < view.ordered_bytes, Reason.MEMORY_RECLAIM, free, target - view.usage_bytes)
    return targets
