"""What the kernel refuses: the reply, the event once it lasts and when it ends, the bound of the announcement."""

import pytest

from schemas.limits import REFUSED_RETRY_MAX_S, RowStatus
from services._host.cgroup_snapshot import RefusedQuota
from services.agent.limits.accepted_updates import SpecLimit
from services.agent.limits.refused_limits import ENDED_AFTER_NS, RefusedLimits, RefusedWrite
from services.agent.node import NodeOptions
from tests.support.agent_node import Node
from tests.support.fake_host import FakeHost
from tests.support.limit_orders import reply_rows, send, update

MIB = 1 << 20
MS = 1_000_000
S = 1_000 * MS
NO_CPU = frozenset({"memory"})
CUT = RefusedWrite(30_000, 100_000, "the kernel refuses less than 1.00 cores: why", (1, 1))


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
def node(host):
    return Node("n1", 7, host, host.reserve_store, NodeOptions())


def add(node, host, **values):
    """A container; its key, and its files."""
    found = host.add(f"c{len(host.containers)}", **values)
    return node.found(found), host.containers[found.container_id]


def carry_out(node, files, message):
    """The reply, after the period that a decrease waits for."""
    replies = send(node, message)
    for now_ns in range(0, 80 * MS, 4 * MS):
        files.run(1_000, periods=now_ns == 40 * MS)
        node.poll_decreases(now_ns)
    return replies[0]


def test_a_container_whose_quota_is_refused_gets_its_memory_limit(node, host):
    key, files = add(node, host, writable=NO_CPU)
    (reply,) = send(node, update({key: (50_000, 100 * MIB)}))

    row = reply_rows(reply)[key]
    assert (row["status"], row["quota_us"], row["limit_bytes"]) == (RowStatus.FAILED, -1, 100 * MIB)
    assert files.limit_bytes == 100 * MIB
    reason = "the kernel refuses any CPU limit: cpu.cfs_quota_us: Read-only file system (EROFS)"
    assert (reply.refused_cpu, reply.refused_memory) == ({key: reason}, {})
    assert node.limits.take_failures() == [(key, RowStatus.FAILED, reason)]


@pytest.mark.parametrize(
    ("values", "quotas_us", "reason"),
    [
        ({"burst_us": 100_000}, (38_000, 100_000), "less than 1.00 cores: cpu.cfs_burst_us is 100000"),
        ({"child_quota_us": 90_000}, (38_000, 90_000), "less than 0.90 cores: the group below has 90000"),
        ({"parent_quota_us": 170_000}, (200_000, 170_000), "more than 1.70 cores: the group above has 170000"),
        (
            {"parent_quota_us": 50_000, "quota_us": -1},
            (75_000, 50_000),
            "more than 0.50 cores: the group above has 50000",
        ),
        ({"burst_us": 100_000, "quota_us": -1}, (38_000, 100_000), "less than 1.00 cores: cpu.cfs_burst_us is 100000"),
    ],
)
def test_the_nearest_quota_that_the_kernel_accepts_is_written(node, host, values, quotas_us, reason):
    ordered_us, held_us = quotas_us
    key, files = add(node, host, **{"quota_us": 150_000} | values)
    reply = carry_out(node, files, update({key: (ordered_us, 0)}))

    assert (files.quota_us, reply_rows(reply)[key]["quota_us"]) == (held_us, held_us)
    assert reply.refused_cpu == {key: f"the kernel refuses {reason}"}
    written = list(files.writes)
    again = carry_out(node, files, update({key: (ordered_us, 0)}, seq=2))
    assert (again.refused_cpu, files.writes) == (reply.refused_cpu, written)


def test_below_a_group_that_is_not_seen_a_first_quota_is_halved_until_it_is_accepted(node, host, monkeypatch):
    key, files = add(node, host, parent_quota_us=30_000)
    unseen = RefusedQuota("cpu.cfs_quota_us: Invalid argument (EINVAL)", may_accept_less=True)
    monkeypatch.setattr(type(files), "why_quota_refused", lambda _self, _quota_us: unseen)
    (reply,) = send(node, update({key: (100_000, 0)}))

    # 50 000 is refused, too; a half of it is not
    assert (files.quota_us, reply_rows(reply)[key]["quota_us"]) == (25_000, 25_000)


def test_what_others_are_ordered_passes_although_the_kernel_holds_all_that_is_announced(node, host):
    """The allocator leaves others their minimum: the agent's bound is of orders, and this one was refused."""
    first, files = add(node, host)
    second, _ = add(node, host)
    node.limits.spec_limits = {"shop": SpecLimit(100_000, 1_000 * MIB)}
    send(node, update({first: (100_000, 100 * MIB)}))
    files.writable = NO_CPU
    send(node, update({second: (1_000, 100 * MIB)}, seq=2))
    assert node.limits.take_over_limit() == {"shop"}  # nothing was refused so far
    carry_out(node, files, update({first: (50_000, 0)}, seq=3))
    (reply,) = send(node, update({second: (1_000, 100 * MIB)}, seq=4))
    assert reply_rows(reply)[second]["status"] == RowStatus.APPLIED
    assert node.limits.take_over_limit() == set()
    (reply,) = send(node, update({second: (100_001, 0)}, seq=5))
    assert reply_rows(reply)[second]["status"] == RowStatus.FAILED


def test_a_refusal_that_passes_is_not_told():
    refused = RefusedLimits()
    refused.refused("web", "memory", CUT, 0)
    refused.accepted("web", "memory", 30_000)
    assert (refused.take_changes(), len(refused)) == ([], 0)


def test_a_refusal_that_lasts_is_told_once_and_so_is_its_end():
    refused = RefusedLimits()
    for now_ns in range(0, 10 * S, S // 2):
        refused.refused("web", "cpu", CUT, now_ns)
    [told] = refused.take_changes()
    assert (told.ended, told.reason, len(refused)) == (False, CUT.reason, 1)
    refused.accepted("web", "cpu", 120_000)  # a raise says nothing of cuts
    refused.accepted("web", "memory", 30_000)
    assert refused.take_changes() == []
    refused.accepted("web", "cpu", 90_000)
    [told] = refused.take_changes()
    assert (told.ended, len(refused)) == (True, 0)
    assert told.reason == f"the kernel accepts it again, after: {CUT.reason}"


def test_a_refusal_ends_where_no_such_limit_is_ordered_for_longer_than_an_allocator_waits():
    refused = RefusedLimits()
    for now_ns in (0, 2 * S):
        refused.refused("web", "cpu", CUT, now_ns)
    refused.take_changes()
    refused.expire(2 * S + int(REFUSED_RETRY_MAX_S * 1e9) + S)
    assert refused.take_changes() == []
    refused.expire(3 * S + ENDED_AFTER_NS)
    assert [told.reason for told in refused.take_changes()] == [f"it is not ordered any more, after: {CUT.reason}"]


def test_of_a_container_that_has_gone_nothing_is_told():
    refused = RefusedLimits()
    for now_ns in (0, 2 * S):
        refused.refused("web", "cpu", CUT, now_ns)
    refused.forget("web")
    assert (refused.take_changes(), len(refused), refused.held_above) == ([], 0, frozenset())
