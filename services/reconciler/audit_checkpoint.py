"""Checkpoint of the published reconciles, on disk: the next incarnation reports which ones readers may lack.

One record in place, 256 bytes, beside the lock: the last reconcile that wrote to the kernel, set *before* it writes,
and the last that the bus has acknowledged. Operations themselves are kept in memory only.

No fsync: the record has to outlive the process, which the page cache does. It need not outlive the machine, for the
kernel's rules do not either.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

RECORD_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Published and acknowledged reconciles of one incarnation."""

    incarnation: int
    pass_id: int
    """The last reconcile that may have written to the kernel."""
    acknowledged_pass_id: int
    """The bus has stored all reconciles up to this one."""

    @property
    def gap(self) -> bool:
        """Whether some reconciles may never have been stored."""
        return self.acknowledged_pass_id < self.pass_id


UNREADABLE: Final = Checkpoint(incarnation=0, pass_id=1, acknowledged_pass_id=0)
"""A previous incarnation existed; its record cannot be read."""


class CheckpointFile:
    """The record of this incarnation, and that of the previous one. Thread-safe.

    A failed write (`OSError`) is not raised, as forwarding has priority: see `error`.
    """

    def __init__(self, path: Path, incarnation: int) -> None:
        """Read the previous record; it is overwritten by the first reconcile that writes.

        Raises:
            OSError: the file can be neither read nor made.
        """
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._writing = threading.Lock()
        self._checkpoint = Checkpoint(incarnation, 0, 0)
        self.error = ""
        self.previous = _read(os.pread(self._file, RECORD_BYTES, 0))

    def begin(self, pass_id: int) -> None:
        """Record that this reconcile is about to write to the kernel."""
        with self._writing:
            self._write(Checkpoint(self._checkpoint.incarnation, pass_id, self._checkpoint.acknowledged_pass_id))

    def acknowledge(self, pass_id: int) -> None:
        """Record that the bus has stored all reconciles up to this one."""
        with self._writing:
            if pass_id > self._checkpoint.acknowledged_pass_id:
                self._write(Checkpoint(self._checkpoint.incarnation, max(self._checkpoint.pass_id, pass_id), pass_id))

    def close(self) -> None:
        """Close the file, which stays. Idempotent."""
        with self._writing:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _write(self, checkpoint: Checkpoint) -> None:
        if checkpoint == self._checkpoint or self._file < 0:
            return
        self._checkpoint = checkpoint
        text = json.dumps(asdict(checkpoint)).encode().ljust(RECORD_BYTES - 1) + b"\n"
        try:
            os.pwrite(self._file, text, 0)  # one page: kill -9 leaves the old record or the new one
            self.error = ""
        except OSError as error:
            self.error = f"the audit's mark cannot be written: {error.strerror}"


def _read(text: bytes) -> Checkpoint | None:
    """Parse a record; None: there was no previous incarnation."""
    if not text:
        return None
    try:
        fields = json.loads(text)
        return Checkpoint(*(int(fields[name]) for name in Checkpoint.__dataclass_fields__))
    except (ValueError, KeyError, TypeError):
        return UNREADABLE
