"""A consumer's swap device: made of a local disk, its slabs mapped to remote memory and back, and undone.

Everything that is made bears the swap device's name: devices of device mapper in their names and UUIDs, connections
of NBD in their identifiers. So whatever a crash has left is found and undone in reverse order, finished or not; what
others have made under the same names has other UUIDs, and is left alone.

    NAME                    the swap device: slabs in a row
    NAME-3                  slab 3: its part of the disk alone, or a mirror of remote memory and that part
    NAME-3-disk             slab 3's part of the disk
    NAME-3-meta0, -meta1    metadata of the mirror, while there is one
    TURNBUCKLE-NAME-3       its UUID, of each device so
    TURNBUCKLE-NAME:3:7     identifier of the NBD device of slab 3's seventh attempt
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol

from services.memory.adapters.device_mapper import UUID_PREFIX, path_of
from services.memory.adapters.nbd_device import NbdDeviceError
from services.memory.adapters.page_io import pages_moved
from services.memory.adapters.programs import ProgramError
from services.memory.core.block_path import Layout, LayoutError, cut, read_health
from services.memory.core.mapping import (
    Chosen,
    Event,
    Lost,
    Restarted,
    Slab,
    State,
    Step,
    Switched,
    Synchronized,
    apply,
    export_label,
)
from services.memory.core.nbd import NbdError
from services.memory.journal import Journal, Record

_MAPPED: Final = frozenset({State.MAPPING, State.REMOTE})
NAME: Final = re.compile(r"[a-z][a-z0-9]{0,15}")
PRIORITY: Final = 100
"""Above areas on disks, which the kernel gives negative ones."""
_METADATA_ZEROED_BYTES: Final = 64 << 10
"""Superblock and bitmap: the kernel would take an earlier attempt's for its own."""


class SwapDeviceError(Exception):
    """What was asked does not fit the state of the swap device; the message says what would help."""


class UnusableExportError(SwapDeviceError):
    """A daemon's export cannot be reached, or is another one than it was asked for."""


_STEP_ERRORS: Final = (SwapDeviceError, ProgramError, NbdDeviceError, LayoutError, OSError)


class Devices(Protocol):
    """Device mapper."""

    def create(self, name: str, table: str) -> None:
        """Make a device."""

    def reload(self, name: str, table: str) -> None:
        """Exchange the table of a device in use."""

    def remove(self, name: str) -> None:
        """Remove a device, if it is there."""

    def mirrors(self) -> dict[str, str]:
        """Status lines of all that are RAID, by name."""

    def names(self, prefix: str) -> list[str]:
        """Our devices whose name begins like this."""

    def foreign(self, prefix: str) -> list[str]:
        """Devices of others whose name begins like this."""


class SwapAreas(Protocol):
    """Swap areas."""

    def make(self, device: str) -> None:
        """Write the header."""

    def on(self, device: str, priority: int) -> None:
        """Swap to it."""

    def off(self, device: str) -> None:
        """Swap to it no more."""


class RemoteMemory(Protocol):
    """Exports of daemons as block devices."""

    def connect(self, address: str, export: str, identifier: str) -> tuple[str, int]:
        """Path and size in bytes of the block device."""

    def connected(self, prefix: str) -> dict[int, str]:
        """Identifiers that begin like this, by the device's number."""

    def silent(self, identifiers: Collection[str]) -> set[str]:
        """Those without a connection, or whose daemon does not answer; it takes seconds."""

    def disconnect(self, index: int) -> None:
        """End a connection."""


class Disk(Protocol):
    """Block devices as files."""

    def size_bytes(self, path: str) -> int:
        """Its size."""

    def refusal(self, path: str) -> str:
        """Why it cannot be used, whatever is on it; empty: it can."""

    def content(self, path: str) -> str:
        """What a file system, partition table or the like on it says that it is; empty: nothing known."""

    def erase(self, path: str) -> None:
        """Erase what `content` may find."""

    def zero(self, path: str, size_bytes: int) -> None:
        """Zero its beginning."""


@dataclass(frozen=True, slots=True)
class Host:
    """What a swap device is made with."""

    devices: Devices
    swap: SwapAreas
    remote: RemoteMemory
    disk: Disk
    wait: Callable[[float], None] = time.sleep
    count_pages: Callable[[str], int] = pages_moved
    """In and out of a block device since it was made."""


def check_name(name: str) -> None:
    """Refuse a name that does not do for a swap device: devices and files are made under it.

    Raises:
        SwapDeviceError: so it is.
    """
    if NAME.fullmatch(name) is None:
        raise SwapDeviceError(f"{name!r} is no name of a swap device: a small letter, then up to 15 letters and digits")


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be done for a slab; it is tried again at the next call."""

    slab: int
    error: str


class SwapDevice:
    """One swap device of this host. Every method blocks; one at a time, but for `silent`."""

    def __init__(self, name: str, journal: Journal, host: Host) -> None:
        """Its record is read: what it says may be half done, see `recover`.

        Raises:
            SwapDeviceError: a name that does not do.
            JournalError: the journal cannot be read.
        """
        check_name(name)
        self.name = name
        self._journal = journal
        self._host = host
        self._record = journal.read()

    @property
    def record(self) -> Record | None:
        """Layout and slabs; None: nothing is made."""
        return self._record

    def attach(self, disk: str, slab_bytes: int, *, size_bytes: int | None = None, overwrite: bool = False) -> Record:
        """Make a swap device of a whole disk or partition, and swap to it; its slabs are on the disk alone.

        Args:
            disk: path of the block device.
            slab_bytes: size of a slab.
            size_bytes: of the swap device, in whole slabs, rounded up; None: as many as the disk has room for.
            overwrite: also where the disk holds something that is known, such as a file system: its signatures are
                erased first, since the swap area, which begins further behind, would leave them.

        Raises:
            SwapDeviceError: there is one of this name; the disk is in use; or it holds something and not `overwrite`.
            LayoutError: the disk is too small.
            ProgramError, NbdDeviceError, JournalError, OSError: a step failed; those before it are undone.
        """
        if self._record is not None or self._made():
            raise SwapDeviceError(f"swap device {self.name} is there, or was not undone: detach it first")
        if foreign := [name for name in self._host.devices.foreign(self.name) if self._bears(name)]:
            raise SwapDeviceError(f"device mapper has {foreign[0]}, which is not ours: choose another name")
        if refusal := self._host.disk.refusal(disk):
            raise SwapDeviceError(f"{disk} {refusal}")
        if not overwrite and (content := self._host.disk.content(disk)):
            raise SwapDeviceError(f"{disk} holds {content}, which would be lost: choose another disk, or use --force")
        layout = cut(disk, self._host.disk.size_bytes(disk), slab_bytes, size_bytes)
        if overwrite:
            self._host.disk.erase(disk)
        record = Record(layout, tuple(map(Slab, range(layout.slabs))), attached=False)
        self._write(record)
        try:
            self._make(layout)
            return self._write(Record(layout, record.slabs, attached=True))
        except BaseException:
            self.detach()
            raise

    def _make(self, layout: Layout) -> None:
        devices, top = self._host.devices, path_of(self.name)
        for number in range(layout.slabs):
            devices.create(self._part(number), layout.disk_table(number))
            devices.create(self._slab(number), layout.alone_table(path_of(self._part(number))))
        devices.create(self.name, layout.swap_table(tuple(path_of(self._slab(n)) for n in range(layout.slabs))))
        self._host.swap.make(top)
        self._host.swap.on(top, PRIORITY)

    def detach(self) -> None:
        """Undo everything that bears this name, in reverse order, whether it was finished or not.

        Raises:
            ProgramError: memory is short for the pages that are swapped out, or a device is in use; what is left can be
                undone by another call.
            NbdDeviceError, JournalError: as they say.
        """
        if self._record is not None and self._record.attached:
            self._write(Record(self._record.layout, self._record.slabs, attached=False))
        made = self._made()
        if self.name in made:
            self._host.swap.off(path_of(self.name))
        for name in made:
            self._host.devices.remove(name)
        for index in self._host.remote.connected(f"{UUID_PREFIX}{self.name}:"):
            self._host.remote.disconnect(index)
        self._journal.remove()
        self._record = None

    def map_slab(self, number: int, daemon: str, export: str, host: str = "") -> Slab:
        """Mirror a slab to remote memory; reads go there once it is synchronized, which `advance` finds.

        Args:
            number: of the slab.
            daemon: HOST:PORT.
            export: the name that the daemon has given.
            host: the daemon's, by its name on the bus.

        Raises:
            SwapDeviceError: the slab is mapped already.
            UnusableExportError: the export cannot be reached, or has another size; the slab uses its disk.
            NbdDeviceError, ProgramError, OSError: a step failed; the slab uses its disk.
        """
        record = self._present()
        if self.slab(number).state not in {State.UNMAPPED, State.DISK}:
            raise SwapDeviceError(f"slab {number} of {self.name} is {self.slab(number).state.value}")
        slab = self._take(number, Chosen(daemon, export_label(export), host))
        try:
            self._build(record.layout, slab, export)
        except BaseException as error:
            self._take(number, Lost(slab.attempt, f"it could not be mapped: {error}"))
            self.take_apart(number)
            raise
        return slab

    def _build(self, layout: Layout, slab: Slab, export: str) -> None:
        try:
            remote, size_bytes = self._host.remote.connect(slab.daemon, export, self._identifier(slab))
        except (NbdError, OSError) as error:
            raise UnusableExportError(f"{slab.daemon}: {error}") from error
        if size_bytes != layout.slab_bytes:
            raise UnusableExportError(f"the export has {size_bytes} bytes, a slab of {self.name} {layout.slab_bytes}")
        metadata = self._metadata(slab.number)
        for half, name in enumerate(metadata):
            self._host.devices.create(name, layout.metadata_table(slab.number, half))
            self._host.disk.zero(path_of(name), _METADATA_ZEROED_BYTES)
        halves = (remote, path_of(self._part(slab.number)))
        paths = (path_of(metadata[0]), path_of(metadata[1]))
        self._host.devices.reload(self._slab(slab.number), layout.mirror_table(halves, paths))

    def take_apart(self, number: int) -> Slab:
        """Use the disk alone, and end the connection: what was half built is undone, too.

        Raises:
            SwapDeviceError: the slab is not draining, or its disk has failed: what is on the disk is old.
            ProgramError, NbdDeviceError, LayoutError: a step failed; another call begins anew.
        """
        slab, devices = self.slab(number), self._host.devices
        if slab.step is not Step.TAKE_APART:
            raise SwapDeviceError(f"slab {number} of {self.name} is {slab.state.value}")
        self._check_disk(slab, devices.mirrors().get(self._slab(number)))
        devices.reload(self._slab(number), self._present().layout.alone_table(path_of(self._part(number))))
        for name in self._metadata(number):
            devices.remove(name)
        for index in self._host.remote.connected(f"{UUID_PREFIX}{self.name}:{number}:"):
            self._host.remote.disconnect(index)
        return self._take(number, Switched(slab.attempt))

    def apply(self, number: int, event: Event) -> Slab:
        """Take an event from outside, such as an eviction; what it asks for is carried out by `advance`."""
        return self._take(number, event)

    def advance(self) -> list[Failure]:
        """Compare every mapped slab with the kernel, and take apart what has to be; what failed does not stop others.

        Raises:
            ProgramError: the kernel's mirrors cannot be listed.
            JournalError: what was to happen next cannot be written.
        """
        slabs = self._present().slabs
        mirrors = self._host.devices.mirrors() if any(slab.state in _MAPPED for slab in slabs) else {}
        failures = []
        for slab in slabs:
            try:
                if slab.state in _MAPPED:
                    self._compare(slab, mirrors.get(self._slab(slab.number)))
                if self.slab(slab.number).step is Step.TAKE_APART:
                    self.take_apart(slab.number)
            except _STEP_ERRORS as error:
                failures.append(Failure(slab.number, str(error)))
        return failures

    def _compare(self, slab: Slab, status: str | None) -> None:
        health = read_health(status) if status is not None else None
        if health is None:
            self._take(slab.number, Lost(slab.attempt, "the kernel has no mirror of it"))
        elif not health.remote_alive:
            self._take(slab.number, Lost(slab.attempt, "a request to the daemon has failed"))
        elif health.synchronized:
            self._take(slab.number, Synchronized(slab.attempt))
        self._check_disk(slab, status)

    def _check_disk(self, slab: Slab, status: str | None) -> None:
        """A mirror writes no more to a disk that has failed a write: with the disk alone, old pages would be read.

        Raises:
            SwapDeviceError: it has.
        """
        health = read_health(status) if status is not None else None
        if health is not None and not health.disk_alive:
            raise SwapDeviceError(
                f"the disk has failed a write, and pages since then are at {slab.daemon} alone, while that answers: "
                f"turnbuckle swap detach {self.name} reads them back"
            )

    def silent(self) -> list[Slab]:
        """Mapped slabs whose daemon does not answer: a mirror finds out by its next request, perhaps hours later.

        Takes seconds where one is silent, changes nothing, and may run beside other methods.
        """
        mapped = {self._identifier(slab): slab for slab in self._present().slabs if slab.state in _MAPPED}
        return [mapped[identifier] for identifier in sorted(self._host.remote.silent(mapped))] if mapped else []

    def wait_until_synchronized(self, number: int, within_s: float, every_s: float = 0.1) -> Slab:
        """Until a mapped slab is read from remote memory, or has fallen back to its disk.

        Raises:
            TimeoutError: neither, in this time.
            SwapDeviceError: a step of this slab failed.
            ProgramError: as of `advance`.
        """
        for _ in range(max(1, round(within_s / every_s))):
            if failed := [failure.error for failure in self.advance() if failure.slab == number]:
                raise SwapDeviceError(f"slab {number} of {self.name}: {failed[0]}")
            if self.slab(number).state is not State.MAPPING:
                return self.slab(number)
            self._host.wait(every_s)
        raise TimeoutError(f"slab {number} of {self.name} is not synchronized within {within_s:g} s")

    def recover(self) -> list[Failure]:
        """After a start: undo what was not finished, and go on with what was; returns what `advance` does.

        Raises:
            ProgramError, NbdDeviceError, JournalError: a step failed; another call begins anew.
        """
        if self._record is None or not self._record.attached:
            self.detach()
            return []
        for slab in self._record.slabs:
            self._take(slab.number, Restarted())
        return self.advance()

    def pages(self) -> dict[int, int]:
        """Pages in and out of each slab since the swap device was made.

        Raises:
            OSError: its devices are not there.
        """
        return {slab.number: self._host.count_pages(path_of(self._slab(slab.number))) for slab in self._present().slabs}

    def slab(self, number: int) -> Slab:
        """A slab's state.

        Raises:
            SwapDeviceError: there is none of this number.
        """
        slabs = self._present().slabs
        if not 0 <= number < len(slabs):
            raise SwapDeviceError(f"{self.name} has slabs 0 to {len(slabs) - 1}, no slab {number}")
        return slabs[number]

    def _take(self, number: int, event: Event) -> Slab:
        """Apply an event; a new state is written before it is carried out."""
        before = self.slab(number)
        slab = apply(before, event)
        if slab != before:
            self._write(self._present().with_slab(slab))
        return slab

    def _write(self, record: Record) -> Record:
        self._journal.write(record)
        self._record = record
        return record

    def _present(self) -> Record:
        if self._record is None:
            raise SwapDeviceError(f"there is no swap device {self.name}: attach one first")
        return self._record

    def _made(self) -> list[str]:
        """Our devices of this name in the order in which they can be removed."""
        found = [match for name in self._host.devices.names(self.name) if (match := self._bears(name)) is not None]
        return [match[0] for match in sorted(found, key=lambda match: (bool(match[1]), bool(match[3]), match[0]))]

    def _bears(self, name: str) -> re.Match[str] | None:
        return re.fullmatch(rf"{self.name}(-(\d+)(-disk|-meta[01])?)?", name)

    def _slab(self, number: int) -> str:
        return f"{self.name}-{number}"

    def _part(self, number: int) -> str:
        return f"{self.name}-{number}-disk"

    def _metadata(self, number: int) -> tuple[str, str]:
        return f"{self.name}-{number}-meta0", f"{self.name}-{number}-meta1"

    def _identifier(self, slab: Slab) -> str:
        return f"{UUID_PREFIX}{self.name}:{slab.number}:{slab.attempt}"
