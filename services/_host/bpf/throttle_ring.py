"""A ring buffer that becomes readable when a group has used up its quota: kernel/throttles.bpf.c.

Its records hold nothing beyond the table of control groups: they are skipped, not read.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Final

_POSITION: Final = struct.Struct("=Q")
_RECORD_BYTES: Final = 16
"""A header of 8 bytes (BPF_RINGBUF_HDR_SZ) and the group's id."""


class ThrottleRing:
    """Owns the descriptor of the map (Documentation/bpf/ringbuf.rst: a page of the consumer's, one of the kernel's)."""

    def __init__(self, descriptor: int) -> None:
        """Map its positions. Raises OSError: it cannot be mapped; the descriptor is closed."""
        self._descriptor = descriptor
        page = mmap.PAGESIZE
        try:
            self._consumer_position = mmap.mmap(descriptor, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            self._producer_position = mmap.mmap(descriptor, page, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        except OSError:
            os.close(descriptor)
            raise

    def fileno(self) -> int:
        """Readable once a group was throttled."""
        return self._descriptor

    def drain(self) -> int:
        """Skip what has arrived: readable again at the next record. Returns how many records were skipped."""
        produced = self._producer_position[: _POSITION.size]
        skipped = _POSITION.unpack(produced)[0] - _POSITION.unpack_from(self._consumer_position)[0]
        self._consumer_position[: _POSITION.size] = produced
        return int(skipped) // _RECORD_BYTES

    def close(self) -> None:
        """Close the descriptor; the loader's program ends with the loader."""
        os.close(self._descriptor)
