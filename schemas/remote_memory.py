"""Memory of other hosts as swap: what hosts offer, requests for a slab, and what became of slabs.

The name of an export stands in the answer to its own request only, never in a bucket or an event: who has it reads and
writes the memory behind it. Its label is a digest.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field

from schemas.jobs import Name
from schemas.message import Count, Message

MAX_SLAB_BYTES: Final = 16 << 30

SlabBytes = Annotated[int, Field(ge=1 << 20, le=MAX_SLAB_BYTES)]
DeviceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,15}$")]
Address = Annotated[str, Field(max_length=300)]
"""HOST:PORT."""
Label = Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")]
"""Of an export: the first digits of its name's SHA-256; empty: there is none."""


class MemoryHostInfo(Message):
    """Registration of a host's memory service: kept in KV with a time to live."""

    type_name: ClassVar[str] = "turnbuckle.memory.v1.MemoryHostInfo"

    node: Name
    address: Address = ""
    """Of its daemon; empty: it offers nothing."""
    offered_bytes: Count = 0
    """What it would hold more."""
    held_bytes: Count = 0
    """Slabs of other hosts."""
    free_bytes: Count = 0
    """Of the host, over two readings."""
    headroom_bytes: Count = 0
    """What has to stay free there: below it slabs are evicted."""
    incarnation: Count
    time_ns: Count
    version: str = ""
    holder: str = ""
    """Random token in a lock file, as in `NodeInfo`."""


class SlabRequest(Message):
    """A host asks another one for memory for a slab of its swap device."""

    type_name: ClassVar[str] = "turnbuckle.memory.v1.SlabRequest"

    node: Name
    """Who asks: as in the subject, which the server has checked."""
    device: DeviceName
    slab_bytes: SlabBytes


class SlabReply(Message):
    """Answer to SlabRequest: an export that takes one connection, within a minute."""

    type_name: ClassVar[str] = "turnbuckle.memory.v1.SlabReply"

    address: Address
    export: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
    """The secret by which the memory is found."""


class SlabChange(StrEnum):
    """What became of a slab."""

    MAPPED = "mapped"
    """By its owner: reads go to remote memory. `pages_per_s` was above its threshold."""
    EVICTED = "evicted"
    """By its daemon: the owner has to leave within seconds. `free_bytes` was below `headroom_bytes`."""
    FALLEN_BACK = "fallen_back"
    """By its owner: the local disk alone has it again; no page is lost."""
    NOT_MAPPED = "not_mapped"
    """By its owner: it stays on the disk, although `pages_per_s` is above its threshold."""


class SlabEvent(Message):
    """What became of a slab of remote memory, and why."""

    model_config = ConfigDict(allow_inf_nan=False)  # joins the base's
    type_name: ClassVar[str] = "turnbuckle.memory.v1.SlabEvent"

    node: Name
    """Who says it."""
    change: SlabChange
    label: Label = ""
    device: Annotated[str, Field(pattern=r"^([a-z][a-z0-9]{0,15})?$")] = ""
    """Of the owner; empty: the daemon says it."""
    slab: Count = 0
    attempt: Count = 0
    """Number of the slab's mapping."""
    address: Address = ""
    """Of the daemon."""
    slab_bytes: Count = 0
    pages_per_s: Annotated[float, Field(ge=0)] = 0.0
    """Pages in and out of the slab, a moving average."""
    map_above_pages_per_s: Annotated[float, Field(ge=0)] = 0.0
    """Threshold of `pages_per_s`; 0: it has not decided this."""
    free_bytes: Count = 0
    """Of the daemon's host, over two readings."""
    headroom_bytes: Count = 0
    """Threshold of `free_bytes`; 0: it has not decided this."""
    reason: Annotated[str, Field(max_length=1_000)] = ""
    time_ns: Count
