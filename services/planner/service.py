"""The planner's wiring: layer profiles from the bus, requests to plan, published plans."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import ClassVar, Final

from schemas.codec import CodecError
from schemas.layers import LayerProfile
from schemas.message import Message
from schemas.plans import Plan, PlanReply, PlanRequest
from schemas.services.planner import PLANNER_PLAN
from schemas.streams import LAYER_STREAM, TRAINING_STREAM
from schemas.subjects import PLANS, TRAINING_EVENTS, Subject
from schemas.trainings import TrainingEvent
from services._runtime.bus.api import BusError, Delivery, NotPermittedError, RequestRefusedError, Subscription
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services._runtime.telemetry.tracing import span
from services.planner.core.bounds import Bounds, too_large
from services.planner.core.correction import learned
from services.planner.known_profiles import KnownProfiles
from services.planner.known_runs import KnownRuns
from services.planner.planning import BusyError, Planning, PlanningFailedError
from services.planner.settings import PlannerSettings

_OUTCOMES: Final = ("planned", "refused", "busy", "failed")
_BUSY, _FAILED = 503, 500
_AGAIN_S: Final = 5.0


class Planner:
    """Divides training jobs over unequal devices."""

    name: ClassVar[str] = "planner"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = PlannerSettings

    def __init__(self, runtime: Runtime[PlannerSettings]) -> None:
        self._runtime = runtime
        self._bus = runtime.bus
        settings = runtime.settings
        self._bounds = Bounds(settings.max_devices, settings.max_work)
        self._known = KnownProfiles(LAYER_STREAM.max_bytes)
        self._runs = KnownRuns()
        self._planning = Planning(settings.processes, settings.max_waiting, settings.timeout_s)
        self._subscriptions: list[Subscription] = []
        self._to_read, self._has_read = asyncio.Event(), asyncio.Event()
        """What trainings took: that is stored."""
        telemetry = runtime.telemetry
        self._planning_s = telemetry.histogram("turnbuckle_planner_planning_seconds")
        self._requests = {
            outcome: telemetry.counter("turnbuckle_planner_requests_total", outcome=outcome) for outcome in _OUTCOMES
        }

    async def start(self) -> None:
        """Read the layer profiles and what trainings took, then answer."""
        telemetry = self._runtime.telemetry
        telemetry.observe("turnbuckle_planner_layer_profiles", lambda: len(self._known))
        telemetry.observe("turnbuckle_planner_measured_runs", lambda: len(self._runs))
        telemetry.observe("turnbuckle_planner_waiting_requests", lambda: self._planning.waiting)
        profiles = await self._bus.replay(LAYER_STREAM, self._on_profile)
        self._subscriptions.append(profiles)
        trainings = TRAINING_EVENTS.pattern(self._bus.root)
        self._subscriptions.append(await self._bus.subscribe(trainings, self._on_training))
        self._bus.on_reconnect(self._to_read.set)
        self._to_read.set()
        self._runtime.spawn(self._read_runs(trainings), name="read runs")
        await self._planning.start()
        await profiles.caught_up()
        await self._has_read.wait()
        self._subscriptions.append(
            await self._bus.serve_queries(
                self.name, self.version, "divides training jobs over unequal devices", {PLANNER_PLAN: self.plan}
            )
        )
        self._runtime.log.info("planner_started", profiles=len(self._known), runs=len(self._runs))

    async def stop(self) -> None:
        """Answer no more; what is being planned is given up."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in reversed(subscriptions):
            await subscription.stop()
        await self._planning.end()

    def not_ready(self) -> str | None:
        """Always ready once it is started."""
        return None

    async def plan(self, delivery: Delivery) -> Message:
        """The plan, or why there is none: a sentence."""
        request = delivery.message
        if not isinstance(request, PlanRequest):
            raise RequestRefusedError(400, f"unexpected {request.type_name}")
        figures = {"turnbuckle__devices": len(request.cluster.devices), "turnbuckle__batch": request.batch}
        with span("planner.plan", turnbuckle__job=request.job, **figures):
            try:
                reply = await self._answer(request)
            except BusyError as error:
                raise self._refusal("busy", _BUSY, str(error)) from error
            except (PlanningFailedError, CodecError) as error:
                raise self._refusal("failed", _FAILED, str(error)) from error
            self._requests["refused" if reply.plan is None else "planned"].add()
            if reply.plan is not None:
                self._publish(reply.plan)
        return reply

    async def _answer(self, request: PlanRequest) -> PlanReply:
        if why := too_large(request, self._bounds):
            return PlanReply(refused=why)
        profiles = request.profiles
        if request.task:
            profiles = self._known.of(request.task, (device.kind for device in request.cluster.devices))
        clock, began_s = self._runtime.clock, 0.0

        def begin() -> None:
            nonlocal began_s
            began_s = clock.monotonic()

        reply = await self._planning.plan(request, profiles, begin)
        self._planning_s.observe(clock.monotonic() - began_s)
        if reply.plan is None:
            return reply
        runs = self._runs.of({device.kind for device in reply.plan.devices})
        return reply.model_copy(update={"plan": learned(reply.plan, runs)})

    def _refusal(self, outcome: str, code: int, reason: str) -> RequestRefusedError:
        self._requests[outcome].add()
        return RequestRefusedError(code, reason)

    def _publish(self, plan: Plan) -> None:
        """The same plan for the same job is stored once in two minutes, however often it is asked for."""
        subject = PLANS.subject(self._bus.root, job=plan.job)
        self._bus.publish_event(subject, plan, message_id=f"plan-{plan.job}-{plan.plan}")

    async def _on_profile(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, LayerProfile):
            self._known.add(delivery.message, delivery.size_bytes)

    async def _read_runs(self, trainings: Subject) -> None:
        """Read what is stored, now and after each reconnect: what was published meanwhile did not arrive.

        Not by a replay: events are received as they are published, and kept by id, so they can be read again.
        """
        clock = self._runtime.clock
        while await self._to_read.wait():
            self._to_read.clear()
            try:
                await self._bus.read_stored(TRAINING_STREAM, trainings, self._on_training)
            except NotPermittedError:
                raise  # it would be refused again
            except BusError as error:
                self._runtime.log.warning("runs_not_read", error=str(error), again_s=_AGAIN_S)
                await clock.sleep_until(clock.monotonic() + _AGAIN_S)
                self._to_read.set()
            else:
                self._has_read.set()

    def _on_training(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, TrainingEvent):
            self._runs.add(delivery.message)
