"""Files that are written whole or not at all, whatever ends the writer. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside this one to write to; it takes its place at the end, and is removed where something fails.

    Raises:
        OSError: it cannot be moved.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_atomically(path: Path, text: str, *, to_disk: bool = False) -> None:
    """Write a text file (UTF-8); `to_disk`: wait until its content would survive a power cut.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as draft, draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if to_disk:
            os.fsync(file.fileno())
