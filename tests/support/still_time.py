"""Time that passes only where someone sleeps."""

from __future__ import annotations

from collections.abc import Callable


class StillTime:
    """As the module `time`, for code that waits; `on_sleep` is told of every wait."""

    def __init__(self, on_sleep: Callable[[float], None] | None = None, start_s: float = 1.8e9) -> None:
        self.now_s = start_s
        self.slept_s = 0.0
        self._on_sleep = on_sleep

    def time(self) -> float:
        """Unix time, seconds."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let it pass."""
        self.now_s += seconds
        self.slept_s += seconds
        if self._on_sleep is not None:
            self._on_sleep(seconds)
