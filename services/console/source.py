"""The console's bus client: subscriptions and read-only queries, all within an observer's permissions."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import lru_cache
from typing import Final, TypeVar

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.codec import CodecError, encode
from schemas.leases import MEMBERS_KEY, Members
from schemas.limits import LimitDecisions
from schemas.message import Message
from schemas.network import NetworkStateReply, NetworkStateRequest, RulesReply, RulesRequest
from schemas.queries import ExplainRequest
from schemas.streams import (
    APPS,
    CONTAINER_STREAM,
    LEASES,
    OOM_STREAM,
    PREDICTION_STREAM,
    ROUTE_STREAM,
    TC_STREAM,
    TRAINING_STREAM,
    StreamSpec,
)
from schemas.subjects import (
    CFS,
    LIMIT_DECISIONS,
    RECONCILER_RULES,
    RECONCILER_STATE,
    ROUTE_EVENTS,
    STEPS,
    TC_EVENTS,
    TRAINING_EVENTS,
    SubjectError,
    SubjectTemplate,
)
from schemas.trainings import StepBatch, TrainingEvent
from services._runtime.bus.api import BusError, Delivery, Entry
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.nats_subscriptions import NatsBuffer
from services._runtime.clock import SystemClock
from services._runtime.command.errors import CommandError
from services.cli.apps.allocators import allocator_state
from services.cli.apps.explain import ask, explained_lines, parse_age
from services.cli.apps.savings import first_day, read_savings
from services.cli.network.command import query_node
from services.console.history import Series
from services.console.hub import Hub
from services.console.job_queries import JobQueries
from services.console.live_state import APP_COLUMNS, HISTORY_COLUMNS, STALE_S, LiveState
from services.console.messages import console_message
from services.console.trainings import HISTORY_COLUMNS as STEP_COLUMNS
from services.console.trainings import Trainings

TICK_S: Final = 1.0
"""Pages are told of containers so often."""
POLL_INTERVAL_S: Final = 2.0
SLOW_POLL_DIVISOR: Final = 5
"""Rules, and pools that are known, are queried once in so many polls."""
EXPLAIN_SINCE: Final = "24h"
EXPLAIN_LAST: Final = 5
"""As `turnbuckle explain` has them by default."""
SAVINGS_DAYS: Final = 7
"""As `turnbuckle savings` has them by default."""
RULES_LISTED: Final = 200
"""Of each node."""
_HOUR_S: Final = 3_600.0
_HISTORY_S: Final[tuple[tuple[StreamSpec, float | None], ...]] = (
    (OOM_STREAM, _HOUR_S),
    (CONTAINER_STREAM, _HOUR_S),
    (ROUTE_STREAM, _HOUR_S),
    (TC_STREAM, None),
    (PREDICTION_STREAM, None),
    (TRAINING_STREAM, None),
)
"""Events that are replayed at first, and their maximum age; None: all. An idle reconciler published its last result
long ago, and its node is known by that; a training's plan was told at its start."""

ReplyT = TypeVar("ReplyT", bound=Message)


class BusSource:
    """Feeds a hub, and answers what a page asks for itself."""

    def __init__(self, bus: NatsBus, hub: Hub) -> None:
        self.bus = bus
        self.hub = hub
        self.live = LiveState()
        self.trainings = Trainings()
        self.jobs = JobQueries(bus)
        self.observations: list[NatsBuffer] = []
        """What is told many times a second; taken once a second."""
        self.networks: set[str] = set()
        """Nodes with a reconciler."""
        self._since_s = SystemClock().time_ns() / 1e9
        self._reading = asyncio.Lock()
        """Streams are read for one page after the other."""

    def observation(self, delivery: Delivery) -> None:
        """Take a batch or decisions."""
        match delivery.message:
            case CfsBatch() as batch:
                self.live.add_batch(batch, time.monotonic())
            case LimitDecisions() as decisions:
                self.live.add_decisions(decisions)
            case StepBatch() as steps:
                self.trainings.add_steps(self._training(STEPS, delivery), steps, time.monotonic())

    def event(self, delivery: Delivery) -> None:
        """Forward a durable event, and remember whose reconciler has sent it."""
        message = delivery.message
        if isinstance(message, TrainingEvent):
            self._take_observations()  # steps of an earlier start came before the event of the next one
            age_s = max(0.0, (SystemClock().time_ns() - message.time_ns) / 1e9)
            with suppress(SubjectError):  # as below: of a whole history the others count
                self.trainings.add_event(self._training(TRAINING_EVENTS, delivery), message, time.monotonic(), age_s)
            return
        for template in (TC_EVENTS, ROUTE_EVENTS):  # by the subject: the server minds who may use it
            with suppress(SubjectError):
                self.networks.add(template.parse(self.bus.root, delivery.subject)["node"])
        with suppress(CodecError):  # it came in this size: it cannot be too large
            self.hub.broadcast_event(message.type_name, encode(message))

    def _take_observations(self) -> None:
        for buffer in self.observations:
            buffer.deliver()

    def _training(self, template: SubjectTemplate, delivery: Delivery) -> tuple[str, str]:
        """Job and node, by the subject: the server minds who may use it."""
        return _job_and_node(template, self.bus.root, delivery.subject)

    def application(self, key: str, entry: Entry | None) -> None:
        """Take a change of the bucket `apps`."""
        if entry is None:
            self.live.announce(key, None)
        elif isinstance(entry.message, AppSpec):
            self.live.announce(key, entry.message)

    def members(self, key: str, entry: Entry | None) -> None:
        """Take a change of the bucket `leases`, which holds the allocator's replicas."""
        if key == MEMBERS_KEY:
            members = None if entry is None else entry.message
            self.live.set_members(members if isinstance(members, Members) else Members())

    async def tick(self) -> None:
        """Once a second, send what has changed."""
        connected_s = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            self._take_observations()
            connected_s = connected_s + TICK_S if self.bus.connected else 0.0
            expire = connected_s > STALE_S  # after a reconnection everything is old until its next batch
            time_s, now_s = SystemClock().time_ns() / 1e9, time.monotonic()
            trainings = self.trainings.tick(time_s, now_s, connected=expire)
            for key, data, removed in itertools.chain(trainings, self.live.tick(time_s, now_s, connected=expire)):
                if removed:
                    self.hub.remove(key, data)
                elif key == "tick":
                    self.hub.broadcast(data, key)
                else:
                    self.hub.set(key, data)

    @property
    def queries(self) -> dict[str, Callable[[Mapping[str, str]], Awaitable[bytes]]]:
        """What a page may ask, by path."""
        return {
            "/history": self._answer_history,
            "/steps": self._answer_steps,
            "/trends": self._answer_trends,
            "/explain": self._answer_explain,
            "/savings": self._answer_savings,
            "/queue": self.jobs.queue,
            "/job": self.jobs.job,
        }

    async def _answer_history(self, query: Mapping[str, str]) -> bytes:
        """The last hour of the query's application, or of its container there."""
        series = self.live.history(query.get("app", ""), query.get("node", ""), query.get("container", ""))
        return self._history(HISTORY_COLUMNS if query.get("container") else HISTORY_COLUMNS + APP_COLUMNS, series)

    async def _answer_steps(self, query: Mapping[str, str]) -> bytes:
        """The last hour of the training of the query's job on its node."""
        return self._history(STEP_COLUMNS, self.trainings.history((query.get("job", ""), query.get("node", ""))))

    def _history(self, columns: tuple[str, ...], series: Series | None) -> bytes:
        return console_message(
            "History",
            since_s=self._since_s,
            columns=columns,
            times_s=b"" if series is None else series.times_s.tobytes(),
            values=b"" if series is None else series.values.tobytes(),
        )

    async def _answer_trends(self, _: Mapping[str, str]) -> bytes:
        """CPU of every container in the last minute."""
        return console_message("Trends", groups=self.live.trends())

    async def _answer_explain(self, query: Mapping[str, str]) -> bytes:
        """What `turnbuckle explain` prints of the query's application and container."""
        request = ExplainRequest(app=query.get("app", ""), container=query.get("container") or None, last=EXPLAIN_LAST)
        since_s = SystemClock().time_ns() / 1e9 - parse_age(EXPLAIN_SINCE)
        try:
            async with self._reading:
                answer = await ask(self.bus, request, since_s)
        except (CommandError, BusError, SubjectError) as error:
            return console_message("Explained", lines=[], error=str(error))
        lines = [line._asdict() for line in explained_lines(answer, EXPLAIN_SINCE)]
        return console_message("Explained", lines=lines, error="")

    async def _answer_savings(self, query: Mapping[str, str]) -> bytes:
        """Totals of the query's application, by mode, of the days that `turnbuckle savings` shows."""
        since = first_day(SystemClock().time_ns() / 1e9, SAVINGS_DAYS)
        try:
            async with self._reading:
                report = await read_savings(self.bus, query.get("app", ""), since)
        except (BusError, SubjectError) as error:
            return console_message("Savings", days=SAVINGS_DAYS, totals=[], error=str(error))
        totals = [{"mode": mode} | tally.plain() for mode, tally in report.totals()]
        return console_message("Savings", days=SAVINGS_DAYS, totals=totals, error="")

    async def replay_history(self) -> None:
        """Send the stored events from before the subscriptions."""
        now_s = SystemClock().time_ns() / 1e9
        for stream, age_s in _HISTORY_S:
            since_s = 0.0 if age_s is None else now_s - age_s
            try:
                for pattern in stream.subjects(self.bus.root):
                    await read_stored(self.bus, stream, pattern, since_s, self.event)
            except BusError as error:
                self.set_error(f"past/{stream.name}", str(error))

    async def poll(self) -> None:
        """While a page is open, query the state that is not published."""
        for turn in itertools.count():
            await self.hub.wait_for_page()
            slow = turn % SLOW_POLL_DIVISOR == 0
            asked = [self._network(name, rules=slow) for name in self.networks]
            if slow or self.hub.holds("trouble/allocator"):
                asked.append(self._allocator())
            await asyncio.gather(*asked)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _allocator(self) -> None:
        reply = await self._poll_one("allocator", lambda: allocator_state(self.bus))
        for state in () if reply is None else reply.apps:
            self.live.seed(state)

    async def _network(self, node: str, *, rules: bool) -> None:
        async def state() -> NetworkStateReply:
            return await query_node(self.bus, RECONCILER_STATE, node, NetworkStateRequest(), NetworkStateReply)

        async def listed() -> RulesReply:
            request = RulesRequest(limit=RULES_LISTED)
            return await query_node(self.bus, RECONCILER_RULES, node, request, RulesReply)

        if await self._send_reply(f"network/{node}", state) and (rules or not self.hub.holds(f"rules/{node}")):
            await self._send_reply(f"rules/{node}", listed)

    async def _send_reply(self, key: str, poll: Callable[[], Awaitable[Message]]) -> bool:
        """Query once, and send the pages the reply or the error."""
        reply = await self._poll_one(key, poll)
        with suppress(CodecError):  # it came in this size: it cannot be too large
            if reply is not None:
                self.hub.set(key, encode(reply))
        return reply is not None

    async def _poll_one(self, key: str, poll: Callable[[], Awaitable[ReplyT]]) -> ReplyT | None:
        """Query once; None: it failed, and the pages were sent why."""
        try:
            reply = await poll()
        except (CommandError, BusError) as error:
            self.set_error(key, str(error))
            return None
        self.hub.remove(f"trouble/{key}", console_message("Solved", about=key))
        return reply

    def set_error(self, about: str, text: str) -> None:
        """Send the pages what is not known, and why."""
        self.hub.forget(about)
        self.hub.set(f"trouble/{about}", console_message("Trouble", about=about, text=text))


@lru_cache(maxsize=4_096)
def _job_and_node(template: SubjectTemplate, root: str, subject: str) -> tuple[str, str]:
    """Every rank of every training names them once a second."""
    ids = template.parse(root, subject)
    return ids["job"], ids["node"]


@asynccontextmanager
async def follow_bus(bus: NatsBus, hub: Hub) -> AsyncIterator[BusSource]:
    """Feed a hub until left.

    Raises:
        BusError: not connected, or this user may not listen.
    """
    source = BusSource(bus, hub)
    async with AsyncExitStack() as stack:
        for template in (CFS, LIMIT_DECISIONS, STEPS):
            source.observations.append(await bus.subscribe_buffered(template.pattern(bus.root), source.observation))
            stack.push_async_callback(source.observations[-1].stop)
        for stream, _ in _HISTORY_S:
            for subject in stream.subjects(bus.root):
                stack.push_async_callback((await bus.subscribe(subject, source.event)).stop)
        await stack.enter_async_context(bus.bucket(APPS).watch(source.application))
        await stack.enter_async_context(bus.bucket(LEASES).watch(source.members))
        tasks = [asyncio.create_task(task) for task in (source.replay_history(), source.poll(), source.tick())]
        try:
            yield source
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
