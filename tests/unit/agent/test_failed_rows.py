"""Rows of an order that are not carried out: for no stale reason, and never in silence."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from schemas.apps import AppSpec
from schemas.limits import RowStatus
from schemas.streams import APPS
from services.agent.limits.update_executor import FailedRow
from services.agent.limits.update_loop import MAX_NAMED, WARN_INTERVAL_S, FailedRows
from tests.support.deadline import until
from tests.support.limit_orders import update
from tests.support.recorded_spans import recorded_spans
from tests.unit.agent.test_agent_service import MIB, lab  # noqa: F401 - a fixture


def warnings(logs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in logs if line["event"] == "limits_not_applied"]


async def has_looked(lab) -> None:  # noqa: F811
    """Wait until the agent knows what is announced of its containers."""
    await until(lambda: lab.batches, what="a batch")
    known = lab.running.node.limits.spec_limits
    await until(lambda: "shop" in known, what="the announcement looked up")


@pytest.mark.parametrize("before", [None, AppSpec(name="shop", cpu_limit=0.3, memory_limit=64 * MIB)])
async def test_the_first_order_after_an_application_was_announced_is_carried_out(lab, before):  # noqa: F811
    """The agent had its containers before: it has looked, and found nothing, or lower limits."""
    apps = lab.ours.bucket(APPS)
    await (apps.delete("shop") if before is None else apps.put("shop", before))
    containers = [lab.backend.add(f"web{number}", quota_us=20_000) for number in range(5)]
    async with lab.agent() as lab.running:
        await has_looked(lab)
        await apps.put("shop", AppSpec(name="shop", cpu_limit=2, memory_limit=4096 * MIB))
        with capture_logs() as logs:
            reply = await lab.order(update, {container.key: (30_000, 100 * MIB) for container in containers})

    assert reply.column("status").tolist() == [RowStatus.APPLIED] * 5
    assert warnings(logs) == []


async def test_a_row_beyond_what_is_announced_is_a_warning_with_its_reason_and_fails_its_span(lab):  # noqa: F811
    containers = [lab.backend.add(f"web{number}", quota_us=20_000) for number in range(2)]
    async with lab.agent() as lab.running:
        await has_looked(lab)
        with capture_logs() as logs, recorded_spans() as recorded:
            rows = {containers[0].key: (30_000, 100 * MIB), containers[1].key: (300_000, 100 * MIB)}
            reply = await lab.order(update, rows)
            again = await lab.order(update, rows)

    assert reply.column("status").tolist() == [RowStatus.APPLIED, RowStatus.FAILED]
    assert again.column("status").tolist() == [RowStatus.UNCHANGED, RowStatus.FAILED]
    [told] = warnings(logs)
    assert told["containers"] == [containers[1].key]
    assert told["reason"] == "beyond what is announced of its application"
    spans = [each for each in recorded.ended if each.name == "agent.apply_limits"]
    assert [each.status.is_ok for each in spans] == [False] * len(spans)
    assert spans


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            lambda container: setattr(container, "refuse", True),
            "the kernel refuses less than 256.0 MiB: memory.limit_in_bytes: ",
        ),
        (lambda container: container.run(0, memory_bytes=200 * MIB), "the memory is in use"),
    ],
    ids=["refused", "in use"],
)
async def test_what_the_kernel_refuses_is_a_warning_with_its_reason(lab, spoil, reason):  # noqa: F811
    container = lab.backend.add("web", quota_us=20_000, limit_bytes=256 * MIB)
    async with lab.agent() as lab.running:
        await has_looked(lab)
        spoil(container)
        with capture_logs() as logs:
            reply = await lab.order(update, {container.key: (0, 100 * MIB), "stranger-0123456789ab": (10_000, 0)})

    assert reply.column("status").tolist() == [RowStatus.FAILED, RowStatus.UNKNOWN_CONTAINER]
    told = {line["containers"][0]: line["reason"] for line in warnings(logs)}
    assert told[container.key].startswith(reason)
    assert told["stranger-0123456789ab"] == "this agent has no such container"


async def test_an_order_for_a_container_that_has_just_exited_is_no_warning(lab):  # noqa: F811
    container, other = lab.backend.add("web", quota_us=20_000), lab.backend.add("api", quota_us=20_000)
    async with lab.agent() as lab.running:
        await has_looked(lab)
        container.gone = True
        await until(lambda: lab.batches[-1].keys == [other.key], what="its exit")
        with capture_logs() as logs:
            reply = await lab.order(update, {container.key: (30_000, 0)})

    assert reply.column("status").tolist() == [RowStatus.UNKNOWN_CONTAINER]
    assert warnings(logs) == []


async def test_an_order_of_cpu_alone_has_a_span_where_it_fails(lab):  # noqa: F811
    """Where it goes well it has none: that would be a third of what tracing costs a host."""
    container = lab.backend.add("web", quota_us=20_000)
    async with lab.agent() as lab.running:
        await has_looked(lab)
        with recorded_spans() as recorded:
            await lab.order(update, {container.key: (30_000, 0)})
            await lab.order(update, {container.key: (300_000, 0)})

    [failed] = [each for each in recorded.ended if each.name == "agent.apply_limits"]
    assert (failed.attributes["turnbuckle.rows_failed"], failed.status.is_ok) == (1, False)


class Log:
    """What was warned of."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **keys: Any) -> None:
        self.lines.append({"event": event, **keys})


def test_a_failure_that_goes_on_is_told_once_and_then_with_its_count() -> None:
    log, now_s = Log(), 0.0
    rows = FailedRows(log, lambda: now_s)
    for _ in range(100):
        rows.warn([FailedRow("web", RowStatus.FAILED, "why")])
        now_s += 0.1
    assert [(line["containers"], line["suppressed"]) for line in log.lines] == [(["web"], 0)]

    rows.warn([FailedRow("web", RowStatus.FAILED, "something else"), FailedRow("api", RowStatus.FAILED, "why")])
    assert [line["containers"] for line in log.lines[1:]] == [["web"], ["api"]]
    now_s += WARN_INTERVAL_S
    rows.warn([FailedRow("web", RowStatus.FAILED, "why")])
    assert (log.lines[-1]["suppressed"], rows.count) == (99, 103)


def test_many_containers_are_one_line() -> None:
    log = Log()
    rows = FailedRows(log, lambda: 0.0)
    rows.warn(FailedRow(f"web{number}", RowStatus.FAILED, "why") for number in range(1000))
    [line] = log.lines
    assert (len(line["containers"]), line["rows"]) == (MAX_NAMED, 1000)
