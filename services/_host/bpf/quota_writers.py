"""The last writer of each CPU quota: the map that kernel/writers.bpf.c fills, read by control group."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from typing import Final

from services._host.bpf.records import (
    WRITER,
    WRITER_COMM_BYTES,
    WRITER_LEVELS,
    WRITER_NAME_BYTES,
)
from services._host.bpf.syscall import bpf
from services._host.cgroup_snapshot import QuotaWriter

_LOOKUP: Final = 1
_LOOKUP_AND_DELETE: Final = 21
"""BPF_MAP_LOOKUP_ELEM and BPF_MAP_LOOKUP_AND_DELETE_ELEM of bpf(2); neither needs a capability."""
_LEFT_OUT: Final = "..."


class _Element(ctypes.Structure):
    """The part of ``union bpf_attr`` that these commands have."""

    _fields_ = (
        ("map", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class QuotaWriters:
    """Owns the descriptor of the map."""

    def __init__(self, descriptor: int) -> None:
        """Try it. Raises OSError: it cannot be read; the descriptor is closed."""
        self._descriptor = descriptor
        try:
            self._read(_LOOKUP, group_id=0)
        except OSError:
            self.close()
            raise

    def take(self, group_id: int) -> QuotaWriter | None:
        """The last writer of a cgroup's quota since the agent's own write; removes the entry. None: there is none."""
        with suppress(OSError):
            value = self._read(_LOOKUP_AND_DELETE, group_id)
            return None if value is None else decode(value)
        return None

    def _read(self, command: int, group_id: int) -> bytes | None:
        """None: there is no such entry. Raises OSError."""
        key, value = ctypes.c_uint64(group_id), ctypes.create_string_buffer(WRITER.size)
        element = _Element(self._descriptor, ctypes.addressof(key), ctypes.addressof(value), 0)
        try:
            bpf(command, element)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return value.raw

    def close(self) -> None:
        """The loader's programs end with the loader, and the map with this."""
        os.close(self._descriptor)


def decode(value: bytes) -> QuotaWriter:
    """``struct tb_writer`` as a value. Processes choose their names: untrusted text (see `_printable`)."""
    pid, levels, comm, names = WRITER.unpack(value)
    parts = [names[at : at + WRITER_NAME_BYTES] for at in range(0, len(names), WRITER_NAME_BYTES)]
    path = [_printable(name) for name in reversed(parts[:levels])]
    if levels > WRITER_LEVELS:
        path.insert(0, _LEFT_OUT)
    return QuotaWriter(pid, _printable(comm[:WRITER_COMM_BYTES]), "/".join(path) or "/")


def _printable(text: bytes) -> str:
    """Up to the first NUL; what is no UTF-8 or cannot be printed (controls, directions of writing) is escaped."""
    decoded = text.partition(b"\0")[0].decode(errors="backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in decoded)
