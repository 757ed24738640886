"""What one host's key can do to what others have stored: by headers, by quantity, by ids, by the server's answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from schemas.codec import encode
from schemas.roles import Role
from schemas.streams import NODES, OOM_STREAM, STREAMS, StreamSpec
from schemas.subjects import OOM_EVENTS, token
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from tests.support.bus_lab import node_info
from tests.support.oom_events import oom_event
from tests.support.permission_trials import MINE, OTHERS, Trial
from tests.support.secured_nats import SecuredNats

OWN_FACT = OOM_EVENTS.subject("tb", app="shop", node=MINE).text
OWN_KEY = f"$KV.tb_nodes.{token(MINE)}"
_REFUSED_HEADERS: dict[str, dict[str, str]] = {
    "a rollup of the stream": {"Nats-Rollup": "all"},
    "a rollup of the subject": {"Nats-Rollup": "sub"},
    "a time to live beyond the bucket's": {"Nats-TTL": "never"},
    "a schedule": {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": OWN_FACT},
    "a schedule's end": {"Nats-Schedule-Next": "purge"},
    "an atomic batch": {"Nats-Batch-Id": "a", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    "a counter": {"Nats-Incr": "1"},
    "another stream's message": {"Nats-Stream-Source": "TB_JOB 1"},
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SecuredNats]:
    async with SecuredNats(tmp_path / "secrets") as made:
        yield made


@pytest.fixture
async def administrator(server: SecuredNats) -> AsyncIterator[NatsBus]:
    bus = await server.bus(Role.ADMINISTRATOR)
    assert bus.undeclared == []
    yield bus
    await bus.close(2)


def attacker(server: SecuredNats) -> Trial:
    return Trial(server, server.user(Role.AGENT, MINE).identity)


async def stored_of(bus: NatsBus, node: str) -> list[int]:
    """Times of the facts that are stored of a node."""
    found: list[int] = []

    def take(delivery: Any) -> None:
        if delivery.message.node == node:
            found.append(delivery.message.time_ns)

    await read_stored(bus, OOM_STREAM, OOM_EVENTS.pattern("tb"), 0.0, take)
    return found


@pytest.mark.parametrize("what", _REFUSED_HEADERS)
@pytest.mark.parametrize("subject", [OWN_FACT, OWN_KEY])
async def test_a_header_reaches_no_other_message(
    server: SecuredNats, administrator: NatsBus, subject: str, what: str
) -> None:
    victim = await server.bus(Role.AGENT, OTHERS)
    await victim.bucket(NODES).put(OTHERS, node_info(2))
    victim.publish_event(OOM_EVENTS.subject("tb", app="shop", node=OTHERS), oom_event(node=OTHERS), message_id="1")
    await victim.flush(60)
    async with attacker(server) as trial:
        answer = await trial.client.request(subject, b"x", headers=_REFUSED_HEADERS[what], timeout=5)

    assert "error" in json.loads(answer.data), answer.data
    assert await administrator.bucket(NODES).get(OTHERS) is not None
    assert len(await stored_of(administrator, OTHERS)) == 1
    await victim.close(2)


@pytest.mark.parametrize("headers", [{"Status": "204"}, {"Nats-Sequence": "9", "Nats-Num-Pending": "0"}])
async def test_headers_of_the_servers_own_hide_no_fact(
    server: SecuredNats, administrator: NatsBus, headers: dict[str, str]
) -> None:
    """By them it tells readers where a batch ends."""
    async with attacker(server) as trial:
        answer = await trial.client.request(OWN_FACT, encode(oom_event(node=MINE)), headers=headers, timeout=60)
    assert "error" not in json.loads(answer.data), answer.data
    victim = await server.bus(Role.AGENT, OTHERS)
    victim.publish_event(OOM_EVENTS.subject("tb", app="shop", node=OTHERS), oom_event(node=OTHERS), message_id="1")
    await victim.flush(60)

    assert [len(await stored_of(administrator, node)) for node in (MINE, OTHERS)] == [1, 1]
    await victim.close(2)


async def test_one_host_pushes_nobody_elses_facts_out(server: SecuredNats, administrator: NatsBus) -> None:
    """Whatever size its facts have, and however many applications it invents."""
    limit, size = OOM_STREAM.max_messages_per_host, OOM_STREAM.max_message_bytes
    victim = await server.bus(Role.AGENT, OTHERS)
    for number in range(3):
        fact = oom_event(node=OTHERS, time_ns=number)
        victim.publish_event(OOM_EVENTS.subject("tb", app="shop", node=OTHERS), fact, message_id=f"{number}")
    await victim.flush(60)
    async with attacker(server) as trial:
        for number in range(80):
            await trial.client.publish(OOM_EVENTS.subject("tb", app=f"big{number}", node=MINE).text, bytes(1_000_000))
            await trial.client.flush()
        for number in range(4_500):
            await trial.client.publish(OOM_EVENTS.subject("tb", app=f"many{number}", node=MINE).text, bytes(3_800))
            if number % 100 == 0:
                await trial.client.flush()
        await trial.client.request(OWN_FACT, b"the last", timeout=30)
    info = await administrator.jetstream.stream_info("TB_OOM", subjects_filter=">")

    assert await stored_of(administrator, OTHERS) == [0, 1, 2]
    assert limit is not None
    assert size is not None
    assert sorted((info.state.subjects or {}).values()) == [3, limit]
    assert info.state.bytes < limit * size + 10_000
    assert limit * size <= OOM_STREAM.max_bytes / 2, "there is room for the others"
    await victim.close(2)


@pytest.mark.parametrize(
    "spec", [spec for spec in STREAMS if spec.max_messages_per_host is not None], ids=lambda spec: spec.name
)
def test_no_host_can_fill_more_than_half_of_a_stream(spec: StreamSpec) -> None:
    assert (spec.max_messages_per_host or 0) * (spec.max_message_bytes or 0) <= spec.max_bytes / 2


async def test_an_id_that_was_used_before_hides_no_fact(server: SecuredNats, administrator: NatsBus) -> None:
    """The ids of one stream are known to all who write to it, or can be computed from what they know."""
    victim = await server.bus(Role.AGENT, OTHERS)
    async with attacker(server) as trial:
        for message_id in ("1-oom-1", "1-oom-2"):
            await trial.client.request(OWN_FACT, b"x", headers={"Nats-Msg-Id": message_id}, timeout=5)
    for number in (1, 2):
        fact = oom_event(node=OTHERS, time_ns=number)
        victim.publish_event(OOM_EVENTS.subject("tb", app="shop", node=OTHERS), fact, message_id=f"1-oom-{number}")
    again = await server.bus(Role.AGENT, OTHERS)  # after a restart the same fact has the same id
    again.publish_event(
        OOM_EVENTS.subject("tb", app="shop", node=OTHERS), oom_event(node=OTHERS, time_ns=2), message_id="1-oom-2"
    )
    await victim.flush(60)
    await again.flush(60)

    assert await stored_of(administrator, OTHERS) == [1, 2]
    for bus in (victim, again):
        await bus.close(2)


async def test_a_node_in_a_stored_fact_is_the_senders(server: SecuredNats, administrator: NatsBus) -> None:
    forger = await server.bus(Role.AGENT, MINE)
    forger.publish_event(OOM_EVENTS.subject("tb", app="shop", node=MINE), oom_event(node=OTHERS), message_id="1")
    forger.publish_event(OOM_EVENTS.subject("tb", app="shop", node=MINE), oom_event(node=MINE), message_id="2")
    await forger.flush(60)

    assert await stored_of(administrator, OTHERS) == []
    assert len(await stored_of(administrator, MINE)) == 1
    assert administrator.counters["undecodable_subject_mismatch"] == 2
    await forger.close(2)


async def test_a_fact_that_is_too_long_keeps_no_other_back(server: SecuredNats, administrator: NatsBus) -> None:
    agent = await server.bus(Role.AGENT, MINE)
    subject = OOM_EVENTS.subject("tb", app="shop", node=MINE)
    agent.publish_event(subject, oom_event(node=MINE, reason="x" * (OOM_STREAM.max_message_bytes or 0)), message_id="1")
    agent.publish_event(subject, oom_event(node=MINE, time_ns=7), message_id="2")
    await agent.flush(60)

    assert await stored_of(administrator, MINE) == [7]
    assert agent.counters["events_dropped"] == 1
    await agent.close(2)


@pytest.mark.parametrize("verb", ["STREAM.PURGE", "STREAM.DELETE", "STREAM.MSG.DELETE", "STREAM.UPDATE"])
async def test_the_servers_acknowledgement_is_no_request(
    server: SecuredNats, administrator: NatsBus, verb: str
) -> None:
    """It can be had written to the server's own interface, where an acknowledgement's JSON could be taken for one."""
    collector = await server.bus(Role.COLLECTOR)
    for number in range(20):
        await collector.connection.request(f"tb.evt.job.{number}", b"record", timeout=5)
    async with attacker(server) as trial:
        for _ in range(5):
            await trial.client.publish(OWN_FACT, b"x", reply=f"$JS.API.{verb}.TB_JOB")
        await trial.client.request(OWN_FACT, b"x", timeout=5)
    heard = await administrator.jetstream.stream_info("TB_JOB")

    assert heard.state.messages == 20
    await collector.close(2)


# -- streams of an older version -------------------------------------------------------------------------------------


def as_before(config: StreamConfig) -> StreamConfig:
    """As version 0.1.0 has made it."""
    if str(config.name).startswith("KV_"):
        return config.evolve(allow_rollup_hdrs=True, allow_msg_ttl=True, discard=DiscardPolicy.NEW)
    return config.evolve(max_msgs_per_subject=-1, max_msg_size=-1, subject_transform=None)


async def test_streams_of_an_older_version_are_brought_in_line_by_an_administrator(server: SecuredNats) -> None:
    first = await server.bus(Role.ADMINISTRATOR)
    for name in ("TB_OOM", "TB_ROUTE", "KV_tb_nodes"):
        config = (await first.jetstream.stream_info(name)).config
        await first.jetstream.delete_stream(name)
        await first.jetstream.add_stream(as_before(config))
    agent = await server.bus(Role.AGENT, MINE)
    assert set(agent.undeclared) == {"TB_OOM", "KV_tb_nodes"}, "it may not change them, and says so"
    agent.publish_event(
        OOM_EVENTS.subject("tb", app="shop", node=MINE), oom_event(node=MINE, time_ns=1), message_id="1"
    )
    await agent.bucket(NODES).put(MINE, node_info(1))
    await agent.flush(60)
    allocator = await server.bus(Role.ALLOCATOR)
    assert set(allocator.undeclared) == {"KV_tb_nodes"}

    administrator = await server.bus(Role.ADMINISTRATOR)
    assert administrator.undeclared == []
    agent.publish_event(
        OOM_EVENTS.subject("tb", app="shop", node=MINE), oom_event(node=MINE, time_ns=2), message_id="2"
    )
    await agent.flush(60)
    info = (await administrator.jetstream.stream_info("TB_OOM")).config
    nodes = (await administrator.jetstream.stream_info("KV_tb_nodes")).config

    assert (info.max_msgs_per_subject, info.max_msg_size) == (
        OOM_STREAM.max_messages_per_host,
        OOM_STREAM.max_message_bytes,
    )
    assert info.subject_transform is not None
    assert nodes.allow_rollup_hdrs is False
    assert await stored_of(administrator, MINE) == [1, 2], "what was stored before is still read"
    assert await administrator.bucket(NODES).get(MINE) is not None
    again = await server.bus(Role.ALLOCATOR)
    assert again.undeclared == []
    for bus in (first, agent, allocator, administrator, again):
        await bus.close(2)
