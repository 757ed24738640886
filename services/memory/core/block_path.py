"""Tables of device mapper for a swap device: a local disk, cut into slabs, some of which have a copy elsewhere. Pure.

The disk holds for each slab two areas for the mirror's metadata and then the slab itself. A slab is one device of
device mapper, whose table is exchanged when it is mapped and back: a part of the disk (linear), or a RAID 1 of remote
memory and that part. The swap device is the slabs, one after another. Sources: the kernel's
Documentation/admin-guide/device-mapper/{linear,dm-raid}.rst.

In the mirror the disk is write-mostly with write-behind: a write ends when remote memory has it, and reads go to remote
memory, until that fails. Write-behind needs the write-intent bitmap, which is in the metadata; one region for the whole
slab keeps it quiet. Both metadata areas are on the local disk: remote memory holds pages and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SECTOR_BYTES: Final = 512
METADATA_SECTORS: Final = 2048
"""1 MiB each: superblock (4 KiB) and bitmap need less."""
LEAST_COPIED_KB_PER_S: Final = 50_000
"""From the disk while others use it: with the kernel's 1,000 a slab would take a minute."""
LEAST_COPIED_BYTES_PER_S: Final = 5_000_000
"""Of a slab that is copied, over the whole of it: a tenth of what the kernel is asked for, on a busy disk."""
LEAST_COPY_S: Final = 60.0
LEAST_SLAB_BYTES: Final = 1 << 20
MOST_SLAB_BYTES: Final = 16 << 30
MOST_WRITE_BEHIND: Final = 4096
"""Twice the writes of a slab that may wait for the disk: dm-raid takes sectors, of which md takes half as writes."""


class LayoutError(Exception):
    """A disk that cannot be cut like this; the message holds the figures."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A disk cut into slabs."""

    disk: str
    """Path of the block device."""
    slab_bytes: int
    slabs: int

    @property
    def slab_sectors(self) -> int:
        """Length of one slab."""
        return self.slab_bytes // SECTOR_BYTES

    def start(self, slab: int) -> int:
        """The first sector of a slab's part of the disk, which begins with its metadata."""
        return slab * (2 * METADATA_SECTORS + self.slab_sectors)

    def disk_table(self, slab: int) -> str:
        """The slab's part of the disk."""
        return f"0 {self.slab_sectors} linear {self.disk} {self.start(slab) + 2 * METADATA_SECTORS}"

    def metadata_table(self, slab: int, half: int) -> str:
        """Metadata of the mirror's remote (0) or local (1) half."""
        return f"0 {METADATA_SECTORS} linear {self.disk} {self.start(slab) + half * METADATA_SECTORS}"

    def alone_table(self, half: str) -> str:
        """A slab that uses one device alone, usually its part of the disk."""
        return f"0 {self.slab_sectors} linear {half} 0"

    def mirror_table(self, halves: tuple[str, str], metadata: tuple[str, str]) -> str:
        """RAID 1 of remote memory, which is rebuilt from the disk, and the disk.

        With one half that is not in sync the kernel takes the other one as it is (raid1_run), and copies it; ``nosync``
        beside ``rebuild`` is refused.

        Args:
            halves: paths of the remote and the local block device.
            metadata: paths of their metadata areas, which begin with zeroes.
        """
        parameters = (
            *("0", "rebuild", "0", "write_mostly", "1"),
            *("max_write_behind", str(MOST_WRITE_BEHIND), "region_size", str(self._region_sectors)),
            *("min_recovery_rate", str(LEAST_COPIED_KB_PER_S)),
        )
        devices = f"2 {metadata[0]} {halves[0]} {metadata[1]} {halves[1]}"
        return f"0 {self.slab_sectors} raid raid1 {len(parameters)} {' '.join(parameters)} {devices}"

    def swap_table(self, slabs: tuple[str, ...]) -> str:
        """All slabs in a row; a line per slab.

        Args:
            slabs: paths of their devices, in order.
        """
        size = self.slab_sectors
        return "\n".join(f"{index * size} {size} linear {path} 0" for index, path in enumerate(slabs))

    @property
    def _region_sectors(self) -> int:
        """The largest power of two that is not above the slab."""
        return 1 << (self.slab_sectors.bit_length() - 1)


def cut(disk: str, disk_bytes: int, slab_bytes: int, size_bytes: int | None = None) -> Layout:
    """As many slabs as a disk has room for, or as hold `size_bytes`.

    Raises:
        LayoutError: a size that does not do.
    """
    if not LEAST_SLAB_BYTES <= slab_bytes <= MOST_SLAB_BYTES or slab_bytes % LEAST_SLAB_BYTES:
        allowed = f"a multiple of {LEAST_SLAB_BYTES}, and at most {MOST_SLAB_BYTES}"
        raise LayoutError(f"a slab of {slab_bytes} bytes: its size has to be {allowed}")
    needed = slab_bytes + 2 * METADATA_SECTORS * SECTOR_BYTES
    if disk_bytes < needed:
        raise LayoutError(f"{disk} has {disk_bytes} bytes: a slab and its metadata need {needed}")
    room = disk_bytes // needed
    slabs = room if size_bytes is None else -(-size_bytes // slab_bytes)
    if not 0 < slabs <= room:
        has = f"{disk} has room for {room} slabs of {slab_bytes} bytes with their metadata"
        raise LayoutError(f"{has}; {size_bytes} bytes need {slabs}")
    return Layout(disk, slab_bytes, slabs)


def usual_slab_bytes(size_bytes: int) -> int:
    """The size of a slab where none is asked for: some 16 to 64 of them, of 64 MiB to 1 GiB."""
    return min(1 << 30, max(64 << 20, 1 << max(0, (size_bytes // 32).bit_length() - 1)))


def copied_within_s(slab_bytes: int) -> float:
    """How long the copy of a slab to remote memory may take.

    The kernel bounds a request only: a daemon that answers each just in time would keep a copy unfinished for hours,
    and other slabs waiting behind it.
    """
    return max(LEAST_COPY_S, slab_bytes / LEAST_COPIED_BYTES_PER_S)


@dataclass(frozen=True, slots=True)
class MirrorHealth:
    """A mirror as the kernel has it."""

    remote_alive: bool
    synchronized: bool
    """Remote memory has every page."""
    disk_alive: bool


def read_health(status: str) -> MirrorHealth | None:
    """The health of a mirror from the line of ``dmsetup status``; None: the device is no mirror.

    Raises:
        LayoutError: it is a line of another form.
    """
    words = status.split()
    if len(words) > 2 and words[2] == "linear":
        return None
    if len(words) < 8 or words[2:5] != ["raid", "raid1", "2"] or len(words[5]) != 2:
        raise LayoutError(f"no status of a mirror: {status!r}")
    remote, disk = words[5][0], words[5][1]
    return MirrorHealth(remote != "D", remote == "A", disk == "A")
