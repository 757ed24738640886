"""What is recorded from the bus, and the thesis' metrics of it, on worked examples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from schemas.cfs import SampleFlag
from schemas.containers import ContainerChange, ContainerEvent, ContainerSource
from schemas.message import Message
from tests.bench.escra.measure import ABSENT, Recorder, Recording
from tests.bench.escra.metrics import MIB, oom_kills, run_metrics, total_limits
from tests.support.cfs_batches import PERIOD_NS, START_NS, Row, batch

WEB, DB = "web-0123456789ab", "db-0123456789ab"


@dataclass
class Told:
    message: Message


def record(*ticks: list[Row], events: tuple[Message, ...] = ()) -> Recording:
    recorder = Recorder("shop")
    for message in (*(batch(number, rows) for number, rows in enumerate(ticks)), *events):
        recorder.take_message(Told(message))  # type: ignore[arg-type]
    return recorder.take(START_NS, START_NS + len(ticks) * PERIOD_NS)


def exited(container: str, kills: int) -> ContainerEvent:
    return ContainerEvent(
        change=ContainerChange.EXITED,
        app="shop",
        node="n1",
        container=container,
        name=container[:-13],
        source=ContainerSource.DOCKER,
        time_ns=START_NS,
        incarnation=1,
        oom_kills=kills,
    )


def test_slack_is_limit_minus_use():
    recording = record(
        [Row(WEB, quota_us=20_000, used_us=10_000), Row(DB, quota_us=50_000, used_us=50_000, throttled=1)],
        [Row(WEB, quota_us=30_000, used_us=10_000), Row(DB, quota_us=50_000, used_us=20_000)],
    )
    found = run_metrics(recording, cpu_limit_us=65_000)
    # Slacks 10, 0, 20, 30 ms: the median lies between 10 and 20 ms of 100: 0.15 cores. All slack 60 ms, all use 90 ms.
    assert found.cpu_slack_p50 == pytest.approx(0.15)
    assert found.cpu_slack_per_used == pytest.approx(60 / 90)
    # 90 ms in two periods.
    assert found.used_cores == pytest.approx(0.45)
    assert found.throttled_share == 0.25
    # One of two quotas has changed from the first batch to the second.
    assert found.quota_writes == 0.5
    # Sums of quotas 70 and 80 ms, uses 60 and 30 ms, under a limit of 65 ms.
    assert (found.cpu_limit_p50, found.cpu_limit_max) == (pytest.approx(0.75), pytest.approx(0.8))
    assert (found.over_limit_share, found.beyond_limit) == (0.0, 2)
    assert found.over_limit_most == pytest.approx(60 / 65)
    # 100 MiB - 50 MiB each.
    assert found.memory_slack_p50 == 50
    assert found.memory_limit_p50 == 200


def test_without_limits_there_is_no_slack():
    rows = [Row(WEB, quota_us=-1, memory_limit_bytes=-1, flags=int(SampleFlag.WALL_CLOCK))]
    found = run_metrics(record(rows, rows), 100_000)
    assert np.isnan(found.cpu_slack_p50)
    assert np.isnan(found.memory_slack_p50)
    assert np.isnan(found.cpu_limit_p50)
    assert found.used_cores == pytest.approx(0.1)


def test_a_row_without_a_new_period_tells_nothing_but_an_idle_one_does():
    recording = record([Row(periods=0, used_us=0), Row(DB, periods=0, used_us=0, flags=int(SampleFlag.IDLE))])
    assert recording.told.tolist() == [[True, False]]  # in the order of keys: db, web
    # Idle: 20 ms of quota, nothing used.
    assert run_metrics(recording, 100_000).cpu_slack_p50 == pytest.approx(0.2)


def test_what_a_late_row_tells_is_spread_over_the_ticks_that_it_covers():
    # The second tick told nothing, the third that 30 ms were used in each of two periods.
    recording = record([Row(used_us=10_000)], [Row(periods=0, used_us=0)], [Row(periods=2, used_us=30_000)])
    assert recording.filled("used_us")[:, 0].tolist() == [10_000, 30_000, 30_000]
    assert recording.profile().containers["web"].used_us == (10_000, 30_000, 30_000)


def test_a_row_covers_only_as_many_ticks_as_it_has_periods():
    recording = record([Row(periods=0, used_us=0)], [Row(periods=0, used_us=0)], [Row(periods=2, used_us=30_000)])
    assert recording.filled("used_us")[:, 0].tolist() == [0, 30_000, 30_000]
    assert record([Row(periods=0, used_us=0)], [Row()]).filled("used_us")[:, 0].tolist() == [0, 10_000]


def test_a_batch_between_two_samples_tells_only_of_throttling():
    recorder = Recorder("shop")
    early = [
        Row(WEB, periods=1, used_us=20_000, throttled=1, flags=int(SampleFlag.EARLY)),
        Row(DB, periods=0, used_us=0),
    ]
    for message in (batch(0, [Row(WEB), Row(DB)]), batch(1, early), batch(2, [Row(WEB), Row(DB)])):
        recorder.take_message(Told(message))  # type: ignore[arg-type]
    recording = recorder.take(START_NS, START_NS + 3 * PERIOD_NS)
    assert recording.columns["throttled"].tolist() == [[0, 0], [0, 1]]  # in the order of keys: db, web
    assert recording.columns["used_us"].tolist() == [[10_000, 10_000]] * 2
    # One of four container-periods.
    assert run_metrics(recording, 100_000).throttled_share == 0.25


def test_what_the_kernel_has_counted_goes_before_what_samples_say():
    found = run_metrics(record([Row(WEB)], [Row(WEB)]), 100_000, used_us=15_000)
    # 15 ms in two periods, and 2 x 10 ms of slack.
    assert found.used_cores == pytest.approx(0.075)
    assert found.cpu_slack_per_used == pytest.approx(20 / 15)


def test_a_profile_knows_when_a_container_came():
    one = record([Row(WEB)], [Row(WEB), Row(DB, used_us=7_000, memory_usage_bytes=3 * MIB)], [Row(WEB)])
    found = one.profile().containers["db"]
    assert (found.used_us, found.memory_bytes, found.first_period) == ((7_000,), (3 * MIB,), 1)


def test_kills_of_those_that_lived_on_and_of_those_that_died():
    recording = record([Row(WEB, oom_kills=2)], [Row(WEB, oom_kills=3), Row(DB)], events=(exited(DB, 1),))
    # web had had two before and one more; db came with none and died of one.
    assert oom_kills(recording) == 2


def test_one_that_died_between_two_batches_is_counted():
    assert oom_kills(record([Row(WEB)], events=(exited(DB, 1),))) == 1


def test_sums_of_limits_ignore_who_is_not_there_and_tell_who_has_none():
    recording = record([Row(WEB)], [Row(WEB), Row(DB)], [Row(WEB), Row(DB, quota_us=-1)])
    assert total_limits(recording, "quota_us").tolist() == [20_000, 40_000, -1]
    assert recording.columns["quota_us"][0].tolist() == [ABSENT, 20_000]


def test_only_what_was_sampled_in_the_window_counts():
    recorder = Recorder("shop")
    for number in range(5):
        recorder.take_message(Told(batch(number)))  # type: ignore[arg-type]
    assert len(recorder.take(START_NS + PERIOD_NS, START_NS + 3 * PERIOD_NS).time_ns) == 2
    recorder.begin()
    assert recorder.latest is not None
    assert not recorder.ticks


def test_a_recording_survives_its_file(tmp_path: Path):
    recording = record([Row(WEB, memory_usage_bytes=3 << 30)], [Row(WEB), Row(DB)])
    recording.write(tmp_path / "a.npz")
    again = Recording.read(tmp_path / "a.npz")
    assert again.keys == recording.keys
    assert again.names == ["db", "web"]
    assert all(np.array_equal(again.columns[name], recording.columns[name]) for name in recording.columns)
    assert run_metrics(again, 100_000) == run_metrics(recording, 100_000)


def test_nothing_was_recorded():
    found = run_metrics(Recording.of([]), 100_000)
    assert found.container_periods == 0
    assert np.isnan(found.used_cores)


def test_throttling_told_between_two_samples_belongs_to_the_next_one():
    recorder = Recorder("shop")
    for message in (
        batch(0),
        batch(0, [Row(used_us=20_000, throttled=1, flags=SampleFlag.EARLY)], report_seq=2),
        batch(1, report_seq=3),
    ):
        recorder.take_message(Told(message))  # type: ignore[arg-type]
    recording = recorder.take(START_NS, START_NS + 10 * PERIOD_NS)

    assert recording.columns["throttled"][:, 0].tolist() == [0, 1]
    assert recording.columns["used_us"][:, 0].tolist() == [10_000, 10_000]
