"""Views for peers: one application, plain defaults, one value per container."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.allocator.cpu.policy_interface import CpuView
from services.allocator.memory.policy import MemoryView
from tests.bench.escra.peers.fitting import MemorySample
from tests.support.cfs_plant import parameters

AMPLE_US = 10_000_000
AMPLE_BYTES = 1 << 40


def cpu_view(
    used_us: Sequence[int],
    ordered_us: Sequence[int],
    throttled: Sequence[bool] | None = None,
    *,
    fresh: Sequence[bool] | None = None,
    limit_us: int = AMPLE_US,
    cap_us: int = 200_000,
) -> CpuView:
    """Containers of one application on a host of two processors."""
    count, used, ordered = len(used_us), np.array(used_us, np.int64), np.array(ordered_us, np.int64)
    flags = np.zeros(count, np.bool_) if throttled is None else np.array(throttled, np.bool_)
    return CpuView(
        app=np.zeros(count, np.int32),
        fresh=np.ones(count, np.bool_) if fresh is None else np.array(fresh, np.bool_),
        used_us=used,
        unused_us=np.maximum(ordered - used, 0),
        throttled_us=flags * 1_000,
        throttled=flags,
        quota_us=ordered,
        ordered_us=ordered,
        min_us=np.full(count, 1_000, np.int64),
        cap_us=np.full(count, cap_us, np.int64),
        node_idle_percent=np.full(count, -1),
        limit_us=np.array([limit_us], np.int64),
        params=parameters(1),
    )


def memory_sample(
    usage_bytes: Sequence[int],
    ordered_bytes: Sequence[int],
    limit_bytes: int = AMPLE_BYTES,
    kills: Sequence[int] | None = None,
    reclaimable_bytes: Sequence[int] | None = None,
) -> MemorySample:
    """The same for memory."""
    count, usage = len(usage_bytes), np.array(usage_bytes, np.int64)
    nothing = np.zeros(count, np.int64)
    view = MemoryView(
        app=np.zeros(count, np.int32),
        fresh=np.ones(count, np.bool_),
        usage_bytes=usage,
        previous_usage_bytes=usage,
        reclaimable_bytes=nothing if reclaimable_bytes is None else np.array(reclaimable_bytes, np.int64),
        ordered_bytes=np.array(ordered_bytes, np.int64),
        min_bytes=np.full(count, 4 << 20, np.int64),
        max_bytes=np.full(count, 1 << 40, np.int64),
        share_bytes=np.array([limit_bytes // count], np.int64),
        limit_bytes=np.array([limit_bytes], np.int64),
        withheld_bytes=np.zeros(1, np.int64),
        delta_bytes=np.array([50 << 20], np.int64),
        node_short=np.zeros(count, np.bool_),
    )
    return MemorySample(view, nothing if kills is None else np.array(kills, np.int64))
