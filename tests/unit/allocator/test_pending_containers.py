"""Who is admitted, with what, and who must wait."""

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitReply
from services.allocator.budget.step_context import StepTime
from tests.support.lossy_cluster import owning

MIB = 1 << 20


def batch(rows, *, report_seq=1):
    """Rows: container -> (quota_us, limit_bytes, memory_usage_bytes)."""
    columns = {name: [0] * len(rows) for name in CfsBatch.column_types}
    columns |= {
        "periods": [1] * len(rows),
        "quota_us": [row[0] for row in rows.values()],
        "memory_limit_bytes": [row[1] for row in rows.values()],
        "memory_usage_bytes": [row[2] for row in rows.values()],
    }
    return CfsBatch.build(
        list(rows),
        columns,
        app="shop",
        node="n1",
        incarnation=1,
        report_seq=report_seq,
        time_ns=1,
        period_us=100_000,
        host_cpus=4,
    )


def fenced(spec, rows):
    """An allocation whose only node has acknowledged it; the next batch has report_seq 3."""
    allocation = owning("shop")
    allocation.set_spec("shop", spec)
    allocation.step([batch(rows)], StepTime(1, 1))
    (fence,) = allocation.fences_due(StepTime(1, 1))
    empty = {name: [] for name in LimitReply.column_types}
    reply = LimitReply.build([], empty, node="n1", incarnation=1, report_seq=2, epoch=1, seq=fence.seq)
    allocation.replies.record(reply, fence, 1)
    return allocation


def quotas(outcome):
    return {row["container"]: row["quota_us"] for update in outcome.updates for row in update.rows()}


def test_unlimited_pending_container_gets_its_equal_share():
    """Equation 2.1: 2 cores over 2 announced containers is 100 ms per period each."""
    spec = AppSpec(name="shop", cpu_limit=2, memory_limit=512 * MIB, announced_containers=2)
    rows = {"web-1": (-1, -1, 10 * MIB)}
    outcome = fenced(spec, rows).step([batch(rows, report_seq=3)], StepTime(2, 2))

    (row,) = outcome.updates[0].rows()
    # Equation 2.2: 512 MiB x (1 - 0.2) / 2 = 204.8 MiB, in whole pages.
    assert row == {"container": "web-1", "quota_us": 100_000, "limit_bytes": int(204.8 * MIB) // 4096 * 4096}


def test_announced_containers_that_exist_already_with_limits_of_their_own_are_all_admitted():
    """Their limits count as held: room for them must not be kept a second time."""
    spec = AppSpec(name="shop", cpu_limit=0.5, memory_limit=640 * MIB, announced_containers=5)
    share = spec.initial_memory_bytes(5)
    rows = {f"c-{n}": (10_000, share, 8 * MIB) for n in range(5)}
    allocation = fenced(spec, rows)
    allocation.step([batch(rows, report_seq=3)], StepTime(2, 2))

    assert allocation.cluster.rows.admitted.all()
    assert allocation.refused.reasons == {}


def test_no_container_is_admitted_before_the_agent_has_acknowledged_the_epoch():
    allocation = owning("shop")
    allocation.set_spec("shop", AppSpec(name="shop", cpu_limit=1, memory_limit=512 * MIB))
    outcome = allocation.step([batch({"web-1": (-1, -1, MIB)})], StepTime(1, 1))

    assert outcome.updates == ()


def test_container_that_can_never_fit_is_refused_with_a_reason():
    """It uses 600 MiB; the application's limit is 512 MiB."""
    rows = {"web-1": (-1, -1, 600 * MIB)}
    allocation = fenced(AppSpec(name="shop", cpu_limit=1, memory_limit=512 * MIB), rows)
    outcome = allocation.step([batch(rows, report_seq=3)], StepTime(2, 2))

    (refusal,) = outcome.refusals
    assert (refusal.container, refusal.node) == ("web-1", "n1")
    assert "604 MiB" in refusal.reason
    assert allocation.step([batch(rows, report_seq=4)], StepTime(3, 3)).refusals == ()


def test_observing_admits_with_what_the_container_has_and_sends_nothing():
    rows = {"web-1": (30_000, 64 * MIB, 8 * MIB)}
    allocation = owning("shop")
    allocation.set_spec("shop", AppSpec(name="shop", cpu_limit=1, memory_limit=512 * MIB, mode="observe"))
    first = allocation.step([batch(rows)], StepTime(1, 1))
    rows_state = allocation.cluster.rows

    assert (first.updates, bool(rows_state.admitted[0])) == ((), True)
    assert allocation.fences_due(StepTime(1, 1)) == ()


def test_containers_that_join_together_share_equally():
    """Equation 2.2 counts all of them: 512 MiB x (1 - 0.2) / 2 each; the first must not take it all."""
    rows = {"web-1": (-1, -1, MIB), "web-2": (-1, -1, MIB)}
    allocation = fenced(AppSpec(name="shop", cpu_limit=2, memory_limit=512 * MIB), rows)
    outcome = allocation.step([batch(rows, report_seq=3)], StepTime(2, 2))

    assert quotas(outcome) == {"web-1": 100_000, "web-2": 100_000}
    assert {row["limit_bytes"] for row in outcome.updates[0].rows()} == {int(204.8 * MIB) // 4096 * 4096}
