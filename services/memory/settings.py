"""Settings of the memory service. Every field is a variable ``TURNBUCKLE_MEMORY__<FIELD>``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Final, Self

from pydantic import ByteSize, Field, model_validator

from schemas.sizes import MemorySize
from services._runtime.service.settings import NodeSettings
from services.memory.core.placing import MAP_ABOVE_PAGES_PER_S

STATE_DIRECTORY: Final = Path("/run/turnbuckle/memory")


class MemorySettings(NodeSettings):
    """What the memory service needs to know."""

    service: ClassVar[str] = "memory"

    offer_bytes: Annotated[
        MemorySize,
        Field(ge=0, description="memory for other hosts' swap at most, such as 32GiB; 0: this host offers none"),
    ] = ByteSize(0)
    address: Annotated[
        str,
        Field(
            max_length=200,
            description="address that the daemon listens on and others connect to; needed where memory is offered. "
            "Pages cross this network as they are: it has to be trusted",
        ),
    ] = ""
    port: Annotated[int, Field(ge=0, le=65_535, description="port of the daemon; 0: any free one")] = 0
    headroom_bytes: Annotated[
        MemorySize,
        Field(ge=0, description="memory of this host that stays free: below it other hosts' slabs are evicted"),
    ] = ByteSize(2 << 30)
    per_host_bytes: Annotated[
        MemorySize | None,
        Field(ge=1 << 20, description="of the offered memory, what one host may hold; default: half of it"),
    ] = None
    trusted_hosts: Annotated[
        tuple[str, ...],
        Field(
            description="hosts that this one's swapped pages may go to, by their names on the bus; *: all that offer "
            "memory. Without any nothing leaves this host: who holds a page can read and change it"
        ),
    ] = ()
    map_above_pages_per_s: Annotated[
        float,
        Field(ge=0, le=1e6, description="a slab that swaps more than this, in and out, goes to remote memory"),
    ] = MAP_ABOVE_PAGES_PER_S
    state_directory: Annotated[
        Path,
        Field(
            description="where `turnbuckle swap` records swap devices; on a tmpfs, since the kernel forgets them, too"
        ),
    ] = STATE_DIRECTORY

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.offer_bytes and not self.address:
            raise ValueError("offer_bytes needs address: where other hosts reach this one")
        if self.address in {"0.0.0.0", "::", "[::]"}:  # noqa: S104 - refused
            raise ValueError(f"address {self.address}: others cannot connect to it; name an address of this host")
        return self

    @property
    def trusts_all(self) -> bool:
        """Whether pages may go to every host that offers memory."""
        return "*" in self.trusted_hosts

    @property
    def most_per_host_bytes(self) -> int:
        """What one host may hold."""
        return self.per_host_bytes if self.per_host_bytes is not None else self.offer_bytes // 2
