"""What crosses from the kernel: the records of kernel/records.h, as the agent sees them. A test compares the two."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Final

VERSION: Final = 7
HEADER_BYTES: Final = 8
"""Of each packet: version and `Kind`, 4 bytes each."""


class Kind(IntEnum):
    """Of a packet of the loader's."""

    TABLE = 1
    STATUS = 2
    READY = 3
    PERIODS = 4
    OOMS = 5
    LOST = 6
    THROTTLE_RING = 7
    WRITERS = 8
    ITERATIONS = 9
    SOCKOPS = 10
    CONGESTION_COUNTERS = 11


class GroupFlag(IntFlag):
    """Of `Column.FLAGS`."""

    CPU = 1
    MEMORY = 2
    UNDER_OOM = 4
    KILL_DISABLED = 8
    THROTTLED = 16


class Column(IntEnum):
    """Of a row of the table of control groups (``struct tb_group``), which is a matrix of 64-bit numbers."""

    ID = 0
    FLAGS = 1
    """The lower half; the upper one is the level in the tree."""
    NR_PERIODS = 2
    NR_THROTTLED = 3
    THROTTLED_US = 4
    USAGE_US = 5
    MEMORY_BYTES = 6
    QUOTA_US = 7
    LIMIT_BYTES = 8
    HIGH_BYTES = 9
    LOCAL_KILLS = 10
    KILLS = 11
    BOUNDARY_NS = 12


NO_LIMIT: Final = -1
"""In a column of a limit."""
OOM_FIELDS: Final = 5
"""Of ``struct tb_oom``, as 64-bit numbers: id, time, kind and pid in one, usage, limit."""
WRITER_LEVELS: Final = 8
WRITER_COMM_BYTES: Final = 16
WRITER_NAME_BYTES: Final = 96
WRITER: Final = struct.Struct(f"=II{WRITER_COMM_BYTES}s{WRITER_LEVELS * WRITER_NAME_BYTES}s")
"""``struct tb_writer``: pid, levels, command, names of groups from the writer's own upwards."""
TABLE_ROWS: Final = 16_384
"""Groups that a table has room for."""
COUNTERS: Final = slice(Column.NR_PERIODS, Column.MEMORY_BYTES + 1)
"""`services._host.cgroup_snapshot.Counters`, in order."""
