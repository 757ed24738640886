"""Pooling, ratios, verdicts and tables, from small results whose figures are known by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from schemas.message import Message
from tests.bench.escra import report, run, sensitivity
from tests.bench.escra.disturbance import Disturbance, MachineTime, machine_time
from tests.bench.escra.judgement import dominating, front, headline, verdicts
from tests.bench.escra.load.client import save
from tests.bench.escra.load.sender import Outcome, Sent
from tests.bench.escra.measure import Recorder
from tests.bench.escra.metrics import run_metrics
from tests.bench.escra.plan import BATCH_LOAD, AppLimits, Block, Cell, Plan
from tests.bench.escra.results import Ratio, Results, collect
from tests.bench.escra.store import Store
from tests.bench.machine import Machine
from tests.support.cfs_batches import START_NS, Row, batch

_MACHINE = Machine("a processor", 2, 4.0, "6.1", "cgroup v1", "3.11", (0.0, 0.0, 0.0))
_PLAN = Plan(
    (
        Block(("shop", "cache"), ("fixed",), ("ample",), ("none", "static-1.5", "captain-0.1", "waterfill")),
        Block(("shop",), ("fixed",), ("tight",), ("static-1.5", "captain-0.1", "waterfill")),
    ),
    repetitions=2,
    seed=1,
    window_s=2.0,
)
_LATENCY_MS = {"none": 10.0, "static-1.5": 14.0, "captain-0.1": 13.0, "waterfill": 12.0}
_QUOTA_US = {"none": -1, "static-1.5": 50_000, "captain-0.1": 35_000, "waterfill": 22_000}


class Told:
    """A delivery."""

    def __init__(self, message: Message) -> None:
        self.message = message


def put(
    store: Store,
    cell: Cell,
    latency_ms: float,
    quota_us: int,
    failed: int = 0,
    *,
    disturbed: bool = False,
    probe_us: float = 300.0,
) -> None:
    """A finished cell: 100 requests before the window, 200 in it, 20 batches with two containers of 10 ms use."""
    count = 300
    latency = np.full(count, latency_ms / 1e3)
    latency[:100] = 9.0  # settling: must not count
    outcome = np.full(count, Outcome.OK, dtype=np.int8)
    outcome[count - failed :] = Outcome.WRONG
    intended = np.linspace(0, _PLAN.settle_s + _PLAN.window_s, count, endpoint=False)
    intended[100:] = _PLAN.settle_s + np.arange(200) * 0.01
    save(Sent(intended, np.zeros(count), latency, outcome, ["page"] * count), store.requests_path(cell))
    recorder = Recorder("shop")
    rows = [Row(f"{name}-0123456789ab", quota_us=quota_us, throttled=int(quota_us > 0)) for name in ("web", "db")]
    for tick in range(20):
        recorder.take_message(Told(batch(tick, rows)))  # type: ignore[arg-type]
    recording = recorder.take(START_NS, START_NS + 10**12)
    recording.write(store.recording_path(cell))
    store.finish(
        cell,
        {
            "cell": asdict(cell),
            "pair": cell.pair,
            "limits": asdict(AppLimits(1.5, 1 << 30, 0.67, 0.5)),
            "metrics": run_metrics(recording, 150_000).as_dict(),
            "restarts": 0,
            "window_s": 2.0,
            "client": {"requests": count, "ok": count - failed},
            "controller_ns": {"agent": 20_000_000, "allocator": 10_000_000, "nats": 10_000_000},
            "disturbed": disturbed,
            "probe_us": probe_us,
        },
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, _PLAN)


@pytest.fixture
def results(store: Store) -> Results:
    for cell in _PLAN.order():
        slower = 2.0 if cell.app == "cache" and cell.policy == "waterfill" else 1.0
        tight = {"static-1.5": 8.0, "captain-0.1": 5.0, "waterfill": 3.0}[cell.policy] if cell.limit == "tight" else 1.0
        put(store, cell, _LATENCY_MS[cell.policy] * slower * tight, _QUOTA_US[cell.policy])
    return collect(store, _PLAN, _MACHINE)


def test_the_headline_has_each_figure_with_its_interval(results: Results):
    found = headline(results)
    # shop 1.2, cache 2.4: of two pairs the interval reaches from the one to the other.
    assert found["latency"]["shown"] == "1.70 times (95 % interval 1.20-2.40)"
    # Of 50 and 22 ms a period, 10 are used.
    assert found["slack"]["shown"] == "0.30 times (95 % interval 0.30-0.30)"
    assert found["kills"]["shown"] == "0; 0"
    assert headline(results, "escra") == {}


def test_ratios_are_geometric_means_over_pairs(results: Results):
    found = results.latency_ratio("ample", "waterfill", 99.9)
    # shop 12 / 10, cache 24 / 10: the root of 2.88.
    assert (found.mean, found.least, found.most, found.count) == pytest.approx((2.88**0.5, 1.2, 2.4, 2), rel=1e-5)
    # Tight has no cells without limits: those of the ample limit are the same. 36 / 10.
    assert results.latency_ratio("tight", "waterfill", 50).mean == pytest.approx(3.6)


def test_one_slow_repetition_does_not_decide(store: Store):
    for repetition, latency_ms in enumerate((20.0, 80.0)):
        put(store, Cell("shop", "fixed", "ample", "none", repetition), 10.0, -1)
        put(store, Cell("shop", "fixed", "ample", "waterfill", repetition), latency_ms, 30_000)
    results = collect(store, _PLAN, _MACHINE)
    one = results.of("shop/fixed", "ample", "waterfill")
    assert one is not None
    assert (one.quantile_s(99.9), one.typical_s(99.9)) == pytest.approx((0.08, 0.04))
    assert results.latency_ratio("ample", "waterfill", 99.9).mean == pytest.approx(4.0)


def test_latencies_are_compared_at_equal_speed(store: Store):
    # Latency is the square of the probe's time, and ours half as long again; the machine was slow during ours.
    for policy, quota_us, factor, probes_us in (
        ("none", -1, 1.0, (100.0, 200.0)),
        ("waterfill", 30_000, 1.5, (200.0, 400.0)),
    ):
        for repetition, probe_us in enumerate(probes_us):
            cell = Cell("shop", "fixed", "ample", policy, repetition)
            put(store, cell, factor * probe_us**2 / 1e3, quota_us, probe_us=probe_us)
    results = collect(store, _PLAN, _MACHINE)
    assert results.speed_exponent("ample", 99.9) == pytest.approx(2.0)
    assert results.latency_ratio("ample", "waterfill", 99.9).mean == pytest.approx(1.5)
    assert results.latency_ratio("ample", "waterfill", 99.9, equal_speed=False).mean == pytest.approx(6.0)


@pytest.mark.parametrize("probes_us", [(300.0, 300.0), (200.0, 100.0)])
def test_a_speed_that_explains_nothing_changes_nothing(store: Store, probes_us: tuple[float, float]):
    for repetition, probe_us in enumerate(probes_us):
        put(store, Cell("shop", "fixed", "ample", "none", repetition), 10.0 + repetition, -1, probe_us=probe_us)
        put(store, Cell("shop", "fixed", "ample", "waterfill", repetition), 20.0, 30_000, probe_us=probe_us)
    results = collect(store, _PLAN, _MACHINE)
    assert results.speed_exponent("ample", 99.9) == 0
    assert results.latency_ratio("ample", "waterfill", 99.9) == (
        results.latency_ratio("ample", "waterfill", 99.9, equal_speed=False)
    )


def test_only_the_window_counts(results: Results):
    one = results.of("shop/fixed", "ample", "static-1.5")
    assert one is not None
    # 200 of 300 requests lie in the window of 2 s, twice.
    assert (one.requests, one.throughput_rps, one.quantile_s(99.9)) == (400, 100.0, pytest.approx(0.014))
    assert one.controller_cores == pytest.approx(0.02)


def test_slack_is_pooled(results: Results):
    # 50 - 10 ms of 100.
    assert results.slack_cores("ample", "static-1.5", 50) == pytest.approx(0.4)
    assert np.isnan(results.slack_cores("ample", "none", 50))


def test_a_failed_request_counts_as_the_time_out(store: Store):
    cell = Cell("shop", "fixed", "ample", "none", 0)
    put(store, cell, 10.0, -1, failed=4)
    one = collect(store, _PLAN, _MACHINE).of("shop/fixed", "ample", "none")
    assert one is not None
    # 4 of 200: p99 is among them; 196 answers in 2 s.
    assert (one.failed, one.quantile_s(99), one.throughput_rps) == (4, _PLAN.timeout_s, 98.0)


def test_only_repetitions_that_both_have_are_compared(store: Store):
    put(store, Cell("shop", "fixed", "ample", "none", 0), 10.0, -1)
    put(store, Cell("shop", "fixed", "ample", "waterfill", 0), 20.0, 30_000)
    put(store, Cell("shop", "fixed", "ample", "waterfill", 1), 90.0, 30_000)
    assert collect(store, _PLAN, _MACHINE).latency_ratio("ample", "waterfill", 99.9).mean == pytest.approx(2.0)


def test_disturbed_repetitions_count_only_where_there_are_no_others(store: Store):
    none, ours = (Cell("shop", "fixed", "ample", policy, 0) for policy in ("none", "waterfill"))
    put(store, none, 10.0, -1)
    put(store, ours, 50.0, 30_000, disturbed=True)
    assert collect(store, _PLAN, _MACHINE).latency_ratio("ample", "waterfill", 99.9).mean == pytest.approx(5.0)
    put(store, replace(ours, repetition=1), 20.0, 30_000)
    results = collect(store, _PLAN, _MACHINE)
    # Of no repetition both are undisturbed: all that are, are compared.
    assert results.latency_ratio("ample", "waterfill", 99.9).mean == pytest.approx(2.0)
    assert "1 of 3 cells were disturbed" in report.table(results)


def test_verdicts(results: Results):
    found = {line.what.partition(",")[0]: line for line in verdicts(results, "waterfill")[:5]}
    assert found["p99.9 against no limits"].met is False  # 1.70
    assert found["throughput against no limits"].met is True
    # Slack (22 - 10) / (50 - 10) = 0.3.
    slack = next(line for line in verdicts(results, "waterfill") if line.what.startswith("median CPU slack"))
    assert (slack.met, slack.measured.split()[0]) == (True, "0.30")
    assert found["OOM kills"].met is True
    tight = [line for line in verdicts(results, "waterfill") if "tight limit" in line.what]
    assert [line.met for line in tight] == [True, False]  # 3.6 < 6.5; nobody has unmet demand: not below
    assert verdicts(results, "escra") == []


def test_who_is_better_in_both_is_named(results: Results):
    # Slack and latency: captain 0.25 and 1.3; static 0.4 and 1.4; waterfill 0.12 and 1.7.
    assert dominating(results, "ample", "static-1.5") == ["captain-0.1"]
    assert dominating(results, "ample", "waterfill") == []


def test_the_front_is_who_nobody_beats_in_both():
    points = {"a": (1.0, 1.0), "b": (2.0, 0.5), "c": (2.0, 1.0), "d": (0.5, 3.0), "e": (float("nan"), 0.1)}
    assert front(points) == ["d", "a", "b"]


def test_the_tables_hold_every_policy_and_the_verdicts(results: Results, store: Store, tmp_path: Path):
    text = report.table(results)
    assert "14 of 22 cells" not in text
    for policy in _LATENCY_MS:
        assert f"| {policy} |" in text
    assert "MISSED" in text
    assert "knows no memory" in text
    written = report.write(results, store, tmp_path / "out")
    text = (tmp_path / "out" / "escra.json").read_text()
    assert "NaN" not in text
    record = json.loads(text)
    assert record["policies"]["ample"]["waterfill"]["ratios"]["p99.9"]["pairs"] == 2
    assert {path.suffix for path in written} == {".json", ".md", ".png"}
    assert all(path.stat().st_size > 0 for path in written)


def test_what_was_held_out_is_told_apart(tmp_path: Path):
    plan = Plan((Block(("shop", "media"), ("fixed",), ("ample",), ("none", "waterfill")),), 1, seed=1, window_s=2.0)
    store = Store(tmp_path, plan)
    for cell in plan.order():
        put(store, cell, {"none": 10.0, "waterfill": 11.0 if cell.app == "shop" else 14.0}[cell.policy], 30_000)
    text = report.table(collect(store, plan, _MACHINE))
    assert "Tuned on shop/fixed; held out media/fixed" in text
    assert "| waterfill | 1.10 (1.10-1.10) | 1.40 (1.40-1.40) |" in text


def test_an_unfinished_run_is_reported_too(store: Store):
    put(store, Cell("shop", "fixed", "ample", "static-1.5", 0), 10.0, 50_000)
    results = collect(store, _PLAN, _MACHINE, ["shop: it rained"])
    assert np.isnan(results.latency_ratio("ample", "static-1.5", 99.9).mean)
    assert "1 of 22 cells" in report.table(results)
    assert "Not measured: shop: it rained" in report.table(results)
    assert "nothing" not in report.table(collect(Store(store.directory, _PLAN), _PLAN, _MACHINE))


def test_a_ratio_of_nothing():
    assert np.isnan(Ratio.of([]).mean)
    assert Ratio.of([2.0, 8.0, float("nan")]).text() == "4.00 (2.00-8.00)"


def test_a_batch_is_reported_with_its_aggregate_limits(tmp_path: Path):
    plan = Plan((Block(("grid-search",), (BATCH_LOAD,), ("ample",), ("escra",)),), 1, seed=1, window_s=2.0)
    store = Store(tmp_path, plan)
    cell = plan.order()[0]
    put(store, cell, 1.0, 40_000)
    store.requests_path(cell).unlink()
    batch_result = {"completion_s": 12.5, "workers_failed": 0}
    store.finish(cell, store.record(cell) | {"batch": batch_result})
    text = report.table(collect(store, plan, _MACHINE))
    # Two containers of 40 ms of 100 each.
    assert "| grid-search/batch | ample | escra | 12.50 (12.50-12.50) | 0.80 / 0.80 |" in text


def test_what_was_not_ours():
    before = machine_time("cpu 100 0 50 1000 0 0 0 0 0 0\ncpu0 ...")
    assert (before.busy_s, before.steal_s) == (1.5, 0.0)
    before = MachineTime(1.5, 0.0, 10.0)
    # 2 s of work in 2 s, of which 1.2 s were ours: 0.4 cores; 0.3 s of 4 were stolen.
    found = Disturbance.between(before, MachineTime(3.5, 0.3, 12.0), 1.2, 2.0)
    assert found.foreign_cores == pytest.approx(0.4)
    assert found.disturbed
    assert not Disturbance.between(before, MachineTime(3.5, 0.0, 12.0), 1.8, 2.0).disturbed
    assert Disturbance.between(before, MachineTime(3.5, 0.0, 11.5), 1.8, 2.0).disturbed


@pytest.mark.parametrize(
    ("arguments", "cells"),
    [
        (["--quick"], 39),
        (["--apps", "shop", "--loads", "burst", "--only", "none,waterfill", "--limits", "ample,tight"], 9),
        (["--quick", "--only", "waterfill:HEADROOM_US=10000,CUT_SHARE=0.1 escra", "--repetitions", "1"], 2),
    ],
)
def test_the_command_line_says_what_is_crossed(arguments: list[str], cells: int):
    assert len(run.parse_arguments([*arguments, "--seconds", "3"]).plan.order()) == cells


def test_one_constant_is_changed_at_a_time():
    names = sensitivity.variants()
    assert len(names) == len(set(names))
    assert {"escra", "waterfill", "escra:kappa=0.4"} < set(names)
    assert "escra:kappa=0.8" not in names  # as it is
    assert all(name.count("=") <= 1 for name in names)
    plan = run.parse_arguments(["--sensitivity", "--repetitions", "1", "--seconds", "2"]).plan
    # Two applications, two loads; no limits come on top.
    assert len(plan.order()) == 4 * (len(names) + 1)


def test_everything_is_the_default():
    plan = run.parse_arguments(["--seconds", "3"]).plan
    cells = plan.order()
    ample = {cell.pair for cell in cells if cell.limit == "ample" and cell.load != BATCH_LOAD}
    assert len(ample) == 16
    assert {cell.limit for cell in cells} == {"ample", "matched", "tight"}
    assert run.parse_arguments([]).plan.window_s >= 2.0


@pytest.mark.parametrize(
    "arguments", [["--apps", "nothing"], ["--only", "best"], ["--limits", "no"], ["--minutes", "1"]]
)
def test_what_cannot_be_run_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        run.parse_arguments(arguments)
    assert "error:" in capsys.readouterr().err
