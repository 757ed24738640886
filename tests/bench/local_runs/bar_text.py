"""A bar as tqdm 4.67 writes it to a file: one line, from the carriage return on."""

from __future__ import annotations

import sys
import time


class Bar:
    """A bar of one loop; redrawn each tenth of a second, as tqdm does."""

    def __init__(self, description: str, total: int) -> None:
        self._description, self._total = description, total
        self._began_s = self._drawn_s = time.monotonic()
        self._draw(0)

    def done(self, count: int) -> None:
        """So many of the loop were done."""
        now_s = time.monotonic()
        if now_s - self._drawn_s >= 0.1 or count == self._total:
            self._drawn_s = now_s
            self._draw(count)

    def _draw(self, count: int) -> None:
        took_s = max(self._drawn_s - self._began_s, 1e-3)
        part, per_s = count / self._total, count / took_s
        left_s = (self._total - count) / per_s if per_s else 0.0
        filled = "█" * int(10 * part) + " " * (10 - int(10 * part))
        times = f"[{_clock(took_s)}<{_clock(left_s) if per_s else '?'}, {per_s:5.2f}it/s]"
        sys.stderr.write(f"\r{self._description}: {part:4.0%}|{filled}| {count}/{self._total} {times}")
        if count == self._total:
            sys.stderr.write("\n")
        sys.stderr.flush()


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
