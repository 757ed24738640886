"""The real agent as a process of its own, with stamps: ``BENCH_TRACE=FILE python -m tests.bench.traced_agent``.

What is added costs some ten microseconds per tick and a microsecond per write; it is part of the figures. The trace
is written as JSON when the agent has stopped.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import CfsBatch, SampleFlag
from schemas.limits import LimitUpdate, RowStatus
from services._runtime.service.app import main
from services.agent.node import Node
from services.agent.service import Agent
from tests.bench.trace import leave_trace

AT_ONCE, AT_BOUNDARY = 0, 1
"""Written while the order was taken in (raises, cuts of idle containers), or later at the container's boundary."""
_PERIOD_NS = PERIOD_US * 1_000
_UNKNOWN = -1


class TracedAgent(Agent):
    """`Agent` that notes when and at what cost it did what. Times: wall clock; costs: CPU of the thread; ns."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self._tick_notes: list[dict[str, int | str]] = []
        """When each began and ended, costs by part, how many containers were throttled, what they were read by."""
        self._orders: list[tuple[int, int, int]] = []
        self._writes: list[tuple[int, int, int, int, int]] = []
        """Sequence of the order, `AT_ONCE` or `AT_BOUNDARY`, wall clock, raise or not, ns since the period's end."""
        self._columns_ns = self._sample_ns = self._read_ns = self._sampled_ns = self._published_ns = 0
        self._batches: list[CfsBatch] = []
        self._poll_notes: list[dict[str, int]] = []
        """When each poll between two samples began and what it cost, files it read, containers that it tells of."""
        self._seq = 0
        self._expected_ns: dict[str, int | None] = {}
        """Boundaries of the cuts that are looked at, monotonic."""

    def _choose_scheduling(self) -> None:
        """Put the stamps in, too: the node is there, and no loop has taken its methods yet."""
        super()._choose_scheduling()
        assert self.node is not None
        self._stamp_sampling(self.node)
        self._stamp_polls(self.node)
        self._stamp_orders(self.node)

    async def stop(self) -> None:
        """Stop, and write the trace."""
        await super().stop()
        trace = {
            "ticks": self._tick_notes,
            "polls": self._poll_notes,
            "orders": self._orders,
            "writes": self._writes,
        }
        leave_trace(trace)

    def _sample(self, node: Node) -> bool:
        wall_ns, begin_ns = time.time_ns(), time.thread_time_ns()
        polls_between_samples = super()._sample(node)
        cost_ns = time.thread_time_ns() - begin_ns
        self._tick_notes.append(
            {
                "begin_ns": wall_ns,
                "end_ns": self._published_ns,
                "read": self._read_ns,
                "recheck": self._sample_ns - self._read_ns - self._columns_ns,
                "columns": self._columns_ns,
                "publish": cost_ns - self._sample_ns,
                "throttled": sum(int(np.count_nonzero(batch.column("throttled"))) for batch in self._batches),
                "source": node.containers.host.telemetry_source,
            }
        )
        return polls_between_samples

    def _publish_batch(self, batch: CfsBatch) -> None:
        super()._publish_batch(batch)
        self._published_ns = time.time_ns()

    def _stamp_sampling(self, node: Node) -> None:
        sampler, host = node.sampler, node.containers.host
        sample, batches, read = sampler.sample, sampler._batches, host.read

        def stamped_read(handles: Any) -> Any:
            begin_ns = time.thread_time_ns()
            result = read(handles)
            self._read_ns = time.thread_time_ns() - begin_ns
            return result

        def stamped_batches(*arguments: Any) -> list[CfsBatch]:
            begin_ns = time.thread_time_ns()
            self._batches = batches(*arguments)
            self._columns_ns = time.thread_time_ns() - begin_ns
            return self._batches

        def stamped_sample(snapshot: Any, now_ns: int, wall_ns: int) -> Any:
            self._sampled_ns, begin_ns = now_ns, time.thread_time_ns()
            result = sample(snapshot, now_ns, wall_ns)
            self._sample_ns = self._read_ns + time.thread_time_ns() - begin_ns
            return result

        sampler._batches = stamped_batches  # type: ignore[method-assign,assignment,unused-ignore]
        sampler.sample = stamped_sample  # type: ignore[method-assign,assignment,unused-ignore]
        host.read = stamped_read  # type: ignore[method-assign,assignment,unused-ignore]

    def _stamp_polls(self, node: Node) -> None:
        sampler, containers = node.sampler, node.containers
        poll = sampler.poll

        def stamped_poll(wall_ns: int) -> list[CfsBatch]:
            samples = containers.samples
            watched = samples.keys is containers.order.keys and containers.host.shows_usage
            reads = int(np.count_nonzero(samples.may_burst)) if watched else 0
            begin_ns = time.thread_time_ns()
            batches = poll(wall_ns)
            cost_ns = time.thread_time_ns() - begin_ns
            told = sum(int(np.count_nonzero(batch.column("flags") & SampleFlag.EARLY)) for batch in batches)
            self._poll_notes.append({"begin_ns": wall_ns, "cost": cost_ns, "reads": reads, "told": told})
            return batches

        sampler.poll = stamped_poll  # type: ignore[method-assign,assignment,unused-ignore]

    def _stamp_orders(self, node: Node) -> None:
        orders, containers = node.limits, node.containers
        apply, write_quota, settle_row = orders.apply, containers.kernel.write_quota, orders._settle_row
        poll_decreases = orders.poll_decreases

        def stamped_carry_out(update: LimitUpdate, *arguments: Any, **keywords: Any) -> None:
            self._seq, begin_ns = update.seq, time.thread_time_ns()
            apply(update, *arguments, **keywords)
            self._orders.append((update.seq, time.time_ns(), time.thread_time_ns() - begin_ns))
            self._seq = 0

        def stamped_write_quota(key: str, quota_us: int) -> RowStatus:
            is_raise = quota_us > containers.limits[key].quota_us
            status = write_quota(key, quota_us)
            if self._seq and status is RowStatus.APPLIED:
                boundary_ns = containers.samples.boundary_of(key)
                since_end_ns = since_period_end(boundary_ns, self._sampled_ns) if boundary_ns else _UNKNOWN
                self._writes.append((self._seq, AT_ONCE, time.time_ns(), int(is_raise), since_end_ns))
            return status

        def stamped_poll_cuts(now_ns: int) -> None:
            self._expected_ns = {cut.container: cut.expected_ns for cut in orders.decreases.due(now_ns)}
            poll_decreases(now_ns)

        def stamped_settle_row(container: str, order: tuple[int, int], status: RowStatus) -> None:
            if status is RowStatus.APPLIED:
                expected_ns = self._expected_ns.get(container)
                since_end_ns = _UNKNOWN if expected_ns is None else time.monotonic_ns() - expected_ns
                self._writes.append((order[1], AT_BOUNDARY, time.time_ns(), 0, since_end_ns))
            settle_row(container, order, status)

        orders.apply = stamped_carry_out  # type: ignore[method-assign,assignment,unused-ignore]
        containers.kernel.write_quota = stamped_write_quota  # type: ignore[method-assign,assignment,unused-ignore]
        orders.poll_decreases = stamped_poll_cuts  # type: ignore[method-assign,assignment,unused-ignore]
        orders._settle_row = stamped_settle_row  # type: ignore[method-assign,assignment,unused-ignore]


def since_period_end(boundary_ns: int, sampled_ns: int) -> int:
    """How long ago the container's last period ended that the sample could show; all times monotonic ns.

    Args:
        boundary_ns: some boundary of its periods, past or to come.
        sampled_ns: when the sample began.
    """
    last_ns = sampled_ns - (sampled_ns - boundary_ns) % _PERIOD_NS
    return time.monotonic_ns() - last_ns


if __name__ == "__main__":
    main(TracedAgent)
