"""One run of a node's agent, and the sequence of what it reports. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Incarnation:
    """One run of a node's agent, as its batches, replies and events name it."""

    node: str
    number: int
    """A later run has a larger one."""
    report_seq: int = 0
    """Of the latest batch or reply."""

    def next_report_seq(self) -> int:
        """For a batch or a reply."""
        self.report_seq += 1
        return self.report_seq
