"""Addresses of Unix sockets in deep directories: the kernel takes 107 bytes of a path (unix(7), ``sun_path``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """A short address of the socket at a path, however long that is; valid within the block.

    Raises:
        OSError: its directory cannot be reached.
    """
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
