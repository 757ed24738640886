"""Receives samples of iterations while this replica leads: profiles go to the log, paces to the runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from schemas.scheduling import IterationSample, Pace, TrafficProfile
from schemas.subjects import ITERATIONS, SubjectError
from services._runtime.bus.api import Delivery, Subscription
from services._runtime.service.app import Runtime
from services.scheduler.core.iterations import Iterations, SampleResult
from services.scheduler.core.state import State
from services.scheduler.leading import Lead
from services.scheduler.settings import SchedulerSettings


class Measuring:
    """What the samples since the lead was taken say."""

    def __init__(self, runtime: Runtime[SchedulerSettings], lead: Lead) -> None:
        self._bus = runtime.bus
        self._clock = runtime.clock
        self._lead = lead
        self._iterations = Iterations()
        self.on_profiles: Callable[[], None] = lambda: None
        """Called when there are profiles to take."""
        self.on_paces: Callable[[], None] = lambda: None
        """Called when paces may have changed."""
        counted = "turnbuckle_scheduler_iteration_samples_total"
        self._counts = {result: runtime.telemetry.counter(counted, result=result.value) for result in SampleResult}

    async def start(self) -> Subscription:
        """Receive from now on; samples of an earlier lead are forgotten."""
        self._iterations = Iterations()
        return await self._bus.subscribe(ITERATIONS.pattern(self._bus.root), self._on_sample)

    def profiles(self, state: State) -> tuple[TrafficProfile, ...]:
        """That the log should know."""
        return self._iterations.take_profiles(state)

    def paces(self, state: State) -> Mapping[str, Pace]:
        """Of shifted jobs, as far as they are known."""
        return self._iterations.paces(state)

    def _on_sample(self, delivery: Delivery) -> None:
        result = self._added(delivery)
        self._counts[result].value += 1
        if result is not SampleResult.TAKEN:
            return
        if self._iterations.has_profiles:
            self.on_profiles()
        if self._iterations.has_new_paces:
            self.on_paces()

    def _added(self, delivery: Delivery) -> SampleResult:
        sample = delivery.message
        if not isinstance(sample, IterationSample):
            return SampleResult.GARBAGE
        try:
            of = ITERATIONS.parse(self._bus.root, delivery.subject)
        except SubjectError:
            return SampleResult.GARBAGE
        return self._iterations.add(self._lead.state, of["node"], sample, self._clock.monotonic())
