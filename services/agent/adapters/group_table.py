"""All control groups in one read: the iterator of kernel/cgroups.bpf.c (Documentation/bpf/bpf_iterators.rst).

Measured with 100 containers: 2 us a container for both hierarchies of version 1, in place of 10 us for its files.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Final

import numpy as np

from services.agent.adapters.cgroup_handle import CgroupHandle
from services.agent.adapters.kernel_records import COUNTERS, Column, GroupFlag
from services.agent.core.readings import Held, IntArray, Readings
from services.agent.ports import UNLIMITED

_BPF_ITER_CREATE: Final = 33
_BPF_SYSCALL: Final = {"x86_64": 321, "aarch64": 280}
_READ_BYTES: Final = 1 << 20


class GroupTable:
    """Reads by one iterator link per hierarchy, which it owns: version 1 has one of cpu and one of memory."""

    def __init__(self, links: Sequence[int]) -> None:
        """``links``: descriptors, those of cpu and memory; the same hierarchy: only one."""
        self._links = list(links)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._syscall = _BPF_SYSCALL[os.uname().machine]
        self._handles: Sequence[CgroupHandle] | None = None
        self.ids: IntArray = np.zeros((0, 2), dtype=np.int64)
        """Groups of the containers read last, of cpu and memory; the same array as long as these are the same."""
        self._places = [_Places(np.zeros(0, dtype=np.int64)) for _ in self._links]

    def read(self, handles: Sequence[CgroupHandle]) -> Readings:
        """Everything that it shows of these containers. Raises OSError."""
        if handles is not self._handles:
            self._handles = handles
            self.ids = np.array([handle.group_ids for handle in handles], dtype=np.int64).reshape(-1, 2)
            self._places = [_Places(self.ids[:, column].copy()) for column in range(len(self._links))]
        tables = [self._table(link) for link in self._links]
        rows = [place.take(table) for place, table in zip(self._places, tables, strict=True)]
        gone = {row for place in self._places for row in place.gone}
        # Each hierarchy has zeros where the other one's numbers are.
        merged = rows[0] if len(rows) == 1 else rows[0] + rows[1]
        return Readings(merged[:, COUNTERS], tuple(sorted(gone)), self._held(merged))

    def _held(self, table: IntArray) -> Held:
        if len(self._links) > 1:
            guarded, kills = (table[:, Column.FLAGS] & int(GroupFlag.KILL_DISABLED)) != 0, Column.LOCAL_KILLS
        else:
            guarded, kills = table[:, Column.HIGH_BYTES] != UNLIMITED, Column.KILLS
        limits = table[:, (Column.QUOTA_US, Column.LIMIT_BYTES, kills)]
        return Held(limits, guarded, table[:, Column.BOUNDARY_NS])

    def _table(self, link: int) -> IntArray:
        descriptor = self._iterate(link)
        parts = []
        try:
            while part := os.read(descriptor, _READ_BYTES):
                parts.append(part)
        finally:
            os.close(descriptor)
        return np.frombuffer(b"".join(parts), dtype=np.int64).reshape(-1, len(Column))

    def _iterate(self, link: int) -> int:
        """A descriptor that runs the iterator while it is read (bpf(2), BPF_ITER_CREATE)."""
        attributes = (ctypes.c_uint32 * 2)(link, 0)
        size = ctypes.sizeof(attributes)
        descriptor: int = self._libc.syscall(self._syscall, _BPF_ITER_CREATE, ctypes.byref(attributes), size)
        if descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"bpf(BPF_ITER_CREATE): {os.strerror(number)}")
        return descriptor

    def close(self) -> None:
        """Give the links back; the kernel removes the iterators."""
        for link in self._links:
            os.close(link)
        self._links.clear()


class _Places:
    """Where the containers stand in the table: groups come in the order of the tree, mostly the same as before."""

    def __init__(self, ids: IntArray) -> None:
        self._ids = ids
        self._at: IntArray = np.zeros(len(ids), dtype=np.int64)
        self._length = -1
        self.gone: list[int] = []

    def take(self, table: IntArray) -> IntArray:
        """The containers' rows; those of `gone` mean nothing."""
        if len(table) == self._length and not self.gone:
            rows: IntArray = table[self._at]
            if np.array_equal(rows[:, Column.ID], self._ids):
                return rows
        self._find(table[:, Column.ID])
        return table[self._at]

    def _find(self, ids: IntArray) -> None:
        if not len(ids):
            raise OSError(errno.ENODATA, "the table of control groups is empty")
        order = np.argsort(ids)
        at = np.minimum(np.searchsorted(ids, self._ids, sorter=order), len(ids) - 1)
        self._at, self._length = order[at], len(ids)
        self.gone = np.flatnonzero(ids[self._at] != self._ids).tolist()
