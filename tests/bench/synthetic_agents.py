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
from schemas.cfs import CfsBatch
from schemas.codec import encode
from schemas.limits import LimitReply, LimitUpdate, RowStatus
from schemas.message import Message
from schemas.queries import QueryError
from schemas.subjects import CFS, LIMIT_UPDATES
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from tests.bench.trace import leave_trace

PERIOD_S = PERIOD_US / 1e6
PREPARE_S = 0.03
"""How long before a tick its batches are made; replies have been taken in by then."""
HOST_CPUS = 64
MEMORY_BYTES = 20 << 20
FIRST_QUOTA_US = 20_000
FIRST_LIMIT_BYTES = 64 << 20
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

    def _demands(self, count: int) -> np.ndarray[Any, Any]:
        low, high = np.log(DEMANDS_US)
        return np.exp(self._chance.uniform(low, high, count)).astype(np.int64)

    def batches(self, time_ns: int) -> list[CfsBatch]:
        """What the agent would report of this period."""
        count = len(self._keys)
        turn = self._chance.random(count) < self._load.change_share
        self._demand_us = np.where(turn, self._demands(count), self._demand_us)
        self._memory_bytes += self._chance.integers(-65_536, 65_537, count)
        used_us = np.minimum(self._demand_us, self._quota_us)
        columns = {
            "periods": np.ones(count),
            "quota_us": self._quota_us,
            "used_us": used_us,
            "unused_us": self._quota_us - used_us,
            "throttled": self._demand_us > self._quota_us,
            "throttled_us": self._demand_us - used_us,
            "memory_usage_bytes": self._memory_bytes,
            "memory_reclaimable_bytes": np.zeros(count),
            "memory_limit_bytes": self._limit_bytes,
            "limit_update_seq": self._limit_update_seq,
            "oom_kills": np.zeros(count),
            "flags": np.zeros(count),
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
            for app, rows in self._groups
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

    def _next_report(self) -> int:
        self._report_seq += 1
        return self._report_seq


class SyntheticAgents:
    """All nodes on one connection."""

    def __init__(self, bus: NatsBus, load: Load) -> None:
        self._bus = bus
        chance = np.random.default_rng(1)
        self._nodes = [
            SyntheticNode(f"node{number}", first, load, chance)
            for number, first in enumerate(range(0, load.containers, load.containers_per_node))
        ]
        self._ticks: list[tuple[int, int, int]] = []
        self._orders: list[tuple[int, int]] = []

    async def run(self) -> None:
        """Serve and tick until cancelled."""
        for node in self._nodes:
            await self._bus.serve(LIMIT_UPDATES.subject(self._bus.root, node=node.name), self._responder(node))
        await self._bus.flush(5.0)
        due_s = (time.time() // PERIOD_S + 2) * PERIOD_S
        while True:
            await asyncio.sleep(due_s - PREPARE_S - time.time())
            prepared = self._prepare(int(due_s * 1e9))
            await asyncio.sleep(due_s - time.time())
            begin_ns = time.time_ns()
            for subject, data in prepared:
                self._bus.connection.send_now(subject, data)
            self._ticks.append((int(due_s * 1e9), begin_ns, time.time_ns()))
            due_s = max(due_s + PERIOD_S, (time.time() // PERIOD_S + 1) * PERIOD_S)

    def _prepare(self, time_ns: int) -> list[tuple[str, bytes]]:
        return [
            (CFS.subject(self._bus.root, app=batch.app, node=batch.node).text, encode(batch))
            for batch in self.batches(time_ns)
        ]

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
        """When the batches of each tick were due and sent, and when orders came."""
        return {"ticks": self._ticks, "orders": self._orders}


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
