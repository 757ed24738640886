"""What usage readings between two samples cost: plans, synthetic polls, figures and tables."""

from __future__ import annotations

import json

import numpy as np
import pytest

from schemas.cfs import CfsBatch
from schemas.limits import LimitUpdate
from services.agent.settings import AgentSettings
from tests.bench import scale, scale_polls
from tests.bench.cluster import Window
from tests.bench.machine import Machine
from tests.bench.scale_figures import FleetKey
from tests.bench.scale_polls import PollResults, added, load_of, us_per_read
from tests.bench.scenario_agent import AgentRun, _fill_costs
from tests.bench.scenario_allocator import AllocatorRun, _summarise
from tests.bench.synthetic_agents import FIRST_QUOTA_US, Load, SyntheticNode

MACHINE = Machine("a processor", 2, 8.0, "6.1", "cgroup v1", "3.11", (0.0, 0.0, 0.0))
KEY = FleetKey(100, 100, 1, "busy")
BEGIN_NS, END_NS = 1_000_000_000, 2_000_000_000
STEADY = Load(100, 100, 100, change_share=0.0, polls=4)


def host(polls: int, agent_us: float, poll_us: float = 0.0, *, count: int = 100, busy: int = 30) -> AgentRun:
    run = AgentRun(count, busy, "default", "cgroup-v1", periods=40.0, ticks_per_period=1.0, polls=polls)
    run.cost_us, run.poll_us, run.usage_reads = {"process": agent_us}, poll_us, 0.8 * polls
    run.polls_per_period = float(polls)
    return run


def fleet(polls: int, step_us: float, early_us: float = 0.0) -> AllocatorRun:
    run = AllocatorRun(load_of(KEY, polls), "waterfill", periods=40.0, process_us=2 * step_us, ticks_per_period=1.0)
    run.step_us, run.early_step_us, run.polls_per_period = step_us, early_us, float(polls)
    return run


def told(batches: list[CfsBatch]) -> set[str]:
    return {key for batch in batches for key, new in zip(batch.keys, batch.column("throttled"), strict=True) if new}


def node(load: Load) -> SyntheticNode:
    return SyntheticNode("node0", 0, load, np.random.default_rng(1))


def raise_all(synthetic: SyntheticNode, keys: list[str], quota_us: int) -> None:
    columns = {"quota_us": [quota_us] * len(keys), "limit_bytes": [0] * len(keys)}
    head = {"node": "node0", "incarnation": 1, "epoch": 1, "seq": 1, "time_ns": 1, "apps": ("app0",)}
    synthetic.carry_out(LimitUpdate.build(keys, columns, **head))


def test_polls_alone_by_default_as_often_as_the_agent_does() -> None:
    plan, _ = scale.parse(["--polls"])
    assert plan.polls is not None
    assert plan.polls.polls == AgentSettings.model_fields["throttle_polls_per_period"].default
    assert plan.polls.counts == (100, 1_000)
    assert plan.polls.phases == (True, False)
    assert [key.containers for key in plan.polls.fleets] == [100, 1_000]


def test_a_quick_plan_of_polls_is_short() -> None:
    plan, as_json = scale.parse(["--polls", "9", "--quick", "--json"])
    assert as_json
    assert plan.polls is not None
    assert (plan.polls.polls, plan.polls.repetitions, plan.polls.counts) == (9, 1, (100,))
    assert next(iter(scale.planned_points(plan))) == "100 containers"


def test_a_plan_of_polls_takes_the_counts_that_are_given() -> None:
    plan, _ = scale.parse(["--polls", "--containers", "0", "--no-fleets", "--repetitions", "2", "--seconds", "3"])
    assert plan.polls is not None
    assert (plan.polls.counts, plan.polls.fleets) == ((), ())
    assert (plan.polls.repetitions, plan.polls.seconds) == (2, 3.0)


@pytest.mark.parametrize("polls", ["0", "10", "-1"])
def test_more_polls_than_the_agent_allows_are_refused(polls: str) -> None:
    with pytest.raises(SystemExit):
        scale.parse([f"--polls={polls}"])


def test_without_the_option_nothing_is_polled() -> None:
    assert scale.parse(["--quick"])[0].polls is None


def test_synthetic_polls_tell_of_each_used_up_quota_once_and_only_then() -> None:
    synthetic = node(STEADY)
    (sample,) = synthetic.batches(1)
    throttled = told([sample])
    assert throttled
    passed = [number / 5 for number in range(1, 5)]
    reports = [told(synthetic.early_batches(share, 2)) for share in passed]
    demands = synthetic._demand_us
    for share, report in zip(passed, reports, strict=True):
        rows = np.flatnonzero(demands * share >= FIRST_QUOTA_US)
        expected = {sample.keys[row] for row in rows}
        before = set().union(*reports[: passed.index(share)])
        assert report == expected - before
    assert any(reports)


def test_what_polls_have_told_is_not_counted_again_in_the_sample() -> None:
    synthetic = node(STEADY)
    (sample,) = synthetic.batches(1)
    early = told(synthetic.early_batches(0.8, 2))
    assert early
    assert told(synthetic.batches(3)) == told([sample]) - early
    assert told(synthetic.early_batches(0.8, 4)) == early  # the next period


def test_a_larger_quota_that_is_used_up_as_well_is_told_anew() -> None:
    synthetic = node(STEADY)
    (sample,) = synthetic.batches(1)
    first = told(synthetic.early_batches(0.8, 2))
    raise_all(synthetic, list(sample.keys), FIRST_QUOTA_US * 3 // 2)
    again = told(synthetic.early_batches(0.8, 3))
    assert again
    assert again < first


def test_early_batches_are_flagged_and_mostly_none() -> None:
    synthetic = node(STEADY)
    synthetic.batches(1)
    (batch,) = synthetic.early_batches(0.8, 2)
    assert batch.is_early
    assert batch.row_count == 100
    assert (batch.column("periods") == batch.column("throttled")).all()
    assert synthetic.early_batches(0.8, 3) == []


def test_without_polls_the_load_is_what_it_was() -> None:
    quiet, polled = (node(load) for load in (Load(100, 100, 100, 0.5), Load(100, 100, 100, 0.5, 4)))
    for time_ns in range(3):
        (ours,), (theirs,) = quiet.batches(time_ns), polled.batches(time_ns)
        assert (ours.column("used_us") == theirs.column("used_us")).all()
        assert not ours.is_early


def test_polls_add_what_each_pair_of_repetitions_differs_by() -> None:
    runs, without = [host(4, 30.0), host(4, 50.0)], [host(0, 25.0), host(0, 30.0)]
    spread = added(runs, without, lambda run: run.process_us)
    assert spread is not None
    assert (spread.median, spread.least, spread.most, spread.count) == (12.5, 5.0, 20.0, 2)
    assert added(runs, [], lambda run: run.process_us) is None


def test_a_reading_costs_its_share_of_the_polls() -> None:
    assert us_per_read(host(4, 30.0, poll_us=6.4)) == pytest.approx(2.0)
    assert us_per_read(host(0, 25.0)) == 0.0


def test_the_table_of_polls_sets_both_ways_beside_each_other() -> None:
    hosts = [host(0, 25.0), host(4, 31.0, poll_us=6.4), host(4, 99.0, count=1_000)]
    results = PollResults(MACHINE, 4, hosts, [fleet(4, 0.75, 0.3), fleet(0, 0.5)], ["a note"])
    lines = scale_polls.table(results).splitlines()
    rows = [line.split() for line in lines if line.startswith(" ") and "polls" not in line]
    assert [row[:3] for row in rows] == [
        ["100", "30", "0"],
        ["100", "30", "4"],
        ["1,000", "30", "4"],
        ["100", "100", "0"],
        ["100", "100", "4"],
    ]
    assert [" ".join(row[-2:]) for row in rows if row[-1] != "-"] == ["6.00 (6.00-6.00)", "0.25 (0.25-0.25)"]
    assert lines[-1] == "a note"


def test_the_record_of_polls_is_json() -> None:
    results = PollResults(MACHINE, 4, [host(0, 25.0), host(4, 31.0, 6.4)], [fleet(0, 0.5), fleet(4, 0.75, 0.3)])
    record = json.loads(json.dumps(results.as_dict(), allow_nan=False))
    assert [row["polls"] for row in record["agent"]] == [0, 4]
    assert record["agent"][0]["added_us"] is None
    assert record["agent"][1]["added_us"]["median"] == 6.0
    assert record["agent"][1]["of_a_core_percent"]["median"] == pytest.approx(0.64)
    assert record["allocator"][1]["of_that_early"]["median"] == 0.3
    assert record["fleets"][1]["load"]["polls"] == 4


def test_an_agents_run_counts_the_polls_of_its_window() -> None:
    names = ("traced_agent", "traced_allocator", "nats-server")
    costs = dict.fromkeys(names, 1e4)
    window = Window(BEGIN_NS, END_NS, costs, costs, costs, dict.fromkeys(names, 0), 0)
    polls = [
        {"begin_ns": 900_000_000, "cost": 10_000_000, "reads": 100, "told": 100},  # before the window
        {"begin_ns": 1_020_000_000, "cost": 150_000, "reads": 60, "told": 0},
        {"begin_ns": 1_040_000_000, "cost": 250_000, "reads": 40, "told": 5},
    ]
    run = AgentRun(100, 30, "default")
    _fill_costs(run, window, {"ticks": [], "orders": [], "polls": polls}, {"orders": []})
    assert (run.polls_per_period, run.usage_reads, run.told_by_polls) == pytest.approx((0.2, 0.1, 0.5))
    assert run.poll_us == pytest.approx(0.4)
    assert us_per_read(run) == pytest.approx(4.0)


def test_steps_after_polls_are_told_apart_from_those_after_samples() -> None:
    names = ("allocator 0", "nats-server")
    window = Window(BEGIN_NS, END_NS, dict.fromkeys(names, 1e4), {}, {}, dict.fromkeys(names, 0), 0)
    steps = [
        (1_101_000_000, 1, 1_100_000_000, 300_000),
        (1_121_000_000, 1, 1_120_000_000, 200_000),
        (1_201_000_000, 1, 1_200_000_000, 300_000),
    ]
    ticks = [(due_ns, due_ns, due_ns) for due_ns in (1_100_000_000, 1_200_000_000)]
    agents = {"ticks": ticks, "orders": [], "polls": [(900_000_000, 9), (1_120_000_000, 3), (1_140_000_000, 0)]}
    run = AllocatorRun(load_of(KEY, 4), "waterfill", periods=10.0)
    _summarise(run, window, [{"steps": steps}], agents)
    assert (run.step_us, run.early_step_us) == pytest.approx((4.0, 1.0))
    assert (run.polls_per_period, run.told_by_polls) == pytest.approx((1.0, 1.5))
