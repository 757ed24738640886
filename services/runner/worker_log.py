"""A worker's log: kept within bounds by freeing its oldest blocks, read in parts.

The worker appends to the file by itself. Where the file system can (ext4, XFS, Btrfs, tmpfs), the oldest half is freed
in place: offsets stay what they are, so a reader that follows the log loses nothing. Elsewhere the file is emptied.
Standard library only: the shim bounds it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

_KEEP_SIZE: Final = 0x01
_PUNCH_HOLE: Final = 0x02
"""Modes of fallocate(2)."""
_BLOCK_BYTES: Final = 4096
_ALLOCATED_UNIT_BYTES: Final = 512
"""Of ``st_blocks`` (stat(2))."""
REMOVED: Final = "[the oldest output was removed]\n"


class LogPart(NamedTuple):
    """A part of a log."""

    text: str
    next_offset: int
    at_end: bool


def bound_log(path: Path, most_bytes: int) -> None:
    """Free the oldest blocks of a log that takes more than this on the disk, so that half of it is left."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        status = os.fstat(descriptor)
        if status.st_blocks * _ALLOCATED_UNIT_BYTES <= most_bytes:
            return
        freed = (status.st_size - most_bytes // 2) // _BLOCK_BYTES * _BLOCK_BYTES
        if freed > 0 and not _punch_hole(descriptor, freed):
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _punch_hole(descriptor: int, length: int) -> bool:
    """Free the first bytes; False: this file system cannot."""
    import ctypes  # noqa: PLC0415 - most logs never grow so large

    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_int(descriptor), ctypes.c_int(_KEEP_SIZE | _PUNCH_HOLE), ctypes.c_int64(0))
    return bool(libc.fallocate64(*arguments, ctypes.c_int64(length)) == 0)


def read_log(path: Path, offset: int, lines: int, most_bytes: int) -> LogPart:
    """Read from a byte on, or (offset -1) the last lines; of `most_bytes` at most.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        first = _first_byte(descriptor, size)
        begin = max(first, size - most_bytes) if offset < 0 else min(max(offset, first), size)
        content = os.pread(descriptor, min(most_bytes, size - begin), begin)
    finally:
        os.close(descriptor)
    if offset < 0:
        content, begin = _last_lines(content, lines, begin, first)
        return LogPart(_decoded(content), begin + len(content), at_end=True)
    whole = content if begin + len(content) == size else _whole_characters(content)
    note = REMOVED if offset < first else ""
    return LogPart(note + _decoded(whole), begin + len(whole), at_end=begin + len(whole) == size)


def _first_byte(descriptor: int, size: int) -> int:
    """Where what was not freed begins."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError:  # ENXIO: it is empty
        return size


def _last_lines(content: bytes, lines: int, begin: int, first: int) -> tuple[bytes, int]:
    parts = content.splitlines(keepends=True)
    if begin > first and parts:
        parts = parts[1:] or parts  # the first one may be a part of a line
    kept = b"".join(parts[max(0, len(parts) - lines) :] if lines else ())
    return kept, begin + len(content) - len(kept)


def _whole_characters(content: bytes) -> bytes:
    """Without the beginning of a character (UTF-8) at its end."""
    for length in range(1, 4):
        if length <= len(content) and (lead := content[-length]) >= 0xC0:
            wanted = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return content[:-length] if wanted > length else content
    return content


def _decoded(content: bytes) -> str:
    return content.decode(errors="replace")
