"""The arithmetic of MLTCP's programs (kernel/iteration.h), compiled for this process by the C compiler."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).resolve().parents[2] / "kernel" / "test" / "iteration.c"


def build_library(directory: Path) -> ctypes.CDLL:
    """Compile it into a directory, and load it.

    Raises:
        subprocess.CalledProcessError, FileNotFoundError: there is no C compiler, or it does not compile.
    """
    built = directory / "iteration.so"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", SOURCE, "-o", built], check=True)
    library = ctypes.CDLL(str(built))
    library.iteration_bytes.restype = ctypes.c_uint64
    library.flow_bytes.restype = ctypes.c_ulong
    library.scaled_by.restype = ctypes.c_uint32
    library.scaled.restype = ctypes.c_uint32
    library.resume.restype = ctypes.c_bool
    return library


class LearnedFlow:
    """What MLTCP knows of one connection (``struct tb_flow``)."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._flow = ctypes.create_string_buffer(library.flow_bytes())

    def resume(self, now_ns: int, pause_ns: int, acked_bytes: int) -> bool:
        """The connection sends again after a pause; whether an iteration begins with that."""
        arguments = (ctypes.c_uint64(value) for value in (now_ns, pause_ns, acked_bytes))
        return bool(self._library.resume(self._flow, *arguments))

    def leave(self, acked_bytes: int) -> None:
        """So much was acknowledged when last something was left to send."""
        self._library.leave(self._flow, ctypes.c_uint64(acked_bytes))

    @property
    def iteration_bytes(self) -> int:
        """As learned; 0: not yet."""
        return int(self._library.iteration_bytes(self._flow))

    def scaled(self, acked: int, acked_bytes: int, factors: tuple[float, float] | None = None) -> int:
        """What the window grows by for so many acknowledged segments.

        Args:
            acked: of them.
            acked_bytes: since the connection's begin.
            factors: slope and intercept of F; None: those that the loader sets (kernel/constants.h).
        """
        last = ctypes.c_uint32(acked), ctypes.c_uint64(acked_bytes)
        if factors is None:
            return int(self._library.scaled(self._flow, *last))
        units = (ctypes.c_uint32(round(1_024 * factor)) for factor in factors)
        return int(self._library.scaled_by(self._flow, *units, *last))
