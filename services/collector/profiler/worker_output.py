"""What a worker writes, as it comes: the new lines of its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.collector.profiler.progress import lines_of

MOST_BYTES: Final = 1 << 18
"""Of one reading of one file: what a command writes beyond it is read at the next one."""


@dataclass(slots=True)
class OutputFile:
    """One file that grows."""

    path: Path
    _read: int = 0
    _rest: bytes = b""

    def new_lines(self) -> Sequence[str]:
        """Return the whole lines since the last call; none where there is no such file (yet)."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                new = file.read(MOST_BYTES)
        except OSError:
            return ()
        self._read += len(new)
        lines, self._rest = lines_of(self._rest + new)
        return lines
