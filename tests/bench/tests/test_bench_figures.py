"""What the benchmarks of scale and latency conclude from what they have measured."""

from __future__ import annotations

import json
import resource

import pytest

from schemas.apps import PERIOD_US
from tests.bench import latency, memory, scale, scale_report
from tests.bench.cluster import Window
from tests.bench.latency_figures import LatencyResults
from tests.bench.latency_figures import expectations as latency_expectations
from tests.bench.latency_figures import figures as latency_rows
from tests.bench.latency_figures import table as latency_table
from tests.bench.machine import Machine
from tests.bench.memory_growth import GrowthRun
from tests.bench.scale_figures import (
    CHANGE_SHARES,
    Activity,
    FleetKey,
    ScaleResults,
    bytes_per_container,
    capacities,
    growths,
    kept_up,
)
from tests.bench.scenario_agent import AgentRun, latencies
from tests.bench.scenario_allocator import AllocatorRun
from tests.bench.synthetic_agents import Load
from tests.bench.traced_agent import AT_BOUNDARY, AT_ONCE

MACHINE = Machine("a processor", 2, 8.0, "6.1", "cgroup v1", "3.11", (0.0, 0.0, 0.0))
WINDOW = Window(1_000_000_000, 2_000_000_000, {}, {}, {}, {}, 0)
PARTS = ("read", "recheck", "columns", "publish", "orders", "process")


def host(count: int, agent_us: float, *, source: str = "bpf", busy: int = 0, ticks: float = 1.0) -> AgentRun:
    run = AgentRun(count, busy, "default", source, periods=40.0, ticks_per_period=ticks)
    run.cost_us = dict.fromkeys(PARTS, agent_us)
    run.companions_us, run.allocator_us, run.agent_bytes = 0.5, 1.5, 60_000_000 + count * 20_000
    return run


def fleet(key: FleetKey, allocator_us: float, ticks: float = 1.0) -> AllocatorRun:
    load = Load(key.containers, key.containers_per_node, 1_000, CHANGE_SHARES[key.activity])
    run = AllocatorRun(load, "waterfill", key.replicas, periods=40.0, process_us=allocator_us, ticks_per_period=ticks)
    run.replica_us, run.replica_bytes = [allocator_us / key.replicas] * key.replicas, [1 << 26] * key.replicas
    return run


def test_containers_per_core_come_from_agent_watchdog_and_allocator_together() -> None:
    results = ScaleResults(MACHINE, [host(100, 8.0), host(100, 3.0)])
    (capacity,) = capacities(results)
    assert capacity.cost_us.median == pytest.approx(7.5)
    assert capacity.per_core.median == pytest.approx(PERIOD_US / 7.5)
    assert (capacity.per_core.least, capacity.per_core.most) == pytest.approx((10_000, 20_000))


@pytest.mark.parametrize(("busy", "activity", "other"), [(0, "quiet", "busy"), (30, "busy", "quiet")])
def test_many_nodes_take_the_allocator_of_the_largest_fleet_of_such_nodes(
    busy: int, activity: Activity, other: Activity
) -> None:
    fleets = [
        fleet(FleetKey(1_000, 100, 1, activity), 5.0),
        fleet(FleetKey(10_000, 100, 1, activity), 1.0),
        fleet(FleetKey(10_000, 100, 3, activity), 0.1),  # more than one replica is no cost of one core
        fleet(FleetKey(30_000, 1_000, 1, activity), 0.1),  # other nodes
        fleet(FleetKey(30_000, 100, 1, other), 0.1),
        fleet(FleetKey(100_000, 100, 1, activity), 0.1, ticks=0.5),  # did not keep up
    ]
    found = {row.what: row for row in capacities(ScaleResults(MACHINE, [host(100, 8.0, busy=busy)], fleets))}
    (many,) = (row for what, row in found.items() if what.startswith("many nodes"))
    assert many.cost_us.median == pytest.approx(8.0 + 0.5 + 1.0)
    assert f"10,000, 100 a node, 1 replica, {activity}" in many.measured
    assert sum(what.startswith("allocator alone") for what in found) == 4


def test_few_containers_and_late_ticks_say_nothing_of_capacity() -> None:
    assert capacities(ScaleResults(MACHINE, [host(30, 8.0), host(300, 8.0, ticks=0.9)])) == []


def test_one_tick_may_fall_outside_of_the_window() -> None:
    assert kept_up([host(10, 1.0, ticks=39 / 40)])
    assert not kept_up([host(10, 1.0), host(10, 1.0, ticks=37 / 40)])
    assert not kept_up([])


def test_growth_is_of_the_same_source_and_load_in_pairs() -> None:
    runs = [host(100, 8.0), host(1_000, 18.0), host(100, 8.0), host(1_000, 8.0), host(100, 1.0, source="files")]
    ((what, spread),) = growths(ScaleResults(MACHINE, runs))
    assert what == "idle, bpf"
    assert (spread.least, spread.most, spread.count) == pytest.approx((1.0, 2.0, 2))


def test_memory_per_container_is_what_is_beyond_the_fewest() -> None:
    results = ScaleResults(MACHINE, [host(10, 1.0), host(100, 1.0), host(1_000, 1.0), host(30, 1.0, source="files")])
    assert bytes_per_container(results, "bpf") == pytest.approx({100: 20_000, 1_000: 20_000})
    assert bytes_per_container(results, "files") == {}


def test_counts_go_as_far_as_open_files_do() -> None:
    assert scale.fitting((2_000, 4_000), resource.RLIM_INFINITY) == (2_000, 4_000)
    assert scale.fitting((2_000, 4_000), 33_200) == (2_000, 3_000)
    assert scale.fitting((2_000, 4_000), 20_000) == (1_800,)
    assert scale.fitting((2_000, 4_000), 1_024) == ()


def test_the_table_of_scale_names_who_did_not_keep_up() -> None:
    fleets = [fleet(FleetKey(10_000, 100, 2, "busy"), 0.1)]
    results = ScaleResults(MACHINE, [host(100, 6.0), host(1_000, 20.0, ticks=0.5)], fleets, ["a note"])
    lines = scale_report.table(results).splitlines()
    assert [line.split()[0] for line in lines if "DID NOT KEEP UP" in line] == ["1,000"]
    assert any("<= 10" in line and line.endswith(" met") for line in lines)
    assert lines[-1] == "a note"
    assert json.loads(json.dumps(results.as_dict()))["capacities"][0]["containers_per_core"]["median"] == 12_500


def trace(*writes: tuple[int, int, int, int, int]) -> dict[str, list[float]]:
    """Two orders: 1 of a tick at 1.5 s, 2 of no tick, sent at 1.6 s; 3 is of a tick before the window."""
    orders = [(1, 1_500_000_000, 1_502_000_000, 5), (2, 0, 1_600_000_000, 5), (3, 900_000_000, 902_000_000, 5)]
    tick = {"begin_ns": 1_500_000_000, "end_ns": 1_501_000_000}
    agent = {"ticks": [tick], "orders": [(1, 1_503_000_000, 10)], "writes": list(writes)}
    return {kind: values for kind, values in latencies(WINDOW, agent, {"orders": orders}).items() if values}


def test_raises_are_counted_from_the_sample_the_tick_and_the_end_of_their_own_period() -> None:
    found = trace(
        (1, AT_ONCE, 1_503_000_000, 1, 43_000_000),
        (1, AT_ONCE, 1_504_000_000, 1, -1),
        (3, AT_ONCE, 903_000_000, 1, 43_000_000),
    )
    assert found == {
        "raise": [3.0, 4.0],
        "last raise": [4.0],
        "raise from due": [3.0, 4.0],
        "raise from period end": [43.0],
        "sample": [1.0],
        "transit": [2.0],
    }


def test_cuts_are_told_apart_from_raises() -> None:
    found = trace(
        (1, AT_ONCE, 1_503_000_000, 0, -1),
        (1, AT_BOUNDARY, 1_550_000_000, 0, 700_000),
        (2, AT_BOUNDARY, 1_650_000_000, 0, -1),
        (2, AT_ONCE, 1_601_000_000, 1, 5_000_000),
    )
    assert (found["idle cut"], found["cut"], found["cut wait"]) == ([3.0], [0.7], [50.0])
    assert found["funded raise"] == [1.0]
    assert "raise" not in found


def test_latency_is_judged_only_where_something_is_expected() -> None:
    runs = [AgentRun(count, count, "agent FIFO", "bpf", latency_ms={"raise": [2.0, 2.0, 12.0]}) for count in (10, 100)]
    results = LatencyResults(MACHINE, runs)
    assert [(row.at_most, row.met) for row in latency_expectations(results)] == [(3.0, True), (10.0, False)]
    assert latency_table(results).splitlines()[-1].endswith("MISSED")
    assert json.loads(json.dumps(results.as_dict()))["percentiles_ms"][0]["raise"]["p50"]["median"] == 2.0


def test_all_plans_name_what_they_run() -> None:
    plan, as_json = scale.parse(["--quick", "--json"])
    assert as_json
    assert list(scale.planned_points(plan))[:2] == ["10 containers", "100 containers"]
    assert scale.parse(["--containers", "0", "--no-fleets"])[0].counts == ()
    whole, _ = latency.parse([])
    assert {setting.scheduling for setting in latency.settings(whole, 1_000)} == set(latency.SCHEDULINGS)
    assert {setting.source for setting in latency.settings(whole, 100)} == {"auto", "off"}


def test_rows_for_pages_name_percentiles_over_repetitions() -> None:
    first, second, fifo = (host(100, 8.0, busy=100) for _ in range(3))
    first.latency_ms, second.latency_ms = {"raise": [4.0] * 9 + [9.0]}, {"raise": [5.0] * 9 + [8.0]}
    fifo.scheduling, fifo.latency_ms = "agent FIFO", {"raise": [1.0]}
    rows = latency_rows(LatencyResults(MACHINE, [first, second, fifo]))

    assert rows.keys() == {"raise"}
    assert rows["raise"]["shown"] == "p50 4.5 (4-5) ms, p99 8.14 (7.73-8.55) ms, max 9 ms"


def test_no_kill_in_many_runs_still_has_an_upper_bound() -> None:
    growths_seen = [GrowthRun("touch", "default", rate=2e9, latency_us=[400, 1_500]) for _ in range(200)]

    assert memory.figures(growths_seen)["kills"] == {
        "what": "containers killed, or refused a system call, that grew by 1.5 GiB at 2.0 to 2.0 GB/s",
        "unit": "",
        "shown": "0 of 200 runs (95 % upper bound 1.5 %)",
    }
    growths_seen[0].failures.append("ENOMEM")
    assert memory.figures(growths_seen)["kills"]["shown"] == "1 of 200 runs (95 % upper bound 2.3 %)"
    assert memory.figures([GrowthRun("touch", "FIFO")]) == {}
