"""The Slurm engine as its own process over a real Slurm and a real bus; the scheduler's part is the test's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from schemas.scheduling import JobSpec, OrderAction, WorkerChange, WorkEvent, WorkOrder, WorkReply
from schemas.streams import RUNNERS
from schemas.subjects import WORK_EVENTS, WORK_ORDERS
from services._runtime.bus.api import Delivery
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from tests.support.cluster_lab import ServiceProcess, poll
from tests.support.deadline import until
from tests.support.slurm_lab import SlurmLab

ENDS: Final = frozenset(WorkerChange) - {WorkerChange.STARTED, WorkerChange.READY}


class SlurmCluster:
    """Orders go to the adapter as the scheduler would send them; what it tells is collected."""

    def __init__(self, directory: Path, lab: SlurmLab, **settings: str) -> None:
        self.directory = directory
        self.lab = lab
        self._settings = settings
        self.shared = directory / "shared"
        self.events: list[WorkEvent] = []
        self._nats = EmbeddedNats()
        self._bus: NatsBus | None = None
        self._adapter: ServiceProcess | None = None
        self._starts = 0
        self._sequence = 0
        self._ports = 29_500

    @property
    def bus(self) -> NatsBus:
        """As the scheduler."""
        assert self._bus is not None
        return self._bus

    @property
    def adapter(self) -> ServiceProcess:
        """The process that was started last."""
        assert self._adapter is not None
        return self._adapter

    async def start(self) -> None:
        """Start bus and adapter, until all nodes are registered."""
        await self._nats.start()
        self._bus = await NatsBus.connect(BusOptions(servers=(self._nats.url,)))
        await self._bus.subscribe(WORK_EVENTS.pattern("tb"), self._hear)
        await self.start_adapter()

    async def stop(self) -> None:
        """End both."""
        if self._adapter is not None and self._adapter.running:
            await self._adapter.signal(signal.SIGTERM)
        if self._bus is not None:
            await self._bus.close(2)
        await self._nats.stop()

    def new_adapter(self, **settings: str) -> ServiceProcess:
        """One more process of the adapter."""
        self._starts += 1
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBUCKLE_", "NATS_"))}
        environment = (
            kept
            | self.lab.environment
            | {
                "XDG_CONFIG_HOME": "/nonexistent",
                "NATS_URL": self._nats.url,
                "TURNBUCKLE_HEALTH_PORT": "0",
                "TURNBUCKLE_LOG_FORMAT": "json",
                "TURNBUCKLE_SLURM__DIRECTORY": str(self.shared),
                "TURNBUCKLE_SLURM__HOLDER_DIRECTORY": str(self.directory / "holders"),
                "TURNBUCKLE_SLURM__POLL_INTERVAL_S": "0.3",
                "TURNBUCKLE_SLURM__READY_WITHIN_S": "1",
                "TURNBUCKLE_SLURM__SETTLE_S": "0.5",
                "TURNBUCKLE_SLURM__COMMAND_TIMEOUT_S": "15",
            }
        )
        return ServiceProcess(
            "runner.slurm", environment | self._settings | settings, self.directory / f"adapter-{self._starts}.log"
        )

    async def start_adapter(self) -> None:
        """Start it, until it is ready and each node is registered by it."""
        self._adapter = self.new_adapter()
        await self._adapter.ready()
        begun_ns = time.time_ns()

        async def registered() -> bool:
            entries = await self.bus.bucket(RUNNERS).entries()
            return all(name in entries and self._answers(entries[name].message, begun_ns) for name in self.lab.names)

        await poll(registered, what="the nodes' registrations")

    @staticmethod
    def _answers(info: object, begun_ns: int) -> bool:
        return getattr(info, "time_ns", 0) > begun_ns - 5_000_000_000

    # -- orders ----------------------------------------------------------------------------------------------------

    async def order(
        self, action: OrderAction, spec: JobSpec, attempt: int, nodes: tuple[str, ...]
    ) -> dict[str, WorkReply]:
        """The same order to every node, as the scheduler sends it; the answers."""
        self._sequence += 1
        replies = {}
        for node in dict.fromkeys(nodes):
            order = WorkOrder(
                sequence=self._sequence,
                leader="test",
                job=spec.job,
                attempt=attempt,
                action=action,
                ranks=tuple(rank for rank, other in enumerate(nodes) if other == node),
                spec=spec if action is OrderAction.RUN else None,
                nodes=nodes if action is OrderAction.RUN else (),
                master_address="127.0.0.1",
                master_port=self._ports,
            )
            reply = await self.bus.request(WORK_ORDERS.subject("tb", node=node), order, timeout_s=60)
            assert isinstance(reply, WorkReply)
            replies[node] = reply
        return replies

    async def run(self, spec: JobSpec, attempt: int, nodes: tuple[str, ...]) -> None:
        """Have an attempt run."""
        replies = await self.order(OrderAction.RUN, spec, attempt, nodes)
        assert all(reply.obeyed for reply in replies.values()), replies

    def _hear(self, delivery: Delivery) -> None:
        assert isinstance(delivery.message, WorkEvent)
        self.events.append(delivery.message)

    def told(self, job: str, attempt: int, changes: Iterable[WorkerChange]) -> list[WorkEvent]:
        """What was told of an attempt, of these kinds, in its order; of repetitions the first."""
        wanted, seen = set(changes), set()
        found = []
        for event in self.events:
            if (event.job, event.attempt) == (job, attempt) and event.change in wanted and event.message_id not in seen:
                seen.add(event.message_id)
                found.append(event)
        return found

    async def until_told(
        self, job: str, attempt: int, changes: Iterable[WorkerChange], workers: int
    ) -> list[WorkEvent]:
        """Wait until something of these kinds was told of so many workers."""
        kinds = frozenset(changes)
        await until(
            lambda: len({event.rank for event in self.told(job, attempt, kinds)}) >= workers,
            what=f"{sorted(kinds)} of {job}.{attempt}",
        )
        return self.told(job, attempt, kinds)

    def slurm_jobs(self, job: str) -> dict[int, str]:
        """States of Slurm's jobs of that name, by their ids."""
        lines = self.lab.call("squeue", "--noheader", "--states=all", f"--name={job}", "--format=%i %T").splitlines()
        return {int(number): state for number, state in (line.split() for line in lines)}
