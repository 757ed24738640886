"""An iteration of a training job, as its traffic shows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FlowIteration:
    """What one worker sent in one iteration."""

    time_ns: int
    """When it began to send, since the epoch."""
    job: str
    attempt: int
    rank: int
    period_us: int
    """Until it began to send again, in the next iteration."""
    sending_us: int
    """Until it had sent all."""
    sent_bytes: int
    drops: int
    """Segments that were sent again."""
    congestion_control: str
    """Empty: not known."""
