"""The node guards memory: what happens to a container that grows, under every answer, and what the reports say."""

import pytest

from schemas.limits import RowStatus
from schemas.oom import OomCause, OomKind
from services._host.cgroup_snapshot import Notification, NotificationKind, WriteOutcome
from services.agent.memory.growth import MIB
from services.agent.memory.policy import POLL_NS
from services.agent.memory.records import RequestOutcome
from services.agent.node import NodeOptions
from tests.support.agent_node import Node
from tests.support.agent_ticks import tick as run_tick
from tests.support.fake_host import FakeHost
from tests.support.guarded_node import MS, PERIOD_NS, SECOND_NS, guarded, poll_until, refuse_until, told
from tests.support.limit_orders import reply_rows, reserve_order, send, update


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
def node(host):
    return Node("n1", 7, host, host.reserve_store)


def test_nothing_is_guarded_before_an_order_has_come(node, host):
    """Mode observe sends no orders, so there nothing is touched."""
    found = host.add("web", quota_us=20_000, limit_bytes=64 * MIB)
    key = node.found(found)
    send(node, update({}, seq=1))
    send(node, reserve_order(10 * MIB, seq=2))
    node.sample(0, 1)
    assert host.containers[found.container_id].calls == []

    send(node, update({key: (30_000, 0)}, seq=3))
    assert host.containers[found.container_id].calls == ["enable_oom_control"]


def test_a_container_without_a_memory_limit_is_guarded_once_it_has_one(node, host):
    found = host.add("web")
    key = node.found(found)
    send(node, update({key: (30_000, 0)}))
    assert host.containers[found.container_id].calls == []

    send(node, update({key: (0, 64 * MIB)}, seq=2))
    assert host.containers[found.container_id].calls == ["enable_oom_control"]


def test_an_alarm_is_answered_with_a_grant_out_of_the_reserve(node, host):
    key, container = guarded(node, host, reserve_mib=100)
    container.touch(140 * MIB)
    node.take_notifications(5 * MS)

    (line,) = node.events.take_events()
    assert (line.kind, line.cause, line.key) == (OomKind.GRANT, OomCause.THRESHOLD, key)
    assert (line.limit_before_bytes, line.limit_after_bytes) == (256 * MIB, container.limit_bytes)
    assert container.limit_bytes - 256 * MIB == node.reserves.report("shop").used_bytes
    assert line.reserve_bytes == 100 * MIB - node.reserves.report("shop").used_bytes


def test_a_doubled_alarm_grants_once(node, host):
    key, container = guarded(node, host, reserve_mib=1000)
    container.touch(140 * MIB)
    node.take_notifications(5 * MS)
    once = container.limit_bytes
    container.notifications += [
        Notification(key, NotificationKind.NEAR),
        Notification(key, NotificationKind.NEAR),
        Notification("ghost-1", NotificationKind.PAUSED),
    ]
    node.take_notifications(5 * MS)
    node.take_notifications(6 * MS)

    assert container.limit_bytes == once


def test_the_sample_sees_what_no_alarm_told(node, host):
    _, container = guarded(node, host, reserve_mib=100)
    container.run(0, memory_bytes=240 * MIB)
    (batch,), _ = node.sample(PERIOD_NS, 2)

    assert told(node) == [(OomKind.GRANT, OomCause.SAMPLE)]
    row = batch.rows()[0]
    assert row["memory_limit_bytes"] == container.limit_bytes > 256 * MIB
    assert batch.reserve_used_bytes == container.limit_bytes - 256 * MIB


def test_growth_at_a_gigabyte_per_second_never_reaches_the_limit(node, host):
    """Alarms lost, polled every 4 ms: each grant is ahead of what is touched until the next poll."""
    _, container = guarded(node, host, usage_mib=200, reserve_mib=4000)
    now_ns = 5 * MS
    container.touch(25 * MIB)
    node.take_notifications(now_ns)
    while container.usage_bytes < 3000 * MIB:
        assert node.memory.next_poll_ns(now_ns) == now_ns + POLL_NS
        now_ns += POLL_NS
        container.touch(4 * MIB)
        container.notifications.clear()
        node.memory.poll(now_ns)

    assert {line.kind for line in node.events.take_events()} == {OomKind.GRANT}
    assert node.events.counters.oom_waits == 0
    assert node.memory.next_poll_ns(now_ns + SECOND_NS) is None


def test_an_empty_reserve_is_told_and_asked_for_once(node, host):
    key, container = guarded(node, host)
    container.touch(140 * MIB)
    for moment in (5, 6, 7):
        node.take_notifications(moment * MS)
        node.memory.poll(moment * MS)

    assert told(node) == [(OomKind.NEAR_LIMIT, OomCause.THRESHOLD)]
    (asked,) = node.events.take_requests()
    assert (asked.app, asked.key, asked.paused) == ("shop", key, False)
    assert asked.wanted_bytes >= 48 * MIB


def test_a_reserve_that_covers_a_part_is_granted_and_the_rest_is_asked_for(node, host):
    _, container = guarded(node, host, reserve_mib=10)
    container.touch(140 * MIB)
    node.take_notifications(5 * MS)

    assert container.limit_bytes == 266 * MIB
    assert told(node) == [(OomKind.GRANT, OomCause.THRESHOLD)]
    assert len(node.events.take_requests()) == 1


def test_a_paused_container_gets_the_reserve_that_comes(node, host):
    _, container = guarded(node, host)
    container.touch(200 * MIB)
    node.take_notifications(5 * MS)
    assert container.paused
    assert told(node) == [(OomKind.OOM_WAIT, OomCause.LIMIT)]

    (reply,) = send(node, reserve_order(500 * MIB, seq=5), 9 * MS)
    assert not container.paused
    (line,) = node.events.take_events()
    assert (line.kind, line.cause, line.blocked_us) == (OomKind.GRANT, OomCause.ALLOCATOR_REPLY, 4000)
    assert reply.reserve_used_bytes == (container.limit_bytes - 256 * MIB,)
    (row,) = reply_rows(reply).values()
    assert row["limit_bytes"] == container.limit_bytes


def test_who_waits_gets_it_before_who_is_only_near(node, host):
    _, near = guarded(node, host, name="near")
    _, waits = guarded(node, host, name="waits")
    near.touch(150 * MIB)
    node.take_notifications(5 * MS)
    waits.touch(200 * MIB)
    node.take_notifications(6 * MS)
    send(node, reserve_order(20 * MIB, seq=9), 9 * MS)

    assert (near.limit_bytes, waits.limit_bytes) == (256 * MIB, 276 * MIB)


def test_a_refusal_kills_as_is_standard_once_what_others_have_freed_lately_is_known(node, host):
    """Another container may have freed all of it since the newest sample: the first refusals are no last word."""
    _, container = guarded(node, host)
    container.touch(200 * MIB)
    node.take_notifications(5 * MS)
    told(node)
    killed_ns = refuse_until(node, 8 * MS, lambda: container.oom_kills, "shop may use 256 MiB")
    assert 205 * MS <= killed_ns < 320 * MS

    assert told(node) == [
        (OomKind.GRANT_DENIED, OomCause.ALLOCATOR_REPLY),
        (OomKind.OOM_KILLER_ENABLED, OomCause.ALLOCATOR_REPLY),
    ]
    assert container.oom_kills == 1
    node.memory.poll(killed_ns + 4 * MS)
    (line,) = node.events.take_events()
    assert (line.kind, line.oom_kills, line.reason) == (OomKind.KILL, 1, "shop may use 256 MiB")
    assert container.calls[-1] == "enable_oom_control"
    (batch,), _ = node.sample(4 * PERIOD_NS, 2)
    assert batch.rows()[0]["oom_kills"] == 1


def test_a_refusal_kills_one_at_a_time_because_what_it_leaves_may_be_enough_for_the_others(node, host):
    _, first = guarded(node, host)
    _, second = guarded(node, host, name="db")
    for container in (first, second):
        container.touch(200 * MIB)
        node.take_notifications(5 * MS)
    killed_ns = refuse_until(node, 8 * MS, lambda: first.oom_kills + second.oom_kills)
    killed, waiting = sorted((first, second), key=lambda container: container.paused)
    assert (killed.oom_kills, waiting.oom_kills) == (1, 0)

    now_ns, refused_s = killed_ns, []
    while waiting.paused:
        now_ns = poll_until(node, now_ns, now_ns + POLL_NS)
        for request in node.events.take_requests():
            refused_s.append(now_ns)
            node.memory.answered(request, RequestOutcome(denial="nothing left"), now_ns)
    assert killed_ns + 500 * MS <= now_ns < killed_ns + 642 * MS
    assert len(refused_s) >= 4


def test_what_a_kill_leaves_may_be_taken_at_once_although_it_was_granted_lately(node, host):
    key, container = guarded(node, host, reserve_mib=8)
    container.touch(200 * MIB)
    node.take_notifications(5 * MS)
    assert container.limit_bytes == 264 * MIB
    node.memory.poll(9 * MS)
    killed_ns = refuse_until(node, 10 * MS, lambda: container.oom_kills)
    node.memory.poll(killed_ns + 2 * MS)
    assert not node.memory.rejects_decrease(key, 200 * MIB, killed_ns + 3 * MS)


def test_a_refusal_while_nobody_waits_only_tells(node, host):
    _, container = guarded(node, host)
    container.touch(150 * MIB)
    node.take_notifications(5 * MS)
    (asked,) = node.events.take_requests()
    node.memory.answered(asked, RequestOutcome(denial="nothing left"), 8 * MS)

    assert told(node) == [(OomKind.NEAR_LIMIT, OomCause.THRESHOLD), (OomKind.GRANT_DENIED, OomCause.ALLOCATOR_REPLY)]
    assert not container.kernel_kills
    container.touch(50 * MIB)
    node.take_notifications(10 * MS)
    assert [asked.paused for asked in node.events.take_requests()] == [True]


def test_without_an_answer_it_is_asked_again_until_the_deadline_then_the_kernel_decides(host):
    node = Node("n1", 7, host, host.reserve_store, NodeOptions(oom_wait_timeout_ns=1000 * MS))
    _, container = guarded(node, host)
    container.touch(200 * MIB)
    node.take_notifications(0)
    now_ns, asked = 0, 0
    while container.paused:
        for request in node.events.take_requests():
            asked += 1
            node.memory.answered(request, RequestOutcome(timeout="nobody is there"), now_ns)
        now_ns = poll_until(node, now_ns, now_ns + POLL_NS)

    assert 1000 * MS <= now_ns <= 1000 * MS + POLL_NS
    assert 9 <= asked <= 11
    node.memory.poll(now_ns + POLL_NS)
    kinds = [line.kind for line in node.events.take_events()]
    assert kinds == [OomKind.OOM_WAIT, OomKind.GRANT_DENIED, OomKind.OOM_KILLER_ENABLED, OomKind.KILL]


def test_no_grant_goes_beyond_the_greatest_limit_of_a_container(node, host):
    _, container = guarded(node, host, reserve_mib=1000, most_mib=260)
    container.touch(200 * MIB)
    node.take_notifications(5 * MS)
    assert container.limit_bytes == 260 * MIB
    node.memory.poll(9 * MS)

    lines = node.events.take_events()
    assert [line.kind for line in lines] == [
        OomKind.OOM_WAIT,
        OomKind.GRANT,
        OomKind.OOM_WAIT,
        OomKind.OOM_KILLER_ENABLED,
    ]
    assert "may have more than 260 MiB" in lines[-1].reason
    assert container.oom_kills == 1


def test_a_grant_that_the_kernel_refuses_goes_back(node, host):
    _, container = guarded(node, host, reserve_mib=100)
    container.touch(140 * MIB)
    container.refuse = True
    node.take_notifications(5 * MS)

    assert node.reserves.left_of("shop") == 100 * MIB
    assert host.reserve_store.read()["shop"].left_bytes == 100 * MIB


def test_a_pause_below_the_limit_is_a_group_above_and_ends_at_the_deadline(node, host):
    _, container = guarded(node, host, reserve_mib=100)
    container.wanted_bytes, container.full_above = 1, True
    container.notifications.append(Notification(container.key, NotificationKind.PAUSED))
    node.take_notifications(5 * MS)
    poll_until(node, 5 * MS, 3 * SECOND_NS)

    lines = node.events.take_events()
    assert [line.kind for line in lines][:2] == [OomKind.OOM_WAIT, OomKind.OOM_KILLER_ENABLED]
    assert "a group above is full" in lines[1].reason


def test_tasks_that_a_raise_did_not_wake_are_woken_and_the_limit_stays(node, host):
    """Seen under load: a task was refused memory before a raise, and lay down after it, for ever."""
    _, container = guarded(node, host, reserve_mib=100)
    container.wanted_bytes = 1
    container.notifications.append(Notification(container.key, NotificationKind.PAUSED))
    node.take_notifications(5 * MS)
    assert container.paused
    poll_until(node, 5 * MS, 35 * MS)

    assert not container.paused
    assert container.limit_bytes == 256 * MIB
    assert node.reserves.left_of("shop") == 100 * MIB
    assert [line.kind for line in node.events.take_events()] == [OomKind.OOM_WAIT]


def test_dangerous_cuts_are_refused(node, host):
    key, container = guarded(node, host, reserve_mib=100)
    container.reclaimable_bytes = 30 * MIB
    too_deep = send(node, update({key: (0, 73 * MIB)}, seq=9), 5 * MS)
    deep = send(node, update({key: (0, 75 * MIB)}, seq=10), 5 * MS)

    assert [reply_rows(reply)[key]["status"] for (reply,) in (too_deep, deep)] == [RowStatus.FAILED, RowStatus.APPLIED]
    assert reply_rows(too_deep[0])[key]["limit_bytes"] == 256 * MIB


def test_a_limit_that_was_granted_lately_is_not_cut(node, host):
    """It grows by 400 MiB/s: what it has in 0.2 s is not taken for an order that does not know of the grant."""
    key, container = guarded(node, host, reserve_mib=200)
    container.touch(130 * MIB)
    node.take_notifications(5 * MS)
    container.touch(40 * MIB)
    node.memory.poll(105 * MS)
    granted = container.limit_bytes
    # 400 MiB/s for twice the half-life of the rate: 300, so 60 in 0.2 s on top of the 270 in use
    early = send(node, update({key: (0, 325 * MIB)}, seq=9), 200 * MS)
    late = send(node, update({key: (0, 325 * MIB)}, seq=10), 1500 * MS)

    assert reply_rows(early[0])[key]["status"] == RowStatus.FAILED
    assert reply_rows(early[0])[key]["limit_bytes"] == granted
    assert reply_rows(late[0])[key]["limit_bytes"] == 325 * MIB


def test_what_growth_does_not_need_is_cut_soon_after_a_grant(node, host):
    key, container = guarded(node, host, reserve_mib=100)
    container.touch(140 * MIB)
    node.take_notifications(5 * MS)
    container.free(200 * MIB)
    (reply,) = send(node, update({key: (0, 256 * MIB)}, seq=9), 100 * MS)
    assert (container.usage_bytes, container.limit_bytes) == (40 * MIB, 256 * MIB)
    assert reply_rows(reply)[key]["status"] == RowStatus.APPLIED


def test_kills_are_told_with_why_nothing_could_be_done(node, host):
    found = host.add("web", limit_bytes=64 * MIB)
    node.found(found)
    host.containers[found.container_id].touch(100 * MIB)
    for tick in range(5):
        run_tick(node, tick * PERIOD_NS, tick)

    (line,) = node.events.take_events()
    assert (line.kind, line.cause) == (OomKind.KILL, OomCause.KERNEL)
    assert "not guarded" in line.reason


def test_a_container_that_ends_right_after_a_release_was_killed(node, host):
    key, container = guarded(node, host)
    container.touch(200 * MIB)
    node.take_notifications(5 * MS)
    container.enable_oom_killer = lambda: (
        (type(container).enable_oom_killer(container) and setattr(container, "gone", True)) or WriteOutcome.WRITTEN
    )
    refuse_until(node, 8 * MS, lambda: container.gone)
    _, vanished = node.sample(4 * PERIOD_NS, 2)

    assert [found.key for found in vanished] == [key]
    line = node.events.take_events()[-1]
    assert (line.kind, line.oom_kills) == (OomKind.KILL, 1)
