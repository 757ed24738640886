"""System calls that fail at a memory limit (EFAULT, ENOMEM) make no event and no kill: the kernel's counter tells."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.oom import OomCause, OomKind
from services.agent.memory.growth import MIB
from services.agent.memory.policy import REPORT_INTERVAL_NS, LimitHits
from tests.support.agent_node import Node
from tests.support.fake_host import FakeHost
from tests.support.guarded_node import PERIOD_NS, guarded
from tests.support.limit_orders import send, update


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
def node(host):
    return Node("n1", 7, host, host.reserve_store)


def hits_told(node, now_ns):
    node.sample(now_ns, 2)
    return [line for line in node.events.take_events() if line.kind is OomKind.LIMIT_HITS]


def test_calls_that_can_have_failed_are_told_with_how_often_the_limit_was_hit(node, host):
    key, container = guarded(node, host, limit_mib=64, usage_mib=10)
    container.run(0, memory_bytes=63 * MIB)
    assert hits_told(node, PERIOD_NS) == []

    container.limit_hits = 17
    (line,) = hits_told(node, 2 * PERIOD_NS)
    assert (line.key, line.cause, line.limit_hits) == (key, OomCause.LIMIT, 17)
    assert line.reason == (
        "usage 63 MiB of 64 MiB: the kernel hit the limit 17 times; calls such as read, fork and writes to tmpfs "
        "can have failed with EFAULT or ENOMEM"
    )
    assert node.events.counters.limit_hits == 17


def test_what_was_hit_before_the_container_was_guarded_is_not_told(node, host):
    found = host.add("web", quota_us=20_000, limit_bytes=63 * MIB, limit_hits=5)
    key = node.found(found)
    send(node, update({key: (0, 64 * MIB)}))
    host.containers[found.container_id].run(0, memory_bytes=63 * MIB)
    assert hits_told(node, PERIOD_NS) == []
    host.containers[found.container_id].limit_hits = 6
    assert [line.limit_hits for line in hits_told(node, 2 * PERIOD_NS)] == [1]


def test_a_reader_of_files_whose_page_cache_can_be_dropped_is_no_news(node, host):
    _, container = guarded(node, host, limit_mib=64, usage_mib=10)
    container.run(0, memory_bytes=64 * MIB)
    container.reclaimable_bytes, container.limit_hits = 40 * MIB, 900
    assert hits_told(node, PERIOD_NS) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 2 * REPORT_INTERVAL_NS), st.booleans()),
        min_size=1,
        max_size=40,
    )
)
def test_every_hit_that_nothing_else_explains_is_told_once_and_no_more_often_than_every_ten_seconds(steps):
    hits, counter, now_ns, told, unexplained, times = LimitHits(), 7, 0, 0, 0, []
    assert hits.read(counter, now_ns, expected=False) == 0
    for risen, elapsed_ns, explained in steps:
        counter, now_ns = counter + risen, now_ns + elapsed_ns
        unexplained += 0 if explained else risen
        if new := hits.read(counter, now_ns, expected=explained):
            told += new
            times.append(now_ns)
    told += hits.read(counter, now_ns + REPORT_INTERVAL_NS, expected=False)
    assert told == unexplained
    assert all(later - before >= REPORT_INTERVAL_NS for before, later in pairwise(times))
