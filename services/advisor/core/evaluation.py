"""Splits that do not leak, and thresholds tuned inside the training tasks.

Protocol (i): a random fifth of the rows is held out, repeats of a configuration together. Protocol (ii): every task is
left out in turn. In both, the reference configuration's own row (`Table.is_anchor`) is trained on but never scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from services.advisor.core.arrays import BoolArray, IntArray, TextArray
from services.advisor.core.table import Table


@dataclass(frozen=True, slots=True)
class Split:
    """Rows to learn from, and rows to score."""

    name: str
    """The task that is left out, or ``random``."""
    training: IntArray
    test: IntArray
    """All candidates; anchors among them are asked about, not scored: see `scored`."""


def scored(table: Table) -> BoolArray:
    """Return which rows count: not the reference configuration's."""
    return np.asarray(~table.is_anchor)


def random_split(table: Table, *, seed: int, share: float = 0.2) -> Split:
    """Hold out a share of the rows; repeats of one task's configuration are on the same side."""
    _, group = np.unique(
        np.char.add(np.char.add(table.task, "\n"), table.configuration_key), return_inverse=True
    )
    groups = int(group.max()) + 1
    held_out = np.random.default_rng(seed).permutation(groups)[: max(1, round(groups * share))]
    test = np.isin(group, held_out)
    return Split("random", np.flatnonzero(~test), np.flatnonzero(test))


def leave_one_task_out(table: Table, groups: TextArray | None = None) -> Iterator[Split]:
    """Leave out every task in turn.

    Args:
        table: The rows.
        groups: What is left out together where that is more than one task (such as one network on several data
            sizes), shape ``(rows,)``; None: the task.
    """
    kinds = table.task if groups is None else groups
    for one in np.unique(kinds):
        yield Split(str(one), np.flatnonzero(kinds != one), np.flatnonzero(kinds == one))
