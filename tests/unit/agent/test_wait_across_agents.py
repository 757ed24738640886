"""A wait at the memory limit has one deadline, whoever looks after it: counted from its begin, not from our arrival."""

from __future__ import annotations

import pytest

from schemas.oom import OomKind
from services.agent.memory.policy import POLL_NS
from services.agent.node import NodeOptions
from tests.support.agent_node import Node
from tests.support.fake_host import FakeHost
from tests.support.limit_orders import send, update

MS = 1_000_000
MIB = 1 << 20
OPTIONS = NodeOptions(oom_wait_timeout_ns=1000 * MS)


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
def node(host):
    return Node("n1", 7, host, host.reserve_store, OPTIONS)


def guarded(node, host):
    found = host.add("web", quota_us=20_000, limit_bytes=63 * MIB)
    key = node.found(found)
    send(node, update({key: (0, 64 * MIB)}, seq=1))
    return found, host.containers[found.container_id]


def waits_until(node, container, now_ns):
    """Poll until nobody waits; the time then."""
    end_ns = now_ns + 5000 * MS
    while container.paused:
        assert now_ns < end_ns
        now_ns += POLL_NS
        node.memory.poll(now_ns)
    return now_ns


def test_the_next_agent_counts_on_from_where_the_one_before_began(node, host):
    found, container = guarded(node, host)
    container.touch(200 * MIB)
    node.take_notifications(0)
    node.take_notifications(700 * MS)  # the agent dies now
    assert container.paused
    again = Node("n1", 8, host, host.reserve_store, OPTIONS)
    again.found(found)
    again.sample(800 * MS, 1)
    assert waits_until(again, container, 800 * MS) <= 1000 * MS + POLL_NS
    release = next(line for line in again.events.take_events() if line.kind is OomKind.OOM_KILLER_ENABLED)
    assert 1_000_000 <= release.blocked_us <= 1_000_000 + POLL_NS // 1000


def test_the_next_agent_begins_to_count_where_nothing_was_noted(node, host):
    found, container = guarded(node, host)
    container.touch(200 * MIB)
    again = Node("n1", 8, host, host.reserve_store, OPTIONS)
    again.found(found)
    again.sample(800 * MS, 1)
    assert waits_until(again, container, 800 * MS) >= 1800 * MS


def test_a_wait_that_has_ended_is_not_noted_any_more(node, host):
    _, container = guarded(node, host)
    container.touch(100 * MIB)
    node.take_notifications(0)
    node.memory.poll(5 * MS)
    assert container.oom_wait_since_ns == 0
    send(node, update({node.containers.order.keys[0]: (0, 256 * MIB)}, seq=2), now_ns=200 * MS)
    assert not container.paused
    assert container.oom_wait_since_ns is None

    node.sample(400 * MS, 1)
    container.touch(200 * MIB)
    node.take_notifications(500 * MS)
    assert container.oom_wait_since_ns == 500 * MS
    assert waits_until(node, container, 500 * MS) >= 1500 * MS
    assert container.oom_wait_since_ns is None


def stopped(node, host, for_ms):
    """The agent looks at nothing for so long; its container hits the limit meanwhile."""
    _, container = guarded(node, host)
    node.sample(100 * MS, 1)
    container.touch(200 * MIB)
    return container, (100 + for_ms) * MS


@pytest.mark.parametrize("look", ["alarms", "sample"])
def test_after_a_short_stop_who_waits_may_have_waited_since_the_last_look(node, host, look):
    container, now_ns = stopped(node, host, 500)
    node.take_notifications(now_ns) if look == "alarms" else node.sample(now_ns, 2)
    assert waits_until(node, container, now_ns) <= 1100 * MS + POLL_NS


def test_after_a_long_stop_the_watchdog_has_noted_since_when(node, host):
    container, now_ns = stopped(node, host, 5000)
    container.record_oom_wait(now_ns - 300 * MS)
    node.take_notifications(now_ns)
    assert now_ns + 700 * MS <= waits_until(node, container, now_ns) <= now_ns + 700 * MS + POLL_NS
    assert container.oom_wait_since_ns is None


def test_after_a_long_stop_without_a_note_the_wait_has_just_begun(node, host):
    container, now_ns = stopped(node, host, 5000)
    node.take_notifications(now_ns)
    assert waits_until(node, container, now_ns) >= now_ns + 1000 * MS


def test_a_note_of_a_wait_that_ended_during_the_stop_is_removed(node, host):
    _, container = guarded(node, host)
    node.sample(100 * MS, 1)
    container.record_oom_wait(200 * MS)
    node.sample(5000 * MS, 2)
    assert container.oom_wait_since_ns is None
    container.touch(200 * MIB)
    node.take_notifications(5050 * MS)
    assert waits_until(node, container, 5050 * MS) >= 6050 * MS
