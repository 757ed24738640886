"""Sources of containers that answer late, and containers that the state directory names before them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schemas.containers import ContainerChange, ContainerSource
from schemas.streams import NODES
from services._host.cgroup_snapshot import Counters
from services.agent.containers.pending_sources import Inventory
from services.agent.node import NodeOptions
from services.agent.ports import SourceAnswered
from tests.support.agent_node import Node
from tests.support.deadline import until
from tests.support.fake_host import FakeHost
from tests.unit.agent.test_agent_service import lab  # noqa: F401 - a fixture

DOCKER, EXEC = ContainerSource.DOCKER, ContainerSource.EXEC
TICK_NS = 100_000_000


def test_complete_once_every_source_has_answered_or_timed_out() -> None:
    inventory = Inventory({DOCKER: 30, EXEC: 10})
    assert (inventory.pending, inventory.complete) == ((DOCKER, EXEC), False)
    assert inventory.expire(9) == ()
    assert inventory.answered(EXEC, exists=True) == []
    assert inventory.expire(29) == ()
    assert inventory.expire(30) == (DOCKER,)
    assert inventory.complete
    assert inventory.expire(31) == ()


def test_an_answer_says_which_recorded_containers_are_gone_of_its_source_only() -> None:
    inventory = Inventory({DOCKER: 30})
    for container_id, source in (("a", DOCKER), ("b", DOCKER), ("c", EXEC)):
        inventory.recorded(container_id, source)
    assert inventory.confirm("a")
    assert not inventory.confirm("a")
    assert inventory.answered(DOCKER, exists=True) == ["b"]
    assert inventory.answered(DOCKER, exists=True) == []


def test_no_engine_is_no_answer_about_its_containers() -> None:
    inventory = Inventory({DOCKER: 30})
    inventory.recorded("a", DOCKER)
    assert inventory.answered(DOCKER, exists=False) == []
    assert inventory.complete
    assert inventory.answered(DOCKER, exists=True) == ["a"]


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


def started(host: FakeHost, *recorded) -> Node:
    node = Node("n1", 1, host, host.reserve_store, NodeOptions(source_deadlines_ns={DOCKER: 1 << 62}))
    for found in recorded:
        assert node.recorded(found) == found.key
    return node


def test_a_recorded_container_is_in_the_first_batch_and_the_batch_says_that_more_may_come(host: FakeHost) -> None:
    web = replace(host.add("web", quota_us=20_000), source=DOCKER)
    node = started(host, web)
    [batch], _ = node.sample(TICK_NS, TICK_NS)
    assert (batch.keys, batch.inventory_complete) == ([web.key], False)

    assert node.found(web) is None
    assert node.source_answered(SourceAnswered(DOCKER)) == []
    [batch], _ = node.sample(2 * TICK_NS, 2 * TICK_NS)
    assert (batch.keys, batch.inventory_complete) == ([web.key], True)


def test_what_its_source_does_not_name_is_forgotten(host: FakeHost) -> None:
    web = replace(host.add("web"), source=DOCKER)
    node = started(host, web)
    assert node.source_answered(SourceAnswered(DOCKER)) == [web]
    assert node.containers.managed == {}


def test_one_that_was_restarted_before_its_source_named_it_is_opened_anew(host: FakeHost) -> None:
    web = replace(host.add("web", quota_us=20_000), source=DOCKER)
    node = started(host, web)
    old = host.containers[web.container_id]
    new = replace(old, quota_us=7_000, counters=Counters(0, 0, 0, 0, 0))
    old.gone, host.containers[web.container_id] = True, new

    assert node.found(web) == web.key
    [batch], _ = node.sample(TICK_NS, TICK_NS)
    assert batch.rows()[0]["quota_us"] == 7_000


async def test_the_agent_names_what_is_recorded_at_once_and_announces_what_it_waits_for(lab) -> None:  # noqa: F811
    backend = lab.backend
    web = replace(backend.host.add("web"), source=DOCKER)
    backend.host.recorded.append(web)
    backend.source_timeouts_s = {DOCKER: 300.0}
    announced = []
    async with (
        lab.ours.bucket(NODES).watch(lambda _, entry: announced.append(entry and entry.message.sources_pending)),
        lab.agent(),
    ):
        await until(lambda: lab.batches, what="a batch")
        assert (lab.batches[0].keys, lab.batches[0].inventory_complete) == ([web.key], False)
        await until(lambda: lab.changes, what="its start told")
        assert lab.changes[0].change is ContainerChange.STARTED
        await until(lambda: announced[-1:] == [(DOCKER,)], what="its registration")

        backend.discovery.report(SourceAnswered(DOCKER))
        await until(lambda: len(lab.changes) == 2, what="its end told")
        assert lab.changes[1].change is ContainerChange.EXITED
        await until(lambda: lab.batches[-1].inventory_complete and not lab.batches[-1].keys, what="an empty batch")
        await until(lambda: announced[-1] == (), what="its registration without pending sources")


async def test_a_silent_source_is_waited_for_until_its_timeout_and_the_recorded_container_stays(lab) -> None:  # noqa: F811
    web = replace(lab.backend.host.add("web"), source=DOCKER)
    lab.backend.host.recorded.append(web)
    lab.backend.source_timeouts_s = {DOCKER: 0.3}
    async with lab.agent():
        await until(lambda: lab.batches and lab.batches[-1].inventory_complete, what="a complete inventory")
        assert not lab.batches[0].inventory_complete
        assert lab.batches[-1].keys == [web.key]
