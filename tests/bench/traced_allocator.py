"""The real allocator as a process of its own, with stamps: ``BENCH_TRACE=FILE python -m tests.bench.traced_allocator``.

The trace says which step took in which batches, so that an order can be traced back to its tick, and what a step cost.
"""

from __future__ import annotations

import time
from typing import Any

from schemas.cfs import CfsBatch
from schemas.limits import LimitUpdate
from services._runtime.service.app import main
from services.allocator.service import Allocator
from tests.bench.trace import leave_trace


class TracedAllocator(Allocator):
    """`Allocator` that notes its steps and orders. Times: wall clock; costs: CPU of the thread; ns."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self._steps: list[tuple[int, int, int, int]] = []
        self._sent: list[tuple[int, int, int, int]] = []
        self._tick_ns = 0

    def _step(self, batches: list[CfsBatch]) -> None:
        self._tick_ns = max((batch.time_ns for batch in batches), default=0)
        begin_ns = time.thread_time_ns()
        super()._step(batches)
        self._steps.append((time.time_ns(), len(batches), self._tick_ns, time.thread_time_ns() - begin_ns))
        self._tick_ns = 0

    def _order(self, updates: tuple[LimitUpdate, ...]) -> None:
        # Outside of a step an order was paid for by a cut that has just been acknowledged: it belongs to no tick.
        self._sent += [(update.seq, self._tick_ns, time.time_ns(), update.row_count) for update in updates]
        super()._order(updates)

    async def stop(self) -> None:
        """Stop, and write the trace."""
        await super().stop()
        trace = {"steps": self._steps, "orders": self._sent}
        leave_trace(trace)


if __name__ == "__main__":
    main(TracedAllocator)
