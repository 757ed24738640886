"""An observer with a key of its own sees what was decided, and then what the agents made of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from schemas.apps import AppSpec
from schemas.limits import LimitDecisions, LimitReply, LimitsApplied, RowStatus
from schemas.roles import Role
from schemas.streams import APPS
from schemas.subjects import LIMIT_UPDATES, wildcard
from tests.support.cluster_lab import MIB, MessageLog
from tests.support.deadline import until
from tests.support.limit_orders import update
from tests.support.secured_cluster import SecuredCluster

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
NODES = ("n1", "n2")
IN_FORCE = {RowStatus.APPLIED, RowStatus.UNCHANGED}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredCluster]:
    """Only the server, with a user for each service and person."""
    lab = SecuredCluster(tmp_path_factory.mktemp("cluster"), NODES)
    try:
        yield await lab.start()
    finally:
        await lab.close()


@pytest_asyncio.fixture(loop_scope="module")
async def observed(bare_cluster: SecuredCluster) -> AsyncIterator[MessageLog]:
    """All observations, by one subscription: in the order in which the server sent them."""
    observer, log = await bare_cluster.secured.bus(Role.OBSERVER), MessageLog()
    await observer.subscribe(wildcard(observer.root, "obs.>"), log.take)
    await observer.flush(60)
    yield log
    await observer.close(2)


def applied(log: MessageLog, app: str) -> list[tuple[int, LimitsApplied]]:
    """Positions and messages."""
    seen = enumerate(list(log.messages))
    return [(at, each) for at, each in seen if isinstance(each, LimitsApplied) and each.app == app]


def row_of(message: LimitDecisions | LimitsApplied, key: str) -> dict[str, Any]:
    [row] = [row for row in message.rows() if row["container"] == key]
    return row


def outcomes(log: MessageLog, app: str, key: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """A container's row of each decision, and its row of the message that says what became of it, where it has come.

    In whatever order they come: an update is sent before others are told of the decision.
    """
    found = []
    for decided in list(log.messages):
        if not isinstance(decided, LimitDecisions) or key not in decided.keys or decided.app != app:
            continue
        updates = range(decided.update_seq_first, decided.update_seq_last + 1)
        mine = [each for _, each in applied(log, app) if each.epoch == decided.epoch and each.seq in updates]
        assert len(mine) <= 1
        found += [(row_of(decided, key), row_of(each, key)) for each in mine]
    return found


async def test_what_was_decided_and_what_was_applied_have_the_same_values(bare_cluster, observed):
    agent, allocator = bare_cluster.launch_agent(node="n1"), bare_cluster.launch_allocator()
    await agent.ready()
    await allocator.ready()
    spec = await bare_cluster.announce(AppSpec(name="observed", cpu_limit=0.5, memory_limit=256 * MIB))
    container = bare_cluster.container(spec.name, "web")

    def found() -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [pair for pair in outcomes(observed, spec.name, container.key) if pair[1]["status"] in IN_FORCE]

    container.tell("burn")
    await until(lambda: container.quota_us >= 0.9 * spec.cpu_limit_us, what="the rise")
    container.tell("idle")
    await until(lambda: 0 < container.quota_us <= 0.6 * spec.cpu_limit_us, what="the fall")
    await until(lambda: len(found()) >= 3, what="decisions that were applied")

    for decided, now in found():
        assert decided["quota_to_us"] in {0, now["quota_us"]}
        assert decided["limit_to_bytes"] in {0, now["limit_bytes"]}
    assert any(decided["quota_to_us"] for decided, _ in found())
    assert any(decided["limit_to_bytes"] for decided, _ in found())

    def is_what_the_kernel_holds() -> bool:
        now = row_of(applied(observed, spec.name)[-1][1], container.key)
        return (now["quota_us"], now["limit_bytes"]) == container.read().limits

    await until(is_what_the_kernel_holds, what="the limits that were told last in the kernel")
    bare_cluster.remove(container)
    for service in (allocator, agent):
        assert await service.signal(signal.SIGTERM) == 0


async def test_a_row_of_a_container_whose_group_has_vanished_is_told_with_its_reason(bare_cluster, observed):
    """The test is the allocator, with that one's key, so that an update goes out whatever has become of a container."""
    agent = await bare_cluster.launch_agent(node="n2", root=f"{bare_cluster.root}-b").ready()
    owner = await bare_cluster.secured.bus(Role.ALLOCATOR)
    spec = await bare_cluster.announce(AppSpec(name="vanishing", cpu_limit=1, memory_limit=512 * MIB))
    stays, goes = (bare_cluster.container(spec.name, name, root=f"{bare_cluster.root}-b") for name in ("stays", "goes"))
    async with bare_cluster.batches(spec.name) as batches:
        await until(lambda: any(each.row_count == 2 for each in batches.messages), what="both containers sampled")
        incarnation = batches.messages[-1].incarnation

    async def order(seq: int, quota_us: int) -> list[int]:
        rows = {each.key: (quota_us, 100 * MIB) for each in (stays, goes)}
        message = update(rows, seq=seq, node="n2", incarnation=incarnation, apps=(spec.name,))
        reply = await owner.request(LIMIT_UPDATES.subject(owner.root, node="n2"), message, timeout_s=60)
        assert isinstance(reply, LimitReply)
        return reply.column("status").tolist()

    assert await order(1, 30_000) == [RowStatus.APPLIED, RowStatus.APPLIED]
    await asyncio.to_thread(bare_cluster.remove, goes)
    answered = await order(2, 40_000)
    await until(lambda: len(applied(observed, spec.name)) == 2, what="what became of both updates")

    [(_, before), (_, after)] = applied(observed, spec.name)
    assert [each.seq for each in (before, after)] == [1, 2]
    assert before.column("quota_us").tolist() == [30_000, 30_000]
    assert answered == after.column("status").tolist() == [RowStatus.APPLIED, RowStatus.UNKNOWN_CONTAINER]
    now = row_of(after, stays.key)
    assert (now["quota_us"], now["limit_bytes"]) == stays.read().limits == (40_000, 100 * MIB)
    bare_cluster.remove(stays)
    await bare_cluster.bus.bucket(APPS).delete(spec.name)
    await owner.close(2)
    assert await agent.signal(signal.SIGTERM) == 0
