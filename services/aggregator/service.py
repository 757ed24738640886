"""The aggregator service's wiring: one instance leads, places jobs on aggregators of its host, and watches these."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import ClassVar, Final

from schemas.aggregations import LEADER_KEY, AggregationEndRequest, AggregationRequest, AggregatorInfo
from schemas.message import Message
from schemas.service import Endpoint
from schemas.services.aggregator import AGGREGATOR_END, AGGREGATOR_PLACE
from schemas.streams import AGGREGATORS
from services._runtime.bus.api import BusError, Delivery, RequestRefusedError, Responder, Subscription
from services._runtime.bus.name_registration import HEARTBEAT_S, RETRY_S, NameTakenError, Registration
from services._runtime.bus.random_tokens import random_token
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services._runtime.task_cancellation import cancel_all
from services._runtime.telemetry.logging import LogLimiter, log_once
from services.aggregator.aggregator_groups import GroupedProcesses, usable_layout
from services.aggregator.aggregator_process import AggregatorProcess
from services.aggregator.announcement import Announcement
from services.aggregator.assignments import Assignments, LeadLostError
from services.aggregator.control import Control, Counters, StartProcess
from services.aggregator.core.application import application
from services.aggregator.settings import AggregatorSettings

_OUTCOMES: Final = ("answered", "refused")
_LOG_EVERY_S: Final = 60.0
_CANCEL_S: Final = 2.0


class AggregatorService:
    """Sums gradients of replicated training jobs on few processes."""

    name: ClassVar[str] = "aggregator"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = AggregatorSettings

    def __init__(self, runtime: Runtime[AggregatorSettings], start_process: StartProcess | None = None) -> None:
        self._runtime = runtime
        self._bus, self._clock, self._log = runtime.bus, runtime.clock, runtime.log
        self._in_groups = False
        self._start_process = start_process or self._starting()
        self._limiter = LogLimiter()
        self._holder = random_token()
        self._holding = asyncio.Lock()
        self._incarnation = 0
        self._registration = Registration(self._bus, AGGREGATORS, LEADER_KEY, self._clock)
        self._lead_lost = asyncio.Event()
        self._leading: asyncio.Task[None] | None = None
        self._queries: Subscription | None = None
        self.control: Control | None = None
        """None: another instance leads."""
        count = runtime.telemetry.counter
        self._counters = Counters(
            moves=count("turnbuckle_aggregator_moves_total"), losses=count("turnbuckle_aggregator_lost_jobs_total")
        )
        self._requests = {
            outcome: count("turnbuckle_aggregator_requests_total", outcome=outcome) for outcome in _OUTCOMES
        }

    def _starting(self) -> StartProcess:
        settings = self._runtime.settings
        layout = usable_layout(settings)
        if isinstance(layout, str):
            self._log.info("no_control_groups", reason=layout, effect="aggregators are limited as this process is")
            return AggregatorProcess.start
        self._in_groups = True
        return GroupedProcesses(layout, settings.managed_root, self._log).start

    async def start(self) -> None:
        """Lead, or wait until the instance that leads has gone."""
        telemetry = self._runtime.telemetry
        telemetry.observe("turnbuckle_aggregator_leading_info", lambda: self.control is not None)
        telemetry.observe("turnbuckle_aggregator_jobs", lambda: self.control.jobs if self.control else 0)
        telemetry.observe(
            "turnbuckle_aggregator_running_aggregators", lambda: self.control.aggregators if self.control else 0
        )
        self._leading = self._runtime.spawn(self._run(), name="lead")

    async def stop(self) -> None:
        """Answer no more; jobs are lost, and it is said so."""
        if self._leading is not None:
            self._leading.cancel()
            await asyncio.wait({self._leading})
        control, self.control = self.control, None
        if control is not None:
            try:
                await control.close("the aggregator service was stopped")
            except LeadLostError as error:
                self._log.warning("lead_lost", reason=str(error))
        try:
            await self._registration.release()
        except BusError as error:
            self._log.warning("deregistration_failed", error=str(error))

    def not_ready(self) -> str | None:
        """An instance in reserve is ready: that another leads is no fault."""
        return None

    @property
    def serving(self) -> bool:
        """Whether this instance leads, and answers."""
        return self._queries is not None

    # -- lead ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._registration = Registration(self._bus, AGGREGATORS, LEADER_KEY, self._clock)
            self._incarnation = self._clock.time_ns()
            if not await self._hold():
                await self._clock.sleep_until(self._clock.monotonic() + RETRY_S)
                continue
            try:
                await self._lead()
            except LeadLostError as error:
                self._log.error("lead_lost", reason=str(error), effect="its aggregators are ended, their jobs are lost")
            control, self.control = self.control, None
            if control is not None:
                await control.close()

    async def _hold(self) -> bool:
        """Claim the lead, and wait while it is not known whether another instance lives. False: one does."""
        while True:
            try:
                if await self._hold_once():
                    return True
            except NameTakenError as error:
                log_once(self._log.info, self._limiter, "in_reserve", _LOG_EVERY_S, leader=str(error))
                return False
            except BusError as error:
                self._log.debug("registration_failed", error=str(error))
            await self._clock.sleep_until(self._clock.monotonic() + RETRY_S)

    def _info(self) -> AggregatorInfo:
        return AggregatorInfo(
            host=self._runtime.settings.host,
            incarnation=self._incarnation,
            holder=self._holder,
            version=self.version,
        )

    async def _lead(self) -> None:
        """Until the lead is lost.

        Raises:
            LeadLostError: it is.
        """
        self._lead_lost.clear()
        assignments = Assignments(self._bus, self._clock, self._incarnation, self._still_leads)
        settings = self._runtime.settings
        control = Control(self._runtime, assignments, self._start_process, self._counters)
        await self._take_over(control)
        self.control = control
        self._log.info("lead_taken", host=settings.host, processes=settings.most_processes)
        work = (self._serve(), control.watch(), self._renew(), self._until_lost(), self._announce())
        tasks = [asyncio.get_running_loop().create_task(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_all(tasks, _CANCEL_S, again_s=_CANCEL_S / 2)
            queries, self._queries = self._queries, None
            if queries is not None:
                await queries.stop()

    async def _take_over(self, control: Control) -> None:
        while True:
            try:
                if not await self._still_leads():
                    raise LeadLostError("another instance leads")
                await control.take_over()
            except BusError as error:
                log_once(self._log.warning, self._limiter, "assignments_not_read", _LOG_EVERY_S, error=str(error))
            else:
                return
            await self._clock.sleep_until(self._clock.monotonic() + RETRY_S)

    async def _still_leads(self) -> bool:
        """By its registration, which is renewed with the question."""
        try:
            return await self._hold_once() or await self._hold_once()  # a lost race says nothing of who has won it
        except NameTakenError:
            return False

    async def _hold_once(self) -> bool:
        async with self._holding:  # of two at once the second would find a revision that it does not know
            return await self._registration.hold(self._info())

    async def _renew(self) -> None:
        pause_s = HEARTBEAT_S
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + pause_s)
            pause_s = HEARTBEAT_S
            try:
                if not await self._still_leads():
                    raise LeadLostError("another instance leads")
            except BusError as error:  # jobs go on without the bus
                pause_s = RETRY_S  # as often as one in reserve, to which all jobs would be lost
                self._log.debug("registration_failed", error=str(error))

    async def _until_lost(self) -> None:
        await self._lead_lost.wait()
        raise LeadLostError("another instance leads")

    async def _announce(self) -> None:
        """Have the aggregators be an application; until cancelled."""
        settings = self._runtime.settings
        if settings.announce_limits:
            memory_bytes = int(settings.memory_bytes)
            spec = application(settings.most_processes, settings.cpu_cores, memory_bytes, in_groups=self._in_groups)
            await Announcement(self._bus, self._clock, self._log).announce(spec)
        await asyncio.Event().wait()

    # -- requests --------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Answer, until cancelled."""
        endpoints: dict[Endpoint, Responder] = {AGGREGATOR_PLACE: self.place, AGGREGATOR_END: self.end}
        purpose = "aggregates replicated training jobs"
        while self._queries is None:
            try:
                self._queries = await self._bus.serve_queries(self.name, self.version, purpose, endpoints)
            except BusError as error:
                log_once(self._log.warning, self._limiter, "requests_not_served", _LOG_EVERY_S, error=str(error))
                await self._clock.sleep_until(self._clock.monotonic() + RETRY_S)
        await asyncio.Event().wait()

    async def place(self, delivery: Delivery) -> Message:
        """Where a job is aggregated, and with which key."""
        return await self._answer(delivery)

    async def end(self, delivery: Delivery) -> Message:
        """Whether a job's ranges were there; they are freed."""
        return await self._answer(delivery)

    async def _answer(self, delivery: Delivery) -> Message:
        request, control = delivery.message, self.control
        try:
            reply = await _answered(control, request)
        except LeadLostError as error:
            self._lead_lost.set()
            self._requests["refused"].add()
            raise RequestRefusedError(503, "another instance leads: ask again") from error
        except RequestRefusedError:
            self._requests["refused"].add()
            raise
        self._requests["answered"].add()
        return reply


async def _answered(control: Control | None, request: Message) -> Message:
    if control is None:
        raise RequestRefusedError(503, "another instance leads: ask again")
    if isinstance(request, AggregationRequest):
        return await control.place(request)
    if isinstance(request, AggregationEndRequest):
        return await control.end(request)
    raise RequestRefusedError(400, f"unexpected {request.type_name}")
