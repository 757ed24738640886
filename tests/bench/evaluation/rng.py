"""Random number generators by seed and task."""

from __future__ import annotations

import zlib

import numpy as np

from services.advisor.core.table import Table


def task_rng(seed: int, table: Table, *more: int) -> np.random.Generator:
    """Return a generator seeded by a seed and the first row's task: random choices differ between tasks."""
    task = zlib.crc32(str(table.task[0]).encode()) if len(table) else 0
    return np.random.default_rng((seed, task, *more))
