"""What is compared: a model, two machines with a slow link between them, and ways to train it there. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final, Self

MACHINES: Final = ((0, 1), (2, 3))
"""Ranks of each; ranks of one machine reach each other by its loopback device."""
RANKS: Final = 4
CPU_CORES: Final = 0.8
"""Of a machine, for both of its ranks."""
BANDWIDTH_RATIO: Final = 35
"""Of a connection inside a machine to the link between them, as in the evaluation of Zorse (Guo et al., 2025)."""
RATES: Final = "rates"
"""In place of an extent: ranks 0 and 1 measure a connection only."""
OURS, FSDP2, PLAIN, LOOPED = "ministage", "fsdp2", "1f1b", "looped-bfs"
WAYS: Final = {
    OURS: "engine ministage: 2 groups, 2 turns",
    "ministage-1": "engine ministage: 2 groups, 1 turn",
    FSDP2: "FSDP2 over all ranks",
    PLAIN: "torch's Schedule1F1B: a stage on each rank",
    LOOPED: "torch's ScheduleLoopedBFS: 2 machines, 2 turns, FSDP2 in each, recomputing",
}


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is trained."""

    blocks: int
    """Of the model; they divide by the four stages of any way."""
    turns: int
    """Of each way, one step each, after one that does not count."""
    width: int = 512
    positions: int = 24
    """Of a sample."""
    samples: int = 16
    """Of a step."""
    microbatch: int = 2

    def as_json(self) -> str:
        """For the command line of a rank."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Of such a text."""
        return cls(**json.loads(text))


FULL: Final = Extent(blocks=12, turns=5)
QUICK: Final = Extent(blocks=4, turns=5)
