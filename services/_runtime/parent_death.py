"""A child process that ends when its parent dies."""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress
from typing import Final

_PDEATHSIG: Final = 1


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """In a child before exec: have the kernel send this signal when the parent dies, however it dies (prctl(2)).

    SIGTERM by default, so that an agent still restores the limits that it found.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, number)
