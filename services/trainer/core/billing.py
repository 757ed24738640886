"""What the workers of a training have cost: each second that has begun, from the start of each to its end. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_NS_PER_S: Final = 1_000_000_000
_S_PER_HOUR: Final = 3_600


@dataclass(slots=True)
class Bill:
    """Of workers that are all alike. Times: nanoseconds of any one clock."""

    usd_per_hour: float
    """Of one worker; 0: prices are not known."""
    _ended_s: int = 0
    _started_ns: dict[str, int] = field(default_factory=dict)
    """Of each worker that has not ended."""

    def start(self, worker: str, time_ns: int) -> None:
        """It is being started: what it takes to become ready is paid as well.

        Raises:
            ValueError: it has not ended.
        """
        if worker in self._started_ns:
            raise ValueError(f"{worker} has been started and has not ended")
        self._started_ns[worker] = time_ns

    def end(self, worker: str, time_ns: int) -> None:
        """It has ended.

        Raises:
            KeyError: it has not been started.
        """
        self._ended_s += _seconds(self._started_ns.pop(worker), time_ns)

    def seconds(self, now_ns: int) -> int:
        """Of all workers, until now."""
        return self._ended_s + sum(_seconds(start_ns, now_ns) for start_ns in self._started_ns.values())

    def usd(self, now_ns: int) -> float:
        """Of all workers, until now."""
        return self.seconds(now_ns) * self.usd_per_hour / _S_PER_HOUR


def _seconds(start_ns: int, end_ns: int) -> int:
    return max(-((start_ns - end_ns) // _NS_PER_S), 0)  # a wall clock may have been set back
