"""The scheduler's wiring: every replica replays the log; one leads: it takes requests, decides and gives orders."""

from __future__ import annotations

import asyncio
from collections import Counter
from importlib.metadata import version
from typing import ClassVar

from schemas.scheduling import JobPhase, WorkEvent
from schemas.service import Endpoint
from schemas.services.scheduler import SCHEDULER_CONTROL, SCHEDULER_EXPLAIN, SCHEDULER_QUEUE, SCHEDULER_SUBMIT
from schemas.streams import WORK_STREAM
from schemas.subjects import SubjectError, untoken
from services._runtime.bus.api import Delivery, Responder, Subscription
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services.scheduler.advising import Advising
from services.scheduler.announcing import Announcing
from services.scheduler.core.jobs import Phase
from services.scheduler.core.plan_request import Rates
from services.scheduler.core.state import State, is_news
from services.scheduler.deciding import Decider, Inbox, Sources
from services.scheduler.intake import Intake
from services.scheduler.leading import FULL_SHARE, Lead, LeadLostError
from services.scheduler.measuring import Measuring
from services.scheduler.membership import Membership
from services.scheduler.ordering import Ordering
from services.scheduler.planning import Planning
from services.scheduler.queries import Queries
from services.scheduler.settings import SchedulerSettings
from services.scheduler.snapshots import Snapshots
from services.scheduler.topology import read_topology


class Scheduler:
    """Decides which training jobs run where; one of its replicas leads."""

    name: ClassVar[str] = "scheduler"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = SchedulerSettings

    def __init__(self, runtime: Runtime[SchedulerSettings]) -> None:
        self._runtime = runtime
        self._bus = runtime.bus
        self._log = runtime.log
        settings = runtime.settings
        self.lead = Lead(runtime)
        self._snapshots = Snapshots(runtime, self.lead)
        self.inbox = Inbox()
        self._membership = Membership(runtime.bus, self.inbox.arrived.set)
        self._measuring = Measuring(runtime, self.lead)
        rates = Rates(settings.gbit_per_s_inside_nodes, settings.gbit_per_s_between_nodes)
        self._planning = Planning(runtime.bus, settings.planner_timeout_s, rates, runtime.log)
        self._planning.on_answers = self.inbox.arrived.set
        sources = Sources(
            self._membership.nodes,
            self._membership.links,
            self._measuring.profiles,
            self._planning.answers,
            self._planning.ask,
        )
        self._decider = Decider(runtime, self.lead, self.inbox, sources)
        self._queries = Queries(runtime, self.lead)
        advising = Advising(runtime.bus, settings.advisor_timeout_s, runtime.log)
        self._intake = Intake(runtime.bus, self.lead, self.inbox, advising, self._queries)
        self._ordering = Ordering(runtime, self.lead, self.inbox, self._measuring.paces)
        self._measuring.on_profiles = self.inbox.arrived.set
        self._measuring.on_paces = self._ordering.on_paces
        self._announcing = Announcing(runtime, self.lead, self._intake)
        self._subscriptions: list[Subscription] = []
        self._leading: list[Subscription] = []
        """While it leads."""
        self._replayed = False
        telemetry = runtime.telemetry
        self._ignored = {
            why: telemetry.counter("turnbuckle_scheduler_ignored_work_events_total", reason=why)
            for why in ("forged", "old")
        }

    async def start(self) -> None:
        """Replay the log and list the nodes, then stand by or lead.

        Raises:
            UnusableSettingsError: topology.yaml cannot be used.
        """
        self._observe()
        if (topology := self._runtime.settings.topology) is not None:
            self._membership.topology = read_topology(topology)
        listed = asyncio.Event()
        self._runtime.spawn(self._membership.watch(listed), name="watch runners")
        restored = await self._snapshots.newest()
        self._subscriptions = [await self._membership.follow_paths(), *await self.lead.start(restored)]
        await listed.wait()
        self._replayed = True
        self._runtime.spawn(self.lead.run(), name="lead")
        self._runtime.spawn(self._take_turns(), name="turns")
        self._log.info("scheduler_started", replica=self.lead.name, jobs=len(self.lead.state.live))

    async def stop(self) -> None:
        """Take no more requests; another replica leads after a few seconds."""
        led = self.lead.leading
        await self._stop_leading()
        if led:
            await self._snapshots.store_last()
        for subscription in self._subscriptions:
            await subscription.stop()

    def not_ready(self) -> str | None:
        """What keeps it from working, or what will soon; or None."""
        if not self._replayed:
            return "the log of the jobs is not replayed yet"
        if self.lead.share_of_stream >= FULL_SHARE:
            return f"the stream SCHEDULE is {self.lead.share_of_stream:.0%} full: its oldest entries will be removed"
        return None

    # -- while it leads -----------------------------------------------------------------------------------------------

    async def _take_turns(self) -> None:
        while True:
            await self.lead.until(leading=True)
            self._decider.begun.clear()
            tasks = [
                self._runtime.spawn(self._planning.run(), name="plan"),
                self._runtime.spawn(self._decide(), name="decide"),
                self._runtime.spawn(self._ordering.run(), name="order"),
                self._runtime.spawn(self._announcing.run(), name="announce"),
                self._runtime.spawn(self._snapshots.run(), name="snapshots"),
            ]
            self._leading.append(await self._bus.replay(WORK_STREAM, self._on_work))
            await self._begun()
            self.inbox.open()
            endpoints: dict[Endpoint, Responder] = {
                SCHEDULER_SUBMIT: self._intake.submit,
                SCHEDULER_CONTROL: self._intake.control,
                SCHEDULER_QUEUE: self._queries.queue,
                SCHEDULER_EXPLAIN: self._queries.explain,
            }
            self._leading.append(
                await self._bus.serve_queries(self.name, self.version, "decides which training jobs run", endpoints)
            )
            self._leading.append(await self._measuring.start())
            await self.lead.until(leading=False)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._stop_leading()

    async def _begun(self) -> None:
        """Return once the decider has, or will not as the lead is lost."""
        waits = [asyncio.ensure_future(each) for each in (self._decider.begun.wait(), self.lead.until(leading=False))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _decide(self) -> None:
        try:
            await self._decider.run(self._on_change)
        except LeadLostError as error:
            self._log.info("decides_no_more", why=str(error))

    async def _stop_leading(self) -> None:
        subscriptions, self._leading = self._leading, []
        self.inbox.close("this replica does not lead any more")
        for subscription in reversed(subscriptions):
            await subscription.stop()

    def _on_change(self, before: State, after: State) -> None:
        self._ordering.on_change(before, after)
        self._announcing.on_change()
        self._snapshots.on_change()

    async def _on_work(self, delivery: Delivery) -> None:
        """An event of a runner: it counts only of a worker that was placed there."""
        event = delivery.message
        if not isinstance(event, WorkEvent) or event.node != _sender(delivery.subject):
            self._ignored["forged"].value += 1
            return
        live = self.lead.state.live.get(event.job)
        if live is not None and is_news(live, event):
            self.inbox.put_events([event])
            return
        current = live is not None and live.workers and event.attempt == live.attempt
        elsewhere = live is not None and event.node not in live.job.nodes[event.rank : event.rank + 1]
        self._ignored["forged" if current and elsewhere else "old"].value += 1

    # -- metrics ------------------------------------------------------------------------------------------------------

    def _observe(self) -> None:
        telemetry, lead = self._runtime.telemetry, self.lead
        telemetry.observe("turnbuckle_scheduler_leading_info", lambda: int(lead.leading))
        telemetry.observe("turnbuckle_scheduler_log_bytes", lambda: lead.stored_bytes)
        telemetry.observe_by_label("turnbuckle_scheduler_jobs", "phase", self._phases)
        telemetry.observe("turnbuckle_scheduler_slots", lambda: sum(node.slots for node in lead.state.nodes.values()))
        telemetry.observe("turnbuckle_scheduler_taken_slots", self._taken)
        telemetry.observe(
            "turnbuckle_scheduler_silent_nodes", lambda: sum(node.silent for node in lead.state.nodes.values())
        )

    def _phases(self) -> dict[str, float]:
        counts = Counter(live.job.phase.value for live in self.lead.state.live.values())
        return {phase: float(counts[phase]) for phase in (JobPhase.WAITING, JobPhase.RUNNING, JobPhase.STOPPING)}

    def _taken(self) -> int:
        return sum(live.job.slots for live in self.lead.state.live.values() if live.job.phase is not Phase.WAITING)


def _sender(subject: str) -> str:
    """The node that may publish on a work event's subject: its last token; empty: none can have it."""
    try:
        return untoken(subject.rpartition(".")[2])
    except SubjectError:
        return ""
