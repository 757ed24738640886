"""Many agents in one process, without hosts: ``python -m tests.bench.synthetic_agents``, load as JSON in BENCH_LOAD.

Batches of a tick are encoded beforehand and leave together, as they would from many hosts at a multiple of the period.
Orders are carried out at once and answered, so that the allocator sees the whole protocol.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import CfsBatch, SampleFlag
from schemas.codec import encode
from schemas.containers import NodeInfo
from schemas.limits import LimitReply, LimitUpdate, RowStatus
from schemas.message import Message
from schemas.queries import QueryError
from schemas.streams import NODES
from schemas.subjects import CFS, LIMIT_UPDATES
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from tests.bench.trace import leave_trace

PERIOD_S = PERIOD_US / 1e6
PREPARE_S = 0.03
"""How long before a tick its batches are made; replies have been taken in by then."""
HOST_CPUS = 64
REGISTER_EVERY_S = 8.0
"""Registrations expire after 30 s."""
MEMORY_BYTES = 20 << 20
FIRST_QUOTA_US = 20_000
FIRST_LIMIT_BYTES = 64 << 20
NOTHING_REPORTED = -1
DEMANDS_US = (500, 60_000)
"""Demands are spread evenly over the logarithm between these."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the synthetic agents pretend."""

    containers: int
    containers_per_node: int
    containers_per_app: int
    change_share: float
    """Share of the containers that pick a new demand in a period."""
    polls: int = 0
    """Polls between two samples, evenly spaced, that report at once who has used up its quota; 0: only samples."""

    @property
    def apps(self) -> list[str]:
        """Names of the applications."""
        return [f"app{number}" for number in range(-(-self.containers // self.containers_per_app))]

    def as_environment(self) -> dict[str, str]:
        """For the process."""
        return {"BENCH_LOAD": json.dumps(asdict(self))}


class SyntheticNode:
    """One node's containers as arrays. An application's containers are neighbours."""

    def __init__(self, name: str, first: int, load: Load, chance: np.random.Generator) -> None:
        count = min(load.containers_per_node, load.containers - first)
        self.name = name
        self._load = load
        self._chance = chance
        self._incarnation = time.time_ns()
        self._report_seq = 0
        self._keys = [f"c{number}-{number:012x}" for number in range(first, first + count)]
        self._row = {key: row for row, key in enumerate(self._keys)}
        owners = np.arange(first, first + count) // load.containers_per_app
        self._groups = [
            (f"app{app}", slice(*np.searchsorted(owners, [app, app + 1]).tolist())) for app in np.unique(owners)
        ]
        self._quota_us = np.full(count, FIRST_QUOTA_US, np.int64)
        self._limit_bytes = np.full(count, FIRST_LIMIT_BYTES, np.int64)
        self._limit_update_seq = np.zeros(count, np.int64)
        self._demand_us = self._demands(count)
        self._memory_bytes = np.full(count, MEMORY_BYTES, np.int64)
        self._period_began = False
        """Whether a poll has drawn the demands that the next sample reports."""
        self._reported_quota_us = np.full(count, NOTHING_REPORTED, np.int64)
        """The quota that a poll has reported as used up in this period."""

    def _demands(self, count: int) -> np.ndarray[Any, Any]:
        low, high = np.log(DEMANDS_US)
        return np.exp(self._chance.uniform(low, high, count)).astype(np.int64)

    def _begin_period(self) -> None:
        """Some containers pick a new demand, once a period: at its first poll, or with its sample."""
        if not self._period_began:
            count = len(self._keys)
            turn = self._chance.random(count) < self._load.change_share
            self._demand_us = np.where(turn, self._demands(count), self._demand_us)
            self._period_began = True

    def batches(self, time_ns: int) -> list[CfsBatch]:
        """What the agent would report of this period. What a poll has told of it is not counted again."""
        self._begin_period()
        count = len(self._keys)
        self._memory_bytes += self._chance.integers(-65_536, 65_537, count)
        used_us = np.minimum(self._demand_us, self._quota_us)
        counts = {
            "periods": np.ones(count),
            "used_us": used_us,
            "unused_us": self._quota_us - used_us,
            "throttled": (self._demand_us > self._quota_us) & (self._reported_quota_us != self._quota_us),
            "throttled_us": self._demand_us - used_us,
            "flags": np.zeros(count),
        }
        self._period_began = False
        self._reported_quota_us[:] = NOTHING_REPORTED
        return self._build(counts, self._groups, time_ns)

    def early_batches(self, passed: float, time_ns: int) -> list[CfsBatch]:
        """What the agent would report of a poll, as `services.agent.sampling.sampler.Sampler.poll`: mostly nothing.

        Args:
            passed: share of the period that is over, below 1; demands are spread evenly over it.
            time_ns: of the poll, wall clock.
        """
        self._begin_period()
        new = (self._demand_us * passed >= self._quota_us) & (self._reported_quota_us != self._quota_us)
        self._reported_quota_us = np.where(new, self._quota_us, self._reported_quota_us)
        nothing = np.zeros(len(new))
        counts = {
            "periods": new,
            "used_us": np.where(new, self._quota_us, 0),
            "unused_us": nothing,
            "throttled": new,
            "throttled_us": nothing,
            "flags": new * int(SampleFlag.EARLY),
        }
        return self._build(counts, [(app, rows) for app, rows in self._groups if new[rows].any()], time_ns)

    def _build(
        self, counts: dict[str, np.ndarray[Any, Any]], groups: list[tuple[str, slice]], time_ns: int
    ) -> list[CfsBatch]:
        """Batches of these applications: the counts of a period or of a poll, and what holds now."""
        nothing = np.zeros(len(self._keys))
        columns = counts | {
            "quota_us": self._quota_us,
            "memory_usage_bytes": self._memory_bytes,
            "memory_reclaimable_bytes": nothing,
            "memory_limit_bytes": self._limit_bytes,
            "limit_update_seq": self._limit_update_seq,
            "oom_kills": nothing,
        }
        return [
            CfsBatch.build(
                self._keys[rows],
                {name: column[rows] for name, column in columns.items()},
                app=app,
                node=self.name,
                incarnation=self._incarnation,
                report_seq=self._next_report(),
                time_ns=time_ns,
                period_us=PERIOD_US,
                host_cpus=HOST_CPUS,
            )
            for app, rows in groups
        ]

    def carry_out(self, update: LimitUpdate) -> LimitReply:
        """Take every value as if it had been written at once."""
        index = np.array([self._row[key] for key in update.keys], dtype=np.int64)
        for column, held in (("quota_us", self._quota_us), ("limit_bytes", self._limit_bytes)):
            wanted = update.column(column)
            held[index] = np.where(wanted > 0, wanted, held[index])
        self._limit_update_seq[index] = update.seq
        return LimitReply.build(
            update.keys,
            {
                "quota_us": self._quota_us[index],
                "limit_bytes": self._limit_bytes[index],
                "limit_update_seq": self._limit_update_seq[index],
                "status": np.full(len(index), int(RowStatus.APPLIED)),
            },
            node=self.name,
            incarnation=self._incarnation,
            report_seq=self._next_report(),
            epoch=update.epoch,
            seq=update.seq,
        )

    def info(self) -> NodeInfo:
        """Its registration."""
        return NodeInfo(
            node=self.name,
            incarnation=self._incarnation,
            time_ns=time.time_ns(),
            host_cpus=HOST_CPUS,
            memory_bytes=1 << 40,
            cgroup_version=0,
            telemetry_source="simulated",
            docker=False,
            container_count=0,
            version="0",
        )

    def _next_report(self) -> int:
        self._report_seq += 1
        return self._report_seq


class SyntheticAgents:
    """All nodes on one connection."""

    def __init__(self, bus: NatsBus, load: Load) -> None:
        self._bus = bus
        self._polls = load.polls
        chance = np.random.default_rng(1)
        self._nodes = [
            SyntheticNode(f"node{number}", first, load, chance)
            for number, first in enumerate(range(0, load.containers, load.containers_per_node))
        ]
        self._ticks: list[tuple[int, int, int]] = []
        self._polled: list[tuple[int, int]] = []
        self._orders: list[tuple[int, int]] = []

    async def run(self) -> None:
        """Serve and tick until cancelled."""
        for node in self._nodes:
            await self._bus.serve(LIMIT_UPDATES.subject(self._bus.root, node=node.name), self._responder(node))
        await self._bus.flush(5.0)
        await self._register()
        registering = asyncio.ensure_future(self._register_again())
        try:
            await self._tick()
        finally:
            registering.cancel()

    async def _register(self) -> None:
        """As agents do: what an unregistered node sends is dropped."""
        bucket = self._bus.bucket(NODES)
        for node in self._nodes:
            await bucket.put(node.name, node.info())

    async def _register_again(self) -> None:
        while True:
            await asyncio.sleep(REGISTER_EVERY_S)
            await self._register()

    async def _tick(self) -> None:
        due_s = (time.time() // PERIOD_S + 2) * PERIOD_S
        prepare_s = min(PREPARE_S, PERIOD_S / (2 * (self._polls + 1)))  # after the last poll
        while True:
            await asyncio.sleep(due_s - prepare_s - time.time())
            prepared = self._encoded(self.batches(int(due_s * 1e9)))
            await asyncio.sleep(due_s - time.time())
            begin_ns = time.time_ns()
            for subject, data in prepared:
                self._bus.connection.send_now(subject, data)
            self._ticks.append((int(due_s * 1e9), begin_ns, time.time_ns()))
            await self._poll_between(due_s)
            due_s = max(due_s + PERIOD_S, (time.time() // PERIOD_S + 1) * PERIOD_S)

    async def _poll_between(self, sampled_s: float) -> None:
        """As `services.agent.sampling.ticker.Ticker`: a poll that is late is left out."""
        for number in range(1, self._polls + 1):
            passed = number / (self._polls + 1)
            due_s = sampled_s + passed * PERIOD_S
            if due_s >= time.time():
                await asyncio.sleep(due_s - time.time())
                time_ns = time.time_ns()
                early = [batch for node in self._nodes for batch in node.early_batches(passed, time_ns)]
                for subject, data in self._encoded(early):
                    self._bus.connection.send_now(subject, data)
                self._polled.append((time_ns, sum(int(batch.column("throttled").sum()) for batch in early)))

    def _encoded(self, batches: list[CfsBatch]) -> list[tuple[str, bytes]]:
        return [(CFS.subject(self._bus.root, app=batch.app, node=batch.node).text, encode(batch)) for batch in batches]

    def batches(self, time_ns: int) -> list[CfsBatch]:
        """What all nodes report of this period."""
        return [batch for node in self._nodes for batch in node.batches(time_ns)]

    def _responder(self, node: SyntheticNode) -> Any:
        async def respond(delivery: Delivery) -> Message:
            update = delivery.message
            if not isinstance(update, LimitUpdate):
                return QueryError(code=400, message="expected a LimitUpdate")
            self._orders.append((time.time_ns(), update.row_count))
            return node.carry_out(update)

        return respond

    def trace(self) -> dict[str, Any]:
        """When the batches of each tick were due and sent, when polls were and what they told, and when orders came."""
        return {"ticks": self._ticks, "polls": self._polled, "orders": self._orders}


async def main() -> None:
    """Run until SIGTERM; leave the trace."""
    load = Load(**json.loads(os.environ["BENCH_LOAD"]))
    bus = await NatsBus.connect(BusOptions(servers=(os.environ["NATS_URL"],)))
    agents = SyntheticAgents(bus, load)
    running = asyncio.ensure_future(agents.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        leave_trace(agents.trace())
    finally:
        await bus.close(2.0)


if __name__ == "__main__":
    asyncio.run(main())
