"""Control files kept open: read by `os.pread`, written by `os.pwrite`, with the kernel's refusals turned into values.

Opening a file for every reading costs 7 to 14 times as much as `pread` on a kept descriptor.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import numpy as np

from services._host.cgroup_snapshot import COUNTER_COLUMNS, Counters, CounterSnapshot, WriteOutcome

CLOSED: Final = -1
"""In place of a closed descriptor: a number that can never name another file."""
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_GONE: Final = frozenset({errno.ENODEV, errno.ENOENT, errno.EBADF, errno.ESRCH})
"""ENODEV: the group was removed under an open descriptor. EBADF: the handle was closed."""
READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_VALUE_BYTES: Final = 64


@dataclass(slots=True)
class WriteTally:
    """What a host's handles have written, in plain integers."""

    writes_by_file: dict[str, int] = field(default_factory=dict)
    """Successful writes by control file."""
    no_op_writes: int = 0
    """Writes of the value that the kernel was known to hold: each one would refill the CPU bandwidth for nothing."""
    refused: int = 0
    """Writes that the kernel, or the agent's own check, refused."""
    failed_oom_controls: int = 0
    """Attempts to enable a container's OOM control that the kernel refused."""


def is_gone(error: OSError) -> bool:
    """Whether an error means that the control group has vanished."""
    return error.errno in _GONE


def read_once(path: str, most_bytes: int) -> bytes:
    """Read a file that is not worth a descriptor of its own. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, most_bytes, 0)
    finally:
        os.close(descriptor)


class Readable(Protocol):
    """One container's counters."""

    def read(self) -> Counters | None:
        """Counters now; None: vanished."""


def read_each(handles: Sequence[Readable]) -> CounterSnapshot:
    """One container after the other."""
    rows = [handle.read() for handle in handles]
    vanished = tuple(number for number, row in enumerate(rows) if row is None)
    counters = np.array([row or (0,) * COUNTER_COLUMNS for row in rows], dtype=np.int64)
    return CounterSnapshot(counters.reshape(-1, COUNTER_COLUMNS), vanished)


class ControlFile:
    """One writable control file of one group, and the value that the kernel was last known to hold."""

    __slots__ = (
        "_open_errno",
        "_tally",
        "before_change",
        "changed",
        "descriptor",
        "name",
        "original",
        "refused_errno",
        "value",
    )

    def __init__(self, directory: str, name: str, tally: WriteTally) -> None:
        """Open and read it; read-only where we may not write (observing without root).

        Raises:
            OSError: it does not exist or cannot be read.
        """
        self.name = name
        self._tally = tally
        self._open_errno = 0
        """Why it was opened read-only; 0: it was not."""
        self.refused_errno = 0
        """Why the latest write was refused; 0: it was not."""
        try:
            self.descriptor = os.open(f"{directory}/{name}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            self._open_errno = error.errno
            self.descriptor = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        self.value = b""
        self.original = self.refresh()
        """As found when it was opened, or before a previous agent changed it."""
        self.changed = False
        """Whether this descriptor, or a previous agent, has ever changed it."""
        self.before_change: Callable[[ControlFile], None] | None = None
        """Called before the first change, to write the original down."""

    def refresh(self) -> bytes:
        """The value as the kernel holds it now. Raises OSError if vanished."""
        self.value = self.parse(os.pread(self.descriptor, _VALUE_BYTES, 0))
        return self.value

    @staticmethod
    def parse(text: bytes) -> bytes:
        """What of the content is written back."""
        return text.strip()

    def write(self, value: bytes) -> WriteOutcome:
        """Write and count. `value` is spelled as the kernel would print it, so that no-op writes are recognised."""
        if self._open_errno:
            return self.refuse(self._open_errno)
        if not self.changed and self.before_change is not None:
            self.before_change(self)
        try:
            os.pwrite(self.descriptor, value, 0)
        except OSError as error:
            return WriteOutcome.VANISHED if is_gone(error) else self.refuse(error.errno or errno.EINVAL)
        self.refused_errno = 0
        tally = self._tally
        tally.writes_by_file[self.name] = tally.writes_by_file.get(self.name, 0) + 1
        if value == self.value:
            tally.no_op_writes += 1
        else:
            self.value = value
            self.changed = True
        return WriteOutcome.WRITTEN

    def refuse(self, reason_errno: int = errno.EBUSY) -> WriteOutcome:
        """Count a refusal, the kernel's or the agent's own (of a memory limit below what is in use)."""
        self._tally.refused += 1
        self.refused_errno = reason_errno
        return WriteOutcome.REFUSED

    @property
    def refusal(self) -> str:
        """Why the latest write was refused, for people; empty: it was not."""
        if not self.refused_errno:
            return ""
        code = errno.errorcode.get(self.refused_errno, str(self.refused_errno))
        return f"{self.name}: {os.strerror(self.refused_errno)} ({code})"

    @property
    def configured(self) -> bytes:
        """The value without an agent's changes: the original, or where none changed it, what was read last."""
        return self.original if self.changed else self.value

    @property
    def needs_restoring(self) -> bool:
        """Whether the agent changed it and it does not hold its original value."""
        return self.changed and self.value != self.original

    def close(self) -> None:
        """Close it; later use answers as if the group had vanished."""
        if self.descriptor != CLOSED:
            os.close(self.descriptor)
        self.descriptor = CLOSED


class SwitchFile(ControlFile):
    """A control file that shows "key value" lines, and takes a new value for the first of them."""

    __slots__ = ()

    @staticmethod
    def parse(text: bytes) -> bytes:
        """The first line's value."""
        return text.split(maxsplit=2)[1]


ControlFileT = TypeVar("ControlFileT", bound=ControlFile)


class OpenFiles:
    """Everything that one handle keeps open, so that a failed or finished handle leaves nothing behind."""

    __slots__ = ("_closers", "_tally", "controls")

    def __init__(self, tally: WriteTally) -> None:
        self._tally = tally
        self._closers = ExitStack()
        self.controls: list[ControlFile] = []

    def reader(self, path: str) -> int:
        """A descriptor that is only read. Raises OSError, with everything closed."""
        with self._closed_on_error():
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._closers.callback(os.close, descriptor)
        return descriptor

    def read(self, descriptor: int, size: int) -> bytes:
        """A first reading of a file just opened. Raises OSError, with everything closed."""
        with self._closed_on_error():
            return os.pread(descriptor, size, 0)

    def control(self, directory: str, name: str) -> ControlFile:
        """A control file. Raises OSError, with everything closed."""
        return self._keep(ControlFile, directory, name)

    def control_if_there(self, directory: str, name: str) -> ControlFile | None:
        """A control file that is opened late. None: there is none, or the group has gone; all others stay open."""
        try:
            return self._register(ControlFile(directory, name, self._tally))
        except OSError:
            return None

    def switch(self, directory: str, name: str) -> SwitchFile:
        """A control file of several lines. Raises OSError, with everything closed."""
        return self._keep(SwitchFile, directory, name)

    def _keep(self, kind: type[ControlFileT], directory: str, name: str) -> ControlFileT:
        with self._closed_on_error():
            return self._register(kind(directory, name, self._tally))

    def _register(self, file: ControlFileT) -> ControlFileT:
        self._closers.callback(file.close)
        self.controls.append(file)
        return file

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close all of them; again: nothing."""
        self._closers.close()


def field_positions(text: bytes, keys: tuple[bytes, ...]) -> tuple[int, ...] | None:
    """Where the values of `keys` stand in ``text.split()`` of a "key value" file; None if one is missing.

    The kernel prints its keys in one fixed order while it runs, so parsing once is enough, and unknown keys between
    them do no harm.
    """
    words = text.split()
    try:
        return tuple(words[::2].index(key) * 2 + 1 for key in keys)
    except ValueError:
        return None
