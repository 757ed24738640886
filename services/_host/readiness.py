"""Which files can be read now: as ``select.select``, but for descriptors beyond 1,023 as well."""

from __future__ import annotations

import selectors
from collections.abc import Iterable
from typing import Protocol, TypeVar


class HasFileno(Protocol):
    """A file, socket or pipe."""

    def fileno(self) -> int:
        """Its descriptor."""


FileT = TypeVar("FileT", bound="int | HasFileno")


def readable(files: Iterable[FileT], within_s: float) -> list[FileT]:
    """Those that can be read, or are at their end; empty once `within_s` is over."""
    with selectors.PollSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ, file)
        return [key.data for key, _ in selector.select(within_s)]
