"""A ring buffer that becomes readable when a group has used up its quota: kernel/throttles.bpf.c.

Its records hold nothing beyond the table of control groups: they are skipped, not read.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Final

_POSITION: Final = struct.Struct("=Q")


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

    def drain(self) -> None:
        """Until it rings again."""
        self._consumer_position[: _POSITION.size] = self._producer_position[: _POSITION.size]

    def close(self) -> None:
        """Close the descriptor; the loader's program ends with the loader."""
        os.close(self._descriptor)
