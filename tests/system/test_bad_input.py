"""Whatever comes in on the bus or from the environment: a counted rejection or a clear error, and the loop goes on."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.codec import CodecError, decode, encode
from schemas.limits import LimitUpdate
from schemas.message import Message
from schemas.queries import QueryError, StateRequest
from schemas.registry import CHANNELS, ENDPOINTS
from schemas.services.allocator import ALLOCATOR_EXPLAIN
from schemas.streams import APPS
from tests.support.bus_lab import container_event, node_info
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer, ServiceProcess, poll
from tests.support.deadline import until

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
SPEC = AppSpec(name="sturdy", cpu_limit=0.6, memory_limit=256 * MIB)
NOISE = (
    b"",
    b"{",
    b"\x00" * 1_000_000,  # close to the server's limit
    b"\x91" * 100_000,  # arrays in arrays
    b'{"a":' * 20_000,
    b'{"type": 3}',
    b'{"type": "turnbuckle.cfs.v1.CfsBatch", "rows": []}',
    b"\xc1garbage",
    "\N{SNOWMAN}".encode() * 10,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def raw(bare_cluster: ClusterLab) -> AsyncIterator[Client]:
    """A plain connection."""
    connection = await nats.connect(bare_cluster.nats.url)
    yield connection
    await connection.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def container(cluster: ClusterLab) -> LabContainer:
    """Managed."""
    await cluster.announce(SPEC)
    made = cluster.container(SPEC.name, "web")
    await until(lambda: made.quota_us > 0, within_s=60, what="managed")
    return made


async def assert_follows(container: LabContainer) -> None:
    """A burst is followed, up and down."""
    container.tell("burn")
    await until(lambda: container.quota_us >= 0.9 * SPEC.cpu_limit_us, within_s=60, what="the rise")
    container.tell("idle")
    await until(lambda: container.quota_us <= 0.5 * SPEC.cpu_limit_us, within_s=60, what="the fall")


async def assert_well(cluster: ClusterLab) -> None:
    """Both services live, are ready, and no handler has raised."""
    for service in (*cluster.running("agent"), *cluster.running("allocator")):
        await service.ready()
        assert (await service.get("/livez"))[0] == 200
        assert await service.metric("turnbuckle_bus_handler_errors_total") == 0
    assert len(cluster.running("agent")) == len(cluster.running("allocator")) == 1


def subjects(cluster: ClusterLab) -> list[str]:
    """Every subject of the table, for the real application, node and replica; other names are made up."""
    root, [allocator] = cluster.bus.root, cluster.running("allocator")
    ids = {"app": SPEC.name, "node": "n1", "replica": allocator.replica_id}
    channels = [
        channel.template.subject(root, **{name: ids.get(name, f"{name}1") for name in channel.template.parameters})
        for channel in CHANNELS
    ]
    return [subject.text for subject in (*channels, *(endpoint.template.subject(root) for endpoint in ENDPOINTS))]


def spoiled(good: list[bytes], chance: random.Random) -> list[bytes]:
    """Truncated and bit-flipped messages, those that are no message any more."""
    found = []
    for data in good:
        for _ in range(20):
            flipped = bytearray(data)
            flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            found += [data[: chance.randrange(len(data))], bytes(flipped)]
    return [data for data in found if not is_message(data)]


def is_message(data: bytes) -> bool:
    try:
        decode(data)
    except CodecError:
        return False
    return True


async def capture(cluster: ClusterLab, raw: Client, container: LabContainer) -> list[bytes]:
    """One real message of each type that travels while a burst is followed."""
    seen: dict[str, bytes] = {}

    async def keep(message) -> None:
        if is_message(message.data):
            seen.setdefault(decode(message.data).type_name, message.data)

    subscription = await raw.subscribe(">", cb=keep)
    await assert_follows(container)
    await until(lambda: len(seen) >= 4, what="batches, updates, replies and decisions")
    await subscription.unsubscribe()
    return list(seen.values())


async def test_garbage_on_every_subject_is_counted_and_the_loop_goes_on(cluster, raw, container, record_figure):
    good = [*await capture(cluster, raw, container), encode(container_event(1)), encode(node_info(1))]
    chance = random.Random(1)
    bad = [*NOISE, *(chance.randbytes(chance.randrange(300)) for _ in range(50)), *spoiled(good, chance)]
    services = [*cluster.running("agent"), *cluster.running("allocator")]
    before = [await service.metric("turnbuckle_bus_undecodable_messages_total") for service in services]
    following = asyncio.create_task(assert_follows(container))
    for data in bad:
        for subject in subjects(cluster):
            await raw.publish(subject, data, reply=raw.new_inbox())
        await raw.flush()
    await following
    await assert_follows(container)

    record_figure("sent", len(bad) * len(subjects(cluster)))
    # The agent serves one of the subjects; the allocator takes batches, and queries.
    for service, then, least in zip(services, before, (len(bad), 2 * len(bad)), strict=True):
        wanted = then + least
        await poll(lambda s=service, n=wanted: _rejected(s, n), what=f"{wanted:g} rejected by {service.service}")
    await assert_well(cluster)


async def _rejected(service: ServiceProcess, count: float) -> bool:
    return await service.metric("turnbuckle_bus_undecodable_messages_total") >= count


async def test_good_messages_in_the_wrong_place_change_nothing(cluster, raw, container):
    """Another type than the subject's, a batch that names another origin, another node's order."""
    columns = {name: [1] for name in CfsBatch.column_types}
    ghost_batch = CfsBatch.build(
        ["ghost-000000000000"],
        columns,
        app="ghost",
        node="ghost",
        incarnation=1,
        report_seq=1,
        time_ns=1,
        period_us=100_000,
        host_cpus=2,
    )
    order = LimitUpdate.build(
        [container.key],
        {"quota_us": [1_000], "limit_bytes": [4096]},
        node="n1",
        incarnation=1,
        epoch=1 << 60,
        seq=1,
        time_ns=1,
        apps=(SPEC.name,),
    )
    messages: list[Message] = [ghost_batch, order, SPEC, StateRequest(), container_event(1), node_info(1)]
    [allocator] = cluster.running("allocator")
    # Of another type than their subject's; from another host or application than their subject's.
    metrics = ("turnbuckle_allocator_subject_mismatch_total", "turnbuckle_bus_undecodable_messages_total")
    before = sum([await allocator.metric(name) for name in metrics])
    for message, subject in itertools.product(messages, subjects(cluster)):
        await raw.publish(subject, encode(message), reply=raw.new_inbox())
    await raw.flush()
    await assert_follows(container)

    async def counted() -> float:
        return sum([await allocator.metric(name) for name in metrics]) - before

    async def all_counted() -> bool:
        return await counted() >= len(messages)

    await poll(all_counted, what="all misplaced ones counted")
    answer = decode((await raw.request(f"{cluster.bus.root}.cmd.limits.n1", encode(node_info(1)), timeout=60)).data)
    assert isinstance(answer, QueryError)
    assert (answer.code, "NodeInfo" in answer.message) == (400, True)
    await assert_well(cluster)


@pytest.mark.parametrize("request_data", [b"{", b'{"app": 7}'])
async def test_json_nonsense_on_a_query_is_answered_with_an_error(cluster, raw, request_data):
    subject = ALLOCATOR_EXPLAIN.template.subject(cluster.bus.root).text
    answer = decode((await raw.request(subject, request_data, timeout=60)).data)
    assert isinstance(answer, QueryError)
    assert answer.code == 400


async def test_garbage_in_the_bucket_of_applications_is_rejected_and_the_last_good_spec_stays(cluster, raw, container):
    bucket = APPS.bucket_name(cluster.bus.root)
    wrong_name = encode(SPEC.model_copy(update={"name": "other"}))
    for key, data in itertools.product((SPEC.name, "new", "=ZZ"), (b"", b"\xc1", encode(node_info(1)), wrong_name)):
        await raw.jetstream().publish(f"$KV.{bucket}.{key}", data)
    [allocator] = cluster.running("allocator")
    rejected = {SPEC.name, "new"}
    await until(
        lambda: rejected <= {line.get("app") for line in allocator.log() if line["event"] == "spec_rejected"},
        what="both rejections in the log",
    )
    await assert_follows(container)
    assert (await cluster.state(SPEC.name)).spec == SPEC
    await cluster.announce(SPEC.model_copy(update={"cpu_limit": 0.5}))
    await poll(lambda: _has_limit(cluster, 0.5), what="a good spec over the garbage")
    await cluster.announce(SPEC)
    await assert_well(cluster)


async def _has_limit(cluster: ClusterLab, cores: float) -> bool:
    return (await cluster.state(SPEC.name)).spec.cpu_limit == cores


@pytest.mark.parametrize(
    ("service", "variable", "value"),
    [
        ("agent", "AGENT__MANAGED_ROOT", "../etc"),
        ("allocator", "SUBJECT_ROOT", "a.b"),
    ],
)
async def test_a_wrong_variable_ends_a_service_with_78_and_is_named(bare_cluster, service, variable, value):
    process = bare_cluster.launch(service, **{variable: value})
    assert await process.exit_code() == 78
    assert f"TURNBUCKLE_{variable}" in process.log_path.read_text(encoding="utf-8")
