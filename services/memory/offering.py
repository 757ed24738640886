"""A daemon's slabs: taken by consumers on other hosts, given up when a connection ends or this host needs its memory.

A slab is found by its name, which only the one who took it knows; everything else names it by its label, a digest of
the name. It is held for as long as its one connection, and for `UNCONNECTED_S` before it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from services.memory.adapters.locked_memory import LockedMemory, LockedMemoryError
from services.memory.adapters.nbd_server import Export, NbdServer
from services.memory.core.block_path import MOST_SLAB_BYTES
from services.memory.core.evicting import Eviction, FreeMemory, HeldSlab, evict, offered_bytes
from services.memory.core.mapping import export_label
from services.memory.core.placing import Activity

NAME_BYTES: Final = 32
UNCONNECTED_S: Final = 60.0
"""After a slab was taken its owner has so long to connect."""
LEAVE_WITHIN_S: Final = 5.0
"""An owner that is asked to leave has so long to use its disk alone. One that stays loses no page, but waits until the
kernel has noticed the end of the connection."""
READ_EVERY_S: Final = 1.0
"""Free memory and activity."""


class OfferError(Exception):
    """A slab cannot be taken, or is not held; the message holds the figures."""


@dataclass(slots=True)
class _Slab:
    name: bytes
    label: str
    owner: str
    export: Export
    activity: Activity
    counted_pages: int
    timer: asyncio.TimerHandle
    """Until it is given up without an owner, or although it has one."""
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """What a daemon holds, and what it would hold more."""

    address: str
    offered_bytes: int
    free_bytes: int
    """Of the host, smoothed."""
    headroom_bytes: int
    slabs: tuple[HeldSlab, ...]
    leaving: tuple[str, ...]
    """Labels of slabs whose owners are asked to leave."""


class Offering:
    """The slabs of one daemon."""

    def __init__(
        self,
        limit_bytes: int,
        headroom_bytes: int,
        free_bytes: Callable[[], int | None],
        per_owner_bytes: int | None = None,
    ) -> None:
        """Nothing is offered before `start`.

        Args:
            limit_bytes: offered at most.
            headroom_bytes: what has to stay free.
            free_bytes: reads what is free; None: it cannot be read.
            per_owner_bytes: what one owner may hold; None: all of it.

        Raises:
            OfferError: free memory cannot be read.
        """
        free = free_bytes()
        if free is None:
            raise OfferError("this host's free memory cannot be read: /proc/meminfo has no MemAvailable")
        self._limit_bytes = limit_bytes
        self._per_owner_bytes = limit_bytes if per_owner_bytes is None else per_owner_bytes
        self._headroom_bytes = headroom_bytes
        self._read_free_bytes = free_bytes
        self._free = FreeMemory(free, free)
        self._free_known = True
        self._server = NbdServer()
        self._slabs: dict[str, _Slab] = {}
        self._being_taken: Counter[str] = Counter()
        """Bytes by owner."""
        self._taken_since_bytes = 0
        """Since the last reading of free memory, which has none of it or a part."""
        self._reading: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT, once it listens."""
        return self._server.address

    async def start(self, host: str, port: int) -> None:
        """Listen, and give slabs up whenever the host needs memory.

        Raises:
            OSError: it cannot listen there.
        """
        await self._server.start(host, port)
        self._reading = asyncio.create_task(self._read_for_ever())

    async def stop(self) -> None:
        """Give everything up."""
        if self._reading is not None:
            self._reading.cancel()
        await self._server.stop()
        for label in list(self._slabs):
            self._free_slab(label)

    async def take(self, slab_bytes: int, owner: str) -> str:
        """A new slab; returns the name under which one connection finds it, in hexadecimal digits.

        Raises:
            OfferError: it does not fit into what is offered, or into what one owner may hold.
        """
        offered = self.offer().offered_bytes
        if not 0 < slab_bytes <= MOST_SLAB_BYTES or slab_bytes > offered:
            raise OfferError(
                f"{slab_bytes} bytes are asked; {offered} are offered, a slab has at most {MOST_SLAB_BYTES}"
            )
        held = sum(slab.export.size_bytes for slab in self._slabs.values() if slab.owner == owner)
        if held + self._being_taken[owner] + slab_bytes > self._per_owner_bytes:
            raise OfferError(
                f"{owner} holds {held} bytes and asks for {slab_bytes}; one host may hold {self._per_owner_bytes}"
            )
        self._being_taken[owner] += slab_bytes
        self._taken_since_bytes += slab_bytes
        try:
            memory = await asyncio.to_thread(LockedMemory, slab_bytes)
        except LockedMemoryError as error:
            raise OfferError(str(error)) from error
        finally:
            self._being_taken[owner] -= slab_bytes
        name = secrets.token_hex(NAME_BYTES)
        label = export_label(name)
        timer = asyncio.get_running_loop().call_later(UNCONNECTED_S, self._give_up_unconnected, label)
        export = Export(memory, lambda: self._free_slab(label))
        self._slabs[label] = _Slab(name.encode(), label, owner, export, Activity(), 0, timer)
        self._server.add(name.encode(), export)
        return name

    def leave(self, label: str) -> None:
        """Ask a slab's owner to leave, and give the slab up soon; again: nothing more.

        Raises:
            OfferError: it is not held.
        """
        if (slab := self._slabs.get(label)) is None:
            raise OfferError(f"no slab {label} is held")
        if slab.leaving:
            return
        slab.leaving = True
        slab.timer.cancel()
        if not slab.export.connected:
            self._free_slab(label)
            return
        slab.timer = asyncio.get_running_loop().call_later(LEAVE_WITHIN_S, slab.export.abort)

    def offer(self) -> Offer:
        """As of the last reading, less what was taken since."""
        held = sum(slab.export.size_bytes for slab in self._slabs.values()) + self._being_taken.total()
        room = offered_bytes(self._free, self._headroom_bytes) - self._taken_since_bytes if self._free_known else 0
        return Offer(
            self.address,
            max(0, min(self._limit_bytes - held, room)),
            self._free.smoothed_bytes,
            self._headroom_bytes,
            tuple(_held(slab) for slab in self._slabs.values()),
            tuple(slab.label for slab in self._slabs.values() if slab.leaving),
        )

    def read(self, elapsed_s: float) -> Eviction:
        """Read free memory and activity, and have slabs leave where the headroom is short; returns what was decided."""
        reading = self._read_free_bytes()
        self._free_known = reading is not None
        if reading is not None:  # otherwise nothing more is offered, and nothing that is held is given up
            self._free = self._free.then(reading)
            self._taken_since_bytes = self._being_taken.total()
        for slab in self._slabs.values():
            slab.activity = slab.activity.after(slab.export.pages - slab.counted_pages, elapsed_s)
            slab.counted_pages = slab.export.pages
        leaving_bytes = sum(slab.export.size_bytes for slab in self._slabs.values() if slab.leaving)
        staying = [_held(slab) for slab in self._slabs.values() if not slab.leaving]
        decision = evict(staying, self._free, self._headroom_bytes - leaving_bytes)
        for label in decision.names:
            self.leave(label)
        return decision

    async def _read_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        while True:
            await asyncio.sleep(READ_EVERY_S)
            now_s = loop.time()
            self.read(now_s - before_s)
            before_s = now_s

    def _give_up_unconnected(self, label: str) -> None:
        slab = self._slabs.get(label)
        if slab is not None and not slab.export.connected:
            self._free_slab(label)

    def _free_slab(self, label: str) -> None:
        slab = self._slabs.pop(label)
        slab.timer.cancel()
        self._server.remove(slab.name)
        present_bytes = slab.export.memory.present_bytes()  # what was trimmed is free, and was read as free
        slab.export.memory.close()
        self._free = self._free.freed(present_bytes)


def _held(slab: _Slab) -> HeldSlab:
    return HeldSlab(slab.label, slab.owner, slab.export.size_bytes, slab.export.connected, slab.activity.pages_per_s)
