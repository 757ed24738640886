"""A grid's runs: what is kept of them, and that it goes on where it was stopped, without a run made twice."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.jobs import CostKind, JobRecord, JobState
from schemas.runs import MachineSpeed, RunEnd, RunProfile
from services._runtime.command.errors import UnavailableError
from services.collector.emulator.campaign import CAMPAIGN_FILE, Campaign, campaign_name
from services.collector.emulator.grid import expand, parse
from services.collector.emulator.run_request import RunOutcome, RunRequest
from services.collector.tool import BadDataError
from services.collector.write_ahead_log import Journal, read_journal
from tests.support.fake_trainer import SAMPLES, FakeTrainer

TINY = {"name": "tiny", "cpu_cores": 0.25, "memory_mb": 64, "network_mbps": 10, "usd_per_hour": 0.5}
CONTENT = {
    "tasks": ["text-dnn", "tabular-mlp"],
    "instance_types": ["em-standard-4", "em-highcpu-32", TINY],
    "workers": [1, 2],
    "batch_sizes": [10],
    "timeout_s": 9.0,
    "repeats": {"count": 2, "share": 0.34},
}


@contextmanager
def campaign(directory, trainer, told=None, content=None):
    grid = parse(content or CONTENT, "g")
    rows = expand(grid, 2)
    with Journal(directory) as journal:
        name = campaign_name(directory, grid, rows)
        yield Campaign(grid, rows, name, journal, trainer, told or (lambda *_: None))


def finished(directory, content=None) -> tuple[list[JobRecord], list[RunProfile]]:
    with campaign(directory, FakeTrainer(), content=content) as made:
        made.go_on()
        kept = list(read_journal(made.journal.directory))
    return [r for r in kept if isinstance(r, JobRecord)], [r for r in kept if isinstance(r, RunProfile)]


def test_every_run_has_a_record_with_its_price_and_its_local_run(tmp_path):
    records, profiles = finished(tmp_path)
    # 2 tasks x (3 types x 2 worker counts, 2 of the 6 twice)
    assert len(records) == 2 * (6 + 2)
    assert len({record.job for record in records}) == len(records)
    assert {profile.task.task: profile.run for profile in profiles} == {r.task.task: r.local_run for r in records}
    for record in records:
        assert record.price is not None
        assert record.price.snapshot == records[0].price.snapshot
        assert record.cost_kind is CostKind.DERIVED
        assert record.configuration.provider == "emulated"
        assert record.load_average == 0.5


def test_cost_is_price_times_machines_times_time(tmp_path):
    records, _ = finished(tmp_path)
    record = next(
        r for r in records if r.configuration.instance_type == "em-highcpu-32" and r.configuration.workers == 2
    )
    # 2.0 / (1.0 x 2) + 10 / 10 = 2 s on 2 machines at 1.134 an hour
    assert record.duration_s == pytest.approx(2.0)
    assert record.cost_usd == pytest.approx(2 * 1.134 * 2.0 / 3600)


def test_what_did_not_end_is_censored_and_what_did_not_fit_has_no_duration(tmp_path):
    records, _ = finished(tmp_path)
    # 2.0 / 0.125 + 1 = 17 s, limit 9 s
    slow = [r for r in records if r.configuration.instance_type == "em-standard-4" and r.configuration.workers == 1]
    assert slow
    for record in slow:
        assert record.state is JobState.TIMED_OUT
        assert record.duration_s == 9.0
        assert record.cost_usd == pytest.approx(0.19 * 9 / 3600)
    for record in (r for r in records if r.configuration.instance_type == "tiny"):
        assert record.state is JobState.OUT_OF_MEMORY
        assert record.duration_s is None
        assert record.cost_usd is None
        assert record.reason.startswith("out of memory")


def test_local_runs_come_first_with_their_series(tmp_path):
    trainer = FakeTrainer()
    with campaign(tmp_path, trainer) as made:
        made.go_on()
        profiles = [r for r in read_journal(made.journal.directory) if isinstance(r, RunProfile)]
    assert [order.interval_s for order in trainer.orders[:3]] == [0.1, 0.1, None]
    assert [order.workers for order in trainer.orders[:2]] == [3, 3]
    for profile in profiles:
        assert profile.end is RunEnd.FINISHED
        assert [worker.worker for worker in profile.workers] == ["master", "worker-1", "worker-2"]
        assert profile.workers[0].samples == SAMPLES
        assert profile.configuration.workers == 3
    assert trainer.described == ["text-dnn", "tabular-mlp"]  # once each


def test_a_local_run_that_fails_ends_it(tmp_path):
    too_small = {**CONTENT, "local_run": {"instance_type": TINY}}
    with pytest.raises(UnavailableError, match="local run of text-dnn out_of_memory"):
        finished(tmp_path, too_small)


def test_a_run_that_failed_is_tried_once_more(tmp_path):
    content = {**CONTENT, "local_run": None}
    for fails, states in ((1, {JobState.SUCCEEDED}), (2, {JobState.FAILED, JobState.SUCCEEDED})):
        trainer = FakeTrainer(fails=fails)
        with campaign(tmp_path / str(fails), trainer, content={**content, "instance_types": ["em-wide-16"]}) as made:
            made.go_on()
            records = list(read_journal(made.journal.directory))
        assert {record.state for record in records} == states
        assert len(trainer.orders) == len(records) + 1
        assert trainer.orders[0] == trainer.orders[1]


@settings(max_examples=15)
@given(stops=st.lists(st.integers(0, 12), max_size=4))
def test_however_often_it_is_stopped_nothing_is_lost_or_made_twice(tmp_path_factory, stops):
    directory = tmp_path_factory.mktemp("out")
    made_orders: list[RunRequest] = []
    for stop in stops:
        trainer = FakeTrainer(dies_at=stop)
        with suppress(KeyboardInterrupt), campaign(directory, trainer) as made:
            made.go_on()
        made_orders += trainer.orders
    trainer = FakeTrainer()
    with campaign(directory, trainer) as made:
        made.go_on()
        kept = list(read_journal(made.journal.directory))
    made_orders += trainer.orders
    assert len(kept) == len(made_orders) == 2 + 16
    undisturbed, _ = finished(tmp_path_factory.mktemp("undisturbed"))
    again = [r for r in kept if isinstance(r, JobRecord)]

    def essence(record: JobRecord) -> tuple[object, ...]:
        return record.task.task, record.configuration, record.repeat, record.state, record.duration_s

    assert [essence(record) for record in again] == [essence(record) for record in undisturbed]  # in the same order


def test_a_torn_line_costs_that_run_only(tmp_path):
    with pytest.raises(KeyboardInterrupt), campaign(tmp_path, FakeTrainer(dies_at=5)) as made:
        made.go_on()
    journal = next(tmp_path.glob("*.jsonl"))
    journal.write_bytes(journal.read_bytes()[:-20])  # as a power cut may leave it
    trainer = FakeTrainer()
    with campaign(tmp_path, trainer) as made:
        made.go_on()
        assert len(trainer.orders) == 18 - 4
        assert len(list(read_journal(made.journal.directory))) == 18


def test_another_grid_is_not_mixed_in(tmp_path):
    finished(tmp_path)
    with pytest.raises(BadDataError, match="was begun with another grid"):
        finished(tmp_path, {**CONTENT, "timeout_s": 10.0})
    (tmp_path / CAMPAIGN_FILE).write_text("{")
    with pytest.raises(BadDataError, match="damaged"):
        finished(tmp_path)


def test_two_directories_have_jobs_of_their_own(tmp_path):
    ours, _ = finished(tmp_path / "a")
    theirs, _ = finished(tmp_path / "b")
    assert not {record.job for record in ours} & {record.job for record in theirs}


def test_progress_counts_what_was_done_before_and_tells_the_time_left(tmp_path):
    seen = []

    def told(_record, outcome, progress):
        seen.append((outcome, progress))

    with pytest.raises(KeyboardInterrupt), campaign(tmp_path, FakeTrainer(dies_at=8), told) as first:
        first.go_on()
    assert [progress.done for _, progress in seen] == list(range(1, 9))
    assert {progress.total for _, progress in seen} == {18}
    mean_s = sum(outcome.wall_s for outcome, _ in seen) / 8
    assert seen[-1][1].left_s == pytest.approx(10 * mean_s)
    with campaign(tmp_path, FakeTrainer()) as later:
        assert later.progress().done == 8


def test_repeats_have_seeds_of_their_own_and_the_same_on_a_second_machine(tmp_path):
    with campaign(tmp_path / "a", FakeTrainer()) as first, campaign(tmp_path / "b", FakeTrainer()) as second:
        seeds = [first.request(row).seed for row in first.rows]
        assert seeds == [second.request(row).seed for row in second.rows]
    assert len(set(seeds)) == len(seeds)


def test_orders_and_outcomes_cross_the_pipe_unharmed(tmp_path):
    with campaign(tmp_path, FakeTrainer()) as made:
        row = next(row for row in made.rows if row.instance.name == "em-highcpu-32" and row.workers == 2)
        order = replace(made.request(row), interval_s=0.1)
    assert RunRequest.from_plain(json.loads(order.to_line())["run"]) == order
    outcome = FakeTrainer().run(order)
    assert outcome.series
    assert outcome.state is JobState.SUCCEEDED
    assert RunOutcome.from_plain(json.loads(outcome.to_line())["outcome"]) == outcome


def test_local_runs_have_the_machine_s_speed_which_is_measured_once(tmp_path):
    speeds = [MachineSpeed(matmul_flops_per_cpu_s=1e10, copy_bytes_per_cpu_s=1e9)]
    with campaign(tmp_path, FakeTrainer()) as made:
        made.calibrate = speeds.pop
        made.go_on()
        made.go_on()
        kept = [one for one in read_journal(made.journal.directory) if isinstance(one, RunProfile)]
    assert len(kept) == 2
    assert all(one.speed is not None and one.speed.copy_bytes_per_cpu_s == 1e9 for one in kept)
