"""What no kernel reports is left out of a step, and harms nobody else's rows."""

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from services.allocator.budget.step_context import StepTime
from tests.support.lossy_cluster import owning


def batch(rows, *, node="n1", app="shop", report_seq=1):
    """Rows: container -> changed columns."""
    columns = {name: [row.get(name, 0) for row in rows.values()] for name in CfsBatch.column_types}
    columns["periods"] = [1] * len(rows)
    return CfsBatch.build(
        list(rows),
        columns,
        app=app,
        node=node,
        incarnation=1,
        report_seq=report_seq,
        time_ns=1,
        period_us=100_000,
        host_cpus=2,
    )


def test_absurd_values_are_counted_and_left_out():
    allocation = owning("shop")
    allocation.set_spec("shop", AppSpec(name="shop", cpu_limit=1, memory_limit=1 << 30))
    sane = {"quota_us": 50_000, "memory_limit_bytes": 64 << 20, "used_us": 10_000}
    absurd = {"quota_us": -(1 << 63), "memory_limit_bytes": (1 << 63) - 1, "used_us": -5}
    allocation.step([batch({"web-1": sane, "evil-1": absurd})], StepTime(1, 1))

    rows = allocation.cluster.rows
    assert allocation.cluster.counts.invalid_samples == 1
    assert dict(zip(allocation.cluster.keys, rows.quota_us.tolist(), strict=True)) == {"web-1": 50_000, "evil-1": 0}


def test_batch_that_names_a_container_twice_is_left_out():
    allocation = owning("shop")
    allocation.set_spec("shop", AppSpec(name="shop", cpu_limit=1, memory_limit=1 << 30))
    doubled = CfsBatch.build(
        ["web-1", "web-1"],
        {name: [1, 1] for name in CfsBatch.column_types},
        app="shop",
        node="n1",
        incarnation=1,
        report_seq=1,
        time_ns=1,
        period_us=100_000,
        host_cpus=2,
    )
    allocation.step([doubled], StepTime(1, 1))

    assert (allocation.cluster.rows.count, allocation.cluster.counts.invalid_samples) == (0, 2)


def test_late_batch_of_an_older_agent_is_counted_as_out_of_order():
    allocation = owning("shop")
    new = batch({"web-1": {}}).model_copy(update={"incarnation": 5})
    allocation.step([new, batch({"web-1": {}, "old-1": {}}, report_seq=9)], StepTime(1, 1))

    assert (allocation.cluster.keys, allocation.cluster.counts.out_of_order) == (["web-1"], 1)
