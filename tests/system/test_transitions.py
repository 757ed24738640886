"""What changes while the loop runs: the mode, the allocator, the server. Containers keep their limits meanwhile."""

from __future__ import annotations

import signal
import time

import nats
import pytest

from schemas.apps import AppSpec
from schemas.leases import MEMBERS_KEY
from schemas.queries import StateRequest
from schemas.services.allocator import ALLOCATOR_STATE
from schemas.streams import APPS, LEASES
from services._runtime.bus.api import RequestRefusedError
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer, poll
from tests.support.deadline import until
from tests.support.limit_observer import UNLIMITED

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


async def periods(cluster: ClusterLab, app: str, count: int) -> None:
    """Wait for so many more batches: long enough for what would happen to have happened."""
    async with cluster.batches(app) as log:
        await until(lambda: len(log.messages) >= count, what=f"{count} periods")


async def assert_follows(container: LabContainer, limit_us: int, within_s: float = 60) -> None:
    """A burst is followed, up and down."""
    container.tell("burn")
    await until(lambda: container.quota_us >= 0.9 * limit_us, within_s=within_s, what="the rise")
    container.tell("idle")
    await until(lambda: container.quota_us <= 0.5 * limit_us, within_s=within_s, what="the fall")


async def test_mode_observe_decides_and_writes_nothing_and_switching_takes_effect(cluster):
    observing = AppSpec(name="careful", cpu_limit=0.8, memory_limit=256 * MIB, mode="observe")
    enforcing = observing.model_copy(update={"mode": "enforce"})
    await cluster.announce(observing)
    observer = cluster.observe()
    container = cluster.container(observing.name, "web", quota_us=20_000, limit_bytes=100 * MIB)
    async with cluster.decisions(observing.name) as log:
        container.tell("burn")
        await until(
            lambda: any(row["quota_to_us"] >= 40_000 for row in log.rows(container.key)), what="a raise decided"
        )
        container.tell("idle")
        assert {message.mode for message in log.messages} == {"observe"}
    await periods(cluster, observing.name, 5)
    quotas = observer.seen()[observing.name].quotas(container.directory)
    assert quotas in ([20_000], [UNLIMITED, 20_000]), "a group is made first, and given its quota then"
    assert container.limit_bytes == 100 * MIB

    await cluster.announce(enforcing)
    await assert_follows(container, enforcing.cpu_limit_us)

    await cluster.announce(observing)
    await periods(cluster, observing.name, 5)  # what was on its way has arrived
    await assert_nothing_is_written(cluster, container, observing.name)

    await cluster.announce(enforcing)
    await assert_follows(container, enforcing.cpu_limit_us)

    await cluster.bus.bucket(APPS).delete(enforcing.name)
    await poll(lambda: is_unknown(cluster, enforcing.name), what="withdrawn")
    await periods(cluster, observing.name, 5)
    await assert_nothing_is_written(cluster, container, observing.name)
    cluster.remove(container)


async def assert_nothing_is_written(cluster: ClusterLab, container: LabContainer, app: str) -> None:
    """Although it burns and is throttled."""
    before = container.read()
    container.tell("burn")
    await until(lambda: container.read().throttled >= before.throttled + 10, within_s=60, what="ten throttled periods")
    container.tell("idle")
    await periods(cluster, app, 10)
    assert container.read().limits == before.limits
    assert before.quota_us > 0


async def is_unknown(cluster: ClusterLab, app: str) -> bool:
    try:
        await cluster.state(app)
    except RequestRefusedError as refusal:
        return refusal.code == 404
    return False


async def test_a_second_allocator_shares_and_either_may_end(cluster):
    """Both answer for all applications, whoever owns them. An unreadable record of the members is written anew."""
    spec = await cluster.announce(AppSpec(name="handed-over", cpu_limit=0.6, memory_limit=256 * MIB))
    observer = cluster.observe()
    containers = [cluster.container(spec.name, name) for name in ("a", "b")]
    await until(lambda: all(c.quota_us > 0 for c in containers), within_s=60, what="both admitted")
    [first] = cluster.running("allocator")
    epoch = (await cluster.state(spec.name)).epoch
    connection = await nats.connect(cluster.nats.url)
    await connection.jetstream().publish(f"$KV.{LEASES.bucket_name(cluster.bus.root)}.{MEMBERS_KEY}", b"\xc1")
    await connection.close()
    await poll(lambda: has_owner_after(cluster, spec.name, epoch), what="taken anew")

    second = await cluster.launch_allocator().ready()
    assert (await first.get("/readyz"))[0] == 200
    await poll(lambda: both_say_the_same(cluster, spec.name), what="both answer, and the same")
    epoch = (await cluster.state(spec.name)).epoch
    was_owner = await first.metric("turnbuckle_allocator_owned_applications") == 1
    assert await first.signal(signal.SIGTERM) == 0
    await poll(lambda: has_owner_after(cluster, spec.name, epoch - (not was_owner)), what="owned by the second")
    containers[1].tell("burn")
    await until(lambda: containers[1].quota_us >= 0.7 * spec.cpu_limit_us, within_s=60, what="followed by the second")
    assert (await second.get("/readyz"))[0] == 200

    seen = observer.stop()[spec.name]
    # But for the floor of the one that came last (decision 117).
    assert seen.highest_quota_us <= spec.cpu_limit_us + spec.floor_quota_us
    assert seen.highest_limit_bytes <= spec.memory_limit + spec.container_floor_memory
    for container in containers:
        cluster.remove(container)


async def has_owner_after(cluster: ClusterLab, app: str, epoch: int) -> bool:
    try:
        return (await cluster.state(app)).epoch > epoch
    except RequestRefusedError:  # it is changing hands
        return False


async def both_say_the_same(cluster: ClusterLab, app: str) -> bool:
    """Requests go to one of both at random."""
    subject = ALLOCATOR_STATE.template.subject(cluster.bus.root)
    replies = [await cluster.bus.request(subject, StateRequest(), timeout_s=60) for _ in range(20)]
    said = {state.owner for reply in replies for state in reply.apps if state.spec.name == app}
    return len({reply.replica for reply in replies}) == 2 and len(said) == 1


async def test_everything_resumes_after_a_restart_of_the_server(cluster, record_figure):
    spec = await cluster.announce(AppSpec(name="after-restart", cpu_limit=0.6, memory_limit=256 * MIB))
    observer = cluster.observe()
    containers = [cluster.container(spec.name, name) for name in ("a", "b")]
    await until(lambda: all(c.quota_us > 0 for c in containers), within_s=60, what="both admitted")
    await assert_follows(containers[0], spec.cpu_limit_us)

    cluster.nats.kill()
    [agent], [allocator] = cluster.running("agent"), cluster.running("allocator")
    await agent.not_ready_because("no connection")
    await allocator.not_ready_because("no connection")
    before = containers[0].read()
    assert 0 < before.quota_us < spec.cpu_limit_us
    containers[0].tell("burn")
    await until(lambda: containers[0].read().throttled > before.throttled + 2, what="throttled without a server")
    assert containers[0].read().limits == before.limits

    await cluster.nats.start()
    start_s = time.monotonic()
    await until(lambda: containers[0].quota_us >= 0.9 * spec.cpu_limit_us, within_s=60, what="followed again")
    record_figure("seconds until followed again", round(time.monotonic() - start_s, 2))
    await agent.ready()
    await allocator.ready()
    await until(lambda: cluster.bus.connected, within_s=60, what="our own connection")
    changed = await cluster.announce(spec.model_copy(update={"cpu_limit": 0.4}))
    await until(lambda: containers[0].quota_us <= changed.cpu_limit_us, within_s=60, what="a new limit learnt")

    seen = observer.stop()[spec.name]
    # But for the floor of the one that came last (decision 117).
    assert seen.highest_quota_us <= spec.cpu_limit_us + spec.floor_quota_us
    assert seen.highest_limit_bytes <= spec.memory_limit + spec.container_floor_memory
    for container in containers:
        cluster.remove(container)
