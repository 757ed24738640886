"""The web console reads a secured bus with an observer's key: nothing that it needs is refused."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgpack
import pytest_asyncio

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.codec import encode
from schemas.message import Message
from schemas.network import NetworkStateReply, RulesReply, TcEvent
from schemas.oom import OomCause, OomEvent, OomKind
from schemas.queries import AppState, ExplainReply, ExplainRequest, Explanation, StateReply
from schemas.roles import Role
from schemas.savings import Baseline, Savings, SavingsPart
from schemas.services.allocator import ALLOCATOR_EXPLAIN, ALLOCATOR_STATE
from schemas.streams import APPS
from schemas.subjects import CFS, OOM_EVENTS, RECONCILER_RULES, RECONCILER_STATE, SAVINGS, TC_EVENTS
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from services.console.hub import Hub, Page
from services.console.messages import console_message
from services.console.source import follow_bus
from tests.support.deadline import until
from tests.support.secured_nats import NODES, SecuredNats

NODE = NODES[0]
MIB = 1 << 20


@pytest_asyncio.fixture
async def nats(tmp_path: Path) -> AsyncIterator[SecuredNats]:
    server = SecuredNats(tmp_path / "secrets")
    await server.start()
    try:
        await server.declare()
        yield server
    finally:
        await server.stop()


class Told:
    """What a page was told so far."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.data = b""

    async def holds(self, *texts: str) -> bool:
        self.data += await self._page.take(0.05)
        return all(text.encode() in self.data for text in texts)

    async def wait_for(self, *texts: str) -> None:
        deadline = time.monotonic() + 60
        while not await self.holds(*texts):
            missing = [text for text in texts if text.encode() not in self.data]
            assert time.monotonic() < deadline, f"the page was not told of {missing}"


async def answer(_: Delivery) -> Message:
    return state_reply()


async def explain(delivery: Delivery) -> Message:
    request = delivery.message
    assert isinstance(request, ExplainRequest)
    decision = Explanation(
        time_ns=1,
        container=request.container or "",
        resource="cpu",
        before=20_000,
        after=40_000,
        reason="throttled",
        sentence="throttled",
    )
    return ExplainReply(app=request.app, summary="shop holds all", decisions=(decision,))


async def serve(bus: NatsBus, subject: object, answer: Message) -> None:
    async def responder(_: Delivery) -> Message:
        return answer

    await bus.serve(subject, responder)  # type: ignore[arg-type]


def oom(reason: str) -> OomEvent:
    return OomEvent(
        kind=OomKind.GRANT,
        cause=OomCause.SAMPLE,
        app="shop",
        node=NODE,
        container="web-0123456789ab",
        incarnation=1,
        time_ns=time.time_ns(),
        usage_bytes=MIB,
        limit_before_bytes=MIB,
        limit_after_bytes=2 * MIB,
        reserve_bytes=0,
        reason=reason,
    )


def spec() -> AppSpec:
    return AppSpec(name="shop", cpu_limit=1.0, memory_limit=256 * MIB)


def state_reply() -> StateReply:
    """An allocator's that owns the application."""
    state = AppState(
        spec=spec(),
        cpu_committed_us=1,
        cpu_free_us=1,
        memory_committed_bytes=1,
        memory_free_bytes=1,
        owner="the-replica",
        containers=(),
    )
    return StateReply(epoch=1, steps=1, superseded=False, replica="the-replica", apps=(state,))


def batch() -> CfsBatch:
    columns = {name: [1] for name in CfsBatch.column_types}
    return CfsBatch.build(
        ["live-0123456789ab"],
        columns,
        app="shop",
        node=NODE,
        incarnation=1,
        report_seq=1,
        time_ns=time.time_ns(),
        period_us=100_000,
        host_cpus=2,
    )


async def test_an_observer_is_told_everything(nats: SecuredNats) -> None:
    operator = await nats.bus(Role.OPERATOR)  # declares the streams
    agent, allocator = await nats.bus(Role.AGENT, NODE), await nats.bus(Role.ALLOCATOR)
    reconciler, observer = await nats.bus(Role.RECONCILER, NODE), await nats.bus(Role.OBSERVER)
    await operator.bucket(APPS).put("shop", spec())
    agent.publish_event(OOM_EVENTS.subject("tb", app="shop", node=NODE), oom("before the console came"), message_id="1")
    first = TcEvent(node=NODE, incarnation=1, pass_id=1, time_ns=time.time_ns(), causes={"start": 1}, verified=True)
    reconciler.publish_event(TC_EVENTS.subject("tb", node=NODE), first, message_id="2")
    await agent.flush(60)
    await reconciler.flush(60)
    state = NetworkStateReply(
        node=NODE,
        incarnation=1,
        offload="prefer",
        full_reconciles=1,
        writes=1,
        last_reconcile_age_s=1.0,
        ports=(),
        encapsulation_device="x",
        vteps=(),
        macs=0,
        installed=0,
        in_hw=0,
        not_in_hw=0,
        unmanaged=0,
        paths=(),
        problems=("a problem",),
    )
    await serve(reconciler, RECONCILER_STATE.subject("tb", node=NODE), state)
    await serve(reconciler, RECONCILER_RULES.subject("tb", node=NODE), RulesReply(node=NODE, total=7, rules=()))
    await allocator.serve_queries("allocator", "1.0.0", "test", {ALLOCATOR_STATE: answer, ALLOCATOR_EXPLAIN: explain})
    for answering in (reconciler, allocator):  # from now on, to requests over another connection
        await answering.flush(60)
    hub = Hub()
    told = Told(hub.join())
    async with follow_bus(observer, hub) as source:
        agent.publish_event(OOM_EVENTS.subject("tb", app="shop", node=NODE), oom("while it looks"), message_id="3")
        await agent.flush(60)
        agent.publish(CFS.subject("tb", app="shop", node=NODE), batch())
        await told.wait_for(
            "before the console came", "while it looks", "live-0123456789ab", "console.App", "the-replica"
        )
        await told.wait_for("a problem", "RulesReply")
        assert b"console.Trouble" not in told.data
        explained = msgpack.unpackb(await source.queries["/explain"]({"app": "shop", "container": "web-0123456789ab"}))
        assert explained["error"] == ""
        texts = [line["text"] for line in explained["lines"]]
        assert texts[:2] == ["shop holds all", "web-0123456789ab  cpu 0.20 → 0.40 cores: throttled"]
        assert [line["kind"] for line in explained["lines"]] == ["heading", "decision", "heading", "event", "event"]
        history = msgpack.unpackb(await source.queries["/history"]({"app": "shop"}))
        assert len(history["values"]) == len(history["columns"]) * len(history["times_s"]) / 2
        assert len(history["times_s"]) >= 8
    for bus in (observer, agent, allocator, reconciler, operator):
        await bus.close(2.0)


async def test_what_was_saved_is_told_of_each_application(nats: SecuredNats) -> None:
    """Within an observer's permissions, and as `turnbuckle savings` adds it up."""
    allocator, observer = await nats.bus(Role.ALLOCATOR), await nats.bus(Role.OBSERVER)
    today = datetime.now(UTC).date()
    part = SavingsPart(
        mode="observe",
        cpu_baseline=Baseline.CONFIGURED,
        memory_baseline=Baseline.CONFIGURED,
        covered_s=3_600,
        cpu_baseline_core_s=7_200,
        cpu_held_core_s=1_800,
        memory_baseline_gib_s=3_600,
        memory_held_gib_s=1_800,
        periods=1_000,
        throttled_periods=5,
        throttled_s=0.1,
        excess_periods=20,
        excess_core_s=0.5,
    )
    for app in ("shop", "other"):
        saved = Savings(app=app, day=today, record="r.1", time_ns=time.time_ns(), parts=(part,))
        subject = SAVINGS.subject("tb", app=app, day=today.isoformat(), record="r.1")
        allocator.publish_event(subject, saved, message_id=f"{app}-1")
    await allocator.flush(60)
    async with follow_bus(observer, Hub()) as source:
        told = msgpack.unpackb(await source.queries["/savings"]({"app": "shop"}))
        unknown = msgpack.unpackb(await source.queries["/savings"]({"app": "unknown"}))
        refused = msgpack.unpackb(await source.queries["/savings"]({}))
    for bus in (observer, allocator):
        await bus.close(2.0)

    (total,) = told["totals"]
    assert (told["error"], total["mode"], total["money"]) == ("", "observe", None)
    assert (total["cpu"]["saved_core_h"], total["memory"]["saved_gib_h"]) == (1.5, 0.5)
    assert total["throttling"]["would_throttle_periods"] == 20
    assert unknown["totals"] == []
    assert refused["error"] != ""


async def test_missing_answers_are_said_and_forgotten_once_they_come(nats: SecuredNats) -> None:
    operator = await nats.bus(Role.OPERATOR)
    observer = await nats.bus(Role.OBSERVER)
    await operator.bucket(APPS).put("shop", spec())
    hub = Hub()
    told = Told(hub.join())
    async with follow_bus(observer, hub):
        await told.wait_for("console.Trouble", "no allocator answers")
        allocator = await nats.bus(Role.ALLOCATOR)
        await allocator.serve_queries("allocator", "1.0.0", "test", {ALLOCATOR_STATE: answer})
        await told.wait_for("console.Solved", "the-replica")
        hub.leave(told._page)
        await until(lambda: hub.pages == 0)
    for bus in (observer, allocator, operator):
        await bus.close(2.0)


async def test_nobody_speaks_in_the_consoles_name_or_in_messages_that_are_none(nats: SecuredNats) -> None:
    """Its own messages, and batches whose fields have other types, would break or mislead the page."""
    operator, observer = await nats.bus(Role.OPERATOR), await nats.bus(Role.OBSERVER)
    agent = await nats.bus(Role.AGENT, NODE)
    hub = Hub()
    told = Told(hub.join())
    async with follow_bus(observer, hub):
        subject = CFS.subject("tb", app="shop", node=NODE)
        forged = (console_message("Joined"), console_message("Trouble", about="forged", text=""), b"")
        strange = msgpack.packb(msgpack.unpackb(encode(batch())) | {"app": 7, "node": "strange"})
        for data in (*forged, strange):
            await agent.connection.publish(subject.text, data)
        agent.publish(subject, batch())
        await told.wait_for("live-0123456789ab")
    assert b"console.Joined" not in told.data
    assert b"forged" not in told.data
    assert b"strange" not in told.data
    for bus in (observer, agent, operator):
        await bus.close(2.0)


async def test_an_event_that_names_no_node_is_not_read_and_does_not_end_the_questions(nats: SecuredNats) -> None:
    operator, observer = await nats.bus(Role.OPERATOR), await nats.bus(Role.OBSERVER)
    reconciler, allocator = await nats.bus(Role.RECONCILER, NODE), await nats.bus(Role.ALLOCATOR)
    await operator.bucket(APPS).put("shop", spec())
    nameless = TcEvent(node="", incarnation=1, pass_id=1, time_ns=time.time_ns(), causes={}, verified=True)
    reconciler.publish_event(TC_EVENTS.subject("tb", node=NODE), nameless, message_id="1")
    await reconciler.flush(60)
    hub = Hub()
    told = Told(hub.join())
    async with follow_bus(observer, hub):
        await told.wait_for("no allocator answers")
        await allocator.serve_queries("allocator", "1.0.0", "test", {ALLOCATOR_STATE: answer})
        await told.wait_for("console.Solved", "the-replica")
    for bus in (observer, allocator, reconciler, operator):
        await bus.close(2.0)
