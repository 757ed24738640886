"""Between two samples, from usage alone: who wakes up is seen, who works steadily near the limit is not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.agent.sampling.sampler import RECENT_NS, VANISHED, Budget, may_burst, used_up
from tests.support.agent_node import Node
from tests.support.fake_host import FakeHost

MS = 1_000_000
PERIOD_NS = 100 * MS
LONG_AGO_NS = -(1 << 62)


def column(*values):
    return np.array(values, dtype=np.int64)


@pytest.fixture
def host():
    return FakeHost(shows_usage=True)


@pytest.fixture
def node(host):
    return Node("n1", 7, host, host.reserve_store)


def woken(node, host, quota_us=2_000):
    """A container that has idled for some samples."""
    key = node.found(found := host.add("web", quota_us=quota_us))
    container = host.containers[found.container_id]
    for tick in range(3):
        node.sample(tick * PERIOD_NS, tick)
    return key, container


def test_a_container_that_wakes_up_is_reported_before_its_period_has_ended(node, host):
    key, container = woken(node, host)
    assert node.polls_between_samples
    assert node.poll(30) == []

    container.run(2_000, periods=0)  # all of its quota; the period has not ended
    (batch,) = node.poll(31)

    (row,) = batch.rows()
    assert (row["container"], row["throttled"], row["used_us"]) == (key, 1, 2_000)
    assert node.poll(32) == [], "and once"


def test_what_the_kernel_counts_later_is_not_reported_twice(node, host):
    _, container = woken(node, host)
    container.run(2_000, periods=0)
    assert node.poll(31) != []

    container.run(0, periods=1, throttled=1)  # nobody has raised it: counted at the end of the period
    (batch,), _ = node.sample(3 * PERIOD_NS, 40)

    assert [row["throttled"] for row in batch.rows()] == [0]


def test_after_a_raise_the_new_quota_counts_from_the_report_on(node, host):
    _, container = woken(node, host)
    container.run(2_000, periods=0)
    assert len(node.poll(31)) == 1

    container.quota_us = 20_000
    node.containers.kernel.refresh(container.key)
    container.run(17_000, periods=0)
    assert node.poll(32) == []
    container.run(3_000, periods=0)
    (batch,) = node.poll(33)
    assert [row["used_us"] for row in batch.rows()] == [20_000]


def test_a_lowered_quota_begins_anew(node, host):
    _, container = woken(node, host, quota_us=50_000)
    container.run(20_000, periods=0)
    assert node.poll(31) == []

    container.quota_us = 10_000
    node.containers.kernel.refresh(container.key)
    assert node.poll(32) == [], "20 ms were used of the 50 that there were"
    container.run(10_000, periods=0)
    assert len(node.poll(33)) == 1


def test_a_container_that_vanishes_between_two_samples_is_left_out(node, host):
    _, container = woken(node, host)
    container.run(2_000, periods=0)
    container.gone = True

    assert node.poll(31) == []


def test_hosts_whose_kernel_shows_throttling_are_not_read_one_by_one(host):
    host.shows_usage = False
    node = Node("n1", 7, host, host.reserve_store)
    _, container = woken(node, host)
    container.run(2_000, periods=0)

    assert not node.polls_between_samples
    assert node.poll(31) == []


@given(
    st.lists(st.floats(0.55, 1.0), min_size=2, max_size=30),
    st.integers(1_000, 200_000),
)
def test_steady_use_of_more_than_half_of_the_quota_is_left_to_the_kernels_count(shares, quota_us):
    """Bursts at the end of a period and at the begin of the next add up to a quota without any throttling."""
    for number, share in enumerate(shares):
        watched = may_burst(column(int(share * quota_us)), column(quota_us), column(LONG_AGO_NS), number * PERIOD_NS)
        assert not watched.any()


@given(st.integers(1_000, 200_000), st.integers(0, 10**9), st.integers(0, 200_000))
def test_used_up_is_at_least_nine_tenths_of_the_quota_and_at_most_all_of_it(quota_us, before_us, spent_us):
    found = used_up(column(before_us + spent_us), column(quota_us), Budget(column(before_us), column(quota_us)))

    if spent_us >= quota_us:
        assert found.all()
    if spent_us < 0.9 * quota_us or spent_us < quota_us - 5_000:
        assert not found.any()


def test_recently_throttled_containers_are_watched_whatever_they_use():
    used, quota, now_ns = column(19_000, 19_000), column(20_000, 20_000), 10 * RECENT_NS
    throttled_ns = column(now_ns - RECENT_NS + 1, now_ns - RECENT_NS)

    assert may_burst(used, quota, throttled_ns, now_ns).tolist() == [True, False]


def test_without_a_quota_or_a_reading_nothing_is_said():
    assert not may_burst(column(0), column(-1), column(LONG_AGO_NS), 0).any()
    budget = Budget(column(0, 0), column(-1, 1_000))
    assert not used_up(column(9_000, VANISHED), column(-1, 1_000), budget).any()
