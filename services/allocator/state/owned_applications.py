"""Which applications this replica owns, by which epoch, and since when. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.allocator.arrays.array_types import BoolArray, IntArray


@dataclass(slots=True)
class OwnedApplications:
    """Applications that this replica owns: their epochs, and until when nothing of them is raised."""

    warm_up_ns: int
    epochs: dict[str, int] = field(default_factory=dict)
    warm_up_ends_ns: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    """Applications of which an agent has reported a newer epoch, and that epoch."""
    revision: int = 0
    """How often `owned_apps` may have changed."""

    def epoch_of(self, app: str) -> int:
        """Epoch of an application; 0: not owned."""
        return self.epochs.get(app, 0)

    def acquire(self, app: str, epoch: int, now_ns: int) -> None:
        """Acquire an application."""
        self.revision += 1
        self.epochs[app], self.warm_up_ends_ns[app] = epoch, now_ns + self.warm_up_ns

    def release(self, app: str) -> bool:
        """Release an application; returns whether it was owned."""
        self.revision += 1
        self.lost.pop(app, None)
        self.warm_up_ends_ns.pop(app, None)
        return self.epochs.pop(app, None) is not None

    def lose(self, app: str, epoch: int) -> None:
        """An agent has reported a newer epoch of it."""
        self.revision += 1
        self.lost[app] = max(epoch, self.lost.get(app, 0))

    def owned_apps(self) -> set[str]:
        """Owned applications that are not lost."""
        return self.epochs.keys() - self.lost.keys()

    def epoch_array(self, apps: Sequence[str]) -> IntArray:
        """Epoch by application index; 0: not owned."""
        return np.array([self.epochs.get(app, 0) for app in apps], dtype=np.int64)

    def warmed_up(self, apps: Sequence[str], now_ns: int) -> BoolArray:
        """By application index: whether its warm-up is over."""
        ends_ns = np.array([self.warm_up_ends_ns.get(app, 0) for app in apps], dtype=np.int64)
        over: BoolArray = ends_ns <= now_ns
        return over
