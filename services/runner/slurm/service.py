"""The Slurm engine's wiring: a registration for each node, orders and logs answered, the queue watched."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
from functools import partial
from importlib.metadata import version
from typing import ClassVar, Final

from schemas.message import Message
from schemas.queries import QueryError
from schemas.scheduling import RunnerInfo, WorkerLogRequest, WorkEvent, WorkOrder
from schemas.streams import RUNNERS
from schemas.subjects import WORK_EVENTS, WORK_ORDERS, WORKER_LOGS
from services._runtime.bus.api import Delivery, Responder
from services._runtime.bus.name_registration import Holder, NameHolder
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services._runtime.settings_error import UnusableSettingsError
from services.runner.slurm.commands import SlurmError, run
from services.runner.slurm.core.output import SlurmNode, SlurmOutputError, parse_nodes
from services.runner.slurm.core.scripts import Cluster, list_nodes
from services.runner.slurm.engine import Engine, EngineOptions
from services.runner.slurm.files import SharedFiles
from services.runner.slurm.reporter import Reporter
from services.runner.slurm.settings import SlurmSettings

_TIDY_EVERY_S: Final = 3_600.0


class SlurmRunner:
    """Runs training jobs' workers in a Slurm cluster: for the scheduler, each of its nodes is a runner."""

    name: ClassVar[str] = "slurm"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = SlurmSettings

    def __init__(self, runtime: Runtime[SlurmSettings]) -> None:
        self._runtime = runtime
        self._settings = settings = runtime.settings
        self._clock, self._log, self._bus = runtime.clock, runtime.log, runtime.bus
        self._incarnation = self._clock.time_ns()
        self._files = SharedFiles(settings.directory, settings.ready_within_s)
        reporter = Reporter(self._clock, self._log, self._incarnation, self._files.last_words, self._publish)
        day_s = 86_400.0
        user = pwd.getpwuid(os.geteuid()).pw_name
        options = EngineOptions(user, settings.settle_s, settings.held_days * day_s, settings.log_days * day_s)
        self.engine = Engine(options, self._files, self._command, reporter)
        self._nodes: dict[str, SlurmNode] = {}
        """As read last."""
        self._holder: Holder | None = None
        self._names: dict[str, tuple[NameHolder, asyncio.Task[None]]] = {}
        self._orders = runtime.telemetry.counter("turnbuckle_slurm_orders_total")
        self._refused = runtime.telemetry.counter("turnbuckle_slurm_refused_orders_total")
        self._failures = runtime.telemetry.counter("turnbuckle_slurm_failed_commands_total")
        self._seconds = runtime.telemetry.histogram("turnbuckle_slurm_command_seconds")

    async def start(self) -> None:
        """Read the cluster's state, and serve its nodes; where Slurm does not answer, wait for it."""
        if os.geteuid() == 0 and not self._settings.allow_root:
            raise UnusableSettingsError(
                "jobs would run as root: start it as their user, or set TURNBUCKLE_SLURM__ALLOW_ROOT=true"
            )
        try:
            await self.engine.open()
        except OSError as error:
            raise UnusableSettingsError(
                f"TURNBUCKLE_SLURM__DIRECTORY: {self._settings.directory} cannot be used: {error.strerror}"
            ) from error
        self._holder = Holder(self._settings.holder_directory, "slurm", socket.gethostname())
        telemetry = self._runtime.telemetry
        telemetry.observe("turnbuckle_slurm_nodes", lambda: len(self._nodes))
        telemetry.observe("turnbuckle_slurm_jobs", lambda: self.engine.live_jobs)
        await self._refresh()
        self._runtime.spawn(self._watch(), name="queue")
        self._runtime.spawn(self._tidy(), name="tidy")

    async def stop(self) -> None:
        """Answer no more; jobs run on."""
        for name, _ in self._names.values():
            await name.stop_serving()
        await self._runtime.cancel_tasks()
        for name, _ in self._names.values():
            await name.release()
        if self._holder is not None:
            self._holder.release()

    def not_ready(self) -> str | None:
        """Why no job can be started, or None."""
        if self.engine.away:
            return self.engine.away
        return next((name.unconfirmed for name, _ in self._names.values() if name.unconfirmed), None)

    # -- the cluster -----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + self._settings.poll_interval_s)
            await self._refresh()

    async def _refresh(self) -> None:
        """The nodes first: whose registration says that it is there was there just now."""
        try:
            found = parse_nodes(await self._command(list_nodes()))
        except (SlurmError, SlurmOutputError) as error:
            self._log.warning("nodes_not_read", error=str(error))
        else:
            partition = self._settings.partition
            before = {name: node.takes_jobs for name, node in self._nodes.items()}
            self._nodes = {node.name: node for node in found if not partition or partition in node.partitions}
            self._set_cluster()
            await self._serve_nodes({n for n, node in self._nodes.items() if before.get(n) != node.takes_jobs})
        await self.engine.poll()

    def _set_cluster(self) -> None:
        settings = self._settings
        shares = [(node.memory_bytes >> 20) // node.cpus for node in self._nodes.values() if node.cpus]
        self.engine.cluster = Cluster(
            gpus_are_slots=settings.slots == "gpus",
            memory_mb_per_cpu=min(shares, default=0),
            nodes=tuple(self._nodes),
            partition=settings.partition,
            account=settings.account,
            qos=settings.qos,
        )

    async def _serve_nodes(self, changed: set[str]) -> None:
        """Register new nodes; report at once which were drained or are down; take back those that are no more.

        Raises:
            UnusableSettingsError: another runner has one of the nodes.
        """
        for name in self._nodes.keys() - self._names.keys():
            holder = self._name_holder(name)
            self._names[name] = holder, self._runtime.spawn(self._send_heartbeats(name, holder), name=f"node {name}")
        for name in self._nodes.keys() & self._names.keys() & changed:
            await self._names[name][0].try_hold(self._info(self._nodes[name]))
        for name in self._names.keys() - self._nodes.keys():
            holder, task = self._names.pop(name)
            task.cancel()
            await holder.stop_serving()
            await holder.release()
            self._log.info("node_gone", node=name)

    def _name_holder(self, node: str) -> NameHolder:
        answer: Responder = partial(self._order, node)
        responders = {WORK_ORDERS: answer, WORKER_LOGS: self._read_log}
        served = {template.subject(self._bus.root, node=node): responder for template, responder in responders.items()}
        return NameHolder(self._bus, RUNNERS, "runner", node, self._clock, self._log, served)

    async def _send_heartbeats(self, node: str, holder: NameHolder) -> None:
        while True:
            try:
                await holder.heartbeat(self._info(self._nodes[node]))
            except UnusableSettingsError as error:
                raise UnusableSettingsError(
                    f"the node {node!r} of Slurm has a runner already, of its own or of another "
                    "`turnbuckle run slurm`: stop one of them"
                ) from error

    def _info(self, node: SlurmNode) -> RunnerInfo:
        slots = node.gpus if self._settings.slots == "gpus" else node.cpus
        device_kind, device_memory_bytes = node.device(self._settings.gpu_memory_bytes)
        return RunnerInfo(
            node=node.name,
            address=node.address,
            incarnation=self._incarnation,
            time_ns=self._clock.time_ns(),
            slots=slots if node.takes_jobs else 0,
            gpus=node.gpus,
            cores=float(node.cpus),
            memory_bytes=node.memory_bytes,
            device_kind=device_kind,
            device_memory_bytes=device_memory_bytes,
            engine="slurm",
            version=self.version,
            holder=self._holder.token if self._holder is not None else "",
        )

    async def _command(
        self, command: tuple[str, ...], descriptors: tuple[int, ...] = (), extra: dict[str, str] | None = None
    ) -> str:
        begun_s = self._clock.monotonic()
        try:
            return await run(command, self._settings.command_timeout_s, descriptors, extra)
        except SlurmError:
            self._failures.value += 1
            raise
        finally:
            self._seconds.observe(self._clock.monotonic() - begun_s)

    async def _tidy(self) -> None:
        while True:
            await self.engine.tidy()
            await self._clock.sleep_until(self._clock.monotonic() + _TIDY_EVERY_S)

    # -- the bus ---------------------------------------------------------------------------------------------------

    def _publish(self, event: WorkEvent) -> None:
        subject = WORK_EVENTS.subject(self._bus.root, job=event.job, node=event.node)
        self._bus.publish_event(subject, event, message_id=event.message_id)

    async def _order(self, node: str, delivery: Delivery) -> Message:
        order = delivery.message
        if not isinstance(order, WorkOrder):
            return QueryError(code=400, message=f"unexpected {order.type_name}")
        if unknown := set(order.nodes) - self._nodes.keys():
            return QueryError(code=400, message=f"{min(unknown)!r} is no node of this Slurm cluster")
        reply = await self.engine.obey(order, node)
        self._orders.value += 1
        if not reply.obeyed:
            self._refused.value += 1
            self._log.warning("work_order_refused", job=order.job, action=order.action.value, reason=reply.reason)
        return reply

    async def _read_log(self, delivery: Delivery) -> Message:
        request = delivery.message
        if not isinstance(request, WorkerLogRequest):
            return QueryError(code=400, message=f"unexpected {request.type_name}")
        try:
            reply = await asyncio.to_thread(self._files.read_log, request)
        except OSError as error:
            return QueryError(code=500, message=f"the log cannot be read: {error.strerror}")
        return reply or QueryError(code=404, message=f"worker {request.rank} of {request.job} has no log here")
