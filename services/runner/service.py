"""The runner's wiring: orders in, workers watched, events out, a registration that says what the node offers."""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version
from typing import ClassVar, Final

from schemas.message import Message
from schemas.queries import QueryError
from schemas.scheduling import (
    MAX_LOG_BYTES,
    IterationSample,
    Preemption,
    RunnerInfo,
    WorkerChange,
    WorkerLogReply,
    WorkerLogRequest,
    WorkOrder,
)
from schemas.streams import RUNNERS
from schemas.subjects import ITERATIONS, STEPS, TRAINING_EVENTS, WORK_EVENTS, WORK_ORDERS, WORKER_LOGS, token
from schemas.trainings import StepBatch, TrainingEvent
from services._host.instance_lock import InstanceLock
from services._runtime.bus.api import Delivery
from services._runtime.bus.name_registration import HEARTBEAT_S, RETRY_S, Holder, NameHolder
from services._runtime.clock import until_multiple_s
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services._runtime.settings_error import UnusableSettingsError
from services._runtime.telemetry.tracing import Begin, span
from services.runner.congestion import CongestionControl, load_congestion_control
from services.runner.host import WorkerUser, node_address, node_slots, usable_groups, worker_user
from services.runner.node_workers import BUS_FILE, DIRECTORY_MODE, JOBS, HostSetup, NodeWorkers
from services.runner.orders import Orders
from services.runner.pacing import Pacing, PacingSetup
from services.runner.settings import RunnerSettings
from services.runner.training_sockets import TrainingSockets
from services.runner.wakeups import WakeUps
from services.runner.worker import Origin, Worker
from services.runner.worker_files import boot_s
from services.runner.worker_log import REMOVED, read_log
from services.runner.worker_network import worker_network
from services.runner.worker_routes import WorkerRoutes

POLL_S: Final = 0.1
"""Between two looks at what shims have recorded and jobs have said, at least."""
LONGEST_POLL_S: Final = 1.0
"""At most, where the kernel notifies of both: of a shim that was killed it does not."""
CLEANUP_S: Final = 3_600.0
MOST_PENDING_EVENTS: Final = 1_000
"""A tenth of the outbox: with more in it, trainings' events are dropped, so that they never displace workers' ends."""
_FINAL: Final = frozenset(
    {WorkerChange.STOPPED, WorkerChange.UNSAVED, WorkerChange.ENDED, WorkerChange.FAILED, WorkerChange.LOST}
)


class Runner:
    """Starts, signals and watches the workers of training jobs on this host."""

    name: ClassVar[str] = "runner"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = RunnerSettings
    bus_wait_s: ClassVar[float] = 1.0
    """Workers are found again and watched also where no server can be reached at the start."""

    def __init__(self, runtime: Runtime[RunnerSettings]) -> None:
        self._runtime = runtime
        self._settings = settings = runtime.settings
        self._bus, self._clock, self._log = runtime.bus, runtime.clock, runtime.log
        self._incarnation = self._clock.time_ns()
        self._directory = settings.state_directory / token(settings.node).replace("/", ".")
        self._lock: InstanceLock | None = None
        self._holder: Holder | None = None
        self._bus_file = -1
        self._beating: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._registered = False
        self._kills = runtime.telemetry.counter("turnbuckle_runner_kills_total")
        self._unsaved = runtime.telemetry.counter("turnbuckle_runner_unsaved_workers_total")
        self._fenced = runtime.telemetry.counter("turnbuckle_runner_fenced_workers_total")
        served = {
            WORK_ORDERS.subject(self._bus.root, node=settings.node): self._obey,
            WORKER_LOGS.subject(self._bus.root, node=settings.node): self._read_log,
        }
        self._name = NameHolder(self._bus, RUNNERS, self.name, settings.node, self._clock, self._log, served)
        self.congestion: CongestionControl | None = None
        self.workers: NodeWorkers | None = None
        self._orders: Orders | None = None
        self._pacing: Pacing | None = None
        self._wakeups = WakeUps()
        self._trainings = TrainingSockets(settings.node, self._publish_training, self._log, self._wakeups)

    async def start(self) -> None:
        """Find the workers that are there, then register and obey; the bus may be unreachable."""
        settings = self._settings
        user = worker_user(settings.run_as)
        self._make_directory()
        self._make_checkpoint_root(user)
        groups = usable_groups(settings)
        if isinstance(groups, str):
            self._log.warning("without_control_groups", reason=groups, effect="workers have no limits of their own")
        slots = self._slots = node_slots(settings)
        self._address = node_address(settings, settings.bus_options().servers[0])
        layout = None if isinstance(groups, str) else groups
        network = worker_network(settings)
        routes = WorkerRoutes(self._directory, network, self._log)
        self.congestion, layout = load_congestion_control(settings, layout, routes, self._log)
        setup = HostSetup(settings, self._directory, slots, layout, user, self.congestion, network)
        self.workers = NodeWorkers(setup, Origin(settings.node, self._incarnation), self._log)
        flows, publish = self.congestion.iterations, self._publish_iteration
        pacing_setup = PacingSetup(settings.node, settings.collective_timeout_s, publish, flows)
        self._pacing = pacing = Pacing(pacing_setup, self.workers, self._clock, self._log)
        pacing.observe(self._runtime.telemetry)
        self._orders = Orders(settings.node, self.workers, pacing)
        adopted = self.workers.adopt()
        self._observe(self.workers, self.congestion)
        await self._hold_name()
        self._beating = self._runtime.spawn(self._heartbeat(), name="heartbeat")
        for descriptor in (self.workers.descriptor, self.congestion.descriptor):
            if descriptor is not None:
                self._wakeups.add(descriptor)
        self._watching = self._runtime.spawn(self._watch(self.workers, pacing), name="watch workers")
        self._runtime.spawn(pacing.run(), name="pace jobs")
        self._runtime.spawn(self._clean_up(self.workers), name="clean up")
        user_name = user.name if user is not None else None
        self._log.info(
            "runner_started", node=settings.node, slots=slots.slots, gpus=slots.gpus, adopted=adopted, run_as=user_name
        )
        self._log.info(
            "congestion_controls", names=" ".join(self.congestion.names), without_mltcp=self.congestion.why_not or None
        )

    def _make_checkpoint_root(self, user: WorkerUser | None) -> None:
        """Make it for the workers' user; one that is there stays as it is.

        Raises:
            UnusableSettingsError: it cannot be made.
        """
        root = self._settings.checkpoint_root
        if root is None or root.is_dir():
            return
        try:
            root.mkdir(mode=0o700, exist_ok=True)
            if user is not None:
                os.chown(root, user.uid, user.gid, follow_symlinks=False)
        except OSError as error:
            raise UnusableSettingsError(
                f"TURNBUCKLE_RUNNER__CHECKPOINT_ROOT={root} cannot be made: {error.strerror}"
            ) from error

    def _make_directory(self) -> None:
        """Make this node's directory, and take its lock.

        Raises:
            UnusableSettingsError: another runner has it, or it cannot be written.
        """
        setting, node = "TURNBUCKLE_RUNNER__STATE_DIRECTORY", self._settings.node
        try:
            for path in (self._directory.parent, self._directory, self._directory / JOBS):
                path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            self._bus_file = os.open(
                self._directory / BUS_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
            )
        except OSError as error:
            raise UnusableSettingsError(
                f"the state directory {self._settings.state_directory} cannot be written ({error.strerror}): run as "
                f"root, or set {setting} to a directory that can be"
            ) from error
        self._lock = InstanceLock(
            self._directory / "runner.lock",
            role=self.name,
            node=node,
            managed=f"the workers of node {node!r} are",
            remedy=f"stop it, or set TURNBUCKLE_RUNNER__NODE or {setting} here",
            setting=setting,
        )
        self._holder = Holder(self._directory, self.name, node)

    async def stop(self) -> None:
        """Obey no more; workers run on, unless the settings say otherwise."""
        if self._beating is not None:  # it would take the name again, and write to a closed file
            self._beating.cancel()
            await asyncio.wait({self._beating})
        await self._name.stop_serving()
        if self._pacing is not None:
            self._pacing.close()
        workers = self.workers
        if workers is not None:
            if self._settings.workers_at_stop == "stop":
                await self._stop_workers(workers)
            if self._watching is not None:
                self._watching.cancel()
                await asyncio.wait({self._watching})
            workers.poll()
            self._trainings.poll(workers.living())
            self._publish(workers)
            workers.close()
        self._trainings.close()
        if self.congestion is not None:
            self.congestion.close()
        self._wakeups.close()
        await self._name.release()
        for held in (self._lock, self._holder):
            if held is not None:
                held.release()
        if self._bus_file >= 0:
            os.close(self._bus_file)

    async def _stop_workers(self, workers: NodeWorkers) -> None:
        """Their shims stop them, also should this process end before that is done."""
        grace_s = self._settings.stop_grace_s
        for worker in workers.living():
            worker.ask_stop(0.0 if worker.preemption is Preemption.RESTART else grace_s, "runner")
        until_s = self._clock.monotonic() + self._settings.shutdown_grace_s / 2
        while workers.living() and self._clock.monotonic() < until_s:
            await self._clock.sleep_until(self._clock.monotonic() + POLL_S)
            workers.poll()
            self._trainings.poll(workers.living())

    def not_ready(self) -> str | None:
        """What keeps it from working, or None."""
        if self._name.unconfirmed is not None:
            return self._name.unconfirmed
        return None if self._registered else "the node is not registered yet"

    # -- name ------------------------------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + (HEARTBEAT_S if self._registered else RETRY_S))
            await self._hold_name()

    async def _hold_name(self) -> None:
        """Register or renew that; only then do shims learn that this node has the bus."""
        self._registered = await self._name.try_hold(self._info())
        if self._registered:
            os.pwrite(self._bus_file, f"{boot_s():020.3f}".encode(), 0)

    def _info(self) -> RunnerInfo:
        slots = self._slots
        return RunnerInfo(
            node=self._settings.node,
            address=self._address,
            incarnation=self._incarnation,
            time_ns=self._clock.time_ns(),
            slots=slots.slots,
            gpus=slots.gpus,
            cores=slots.cores,
            memory_bytes=slots.memory_bytes,
            rack=self._settings.rack,
            device_kind=slots.device_kind if self._settings.device_kind is None else self._settings.device_kind,
            device_memory_bytes=slots.device_memory_bytes(self._settings.device_memory_bytes),
            congestion_controls=self.congestion.names if self.congestion is not None else (),
            version=self.version,
            holder=self._holder.token if self._holder is not None else "",
        )

    # -- orders ----------------------------------------------------------------------------------------------------

    async def _obey(self, delivery: Delivery) -> Message:
        order = delivery.message
        if not isinstance(order, WorkOrder) or self._orders is None or self.workers is None:
            return QueryError(code=400, message=f"expected a WorkOrder, got {delivery.message.type_name}")
        attributes = {"turnbuckle__job": order.job, "turnbuckle__node": self._settings.node}
        with span("runner.order", turnbuckle__action=str(order.action), **attributes) as current:
            reply = self._orders.obey(order, current.carrier)
            if not reply.obeyed:
                current.fail("refused", reply.reason)
                self._log.warning("work_order_refused", job=order.job, action=str(order.action), reason=reply.reason)
        self._publish(self.workers)
        return reply

    async def _read_log(self, delivery: Delivery) -> Message:
        request = delivery.message
        if not isinstance(request, WorkerLogRequest) or self.workers is None:
            return QueryError(code=400, message=f"expected a WorkerLogRequest, got {delivery.message.type_name}")
        worker = self.workers.find(request.job, request.attempt, request.rank)
        if worker is None:
            which = f"attempt {request.attempt} of " if request.attempt else ""
            node = self._settings.node
            return QueryError(code=404, message=f"{node} knows no worker {request.rank} of {which}job {request.job}")
        ended = worker.over  # asked first: what it wrote until then is in the log
        try:
            part = read_log(worker.files.log, request.offset, request.lines, MAX_LOG_BYTES - len(REMOVED))
        except FileNotFoundError:
            return WorkerLogReply(attempt=worker.key.attempt, over=ended)
        except OSError as error:
            return QueryError(code=500, message=f"the log cannot be read: {error.strerror}")
        over = ended and part.at_end
        return WorkerLogReply(attempt=worker.key.attempt, text=part.text, next_offset=part.next_offset, over=over)

    # -- events ----------------------------------------------------------------------------------------------------

    async def _watch(self, workers: NodeWorkers, pacing: Pacing) -> None:
        while True:
            began_s = self._clock.monotonic()
            workers.poll()
            self._trainings.poll(workers.living())
            self._publish(workers)
            if self.congestion is not None:
                self.congestion.poll()
            pacing.search()
            now_s = self._clock.monotonic()
            rest_s = until_multiple_s(LONGEST_POLL_S, now_s, self.name) if workers.watched else POLL_S
            await self._wakeups.wait(rest_s)
            if self._clock.monotonic() < began_s + POLL_S:  # whatever jobs say, and however often
                await self._clock.sleep_until(began_s + POLL_S)

    def _publish(self, workers: NodeWorkers) -> None:
        """Hand new events to the bus; those of workers that are not forgotten come anew after each start."""
        if self._name.unconfirmed is not None:
            return
        for worker in workers.unpublished():
            subject = WORK_EVENTS.subject(self._bus.root, job=worker.key.job, node=self._settings.node)
            for event in worker.events[worker.published :]:
                self._bus.publish_event(subject, event, message_id=event.message_id)
                if event.change in _FINAL:
                    self._note_end(worker)
            worker.published = len(worker.events)

    def _publish_iteration(self, sample: IterationSample) -> None:
        if self._name.unconfirmed is None:
            self._bus.publish(ITERATIONS.subject(self._bus.root, job=sample.job, node=sample.node), sample)

    def _publish_training(self, message: StepBatch | TrainingEvent) -> None:
        if self._name.unconfirmed is not None:
            return
        whose = {"job": message.job, "node": message.node}
        if isinstance(message, StepBatch):
            self._bus.publish(STEPS.subject(self._bus.root, **whose), message)
        elif self._bus.counters.get("events_pending", 0) < MOST_PENDING_EVENTS:
            subject = TRAINING_EVENTS.subject(self._bus.root, **whose)
            self._bus.publish_event(subject, message, message_id=message.message_id)

    def _note_end(self, worker: Worker) -> None:
        end, event = worker.end, worker.events[-1]
        if end is None or end.time_ns < self._incarnation:
            return  # told by the runner before
        self._kills.value += end.killed
        self._unsaved.value += event.change is WorkerChange.UNSAVED
        self._fenced.value += end.asked == "fence"
        began_ns = worker.started.time_ns if worker.started is not None else end.time_ns
        begin = Begin(parent=worker.trace, begun_ns=began_ns)
        with span("runner.worker", begin, turnbuckle__job=event.job, turnbuckle__node=event.node) as ran:
            if event.change in (WorkerChange.FAILED, WorkerChange.LOST, WorkerChange.UNSAVED):
                ran.fail(str(event.change), event.reason)
        self._log.info(
            "worker_over",
            job=event.job,
            attempt=event.attempt,
            rank=event.rank,
            change=str(event.change),
            exit_code=event.exit_code,
            reason=event.reason or None,
        )

    async def _clean_up(self, workers: NodeWorkers) -> None:
        while True:
            if removed := workers.remove_old(self._clock.time_ns() / 1e9):
                self._log.info("old_logs_removed", workers=removed)
            await self._clock.sleep_until(self._clock.monotonic() + CLEANUP_S)

    def _observe(self, workers: NodeWorkers, congestion: CongestionControl) -> None:
        telemetry = self._runtime.telemetry
        telemetry.observe("turnbuckle_runner_slots", lambda: self._slots.slots)
        telemetry.observe("turnbuckle_runner_taken_slots", lambda: len(workers.taken_slots()))
        telemetry.observe_by_label("turnbuckle_runner_workers", "state", workers.by_state)
        telemetry.observe("turnbuckle_runner_starts_total", lambda: workers.starts)
        telemetry.observe("turnbuckle_runner_mltcp_loaded", lambda: float(congestion.loaded))
        telemetry.observe("turnbuckle_runner_mltcp_flows_total", lambda: congestion.counters.flows)
        telemetry.observe("turnbuckle_runner_mltcp_iterations_total", lambda: congestion.counters.iterations)
        telemetry.observe("turnbuckle_runner_mltcp_lost_total", lambda: congestion.counters.lost)
