"""How far the audit has come, on disk: so the next incarnation can tell which passes readers may lack.

One record in place, 256 bytes, beside the lock: which pass was the last to write to the kernel, set *before* it writes,
and which was the last that the bus has acknowledged. Operations themselves are not kept: they wait in memory.

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
class Mark:
    """Where the audit of one incarnation stands."""

    incarnation: int
    pass_id: int
    """The last that may have written to the kernel."""
    acknowledged_pass_id: int
    """Up to this one all were stored by the bus."""

    @property
    def gap(self) -> bool:
        """Whether passes may never have been stored."""
        return self.acknowledged_pass_id < self.pass_id


UNREADABLE: Final = Mark(incarnation=0, pass_id=1, acknowledged_pass_id=0)
"""There was an incarnation, and nothing more is known of it."""


class AuditMark:
    """The record of this incarnation, and what the one before has left. Any thread may call.

    A record that cannot be written any more (`OSError`) is not raised: forwarding goes first. `trouble` says why.
    """

    def __init__(self, path: Path, incarnation: int) -> None:
        """Read what is there; nothing is overwritten before the first pass that writes.

        Raises:
            OSError: the file can be neither read nor made.
        """
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._writing = threading.Lock()
        self._mark = Mark(incarnation, 0, 0)
        self.trouble = ""
        self.previous = _read(os.pread(self._file, RECORD_BYTES, 0))

    def begin(self, pass_id: int) -> None:
        """This pass is about to write to the kernel."""
        with self._writing:
            self._write(Mark(self._mark.incarnation, pass_id, self._mark.acknowledged_pass_id))

    def acknowledge(self, pass_id: int) -> None:
        """The bus has stored all passes up to this one."""
        with self._writing:
            if pass_id > self._mark.acknowledged_pass_id:
                self._write(Mark(self._mark.incarnation, max(self._mark.pass_id, pass_id), pass_id))

    def close(self) -> None:
        """Let go of the file, which stays; twice does no harm."""
        with self._writing:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _write(self, mark: Mark) -> None:
        if mark == self._mark or self._file < 0:
            return
        self._mark = mark
        text = json.dumps(asdict(mark)).encode().ljust(RECORD_BYTES - 1) + b"\n"
        try:
            os.pwrite(self._file, text, 0)  # one page: kill -9 leaves the old record or the new one
            self.trouble = ""
        except OSError as error:
            self.trouble = f"the audit's mark cannot be written: {error.strerror}"


def _read(text: bytes) -> Mark | None:
    """None: no incarnation was here before."""
    if not text:
        return None
    try:
        fields = json.loads(text)
        return Mark(*(int(fields[name]) for name in Mark.__dataclass_fields__))
    except (ValueError, KeyError, TypeError):
        return UNREADABLE
