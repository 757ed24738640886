"""Two allocators on a bus in memory: who listens, who answers, and who keeps quiet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from schemas.apps import AppSpec
from schemas.limits import LimitDecisions, LimitReply, LimitUpdate
from schemas.message import Message
from schemas.oom import MemoryReply, MemoryRequest
from schemas.queries import ExplainRequest, StateRequest
from schemas.services.allocator import ALLOCATOR_STATE
from schemas.streams import APPS, LEASES
from schemas.subjects import LIMIT_DECISIONS, LIMIT_UPDATES, MEMORY_REQUESTS
from services._host.simulation.load_profile import demo_scenario
from services._runtime.bus.api import BusError, RequestRefusedError
from services._runtime.command.errors import CommandError
from services.agent.service import Agent
from services.agent.settings import AgentSettings
from services.allocator.cycle import Outcome
from services.allocator.ownership.membership import Membership
from services.allocator.service import Allocator
from services.allocator.settings import AllocatorSettings
from services.cli.apps.allocators import allocator_explain, allocator_state
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.service_in_process import run_in_process

pytestmark = pytest.mark.virtual_time


MIB = 1 << 20
NAMES = [f"app{number}" for number in range(16)]


class Pair:
    """Two replicas, their buses, and a third bus to ask from."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self.buses = [MemoryBus(self.broker), MemoryBus(self.broker)]
        self.allocators: list[Allocator] = []

    async def announce(self, app: str) -> None:
        await self.bus.bucket(APPS).put(app, AppSpec(name=app, cpu_limit=1.0, memory_limit=256 * MIB))

    @property
    def held(self) -> list[dict[str, int]]:
        return [allocator._membership.held for allocator in self.allocators]

    async def ask(self, endpoint, request: Message) -> Message:
        return await self.bus.request(endpoint.template.subject("tb"), request, timeout_s=60)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    for app in NAMES:
        await pair.announce(app)
    async with AsyncExitStack() as stack:
        for bus in pair.buses:
            settings = AllocatorSettings.load({}, lease_ttl_s=10)
            pair.allocators.append(await stack.enter_async_context(run_in_process(Allocator, settings, bus)))
        await until(lambda: all(pair.held) and sum(map(len, pair.held)) == len(NAMES), what="a share for each")
        yield pair
    for bus in (*pair.buses, pair.bus):
        await bus.close(1)


async def test_either_answers_for_all(pair):
    answering = set()
    for _ in range(20):
        reply = await allocator_state(pair.bus)
        answering.add(reply.replica)
        owners = {allocator._membership.id: held for allocator, held in zip(pair.allocators, pair.held, strict=True)}
        assert {state.spec.name for state in reply.apps} == set(NAMES)
        assert all(owners[state.owner][state.spec.name] == state.epoch for state in reply.apps)
        assert all(state.cpu_committed_us + state.cpu_free_us == state.spec.cpu_limit_us for state in reply.apps)
        for app in NAMES:
            one = await allocator_state(pair.bus, app)
            assert [state.spec.name for state in one.apps] == [app]
            told = await allocator_explain(pair.bus, ExplainRequest(app=app))
            assert (told.app, told.owner) == (app, "")
            assert "containers hold" in told.summary
    assert len(answering) == 2


async def test_where_the_owner_does_not_answer_an_application_is_listed_without_one_and_refused_alone(pair):
    first, second = pair.allocators
    app = next(iter(pair.held[1]))
    pair.buses[1].disconnect()  # it is still thought to own

    whole, *refusals = await asyncio.gather(
        allocator_state(pair.bus),
        allocator_state(pair.bus, app),
        allocator_explain(pair.bus, ExplainRequest(app=app)),
        return_exceptions=True,
    )

    assert [(state.owner, state.containers) for state in whole.apps if state.spec.name == app] == [("", ())]
    assert [type(refusal) for refusal in refusals] == [CommandError, CommandError]
    assert all("has no owner" in str(refusal) for refusal in refusals)
    await until(lambda: len(first._membership.held) == len(NAMES), what="all taken over")
    assert second.not_ready() is not None
    pair.buses[1].reconnect()
    await until(lambda: second.not_ready() is None, what="back")


async def test_unknown_applications_are_named_as_such(pair):
    with pytest.raises(RequestRefusedError, match="announced: app0, app1") as refusal:
        await pair.ask(ALLOCATOR_STATE, StateRequest(app="nothing"))
    assert refusal.value.code == 404


async def test_memory_requests_are_answered_by_the_owner_alone(pair):
    for app in NAMES:
        reply = await pair.bus.request(
            MEMORY_REQUESTS.subject("tb", app=app, node="n1"), memory_request(app), timeout_s=60
        )
        assert isinstance(reply, MemoryReply)
        epochs = [held[app] for held in pair.held if app in held]
        assert [reply.epoch] == epochs
        assert not reply.denial, "it does not know the node yet: the agent asks again"
    assert [allocator.memory_requests for allocator in pair.allocators] == [len(held) for held in pair.held]


async def test_an_owner_that_cannot_renew_its_heartbeat_answers_no_requests(pair, monkeypatch):
    app = next(iter(pair.held[0]))
    monkeypatch.setattr(Membership, "may_act", lambda _membership: False)

    with pytest.raises(RequestRefusedError, match="retry") as refusal:
        await pair.bus.request(MEMORY_REQUESTS.subject("tb", app=app, node="n1"), memory_request(app), timeout_s=60)

    assert refusal.value.code == 503


async def test_what_was_decided_before_a_stop_is_not_sent_after_it(pair, monkeypatch, tmp_path):
    """SIGSTOP in the middle of a step, until others have taken over: nothing of that step reaches anybody."""
    app = next(iter(pair.held[0]))
    owner, sent, stopped = pair.allocators[0], [], []
    load = {"app": app, "scenario": demo_scenario().model_dump(mode="json")}
    (tmp_path / "load.json").write_text(json.dumps([load]), encoding="utf-8")
    settings = AgentSettings.load({}, node="n1", host="simulated", scenario_file=tmp_path / "load.json")
    for pattern in (LIMIT_DECISIONS, LIMIT_UPDATES):
        await pair.bus.subscribe(pattern.pattern("tb"), lambda delivery: sent.append(delivery.message))
    step = owner._allocation.step

    def stop_before_sending(batches, time, send) -> Outcome:
        decided = []

        def stop(updates) -> None:
            monkeypatch.setattr(Membership, "may_act", lambda membership: membership is not owner._membership)
            decided.append(len(sent))
            send(updates)

        outcome = step(batches, time, stop)
        if decided:
            stopped.append((outcome, decided[0]))
        return outcome

    monkeypatch.setattr(owner._allocation, "step", stop_before_sending)
    async with run_in_process(Agent, settings, MemoryBus(pair.broker)):
        await until(lambda: stopped, what="a step with decisions")
        [(outcome, before)] = stopped
        assert outcome.decisions
        await until(lambda: owner._sender.lost >= len(outcome.updates), what="its orders given up")
        assert not {message.seq for message in sent[before:] if isinstance(message, LimitUpdate)} & {
            update.seq for update in outcome.updates
        }
        assert not any(decisions in sent for decisions in outcome.decisions)


@pytest.mark.parametrize(("named", "lost"), [("n1", 0), ("n2", 1)])
async def test_a_reply_counts_for_the_node_that_was_asked(pair, named, lost):
    """A host that acknowledges another's limits could have what was cut there handed out a second time."""
    owner, recorded = pair.allocators[0], []
    empty = {name: [] for name in LimitUpdate.column_types}
    order = LimitUpdate.build([], empty, node="n1", incarnation=1, epoch=1, seq=7, time_ns=1, apps=("shop",))

    async def reply(_delivery) -> LimitReply:
        columns = {name: [] for name in LimitReply.column_types}
        return LimitReply.build([], columns, node=named, incarnation=1, report_seq=1, epoch=1, seq=7)

    await pair.bus.serve(LIMIT_UPDATES.subject("tb", node="n1"), reply)
    owner._allocation.replies.record = lambda reply, *_: recorded.append(reply.node)
    owner._sender.send((order,))
    await until(lambda: recorded or owner._sender.lost, what="the reply")

    assert (recorded, owner._sender.lost) == (["n1"] * (1 - lost), lost)


async def test_limit_updates_leave_before_anything_is_told_or_counted(pair, monkeypatch, tmp_path):
    app = next(iter(pair.held[0]))
    owner, steps = pair.allocators[0], [[]]
    load = {"app": app, "scenario": demo_scenario().model_dump(mode="json")}
    (tmp_path / "load.json").write_text(json.dumps([load]), encoding="utf-8")
    settings = AgentSettings.load({}, node="n1", host="simulated", scenario_file=tmp_path / "load.json")
    step, publish = owner._allocation.step, owner._bus.publish

    def noted(holder, name):
        original = getattr(holder, name)

        def note(*arguments, **keywords):
            steps[-1].append(name)
            return original(*arguments, **keywords)

        monkeypatch.setattr(holder, name, note)

    def noted_step(*arguments):
        steps.append([])
        return step(*arguments)

    def noted_publish(subject, message):
        if isinstance(message, LimitDecisions) and message.update_seq_last:  # others have no limit update
            steps[-1].append("publish")
        publish(subject, message)

    for holder, name in ((owner._bus, "send_request"), (owner._bus, "write_now"), (owner._allocation.savings, "add")):
        noted(holder, name)
    monkeypatch.setattr(owner._allocation, "step", noted_step)
    monkeypatch.setattr(owner._bus, "publish", noted_publish)
    async with run_in_process(Agent, settings, MemoryBus(pair.broker)):
        await until(lambda: any("publish" in done for done in steps), within_s=30, what="a step with decisions")

    done = next(done for done in steps if "publish" in done)
    assert done[:2] == ["send_request", "write_now"]
    assert done.index("add") < done.index("publish")


async def test_a_withdrawn_application_is_unsubscribed_and_owned_again_when_announced_again(pair):
    app = NAMES[0]
    [before] = [held[app] for held in pair.held if app in held]
    subject = MEMORY_REQUESTS.subject("tb", app=app, node="n1")
    await pair.bus.bucket(APPS).delete(app)
    await until(lambda: not any(app in held for held in pair.held), what="given up")
    with pytest.raises(BusError):
        await pair.bus.request(subject, memory_request(app), timeout_s=0.2)

    await pair.announce(app)

    await until(lambda: any(held.get(app, 0) >= before for held in pair.held), what="owned again")
    assert isinstance(await pair.bus.request(subject, memory_request(app), timeout_s=60), MemoryReply)


async def test_withdrawn_and_back_at_once_is_still_decided_for(pair):
    app = next(iter(pair.held[0]))
    owner = pair.allocators[0]
    spec = owner._allocation.cluster.specs[app]

    await pair.bus.bucket(APPS).delete(app)
    await pair.bus.bucket(APPS).put(app, spec)

    await until(
        lambda: (
            any(
                app in allocator._membership.held
                and allocator._allocation.owned.epoch_of(app) == allocator._membership.held[app]
                for allocator in pair.allocators
            )
            and app in owner._allocation.cluster.specs
        ),
        what="decided for",
    )


async def test_an_epoch_that_agents_refuse_is_outdone(pair):
    """The application is ours, so the store must have forgotten what agents remember."""
    owner = pair.allocators[0]
    app, epoch = next(iter(pair.held[0].items()))
    owner._allocation.owned.lose(app, epoch + 3_600_000)

    owner._after_replies()

    await until(lambda: owner._membership.held.get(app, 0) > epoch + 3_600_000, what="far ahead")
    await until(lambda: owner._allocation.owned.epoch_of(app) == owner._membership.held[app], what="decided for")


async def test_a_quarantined_node_keeps_its_share_and_is_named(pair, tmp_path):
    """Nothing is received of it for longer than a silent node is counted."""
    app = next(iter(pair.held[0]))
    owner = pair.allocators[0]
    load = {"app": app, "scenario": demo_scenario().model_dump(mode="json")}
    (tmp_path / "load.json").write_text(json.dumps([load]), encoding="utf-8")
    settings = AgentSettings.load({}, node="n1", host="simulated", scenario_file=tmp_path / "load.json")
    async with run_in_process(Agent, settings, MemoryBus(pair.broker)):
        await until(lambda: len(owner._allocation.pools().containers.nonzero()[0]), what="containers that are admitted")
        owner._agents.guard.quarantined["n1"] = owner._clock.monotonic() + 300
        await asyncio.sleep(owner._settings.node_expiry_s + 10)

        [state] = (await allocator_state(pair.bus, app)).apps
        assert state.containers
        assert any("n1 sends more than any agent does" in warning for warning in state.node_warnings)
        explained = await allocator_explain(pair.bus, ExplainRequest(app=app))
        assert "n1 sends more" in explained.summary


async def test_a_node_that_is_set_aside_is_logged_once_and_when_it_counts_again(pair, capsys):
    owner = pair.allocators[0]
    owner._allocation.inventory.set_aside = {("shop", "n1"), ("bank", "n1")}
    for _ in range(3):
        owner._log_set_aside()
    owner._allocation.inventory.set_aside = set()
    owner._log_set_aside()

    printed = capsys.readouterr()
    lines = [
        line for line in (printed.out + printed.err).splitlines() if "node_set_aside" in line or "counts_again" in line
    ]
    assert len(lines) == 2
    assert all(word in lines[0] for word in ("n1", "bank", "shop"))
    assert "counts_again" in lines[1]


async def test_one_that_stops_leaves_its_share_at_once(pair):
    await pair.allocators[0].stop()

    await until(lambda: len(pair.held[1]) == len(NAMES), within_s=8, what="all with the other")
    leases = await pair.bus.bucket(LEASES).entries()
    assert [key for key in leases if key.startswith("replica.")] == [f"replica.{pair.allocators[1]._membership.id}"]


def memory_request(app: str) -> MemoryRequest:
    return MemoryRequest(
        app=app,
        node="n1",
        incarnation=1,
        container="c1",
        wanted_bytes=MIB,
        usage_bytes=MIB,
        limit_bytes=2 * MIB,
        tasks_blocked=False,
        time_ns=0,
    )
