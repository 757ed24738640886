"""What a node holds in reserve, takes over from those before it, and puts back: orders, restarts, other hands."""

import pytest

from schemas.oom import OomCause, OomKind
from services._host.cgroup_snapshot import QuotaWriter
from services.agent.memory.growth import MIB
from services.agent.node import NodeOptions
from services.agent.ports import WatchdogReport
from tests.support.agent_node import Node
from tests.support.agent_ticks import tick as run_tick
from tests.support.fake_host import FakeHost
from tests.support.guarded_node import MS, PERIOD_NS, guarded, told
from tests.support.limit_orders import reserve_order, send, update


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
def node(host):
    return Node("n1", 7, host, host.reserve_store)


def test_reserve_orders_count_once_and_in_order(node, host):
    guarded(node, host)
    send(node, reserve_order(80 * MIB, seq=7))
    send(node, reserve_order(10 * MIB, seq=6))
    (reply,) = send(node, reserve_order(30 * MIB, seq=7))

    assert (reply.apps, reply.reserve_given_bytes, reply.reserve_update_seq) == (("shop",), (80 * MIB,), (7,))
    (reply,) = send(node, reserve_order(50 * MIB, epoch=2, seq=1))
    assert (reply.reserve_given_bytes, reply.reserve_update_seq) == ((50 * MIB,), (1,))
    (stale,) = send(node, reserve_order(500 * MIB, epoch=1, seq=99))
    assert (stale.stale_apps, stale.apps) == (("shop",), ())
    assert node.reserves.left_of("shop") == 50 * MIB


def test_a_lower_reserve_never_goes_below_what_was_granted(node, host):
    _, container = guarded(node, host, reserve_mib=100)
    container.touch(140 * MIB)
    node.take_notifications(5 * MS)
    used = node.reserves.report("shop").used_bytes
    (reply,) = send(node, reserve_order(0, seq=7))

    assert used > 0
    assert reply.reserve_given_bytes == reply.reserve_used_bytes == (used,)


def test_the_reserve_is_void_when_the_last_container_has_gone_and_late_orders_too(node, host):
    guarded(node, host, reserve_mib=100)
    node.vanished("web0123456789ab")
    batch = node.empty_batch("shop", 1)
    (reply,) = send(node, reserve_order(300 * MIB, seq=8))

    assert batch.reserve_given_bytes == batch.reserve_used_bytes == 100 * MIB
    assert reply.reserve_given_bytes == reply.reserve_used_bytes
    assert reply.reserve_update_seq == (8,)
    assert host.reserve_store.read()["shop"].left_bytes == 0


def test_a_restarted_agent_keeps_the_reserve_and_guards_on(node, host):
    key, container = guarded(node, host, reserve_mib=100)
    container.touch(200 * MIB)  # the agent dies now
    again = Node("n1", 8, host, host.reserve_store)
    again.found(node.containers.order.managed[0].found)
    assert again.memory.is_controlled(key)
    (batch,), _ = again.sample(PERIOD_NS, 2)

    assert not container.paused
    assert batch.reserve_given_bytes == 100 * MIB
    assert batch.reserve_update_seq == 0
    assert batch.rows()[0]["memory_limit_bytes"] - 256 * MIB == batch.reserve_used_bytes > 0


def test_reserves_of_applications_that_are_gone_are_given_up(host):
    host.reserve_store.give("old", 50 * MIB)
    node = Node("n1", 8, host, host.reserve_store)
    node.found(host.add("web"))

    assert node.void_orphans() == ["old"]
    assert host.reserve_store.read()["old"].left_bytes == 0
    assert node.void_orphans() == []


def test_what_the_watchdog_did_is_told_and_taken_over(node, host):
    key, container = guarded(node, host, reserve_mib=100)
    host.reserve_store.spend("shop", 40 * MIB)
    container.limit_bytes = 296 * MIB
    report = WatchdogReport(
        key,
        "shop",
        time_ns=77,
        granted=True,
        usage_bytes=256 * MIB,
        limit_before_bytes=256 * MIB,
        limit_after_bytes=296 * MIB,
        paused_us=500,
    )
    node.take_reports([report], PERIOD_NS)
    (line,) = node.events.take_events()
    assert (line.kind, line.cause, line.wall_ns) == (OomKind.GRANT, OomCause.WATCHDOG, 77)
    for tick in range(1, 12):
        (batch,), _ = run_tick(node, tick * PERIOD_NS, tick)
        held = batch.rows()[0]["memory_limit_bytes"] + batch.reserve_given_bytes - batch.reserve_used_bytes
        assert held >= 356 * MIB

    assert held == 356 * MIB
    assert container.limit_bytes == 296 * MIB
    assert node.events.take_drifts() == []


def test_a_watchdog_grant_whose_report_is_late_is_no_drift(node, host):
    _, container = guarded(node, host, reserve_mib=100)
    host.reserve_store.spend("shop", 40 * MIB)
    container.limit_bytes = 296 * MIB
    for tick in range(1, 12):
        (batch,), _ = run_tick(node, tick * PERIOD_NS, tick)

    assert (container.limit_bytes, node.events.take_drifts()) == (296 * MIB, [])
    assert batch.reserve_used_bytes == 40 * MIB


@pytest.mark.parametrize(("reassert", "held_mib"), [(True, 256), (False, 180)])
def test_drift_is_told_and_put_back_or_taken_over(host, reassert, held_mib):
    node = Node("n1", 7, host, host.reserve_store, NodeOptions(reassert=reassert))
    key, container = guarded(node, host)
    send(node, update({key: (30_000, 0)}, seq=9))
    container.limit_bytes, container.quota_us = 180 * MIB, 90_000
    for tick in range(1, 7):
        (batch,), _ = run_tick(node, tick * PERIOD_NS, tick)

    (drift,) = node.events.take_drifts()
    assert container.limit_bytes == batch.rows()[0]["memory_limit_bytes"] == drift.limit_bytes == held_mib * MIB
    assert container.quota_us == batch.rows()[0]["quota_us"] == (30_000 if reassert else 90_000)
    assert "256 MiB became 180 MiB" in drift.reason
    assert "30 ms became 90 ms" in drift.reason


RUNC = QuotaWriter(4711, "runc", "system.slice/docker.service")
LIAR = QuotaWriter(7, 'ok (pid 1, "x', "a b/\\\\n")


@pytest.mark.parametrize(
    ("writer", "by"),
    [
        (None, "by an unknown process"),
        (RUNC, "by runc (pid 4711, system.slice/docker.service)"),
        (QuotaWriter(1, "systemd", "init.scope"), "by systemd (pid 1, init.scope)"),
        (QuotaWriter(9, "(sd-pam)", "/"), 'by "(sd-pam)" (pid 9, /)'),
        (LIAR, 'by "ok (pid 1, \\"x" (pid 7, "a b/\\\\\\\\n")'),
        (QuotaWriter(5, "", "user.slice"), 'by "" (pid 5, user.slice)'),
    ],
)
def test_who_changed_a_quota_is_told(node, host, writer, by):
    key, container = guarded(node, host)
    send(node, update({key: (30_000, 0)}, seq=9))
    container.quota_us = 90_000
    if writer is not None:
        host.quota_writers[key] = writer
    for tick in range(1, 7):
        run_tick(node, tick * PERIOD_NS, tick)

    (drift,) = node.events.take_drifts()
    assert drift.reason == f"modified externally {by}: quota 30 ms became 90 ms, put back"
    assert drift.writer == writer


def test_a_long_path_of_groups_keeps_its_end_and_leaves_room_for_what_was_changed(node, host):
    key, container = guarded(node, host)
    send(node, update({key: (30_000, 0)}, seq=9))
    container.quota_us = 90_000
    host.quota_writers[key] = QuotaWriter(8, "runc", "é" * 3000 + "/cri-containerd-0123.scope")
    for tick in range(1, 7):
        run_tick(node, tick * PERIOD_NS, tick)

    (drift,) = node.events.take_drifts()
    assert drift.reason.endswith("é/cri-containerd-0123.scope): quota 30 ms became 90 ms, put back")
    assert len(drift.reason) < 400


def test_who_changed_a_quota_is_told_though_the_next_order_overwrites_it(node, host):
    key, container = guarded(node, host)
    send(node, update({key: (30_000, 0)}, seq=9))
    container.quota_us = 90_000
    host.quota_writers[key] = RUNC
    send(node, update({key: (40_000, 0)}, seq=10))

    (drift,) = node.events.take_drifts()
    assert drift.reason.startswith("modified externally by runc (pid 4711, system.slice/docker.service): quota 30 ms")
    assert drift.writer == RUNC


def test_the_writer_of_a_quota_is_not_made_the_writer_of_a_memory_limit(node, host):
    key, container = guarded(node, host)
    send(node, update({key: (30_000, 0)}, seq=9))
    container.limit_bytes, container.quota_us = 180 * MIB, 90_000
    host.quota_writers[key] = RUNC
    for tick in range(1, 7):
        run_tick(node, tick * PERIOD_NS, tick)

    (drift,) = node.events.take_drifts()
    by = "by runc (pid 4711, system.slice/docker.service)"
    memory = "memory limit 256 MiB became 180 MiB, put back"
    assert drift.reason == f"modified externally: quota 30 ms became 90 ms {by}, put back; {memory}"
    assert drift.writer == RUNC

    container.limit_bytes = 170 * MIB
    host.quota_writers[key] = RUNC
    for tick in range(7, 13):
        run_tick(node, tick * PERIOD_NS, tick)
    (drift,) = node.events.take_drifts()
    assert drift.reason == "modified externally: memory limit 256 MiB became 170 MiB, put back"
    assert drift.writer is None


def test_drift_that_cannot_be_put_back_is_taken_over(node, host):
    _, container = guarded(node, host)
    container.limit_bytes = 400 * MIB
    container.run(0, memory_bytes=300 * MIB)
    for tick in range(1, 7):
        (batch,), _ = run_tick(node, tick * PERIOD_NS, tick)

    assert batch.rows()[0]["memory_limit_bytes"] == container.limit_bytes == 400 * MIB
    assert "the kernel refuses" in node.events.take_drifts()[0].reason


def test_a_guard_that_other_hands_switched_off_is_repaired_and_told(node, host):
    _, container = guarded(node, host)
    container.kernel_kills = True
    for tick in range(1, 6):
        run_tick(node, tick * PERIOD_NS, tick)

    assert not container.kernel_kills
    assert "enabled again" in node.events.take_drifts()[0].reason


def test_stopping_restores_everything_and_gives_up_the_reserve(node, host):
    _, container = guarded(node, host, reserve_mib=0)
    container.touch(200 * MIB)
    node.take_notifications(5 * MS)
    told(node)
    node.release_all()

    assert told(node)[0] == (OomKind.OOM_KILLER_ENABLED, OomCause.SHUTDOWN)
    assert (container.oom_controlled, container.kernel_kills, container.limit_bytes) == (False, True, 255 * MIB)
    assert host.reserve_store.read()["shop"].left_bytes == 0


def test_reclaimable_memory_is_reported_within_five_seconds(node, host):
    _, container = guarded(node, host)
    container.reclaimable_bytes = 12 * MIB
    for tick in range(1, 52):
        (batch,), _ = run_tick(node, tick * PERIOD_NS, tick)

    assert batch.rows()[0]["memory_reclaimable_bytes"] == 12 * MIB


@pytest.mark.parametrize("foreign_us", [29_750, -1, 5_000])
@pytest.mark.parametrize("step_us", [1_000, -1_000], ids=["raises", "cuts"])
def test_every_foreign_quota_of_a_busy_container_is_told_though_the_next_order_overwrites_it(
    node, host, foreign_us, step_us
):
    key, container = guarded(node, host)
    for number in range(15):
        container.run(40_000, throttled=1, memory_bytes=20 * MIB)
        run_tick(node, (2 * number + 1) * PERIOD_NS, number + 1)
        send(node, update({key: (40_000 + number * step_us, 0)}, seq=20 + 2 * number), (2 * number + 1) * PERIOD_NS)
        node.poll_decreases((2 * number + 2) * PERIOD_NS)
        node.events.take_drifts()
        ordered_us, container.quota_us = container.quota_us, foreign_us
        send(node, update({key: (40_500 + number * step_us, 0)}, seq=21 + 2 * number), (2 * number + 2) * PERIOD_NS)
        node.poll_decreases((2 * number + 3) * PERIOD_NS)

        (drift,) = node.events.take_drifts()
        begin = f"modified externally by an unknown process: quota {ordered_us / 1000:g} ms became "
        assert drift.reason.startswith(begin)
        assert drift.reason.endswith(f"replaced by the limit update of {container.quota_us / 1000:g} ms")
