"""Examples of the memory service's messages: a host that swaps, and one that has memory."""

from __future__ import annotations

from typing import Final

from schemas.message import Message
from schemas.remote_memory import MemoryHostInfo, SlabChange, SlabEvent, SlabReply, SlabRequest

_NOW: Final = 1_795_284_000_000_000_000
_ADDRESS: Final = "10.1.1.8:40123"
EXAMPLES: Final[tuple[Message, ...]] = (
    MemoryHostInfo(
        node="gpu-08",
        address=_ADDRESS,
        offered_bytes=24 << 30,
        held_bytes=8 << 30,
        free_bytes=31 << 30,
        headroom_bytes=4 << 30,
        incarnation=_NOW,
        time_ns=_NOW,
        version="0.1.0",
    ),
    SlabRequest(node="gpu-07", device="swap", slab_bytes=1 << 30),
    SlabReply(address=_ADDRESS, export="5f" * 32),
    SlabEvent(
        node="gpu-07",
        change=SlabChange.MAPPED,
        label="0c5b1f7a2d9e4b36",
        device="swap",
        slab=3,
        attempt=1,
        address=_ADDRESS,
        slab_bytes=1 << 30,
        pages_per_s=812.5,
        map_above_pages_per_s=20.0,
        time_ns=_NOW,
    ),
)
