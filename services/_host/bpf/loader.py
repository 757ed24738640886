"""The programs that show an agent what the kernel knows (kernel/loader.c), and the records that they send.

Whatever is missing is a reason to read files instead, and never a reason not to start.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from services._host.bpf.cfs_periods import PERIOD_FIELDS
from services._host.bpf.loader_process import KernelProgramsError, LoaderProcess
from services._host.bpf.records import OOM_FIELDS, Kind
from services._host.cgroup_snapshot import IntArray
from services._host.kernel_programs import LOADER, loader_arguments

STREAM_INTERVAL_MS: Final = 20
"""Records are held back for this long at most: the agent reads them with its sample, and a wakeup costs more."""
_STREAMING: Final = {"periods", "decisions", "victims", "throttles", "writers"}
_OK: Final = "ok"


_NO_PERIODS: Final = np.zeros((0, PERIOD_FIELDS), dtype=np.int64)
_NO_OOMS: Final = np.zeros((0, OOM_FIELDS), dtype=np.int64)


class Records(NamedTuple):
    """Records since the last read."""

    periods: IntArray
    """``struct tb_period[]``, shape (M, 8), in the order of time."""
    oom_groups: tuple[int, ...]
    """Memory groups in which the kernel was about to kill, or has."""
    is_whole: bool
    """Nothing was lost meanwhile."""


class KernelPrograms:
    """The loader, once everything has been tried."""

    def __init__(self, directory: Path, hierarchies: Sequence[str]) -> None:
        """Start it.

        Args:
            directory: where the loader and its objects are.
            hierarchies: directories whose groups shall be seen, one per hierarchy.

        Raises:
            KernelProgramsError: there is no loader here, it does not answer, or the kernel refuses the table.
        """
        self.links: list[int] = []
        """Iterator links, one per hierarchy, and then the maps that they fill; they are the caller's."""
        self.throttle_ring: int | None = None
        """Ring buffer that becomes readable when a group is throttled; the caller's."""
        self.writers: int | None = None
        """Map of who wrote CPU quotas, by group; the caller's."""
        self.status: list[str] = []
        interval = ("--interval-ms", str(STREAM_INTERVAL_MS))
        self._process = LoaderProcess(directory / LOADER, loader_arguments(directory, hierarchies, *interval))
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    def _await_ready(self) -> None:
        for kind, payload, descriptors in self._process.packets_until_ready():
            if kind == Kind.THROTTLE_RING:
                (self.throttle_ring,) = descriptors
            elif kind == Kind.WRITERS:
                (self.writers,) = descriptors
            elif kind == Kind.STATUS:
                self.status.append(payload.decode(errors="replace"))
            else:
                self.links += descriptors
        if not self.links:
            raise KernelProgramsError("; ".join(self.status) or f"{LOADER} has no table of control groups")

    @property
    def streams(self) -> bool:
        """Whether the loader has to stay: it holds programs, and records come."""
        return any(f"{name} {_OK}" in self.status for name in _STREAMING)

    @property
    def streams_periods(self) -> bool:
        """Whether each CFS period is recorded."""
        return f"periods {_OK}" in self.status

    def take_records(self) -> Records:
        """Everything that waits. Raises OSError: the loader has ended."""
        periods, ooms, is_whole = [_NO_PERIODS], [_NO_OOMS], True
        for kind, payload, _ in self._process.waiting_packets():
            if kind == Kind.PERIODS:
                periods.append(np.frombuffer(payload, np.int64).reshape(-1, PERIOD_FIELDS))
            elif kind == Kind.OOMS:
                ooms.append(np.frombuffer(payload, np.int64).reshape(-1, OOM_FIELDS))
            elif kind == Kind.LOST:
                is_whole = False
        return Records(np.concatenate(periods), tuple(np.concatenate(ooms)[:, 0].tolist()), is_whole)

    def take_links(self) -> list[int]:
        """From now on they are closed by the caller."""
        links, self.links = self.links, []
        return links

    def take_throttle_ring(self) -> int | None:
        """From now on it is closed by the caller."""
        throttle_ring, self.throttle_ring = self.throttle_ring, None
        return throttle_ring

    def take_writers(self) -> int | None:
        """From now on it is closed by the caller."""
        writers, self.writers = self.writers, None
        return writers

    def close(self) -> None:
        """End the loader: the kernel frees what it held."""
        for descriptor in (*self.take_links(), self.take_throttle_ring(), self.take_writers()):
            if descriptor is not None:
                os.close(descriptor)
        self._process.close()
