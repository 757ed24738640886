"""An event loop on which waiting takes no time: ``@pytest.mark.virtual_time`` on an asynchronous test.

Where nothing is ready, the loop moves the clocks of the module `time` to the next timer instead of sleeping. A test on
it waits for nothing outside of its process: no process, no server, no thread but those of ``asyncio.to_thread``.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final

_CLOCKS: Final = {"monotonic": 1.0, "time": 1.0, "monotonic_ns": 1e9, "time_ns": 1e9}
"""Functions of `time` and their units a second."""
_OTHERS_S: Final = 0.0002
"""Real time that a file descriptor has to become ready before time is moved."""


class _SkippingSelector(selectors.DefaultSelector):
    """Waits in real time only for threads; else it hands the time that would pass to `skip`."""

    def __init__(self, skip: Callable[[float], None]) -> None:
        super().__init__()
        self._skip = skip
        self.busy_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0 or self.busy_threads:
            return super().select(timeout)
        ready = super().select(min(timeout, _OTHERS_S))
        if not ready:
            self._skip(timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Moves the clocks of this process while it is open."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._real = {name: getattr(time, name) for name in _CLOCKS}
        self._selecting = _SkippingSelector(self._skip)
        super().__init__(self._selecting)
        for name, units in _CLOCKS.items():
            setattr(time, name, self._moved(self._real[name], units))

    def _moved(self, real: Callable[[], Any], units: float) -> Callable[[], Any]:
        number = type(real())
        return lambda: real() + number(self._ahead_s * units)

    def _skip(self, seconds: float) -> None:
        self._ahead_s += seconds

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """As its parent; time does not move until the call has returned."""
        self._selecting.busy_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _: object) -> None:
        self._selecting.busy_threads -= 1

    def close(self) -> None:
        """Let the clocks go on from the real time."""
        for name, real in self._real.items():
            setattr(time, name, real)
        super().close()
