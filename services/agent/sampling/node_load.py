"""How idle the node's processors are: on a full machine lower quotas free nothing (decision 40)."""

from __future__ import annotations

from typing import Final

from services.agent.ports import Host

RATE: Final = 0.3
"""Weight of a new period: the kernel counts idle time in hundredths of a second, a tenth of a period."""
UNKNOWN: Final = -1


class NodeLoad:
    """Idle time of all processors, smoothed over some three periods."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._idle_us: int | None = None
        self._read_ns = 0
        self._share: float | None = None

    def sample(self, now_ns: int) -> None:
        """Once a period.

        Args:
            now_ns: monotonic.
        """
        idle_us = self._host.read_idle()
        elapsed_us = (now_ns - self._read_ns) // 1000
        if idle_us is not None and self._idle_us is not None and elapsed_us > 0:
            share = min(max(idle_us - self._idle_us, 0) / (elapsed_us * self._host.cpu_count), 1.0)
            self._share = share if self._share is None else self._share + RATE * (share - self._share)
        self._idle_us, self._read_ns = idle_us, now_ns

    @property
    def idle_percent(self) -> int:
        """Of all processors' time, 0 to 100; `UNKNOWN`: not read yet, or not available."""
        return UNKNOWN if self._share is None or self._idle_us is None else round(100 * self._share)
