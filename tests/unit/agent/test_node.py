"""The agent's node: batches tell the truth, raises act at once, cuts wait for the boundary."""

from dataclasses import replace

import numpy as np
import pytest

from schemas.limits import RowStatus
from services._host.cgroup_snapshot import KernelState, ThrottleSnapshot
from services._host.control_file import read_each
from services.agent.limits.period_boundary import PREDICTED
from services.agent.sampling.sampler import POLL_AFTER_THROTTLE_SAMPLES
from tests.support.agent_node import Node
from tests.support.agent_ticks import tick as run_tick
from tests.support.fake_host import FakeHost
from tests.support.limit_orders import reply_rows, send, update

MS = 1_000_000
MIB = 1 << 20
PERIOD_NS = 100 * MS


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
def node(host):
    return Node("n1", 7, host, host.reserve_store)


def test_batch_reports_what_the_kernel_holds(node, host):
    key = node.found(found := host.add("web", quota_us=20_000, limit_bytes=64 << 20))
    container = host.containers[found.container_id]
    node.sample(0, 1)
    container.run(12_000, memory_bytes=1 << 20)
    (batch,), vanished = node.sample(PERIOD_NS, 2)

    assert vanished == []
    assert (batch.app, batch.node, batch.report_seq) == ("shop", "n1", 2)
    (row,) = batch.rows()
    assert row["container"] == key
    assert (row["quota_us"], row["used_us"], row["unused_us"]) == (20_000, 12_000, 8_000)
    assert (row["memory_usage_bytes"], row["memory_limit_bytes"]) == (1 << 20, 64 << 20)


def test_a_node_is_looked_at_between_samples_for_ten_seconds_after_a_container_was_throttled(node, host):
    node.found(found := host.add("web", quota_us=20_000))
    container, watched = host.containers[found.container_id], []
    for tick in range(POLL_AFTER_THROTTLE_SAMPLES + 4):
        container.run(20_000, throttled=int(tick == 2))
        node.sample(tick * PERIOD_NS, tick)
        watched.append(node.polls_between_samples)

    assert watched == [False] * 2 + [True] * (POLL_AFTER_THROTTLE_SAMPLES + 1) + [False]


def test_one_batch_per_application(node, host):
    for app in ("a", "b"):
        for name in ("x", "y"):
            node.found(host.add(f"{name}{app}", app))
    batches, _ = node.sample(0, 1)

    assert {batch.app: len(batch.keys) for batch in batches} == {"a": 2, "b": 2}


def test_raise_and_memory_are_written_at_once(node, host):
    key = node.found(found := host.add("web", quota_us=20_000, limit_bytes=64 << 20))
    (reply,) = send(node, update({key: (30_000, 96 << 20)}))

    assert host.containers[found.container_id].writes == [("memory", 96 << 20), ("quota", 30_000)]
    assert reply_rows(reply)[key] == {
        "container": key,
        "quota_us": 30_000,
        "limit_bytes": 96 << 20,
        "limit_update_seq": 1,
        "status": RowStatus.APPLIED,
    }


def test_first_limit_of_an_unlimited_container_is_written_at_once(node, host):
    key = node.found(found := host.add("web"))
    (reply,) = send(node, update({key: (30_000, 0)}))

    assert host.containers[found.container_id].writes == [("quota", 30_000)]
    assert reply_rows(reply)[key]["quota_us"] == 30_000


def test_cut_of_a_running_container_waits_for_its_boundary(node, host):
    key = node.found(found := host.add("web", quota_us=50_000))
    container = host.containers[found.container_id]
    node.sample(0, 1)
    container.run(10_000)
    node.sample(PERIOD_NS, 2)
    replies = send(node, update({key: (20_000, 0)}), PERIOD_NS)
    node.poll_decreases(PERIOD_NS + 2 * MS)

    assert (container.writes, replies) == ([], [])

    container.run(1_000)
    node.poll_decreases(PERIOD_NS + 4 * MS)

    assert container.writes == [("quota", 20_000)]
    assert reply_rows(replies[0])[key]["quota_us"] == 20_000


def test_cut_of_an_idle_container_is_written_at_once(node, host):
    key = node.found(found := host.add("web", quota_us=50_000))
    node.sample(0, 1)
    node.sample(PERIOD_NS, 2)
    (reply,) = send(node, update({key: (20_000, 0)}), PERIOD_NS)

    assert host.containers[found.container_id].writes == [("quota", 20_000)]
    assert reply_rows(reply)[key]["status"] == RowStatus.APPLIED


def running(node, host, **values):
    key = node.found(found := host.add("web", **values))
    container = host.containers[found.container_id]
    for tick in range(2):
        container.run(10_000)
        node.sample(tick * PERIOD_NS, tick)
    return key, container


def test_newer_order_replaces_a_waiting_cut(node, host):
    key, container = running(node, host, quota_us=50_000)
    first = send(node, update({key: (20_000, 0)}, seq=1), PERIOD_NS)
    second = send(node, update({key: (60_000, 0)}, seq=2), PERIOD_NS)
    container.run(1)
    node.poll_decreases(3 * PERIOD_NS)

    assert container.writes == [("quota", 60_000)]
    assert reply_rows(first[0])[key]["status"] == RowStatus.SUPERSEDED
    assert reply_rows(second[0])[key]["status"] == RowStatus.APPLIED


def test_a_cut_whose_order_is_replaced_before_every_reading_is_written_all_the_same(node, host):
    """Orders come 2 ms after the boundary, readings 4 ms after it: each order used to begin to wait anew."""
    key, container = running(node, host, quota_us=50_000)
    for number in range(2, 11):
        container.run(10_000)
        send(node, update({key: (50_000 - 1_000 * number, 0)}, seq=number), number * PERIOD_NS + 2 * MS)
        node.poll_decreases(number * PERIOD_NS + 3 * MS)

    assert len(container.writes) >= 3
    assert container.writes[-1][1] <= 42_000


def test_doubled_and_overtaken_orders_do_nothing(node, host):
    key = node.found(found := host.add("web", quota_us=20_000))
    send(node, update({key: (40_000, 0)}, seq=5))
    doubled = send(node, update({key: (40_000, 0)}, seq=5))
    overtaken = send(node, update({key: (90_000, 0)}, seq=4))

    assert host.containers[found.container_id].writes == [("quota", 40_000)]
    for (reply,) in (doubled, overtaken):
        row = reply_rows(reply)[key]
        assert (row["status"], row["quota_us"], row["limit_update_seq"]) == (RowStatus.STALE_SEQ, 40_000, 5)


def test_unchanged_value_is_not_written(node, host):
    key = node.found(found := host.add("web", quota_us=20_000))
    (reply,) = send(node, update({key: (20_000, 0)}))

    assert host.containers[found.container_id].writes == []
    assert reply_rows(reply)[key]["status"] == RowStatus.UNCHANGED


def test_fence_claims_the_application_and_answers_with_the_truth(node, host):
    key = node.found(host.add("web", quota_us=20_000))
    node.found(host.add("db", "other", quota_us=10_000))
    send(node, update({key: (30_000, 0)}, epoch=1, seq=9))
    (truth,) = send(node, update({}, epoch=2, seq=1))
    (old_owner,) = send(node, update({key: (90_000, 0)}, epoch=1, seq=10))

    assert {name: (row["quota_us"], row["limit_update_seq"]) for name, row in reply_rows(truth).items()} == {
        key: (30_000, 0)
    }
    assert old_owner.stale_apps == ("shop",)
    assert reply_rows(old_owner)[key]["status"] == RowStatus.STALE_EPOCH


def test_order_for_another_incarnation_is_refused_as_a_whole(node, host):
    key = node.found(found := host.add("web", quota_us=20_000))
    (reply,) = send(node, update({key: (30_000, 0)}, incarnation=6))

    assert "incarnation" in reply.rejection
    assert host.containers[found.container_id].writes == []


def test_order_for_an_unknown_container_is_answered(node):
    (reply,) = send(node, update({"ghost-1": (30_000, 0)}))

    assert reply_rows(reply)["ghost-1"]["status"] == RowStatus.UNKNOWN_CONTAINER


def test_refused_write_tells_what_still_holds(node, host):
    key = node.found(found := host.add("web", quota_us=20_000, limit_bytes=1 << 30))
    host.containers[found.container_id].refuse = True
    (reply,) = send(node, update({key: (0, 1 << 20)}))

    assert reply_rows(reply)[key]["status"] == RowStatus.FAILED
    assert reply_rows(reply)[key]["limit_bytes"] == 1 << 30


def test_container_that_vanishes_while_its_cut_waits_settles_the_reply(node, host):
    key, container = running(node, host, quota_us=50_000)
    replies = send(node, update({key: (20_000, 0)}), PERIOD_NS)
    container.gone = True
    _, vanished = node.sample(2 * PERIOD_NS, 3)

    assert [found.name for found in vanished] == ["web"]
    assert reply_rows(replies[0])[key]["status"] == RowStatus.UNKNOWN_CONTAINER
    assert node.containers.managed == {}


def test_limits_of_a_container_that_was_never_ordered_are_followed_within_five_ticks(node, host):
    node.found(found := host.add("web", quota_us=20_000))
    host.containers[found.container_id].quota_us = 70_000
    for tick in range(6):
        (batch,), _ = run_tick(node, tick * PERIOD_NS, tick)

    assert batch.rows()[0]["quota_us"] == 70_000
    assert node.events.take_drifts() == []


def test_release_puts_the_original_limits_back(node, host):
    key = node.found(found := host.add("web", quota_us=-1, limit_bytes=64 << 20))
    send(node, update({key: (30_000, 96 << 20)}))
    released = node.release_all()

    assert [container.key for container in released] == [key]
    container = host.containers[found.container_id]
    assert (container.quota_us, container.limit_bytes) == (-1, 64 << 20)


def test_reply_that_names_an_order_as_seen_tells_what_that_order_has_raised(node, host):
    """A superseded cut's reply used to be built between seeing the newer order and writing its raises."""
    cut_key, _ = running(node, host, quota_us=50_000)
    raised_key = node.found(host.add("db", quota_us=10_000))
    first = send(node, update({cut_key: (20_000, 0), raised_key: (0, 0)}, seq=1), PERIOD_NS)
    send(node, update({cut_key: (60_000, 0), raised_key: (30_000, 0)}, seq=2), PERIOD_NS)

    row = reply_rows(first[0])[raised_key]
    assert (row["limit_update_seq"], row["quota_us"]) == (2, 30_000)


def test_a_boundary_that_was_named_is_trusted_only_while_someone_names_it(node, host, monkeypatch):
    """Without the kernel's table a period that other hands have changed would not be noticed."""
    key = node.found(found := host.add("web", quota_us=20_000, limit_bytes=64 << 20))
    container = host.containers[found.container_id]

    def by_table(handles):
        held = KernelState(np.array([[20_000, 64 << 20, 0]]), np.array([True]), np.array([130 * MS]), np.array([False]))
        return replace(read_each(handles), kernel=held)

    waits = []
    for now_ns, read, seq in ((50 * MS, by_table, 1), (150 * MS, read_each, 2)):
        monkeypatch.setattr(host, "read", read)
        container.run(20_000)
        node.sample(now_ns, 1)
        send(node, update({key: (10_000, 0)}, seq=seq), now_ns)
        waits.append(node.decreases.pending[key].nr_periods == PREDICTED)

    assert waits == [True, False]


def test_between_samples_only_those_that_have_just_been_throttled_are_told(node, host, monkeypatch):
    keys = [
        node.found(host.add(name, app, quota_us=20_000)) for name, app in (("a", "shop"), ("b", "shop"), ("c", "x"))
    ]
    for tick in range(2):
        for container in host.containers.values():
            container.run(10_000, memory_bytes=MIB)
        node.sample(tick * PERIOD_NS, tick)
    seen = ThrottleSnapshot(np.array([False, True, False]), np.array([2, 2, 2]), np.array([20_000] * 3))
    monkeypatch.setattr(host, "throttle_snapshot", lambda _handles: seen)
    (batch,) = node.poll(150 * MS)

    assert (batch.app, list(batch.keys)) == ("shop", keys[:2])
    rows = batch.rows()
    assert [(row["periods"], row["throttled"], row["used_us"]) for row in rows] == [(0, 0, 0), (1, 1, 20_000)]
    assert [row["memory_usage_bytes"] for row in rows] == [MIB, MIB]
    assert node.poll(160 * MS) == []
