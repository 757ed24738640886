"""Out-of-distribution tasks: if the training data cover one kind of task only, another kind is answered "not known".

Differences between configurations were then learned among variants of one application, such as its data sizes, and no
left-out kind can show whether they transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from services.advisor.core.table import Table
from services.advisor.models.gp.kernel import Similarity
from services.advisor.models.gp.space import Points, Space

_NAMES: Final = "task.attr."
_NETWORK: Final = ("task.layers.", "task.layer_count", "task.parameter_count", "task.forward_flops")
_SAME: Final = 1.0 - 1e-9
LEAST_TASKS: Final = 2
"""With a single task there is no other kind to tell it from."""


@dataclass(frozen=True, slots=True, eq=False)
class OneKind:
    """The only known kind of task."""

    space: Space
    """Of tasks."""
    known: Points

    @staticmethod
    def of(space: Space, known: Points) -> OneKind | None:
        """Return None if several kinds of tasks are known, or kinds cannot be distinguished.

        Tasks of equal categories are of several kinds if their networks differ.
        """
        sources = [column.source for column in space.columns]
        named = any(one.startswith(_NAMES) and "=" in one for one in sources)
        if not named or any(one.startswith(_NETWORK) for one in sources) or len(np.unique(known.names)) < LEAST_TASKS:
            return None
        if Similarity.between(space, known, known).kind.min() < _SAME:
            return None
        return OneKind(space, known)

    def is_out_of_distribution(self, table: Table) -> bool:
        """Return whether one task's rows are of another kind than the only known one."""
        asked = Points(table.task[:1], self.space.coordinates(table.select(np.arange(1))))
        return float(Similarity.between(self.space, asked, self.known).kind.max()) < _SAME
