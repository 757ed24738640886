"""Orders to pace a job: which are refused and why, and that a repeated one changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.scheduling import OrderAction, Pace, WorkerChange, WorkOrder
from tests.support.deadline import until
from tests.support.runner_lab import NODE, OBEDIENT, RunnerLab, job_spec, order, run_order

PACE = Pace(begin_ns=1_000, period_us=1_000_000)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[RunnerLab]:
    made = RunnerLab(tmp_path)
    yield made
    made.end_workers()


def pace_order(pace: Pace | None = PACE, **changes: Any) -> WorkOrder:
    return order(OrderAction.PACE).model_copy(update={"pace": pace, **changes})


async def run(lab: RunnerLab, nodes: tuple[str, ...] = (NODE, "n2"), **changes: Any) -> None:
    await lab.listen()
    rank = nodes.index(NODE)
    await lab.ask(run_order(job_spec(lab.work, OBEDIENT, workers=len(nodes), **changes), nodes=nodes))
    await lab.until_change(WorkerChange.STARTED, rank=rank)


async def test_a_job_on_several_nodes_is_paced_until_that_is_withdrawn(lab: RunnerLab) -> None:
    async with lab.runner() as runner:
        await run(lab)
        paced = [await lab.ask(pace_order()) for _ in range(3)]
        values = {each.spec.name: each.value for each in runner._runtime.telemetry.collect()}
        withdrawn = [await lab.ask(pace_order(None)) for _ in range(2)]
        after = {each.spec.name: each.value for each in runner._runtime.telemetry.collect()}

    assert all(reply.obeyed for reply in paced + withdrawn)
    assert paced[0].workers[0].pid > 0
    assert values["turnbuckle_runner_paced_jobs"] == 1
    assert after["turnbuckle_runner_paced_jobs"] == 0


@pytest.mark.parametrize(
    ("nodes", "changes", "reason"),
    [
        ((NODE, NODE), {}, "all its workers are on one node"),
        ((NODE, "n2"), {"interleave": False}, "its job file says interleave: false"),
    ],
)
async def test_a_job_that_cannot_be_paced(
    lab: RunnerLab, nodes: tuple[str, ...], changes: dict[str, Any], reason: str
) -> None:
    async with lab.runner():
        await run(lab, nodes, **changes)
        reply = await lab.ask(pace_order())

    assert not reply.obeyed
    assert reply.reason == reason


async def test_only_the_node_of_rank_0_paces(lab: RunnerLab) -> None:
    async with lab.runner():
        await run(lab, ("n2", NODE))
        reply = await lab.ask(pace_order(ranks=(1,)))

    assert (reply.obeyed, reply.reason) == (False, "its rank 0 is not on this node")


async def test_a_worker_that_does_not_run_is_not_paced(lab: RunnerLab) -> None:
    async with lab.runner():
        unknown = await lab.ask(pace_order(sequence=1))
        withdrawn = await lab.ask(pace_order(None, sequence=1))
        await run(lab)
        await lab.ask(order(OrderAction.STOP))
        await lab.until_change(WorkerChange.STOPPED)
        ended = await lab.ask(pace_order())

    assert (unknown.obeyed, unknown.reason) == (False, "ranks [0] do not run")
    assert withdrawn.obeyed
    assert (ended.obeyed, ended.reason) == (False, "ranks [0] do not run")


async def test_a_job_that_has_ended_is_paced_no_more(lab: RunnerLab) -> None:
    async with lab.runner() as runner:

        def paced() -> float:
            values = {each.spec.name: each.value for each in runner._runtime.telemetry.collect()}
            return values["turnbuckle_runner_paced_jobs"]

        await run(lab)
        await lab.ask(pace_order())
        assert paced() == 1
        await lab.ask(order(OrderAction.KILL))
        await until(lambda: paced() == 0, what="its end")
