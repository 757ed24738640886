"""Memory of other hosts as swap: asks them for slabs, and answers them."""

from __future__ import annotations

from typing import Final

from schemas.remote_memory import SlabEvent, SlabReply, SlabRequest
from schemas.service import BucketUse, Channel, Delivery, Service
from schemas.streams import MEMORY_HOSTS
from schemas.subjects import SLAB_EVENTS, SLAB_REQUESTS
from schemas.telemetry_specs import MetricSpec, SpanSpec

SERVICE: Final = Service(
    name="memory",
    per_host=True,
    channels=(
        Channel(
            SLAB_REQUESTS,
            SlabRequest,
            Delivery.REQUEST,
            ("memory",),
            ("memory",),
            "a host asks another one for memory for a slab of its swap device",
            reply=SlabReply,
        ),
        Channel(
            SLAB_EVENTS,
            SlabEvent,
            Delivery.JETSTREAM,
            ("memory",),
            ("cli", "memory"),
            "a slab of a swap device went to remote memory, is wanted back by its daemon, or fell back to its disk",
            from_all_hosts=True,
        ),
    ),
    buckets=(BucketUse(MEMORY_HOSTS, own_key=True, reads=True),),
    dashboard="Remote memory: offered, held, slabs",
    metrics=(
        MetricSpec("turnbuckle_memory_offered_bytes", "gauge", "memory that other hosts may still take here"),
        MetricSpec("turnbuckle_memory_held_bytes", "gauge", "slabs of other hosts held here, in bytes"),
        MetricSpec("turnbuckle_memory_evictions_total", "counter", "slabs of other hosts whose memory was wanted back"),
        MetricSpec("turnbuckle_memory_slabs", "gauge", "slabs of this host's swap devices", ("state",)),
        MetricSpec("turnbuckle_memory_requests_total", "counter", "requests of other hosts for a slab", ("outcome",)),
        MetricSpec("turnbuckle_memory_changes_total", "counter", "changes of this host's slabs", ("change",)),
        MetricSpec("turnbuckle_memory_not_mapped_total", "counter", "tries to map a slab that failed", ("cause",)),
        MetricSpec("turnbuckle_memory_failed_steps_total", "counter", "steps of the mapper that failed, tried again"),
    ),
    spans=(
        SpanSpec("memory.map", "a slab of this host's swap device mapped to remote memory", ("turnbuckle.node",)),
        SpanSpec("memory.take", "memory of this host given to another one for a slab", ("turnbuckle.node",)),
    ),
)
