"""The recording, the report that is computed from it, and the picture."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from schemas.cfs import SampleFlag
from schemas.oom import OomKind
from services.agent.commands import read_write_counts
from services.cli.up.demo_report import RunFacts, WriteCounts, build_report
from services.cli.up.plot import MAX_CONTAINERS, StaticLimits, draw
from services.cli.up.recording import DecimatedSeries, Recording
from tests.support.cfs_batches import Row, batch, decisions
from tests.support.oom_events import drift, oom_event

FACTS = RunFacts("demo", "demo-static", "waterfill", "processes", WriteCounts(7, 3, 0), {"cpus": 2})


def recorded() -> Recording:
    """Ten periods: the managed one is throttled once and has 2,000 us of slack, the static one 5 times and 10,000."""
    recording = Recording()
    for tick in range(10):
        managed = Row(quota_us=12_000, used_us=10_000, throttled=int(tick == 3), memory_usage_bytes=90 << 20)
        static = Row(quota_us=20_000, used_us=10_000, throttled=tick % 2)
        recording.add_batch(batch(tick, [managed, Row("db-0123456789ab", periods=0, used_us=0, flags=0)], app="demo"))
        recording.add_batch(batch(tick, [static], app="demo-static"))
    recording.add_decisions(decisions(4, app="demo"))
    return recording


def test_the_report_compares_both_applications() -> None:
    report = build_report(recorded(), FACTS)

    assert report["containers"] == 2
    assert report["periods"] == 10
    assert report["decisions"] == 1
    assert (report["quota_writes"], report["memory_writes"], report["no_op_writes"]) == (7, 3, 0)
    assert report["throttled_share"] == 0.1
    assert report["median_cpu_slack_cores"] == 0.02
    assert report["static"]["throttled_share"] == 0.5
    assert report["static"]["median_cpu_slack_cores"] == 0.1
    assert report["static"]["median_memory_slack_bytes"] == 50 << 20
    assert report["peak_memory_bytes"] == 90 << 20
    assert report["static"]["quota_writes"] == 0
    assert report["seconds"] == 0.9
    assert not report["simulated"]


def test_a_write_to_the_twin_would_show() -> None:
    recording = recorded()
    recording.add_batch(batch(10, [Row(quota_us=30_000)], app="demo-static"))

    assert build_report(recording, FACTS)["static"]["quota_writes"] == 1


def test_kills_are_summed_over_restarts_and_never_fewer_than_seen() -> None:
    recording = Recording()
    for tick, kills in enumerate([0, 1, 1, 2, 0, 1]):  # a new cgroup after the second kill
        recording.add_batch(batch(tick, [Row(oom_kills=kills)], app="demo"))

    assert build_report(recording, FACTS)["oom_kills"] == 3

    seen = RunFacts("demo", "s", "escra", "docker", WriteCounts(), {}, kills_seen={"demo": 5})

    assert build_report(recording, seen)["oom_kills"] == 5


def test_what_the_memory_guard_did_is_in_the_report() -> None:
    recording = recorded()
    recording.add_oom_event(oom_event(app="demo"))
    recording.add_oom_event(oom_event(OomKind.OOM_WAIT, 1, app="demo", blocked_us=900))
    recording.add_container_event(drift(app="demo"))
    report = build_report(recording, FACTS)

    assert (report["memory_events"]["grants"], report["memory_events"]["oom_waits"], report["drifts"]) == (1, 1, 1)
    assert report["memory_events"]["longest_pause_us"] == 900
    assert report["static"]["memory_events"]["grants"] == 0
    assert report["seconds"] == 0.9


def test_nothing_recorded_is_told_as_nothing() -> None:
    report = build_report(Recording(), RunFacts("demo", "s", "escra", "simulated", WriteCounts(), {}))

    assert report["median_cpu_slack_cores"] is None
    assert report["quota_writes"] is None
    assert report["simulated"]


def test_the_slack_of_a_period_is_that_of_the_quota_it_ran_under() -> None:
    recording = Recording()
    recording.add_batch(batch(0, [Row(periods=0, quota_us=50_000)], app="demo"))
    recording.add_batch(batch(1, [Row(quota_us=10_000, used_us=10_000)], app="demo"))  # cut at the period's end

    assert recording.apps["demo"].median_cpu_slack_cores == 0.4


def test_idle_periods_have_the_whole_quota_as_slack() -> None:
    recording = Recording()
    recording.add_batch(batch(0, [Row(periods=0, used_us=0, quota_us=30_000, flags=SampleFlag.IDLE)], app="demo"))

    assert recording.apps["demo"].median_cpu_slack_cores == 0.3


def test_doubled_and_overtaken_batches_count_once() -> None:
    recording = Recording()
    for tick in (0, 1, 1, 0, 2):
        recording.add_batch(batch(tick))

    assert recording.apps["shop"].container_periods == 3


@given(st.integers(1, 500), st.integers(2, 40))
def test_a_series_stays_bounded_and_evenly_spaced(count: int, capacity: int) -> None:
    series = DecimatedSeries(1, capacity)
    for value in range(count):
        series.append(value)
    kept = series.column(0)

    assert 0 < len(kept) <= capacity
    assert kept == [float(value) for value in range(0, count, series.stride)]


def test_the_agents_counters_are_read_by_name() -> None:
    text = (
        "# HELP turnbuckle_agent_quota_writes_total quotas\n"
        "turnbuckle_agent_quota_writes_total 41.0\n"
        'turnbuckle_agent_memory_writes_total{version="2"} 2\n'
        'turnbuckle_agent_memory_writes_total{version="1"} 3\n'
    )

    assert WriteCounts(**read_write_counts(text)) == WriteCounts(41, 5, None)


def test_writes_before_the_recording_do_not_count_but_no_op_writes_always_do() -> None:
    assert WriteCounts(10, 4, 1).since(WriteCounts(3, 1, 1)) == WriteCounts(7, 3, 1)
    assert WriteCounts(10, None, 0).since(WriteCounts()) == WriteCounts(10, None, 0)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    recording = Recording()
    names = [f"c{number:02}-0123456789ab" for number in range(MAX_CONTAINERS + 2)]
    for tick in range(50):
        used = int(10_000 + 9_000 * math.sin(tick / 5))
        rows = [Row(name, used_us=used, quota_us=-1 if tick < 5 else used + 2_000) for name in names]
        recording.add_batch(batch(tick, rows, app="demo"))

    file = draw(recording.apps["demo"], StaticLimits(15_000, 100 << 20), "demo", tmp_path / "sub" / "demo.png")

    assert file is not None
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size > 20_000


def test_no_picture_of_nothing(tmp_path: Path) -> None:
    recording = Recording()
    recording.add_decisions(decisions(0, app="demo"))

    assert draw(recording.apps["demo"], StaticLimits(1, 1), "", tmp_path / "demo.png") is None


def test_an_early_batch_counts_as_throttling_and_not_as_a_sample() -> None:
    recording = Recording()
    recording.add_batch(batch(0))
    recording.add_batch(batch(0, [Row(used_us=20_000, throttled=1, flags=SampleFlag.EARLY)], report_seq=2))
    recording.add_batch(batch(1, report_seq=3))
    app = recording.apps["shop"]

    assert (app.throttled_periods, app.container_periods, app.batches) == (1, 2, 2)
    assert app.median_cpu_slack_cores == 0.1
