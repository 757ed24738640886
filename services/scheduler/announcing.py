"""Each job that has slots as an application, so that the allocator gives its workers limits. Without one: no harm."""

from __future__ import annotations

import asyncio
from typing import Final

from pydantic import ByteSize

from schemas.apps import MIN_MEMORY_BYTES, AppSpec
from schemas.streams import APPS, JOB_SPECS
from services._runtime.bus.api import BusError
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import LogLimiter, log_once
from services.scheduler.core.live import Live
from services.scheduler.core.state import State
from services.scheduler.intake import Intake
from services.scheduler.leading import Lead
from services.scheduler.settings import SchedulerSettings

AGAIN_S: Final = 5.0
PREFIX: Final = "job-"


class Announcing:
    """Keeps the buckets as the log wants them: an application per job with slots, a spec per job that has not ended."""

    def __init__(self, runtime: Runtime[SchedulerSettings], lead: Lead, intake: Intake) -> None:
        self._bus = runtime.bus
        self._log = runtime.log
        self._limiter = LogLimiter()
        self._limits = runtime.settings.announce_limits
        self._lead = lead
        self._intake = intake
        self._announced: dict[str, AppSpec | None] = {}
        """By job; None: it may be announced, by an earlier leader."""
        self._specs: set[str] = set()
        """Names in the bucket, perhaps of jobs that have ended."""
        self._changed = asyncio.Event()

    def on_change(self) -> None:
        """Compare the applications with the jobs again."""
        self._changed.set()

    async def run(self) -> None:
        """Write until cancelled; what fails is tried again."""
        self._announced, swept = {}, False
        while True:
            self._changed.clear()
            try:
                if not swept:
                    await self._sweep()
                    swept = True
                await self._announce()
                await self._remove_specs()
            except BusError as error:
                log_once(self._log.warning, self._limiter, "not_announced", 10.0, error=str(error))
            try:
                async with asyncio.timeout(AGAIN_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _sweep(self) -> None:
        """What an earlier leader may have left."""
        if self._limits:
            for name in await self._bus.bucket(APPS).entries():
                job = name.removeprefix(PREFIX)
                if name.startswith(PREFIX) and (job in self._lead.state.live or job in self._lead.state.finished):
                    self._announced.setdefault(job, None)
        self._specs = set(await self._bus.bucket(JOB_SPECS).entries())

    async def _announce(self) -> None:
        if not self._limits:
            return
        state, apps = self._lead.state, self._bus.bucket(APPS)
        wanted = {name: app for name, live in state.live.items() if live.workers and (app := application(live, state))}
        for job, app in wanted.items():
            if self._announced.get(job) != app:
                await apps.put(app.name, app)
                self._announced[job] = app
        for job in self._announced.keys() - wanted.keys():
            await apps.delete(PREFIX + job)
            del self._announced[job]

    async def _remove_specs(self) -> None:
        """Of jobs that have ended; a job that is being submitted keeps its own."""
        self._specs |= self._lead.state.live.keys()
        for job in sorted(self._specs):
            if job not in self._lead.state.live and job not in self._intake.arriving:
                await self._bus.bucket(JOB_SPECS).delete(job)
                self._specs.discard(job)


def application(live: Live, state: State) -> AppSpec | None:
    """Limits of all workers together; None: nothing is known of the nodes' cores and memory.

    Args:
        live: a job with slots.
        state: with the nodes.
    """
    spec, cores, memory_bytes = live.spec, 0.0, 0.0
    for name in live.job.nodes:
        node = state.nodes.get(name)
        share = spec.slots / node.slots if node is not None and node.slots else 0.0
        cores += spec.cpu_cores if spec.cpu_cores is not None else share * (node.cores if node else 0.0)
        memory_bytes += (
            spec.memory_bytes if spec.memory_bytes is not None else share * (node.memory_bytes if node else 0)
        )
    if cores < 0.01 * spec.workers or memory_bytes < MIN_MEMORY_BYTES * spec.workers:
        return None
    return AppSpec(
        name=PREFIX + live.job.name,
        cpu_limit=cores,
        memory_limit=ByteSize(int(memory_bytes)),
        announced_containers=spec.workers,
    )
