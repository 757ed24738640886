"""The real agent as a process of its own, with stamps: ``BENCH_TRACE=FILE python -m tests.bench.traced_agent``.

What is added costs some ten microseconds per tick and half a microsecond per write; it is part of the figures. The
trace is written as JSON when the agent has stopped.
"""

from __future__ import annotations

import time
from typing import Any

from schemas.cfs import CfsBatch
from schemas.limits import LimitUpdate, RowStatus
from services._runtime.app import main
from services.agent.node import Node
from services.agent.service import Agent
from tests.bench.trace import leave_trace

AT_ONCE, AT_BOUNDARY = 0, 1
"""Written while the order was taken in (raises, cuts of idle containers), or later at the container's boundary."""


class TracedAgent(Agent):
    """`Agent` that notes when and at what cost it did what. Times: wall clock; costs: CPU of the thread; ns."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self._ticks: list[tuple[int, int, int, int, int]] = []
        self._orders: list[tuple[int, int, int]] = []
        self._writes: list[tuple[int, int, int, int]] = []
        self._columns_ns = self._sample_ns = 0
        self._seq = 0

    async def start(self) -> None:
        """Start, and put the stamps in."""
        await super().start()
        if self.node is not None:
            self._stamp_sampling(self.node)
            self._stamp_orders(self.node)

    async def stop(self) -> None:
        """Stop, and write the trace."""
        await super().stop()
        trace = {"ticks": self._ticks, "orders": self._orders, "writes": self._writes}
        leave_trace(trace)

    def _tick(self, node: Node) -> None:
        wall_ns, begin_ns = time.time_ns(), time.thread_time_ns()
        super()._tick(node)
        rest_ns = time.thread_time_ns() - begin_ns - self._sample_ns
        read_ns = self._sample_ns - self._columns_ns
        self._ticks.append((wall_ns, time.time_ns(), read_ns, self._columns_ns, rest_ns))

    def _stamp_sampling(self, node: Node) -> None:
        sample, batches = node.sample, node._batches

        def stamped_batches(*arguments: Any) -> list[CfsBatch]:
            begin_ns = time.thread_time_ns()
            result = batches(*arguments)
            self._columns_ns = time.thread_time_ns() - begin_ns
            return result

        def stamped_sample(now_ns: int, wall_ns: int) -> Any:
            begin_ns = time.thread_time_ns()
            result = sample(now_ns, wall_ns)
            self._sample_ns = time.thread_time_ns() - begin_ns
            return result

        node._batches = stamped_batches  # type: ignore[method-assign,assignment,unused-ignore]
        node.sample = stamped_sample  # type: ignore[method-assign,assignment,unused-ignore]

    def _stamp_orders(self, node: Node) -> None:
        orders, containers = node._orders, node._containers
        carry_out, write_quota, settle_row = node.carry_out, containers.write_quota, orders._settle_row

        def stamped_carry_out(update: LimitUpdate, *arguments: Any) -> None:
            self._seq, begin_ns = update.seq, time.thread_time_ns()
            carry_out(update, *arguments)
            self._orders.append((update.seq, time.time_ns(), time.thread_time_ns() - begin_ns))
            self._seq = 0

        def stamped_write_quota(key: str, quota_us: int) -> RowStatus:
            is_raise = quota_us > node.book.containers[key].quota_us
            status = write_quota(key, quota_us)
            if self._seq and status is RowStatus.APPLIED:
                self._writes.append((self._seq, AT_ONCE, time.time_ns(), int(is_raise)))
            return status

        def stamped_settle_row(container: str, order: tuple[int, int], status: RowStatus) -> None:
            if status is RowStatus.APPLIED:
                self._writes.append((order[1], AT_BOUNDARY, time.time_ns(), 0))
            settle_row(container, order, status)

        node.carry_out = stamped_carry_out  # type: ignore[method-assign,assignment,unused-ignore]
        containers.write_quota = stamped_write_quota  # type: ignore[method-assign,assignment,unused-ignore]
        orders._settle_row = stamped_settle_row  # type: ignore[method-assign,assignment,unused-ignore]


if __name__ == "__main__":
    main(TracedAgent)
