"""Which of a node's slots each worker holds, and which GPUs those are. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CPU: Final = "cpu"
"""Kind of device that `turnbuckle layers` gives a profile without a GPU, unless it is told another one."""


@dataclass(frozen=True, slots=True)
class NodeSlots:
    """A node's slots, and what each worker gets of its cores and memory."""

    slots: int
    gpus: int
    cores: float
    memory_bytes: int

    @property
    def device_kind(self) -> str:
        """Of what each slot has, where no setting says more; empty: a GPU's is not known."""
        return "" if self.gpus else CPU

    def device_memory_bytes(self, of_each_device: int | None) -> int:
        """Of what each slot has: a GPU, or its part of one that several slots share; 0: a GPU's is not known."""
        if not self.gpus:
            return of_each_device or self.share_memory(1)
        sharing = -(-self.slots // self.gpus)
        return (of_each_device or 0) // sharing

    def find(self, wanted: int, workers: int, taken: Iterable[int]) -> list[list[int]] | None:
        """The lowest free slots for each of some workers; None: there are not enough."""
        held = set(taken)
        free = [place for place in range(self.slots) if place not in held]
        if len(free) < wanted * workers:
            return None
        return [free[wanted * number : wanted * (number + 1)] for number in range(workers)]

    def gpus_of(self, places: Iterable[int]) -> tuple[int, ...]:
        """The GPUs behind some slots: one each, or shared evenly where there are more slots than GPUs."""
        if not self.gpus:
            return ()
        return tuple(sorted({place % self.gpus for place in places}))

    def share_cores(self, slots: int) -> float:
        """What so many slots have of the node's cores."""
        return self.cores * slots / self.slots

    def share_memory(self, slots: int) -> int:
        """What so many slots have of the node's memory, bytes."""
        return self.memory_bytes * slots // self.slots
