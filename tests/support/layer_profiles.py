"""Layer profiles, clusters and requests for tests of the planner."""

from __future__ import annotations

from typing import Any

from schemas.devices import Cluster, Device, LinkRate
from schemas.layers import LayerClass, LayerProfile
from schemas.plans import PlanRequest

MIB, GIB = 1 << 20, 1 << 30


def profile(kind: str = "fast", ms_per_sample: float = 2.0, **changes: Any) -> LayerProfile:
    """A model of an embedding, six blocks and a head; all times in proportion to a block's forward time."""
    us = ms_per_sample * 1_000
    classes = (
        layer("embedding", 1, 4_000_000, 0.1 * us),
        layer("block", 6, 10_000_000, us),
        layer("head", 1, 4_000_000, 0.5 * us),
    )
    fields = {
        "profile": f"{kind}-1",
        "model": "m1",
        "task": "tiny",
        "kind": kind,
        "classes": classes,
        "order": (0, 1, 1, 1, 1, 1, 1, 2),
        "optimizer_us_per_mib": 20.0,
        "reserved_bytes": 300 * MIB,
        "measured_ns": 1,
    }
    return LayerProfile(**(fields | changes))


def layer(name: str, count: int, parameters: int, us_per_sample: float) -> LayerClass:
    """Measured for micro-batches of 1 to 4; deciles 10 % below and above."""
    forward = tuple(us_per_sample * size + 50 for size in range(1, 5))
    backward = tuple(2 * us for us in forward)
    return LayerClass(
        name=name,
        count=count,
        parameters=parameters,
        flat_bytes=4 * parameters,
        forward_us=forward,
        forward_us_p10=tuple(0.9 * us for us in forward),
        forward_us_p90=tuple(1.1 * us for us in forward),
        backward_us=backward,
        backward_us_p10=tuple(0.9 * us for us in backward),
        backward_us_p90=tuple(1.1 * us for us in backward),
        saved_bytes=tuple(20 * MIB * size for size in range(1, 5)),
        boundary_bytes=2 * MIB,
    )


def cluster(*devices: tuple[str, str, float], **changes: Any) -> Cluster:
    """Of devices as (kind, machine, GiB)."""
    rows = tuple(
        Device(rank=rank, kind=kind, machine=machine, memory_bytes=int(gib * GIB))
        for rank, (kind, machine, gib) in enumerate(devices)
    )
    fields: dict[str, Any] = {
        "devices": rows,
        "inside": LinkRate(bytes_per_s=10e9, latency_us=10),
        "between": LinkRate(bytes_per_s=1e9, latency_us=500),
    }
    return Cluster(**(fields | changes))


def request(hardware: Cluster, profiles: tuple[LayerProfile, ...], batch: int = 16, **changes: Any) -> PlanRequest:
    """With the profiles in it."""
    return PlanRequest(job="train", profiles=profiles, cluster=hardware, batch=batch, **changes)
