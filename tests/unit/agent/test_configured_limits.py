"""What containers came with: kept while an agent changes their limits, and told with each batch as a sum."""

from __future__ import annotations

import pytest

from services.agent.sampling.sampler import RECHECK_SAMPLES
from tests.support.agent_node import Node
from tests.support.fake_host import FakeHost
from tests.support.limit_orders import send, update

PERIOD_NS = 100_000_000
MIB = 1 << 20


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
def node(host):
    return Node("n1", 7, host, host.reserve_store)


def told(node, ticks=1):
    """By application: configured CPU and memory of its next batch."""
    for _ in range(ticks):
        batches, _ = node.sample(node.now_ns + PERIOD_NS, 1)
        node.read_back(node.now_ns)
    return {batch.app: (batch.configured_cpu_us, batch.configured_memory_bytes) for batch in batches}


def test_limits_add_up_by_application(node, host):
    for name, app, quota_us in (("web", "shop", 20_000), ("db", "shop", 30_000), ("x", "other", 5_000)):
        node.found(host.add(name, app, quota_us=quota_us, limit_bytes=64 * MIB))

    assert told(node) == {"shop": (50_000, 128 * MIB), "other": (5_000, 64 * MIB)}


def test_one_container_without_a_limit_leaves_the_application_without_a_sum(node, host):
    node.found(host.add("web", quota_us=20_000, limit_bytes=-1))
    node.found(host.add("db", quota_us=-1, limit_bytes=64 * MIB))
    assert told(node) == {"shop": (-1, -1)}

    node.vanished("db0123456789ab")

    assert told(node) == {"shop": (20_000, -1)}


def test_what_an_agent_writes_does_not_change_them(node, host):
    key = node.found(host.add("web", quota_us=20_000, limit_bytes=64 * MIB))
    told(node)
    send(node, update({key: (50_000, 128 * MIB)}))

    assert told(node, RECHECK_SAMPLES) == {"shop": (20_000, 64 * MIB)}
    assert node.containers.limits[key].quota_us == 50_000


def test_a_limit_that_no_agent_has_changed_is_followed(node, host):
    found = host.add("web", quota_us=20_000, limit_bytes=64 * MIB)
    node.found(found)
    told(node)
    host.containers[found.container_id].quota_us = 40_000

    assert told(node, RECHECK_SAMPLES) == {"shop": (40_000, 64 * MIB)}


def test_a_node_without_containers_of_an_application_adds_nothing(node):
    batch = node.empty_batch("shop", 1)

    assert (batch.configured_cpu_us, batch.configured_memory_bytes) == (0, 0)


def test_a_sum_beyond_every_machine_still_fits_the_batch(node, host):
    for number in range(4):
        node.found(host.add(f"web{number}", quota_us=1 << 40, limit_bytes=1 << 61))

    assert told(node) == {"shop": (1 << 40, 1 << 60)}
