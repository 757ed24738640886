"""The aggregator service with its own key on a secured server, aggregators as processes: faults, and who may ask."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from schemas.aggregations import AggregationChange, AggregationEndReply, AggregationEvent, AggregationReply
from schemas.message import Message
from schemas.roles import Role
from schemas.services.aggregator import AGGREGATOR_PLACE
from services._runtime.bus.api import Bus, NotPermittedError, RequestRefusedError
from services._runtime.bus.nats import NatsBus
from services.aggregator.aggregator_process import AggregatorProcess, CommandRefusedError, ProcessLostError
from services.trainer.worker.gather import RankFailedError
from services.trainer.worker.push_pull import PushPull
from tests.support.aggregation import Ranks, by_torch, parameters, sha256, spec
from tests.support.cluster_lab import ServiceProcess
from tests.support.deadline import until
from tests.support.local_aggregators import CLAIM, OTHER_CLAIM, asked, assignment, end, listen, place, places
from tests.support.permission_trials import Trial
from tests.support.secured_nats import SecuredNats

START_S = 240.0
"""torch takes seconds to import, more on a busy machine."""
STEPS = 5

pytestmark = [
    pytest.mark.host,  # half a minute of a processor, most of it to import torch, and the time to live of the lead
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SecuredNats]:
    async with SecuredNats(tmp_path / "secrets") as made:
        await made.declare()
        yield made


@pytest.fixture
async def operator(server: SecuredNats) -> AsyncIterator[NatsBus]:
    bus = await server.bus(Role.OPERATOR)
    yield bus
    await bus.close(5)


@pytest.fixture
async def instances(server: SecuredNats, tmp_path: Path) -> AsyncIterator[list[ServiceProcess]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "TURNBUCKLE_"))}
    ours = {
        "TURNBUCKLE_HEALTH_PORT": "0",
        "TURNBUCKLE_AGGREGATOR__PROCESSES": "1",
        "TURNBUCKLE_AGGREGATOR__CONTROL_GROUPS": "off",  # one that is killed leaves its group to an agent: none here
    }
    environment = kept | server.environment(Role.AGGREGATOR) | ours
    started = [ServiceProcess("aggregator", environment, tmp_path / f"aggregator-{each}.log") for each in range(2)]
    yield started
    for each in started:
        each.kill()


def leading(instances: list[ServiceProcess]) -> list[ServiceProcess]:
    return [each for each in instances if each.running and any(line["event"] == "lead_taken" for line in each.log())]


def children_of(pid: int) -> list[int]:
    """Those that its main thread has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def aggregators_of(instance: ServiceProcess) -> list[int]:
    return children_of(instance.pid)


async def trained(reply: AggregationReply) -> set[str]:
    with Ranks(spec(reply.job), places(reply), STEPS, key=bytes.fromhex(reply.key)) as ranks:
        return {sha256(each) for each in await asyncio.to_thread(ranks.results)}


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def refused_code(bus: Bus, request: Message) -> int:
    with pytest.raises(RequestRefusedError) as refused:
        await place(bus, request, START_S)
    return refused.value.code


async def kill_aggregator(instance: ServiceProcess, heard: list[AggregationEvent]) -> None:
    count = len(heard)
    (pid,) = aggregators_of(instance)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: len(heard) > count, what="the loss of the aggregator")


async def kill_service(instance: ServiceProcess) -> None:
    (pid,) = aggregators_of(instance)
    instance.kill()
    await until(lambda: not is_alive(pid), what="the end of its aggregator")


async def test_kill_of_an_aggregator_and_of_the_leading_instance(
    server: SecuredNats, operator: NatsBus, instances: list[ServiceProcess]
) -> None:
    heard = await listen(operator)
    await until(lambda: leading(instances), within_s=START_S, what="an instance that leads")
    (first,) = leading(instances)
    expected = {sha256(by_torch(spec(), 1_500, STEPS))}

    reply = await place(operator, asked(), START_S)
    assert await trained(reply) == expected
    assert await place(operator, asked(), START_S) == reply
    assert await refused_code(operator, asked(claim=OTHER_CLAIM)) == 403
    foreign = PushPull(("job", 0, bytes(32)), places(reply), 60)
    with pytest.raises(RankFailedError, match="with this key and rank 0 is not there"):
        await asyncio.to_thread(foreign.start, parameters(1_500))
    foreign.close()

    await kill_aggregator(first, heard)
    assert (heard[-1].change, heard[-1].bit_identical) == (AggregationChange.LOST, False)
    assert "it has died by signal 9" in heard[-1].reason
    assert await refused_code(operator, asked()) == 410
    assert await trained(await place(operator, asked(attempt=2), START_S)) == expected

    await kill_service(first)
    (second,) = (each for each in instances if each is not first)
    await until(lambda: leading(instances) == [second], within_s=START_S, what="the other instance leads")
    await until(lambda: heard[-1].change is AggregationChange.LOST, what="the loss of the job")
    stored = await assignment(operator)
    assert stored is not None
    assert (stored.attempt, bool(stored.lost)) == (2, True)
    third = await place(operator, asked(attempt=3), START_S)
    assert {each.version for each in third.ranges} == {3}
    assert await trained(third) == expected

    keys = (reply.key, third.key, CLAIM)
    for instance in instances:
        assert not any(key in instance.log_path.read_text() for key in keys)
    assert "iolation" not in server.log_path.read_text()


async def test_garbage_is_refused_and_other_users_may_not_ask(
    server: SecuredNats, instances: list[ServiceProcess]
) -> None:
    await until(lambda: leading(instances), within_s=START_S, what="an instance that leads")
    subject = AGGREGATOR_PLACE.template.subject("tb").text
    async with Trial(server, server.user(Role.OPERATOR).identity) as trial:
        for data in (b"", b"\xc1", b"{}", b'{"type": "turnbuckle.aggregation.v1.AggregationRequest", "job": "../x"}'):
            answer = await trial.client.request(subject, data, timeout=60)
            assert b"QueryError" in answer.data, data
    for role in (Role.PLANNER, Role.OBSERVER):
        bus = await server.bus(role)
        with pytest.raises(NotPermittedError):
            await place(bus, asked(), 60)
        await bus.close(5)
    (leader,) = leading(instances)
    assert aggregators_of(leader) == []


async def test_the_trainers_key_asks_and_ends_and_reads_no_assignment(
    server: SecuredNats, instances: list[ServiceProcess]
) -> None:
    await until(lambda: leading(instances), within_s=START_S, what="an instance that leads")
    trainer = await server.bus(Role.TRAINER)
    reply = await place(trainer, asked(), START_S)
    assert await trained(reply) == {sha256(by_torch(spec(), 1_500, STEPS))}
    with pytest.raises(NotPermittedError):
        await assignment(trainer)
    assert await end(trainer) == AggregationEndReply(known=True)
    await trainer.close(5)


async def test_an_aggregator_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNBUCKLE_NATS_PASSWORD", "secret")
    before = set(children_of(os.getpid()))
    process = await AggregatorProcess.start("127.0.0.1", 1 << 20)
    (pid,) = set(children_of(os.getpid())) - before
    try:
        assert await process.ask("loads") == {"loads": [], "finished": {}}
        assert b"TURNBUCKLE_" not in environment_of(pid)
        with pytest.raises(CommandRefusedError, match="job none is not here"):
            await process.ask("drop", job="none")
        os.kill(pid, signal.SIGSTOP)

        with pytest.raises(ProcessLostError, match=r"did not answer within 0\.5 s"):
            await process.ask("loads", within_s=0.5)

        assert process.ended == "it has died by signal 9"
        assert not is_alive(pid)
    finally:
        await process.end()


async def test_an_aggregator_that_cannot_listen_says_how_it_has_ended() -> None:
    with pytest.raises(ProcessLostError, match="it has ended with exit code 1"):
        await AggregatorProcess.start("203.0.113.1", 1 << 20)  # of no host: RFC 5737
