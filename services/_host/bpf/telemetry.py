"""Telemetry of the BPF programs: the table of control groups, and records of periods and OOM kills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from services._host.bpf.cfs_periods import PeriodAccounts
from services._host.bpf.cgroup_table import CgroupTable, GroupHandle
from services._host.bpf.loader import KernelPrograms
from services._host.bpf.loader_process import KernelProgramsError
from services._host.bpf.quota_writers import QuotaWriters
from services._host.bpf.throttle_ring import ThrottleRing
from services._host.cgroup_snapshot import CounterSnapshot, IntArray, QuotaWriter, ThrottleSnapshot

_MEMORY: Final = 1
"""Column of `CgroupTable.ids`."""


class KernelTelemetry:
    """The table always; exact periods and OOM kills where this kernel lets their programs be loaded."""

    def __init__(self, directory: Path, hierarchies: Sequence[str]) -> None:
        """Load everything. Raises KernelProgramsError: not even the table can be had."""
        programs = KernelPrograms(directory, hierarchies)
        try:
            self._table = CgroupTable(programs.take_links())
        except OSError as error:
            programs.close()
            raise KernelProgramsError(f"the table of control groups cannot be mapped: {error.strerror}") from error
        self.throttle_ring = _throttle_ring_of(programs)
        """Rings until the loader ends; None: it does not, or has ended."""
        self._writers = _writers_of(programs)
        self._accounts: PeriodAccounts | None = PeriodAccounts() if programs.streams_periods else None
        self._tracked_ids: IntArray | None = None
        self.note = "; ".join(line for line in programs.status if not line.endswith(" ok"))
        """What could not be loaded, and why; empty: everything was."""
        self._programs: KernelPrograms | None = programs
        if not programs.streams:
            self._end_stream()

    @property
    def source(self) -> str:
        """``bpf-periods`` or ``bpf``."""
        return "bpf" if self._accounts is None else "bpf-periods"

    def read(self, handles: Sequence[GroupHandle]) -> CounterSnapshot:
        """Everything about these containers. Raises OSError: the table cannot be read any more."""
        readings = self._table.read(handles)
        if self._programs is None:
            return readings
        try:
            records = self._programs.take_records()
        except OSError as error:
            self.note = error.strerror or str(error)
            self._end_stream()
            return readings
        ids = self._table.ids
        oom_rows = np.flatnonzero(np.isin(ids[:, _MEMORY], records.oom_groups)).tolist() if records.oom_groups else []
        exact = None
        if self._accounts is not None:
            if ids is not self._tracked_ids:
                self._tracked_ids = ids
                self._accounts.track(ids[:, 0].copy())
            exact = self._accounts.fold(records.periods)
        # With records lost, single periods would count as the whole.
        return replace(readings, exact=exact if records.is_whole else None, oom_rows=tuple(oom_rows))

    def throttle_snapshot(self, handles: Sequence[GroupHandle]) -> ThrottleSnapshot | None:
        """Containers of the last `read` that are throttled now. Raises OSError."""
        return self._table.throttle_snapshot(handles)

    def take_quota_writer(self, handle: GroupHandle) -> QuotaWriter | None:
        """The process that wrote the container's CPU quota since the agent did; None: not known, or taken before."""
        return None if self._writers is None else self._writers.take(handle.group_ids[0])

    def _end_stream(self) -> None:
        if self._programs is not None:
            self._programs.close()
        if self.throttle_ring is not None:
            self.throttle_ring.close()
            self.throttle_ring = None
        if self._writers is not None:
            self._writers.close()
            self._writers = None
        self._programs = self._accounts = None

    def close(self) -> None:
        """The kernel takes everything back."""
        self._end_stream()
        self._table.close()


def _writers_of(programs: KernelPrograms) -> QuotaWriters | None:
    descriptor = programs.take_writers()
    if descriptor is None:
        return None
    try:
        return QuotaWriters(descriptor)
    except OSError as error:
        programs.status.append(f"writers failed: the map cannot be read: {error.strerror}")
        return None


def _throttle_ring_of(programs: KernelPrograms) -> ThrottleRing | None:
    descriptor = programs.take_throttle_ring()
    if descriptor is None:
        return None
    try:
        return ThrottleRing(descriptor)
    except OSError as error:
        programs.status.append(f"throttles failed: the ring cannot be mapped: {error.strerror}")
        return None
