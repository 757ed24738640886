"""A local run with workers in memory: the grid of its samples, its ends, what it tells the bus."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from schemas.runs import RunEnd, RunProfile, RunSample
from schemas.streams import RUN_STREAM
from schemas.subjects import RUN_SAMPLES
from services._runtime.bus.api import Delivery
from services.collector.profiler.options import LocalRunPlan, parse
from services.collector.profiler.recording import LocalRun, describe_exit
from services.collector.profiler.run import finish, publish, store
from services.collector.write_ahead_log import Journal
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.fake_workers import FakeWorkers

INTERVAL_S = 0.05


def plan_of(tmp_path: Path, *options: str) -> LocalRunPlan:
    fixed = ["--interval", str(INTERVAL_S), "--grace", "0.2", "--run", "r", "--out", str(tmp_path)]
    return parse([*fixed, *options, "--", "train", "--token", "hidden"])


async def lived(plan: LocalRunPlan, workers: FakeWorkers, bus: MemoryBus | None = None) -> tuple[LocalRun, RunProfile]:
    run = LocalRun(plan, workers, bus)  # type: ignore[arg-type]  # what it needs of them
    await run.live()
    return run, run.profile()


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def test_time_up_on_a_grid_without_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workers = FakeWorkers()
    _, profile = await lived(plan_of(tmp_path, "--seconds", "1"), workers)
    assert (profile.end, profile.exit_codes, workers.signals[0]) == (RunEnd.TIMED_OUT, (-15, -15), "TERM")
    assert [worker.samples for worker in profile.workers] == [20, 20]
    # most are near their place on the grid: were delays to add up, later ones would lie anywhere
    late_s = [seconds - round(seconds / INTERVAL_S) * INTERVAL_S for seconds in workers.elapsed]
    assert sorted(map(abs, late_s))[len(late_s) // 2] < INTERVAL_S / 2.5
    assert profile.workers[0].column("cpu_cores") == pytest.approx([1.0] * 20)
    assert profile.workers[1].column("network_out_bytes_per_s") == pytest.approx([1000.0] * 20, rel=0.1)
    assert profile.command == ("train", "--token", "***")
    told = events(capsys)
    assert told[0]["event"] == "started"
    assert told[-1]["event"] == "stopping"


async def test_a_held_up_machine_keeps_the_grid(tmp_path: Path) -> None:
    workers = FakeWorkers(hold_up_s=0.32)
    _, profile = await lived(plan_of(tmp_path, "--seconds", "1"), workers)
    assert len(workers.elapsed) < 18
    assert profile.workers[0].samples == pytest.approx(20, abs=1)
    assert profile.workers[0].column("cpu_cores") == pytest.approx([1.0] * profile.workers[0].samples)


async def test_all_end_by_themselves(tmp_path: Path) -> None:
    _, profile = await lived(plan_of(tmp_path), FakeWorkers(ends=[(12, 0), (14, 0)]))
    assert (profile.end, profile.exit_codes, profile.reason) == (RunEnd.FINISHED, (0, 0), "")
    assert profile.workers[0].samples >= 14


async def test_the_first_death_is_the_reason(tmp_path: Path) -> None:
    run, profile = await lived(plan_of(tmp_path), FakeWorkers(ends=[(12, 1), (12, 7)]))
    assert (profile.end, profile.exit_codes) == (RunEnd.FAILED, (1, 7))
    assert profile.reason == "master ended with exit code 1"
    assert run.dead_worker is not None


async def test_out_of_memory(tmp_path: Path) -> None:
    _, profile = await lived(plan_of(tmp_path, "--memory", "64MiB"), FakeWorkers(ends=[(1, 0), (3, -9)]))
    assert profile.reason == "worker-1 ran out of memory (its limit: 64 MiB)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_interrupts(tmp_path: Path, number: signal.Signals) -> None:
    workers = FakeWorkers()
    living = asyncio.create_task(lived(plan_of(tmp_path), workers))
    await until(lambda: len(workers.elapsed) > 3)
    os.kill(os.getpid(), number)
    run, profile = await living
    assert (profile.end, workers.signals[0], run.dead_worker) == (RunEnd.INTERRUPTED, "TERM", None)


async def test_the_stubborn_are_killed_after_the_grace(tmp_path: Path) -> None:
    workers = FakeWorkers(stubborn=True)
    _, profile = await lived(plan_of(tmp_path, "--seconds", "0.5"), workers)
    assert workers.signals[:2] == ["TERM", "KILL"]
    assert profile.exit_codes == (-9, -9)
    assert profile.duration_s == pytest.approx(0.5, abs=0.1)


@pytest.mark.virtual_time  # a late tick is left out, and so is its sample
async def test_samples_go_to_the_bus(tmp_path: Path) -> None:
    bus = MemoryBus(MemoryBroker())
    heard: list[RunSample] = []

    def hear(delivery: Delivery) -> None:
        assert isinstance(delivery.message, RunSample)
        heard.append(delivery.message)

    await bus.subscribe(RUN_SAMPLES.pattern(bus.root), hear)
    await lived(plan_of(tmp_path), FakeWorkers(ends=[(11, 0), (11, 0)]), bus)
    await until(lambda: len(heard) >= 22)
    assert {sample.worker for sample in heard} == {"master", "worker-1"}
    assert {sample.run for sample in heard} == {"r"}
    assert heard[0].cpu_cores == pytest.approx(1.0)
    await bus.close(1.0)


async def test_a_profile_is_stored_and_published_once(tmp_path: Path) -> None:
    broker = MemoryBroker()
    bus = MemoryBus(broker)
    plan = plan_of(tmp_path)
    _, profile = await lived(plan, FakeWorkers(ends=[(11, 0), (11, 0)]))
    with Journal(tmp_path) as journal:
        path = store(plan, journal, profile)
        assert not await publish(journal, None)
        assert journal.waiting == 1
        assert await publish(journal, bus)
        assert await publish(journal, bus)
        assert journal.waiting == 0
    stream = broker.stream(RUN_STREAM.stream_name(bus.root))
    assert stream is not None
    assert len(stream.messages) == 1
    assert RunProfile.model_validate(json.loads(path.read_text())) == profile
    await bus.close(1.0)


def test_exit_codes_in_words() -> None:
    assert describe_exit(3) == "with exit code 3"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-99) == "killed by signal 99"


async def test_what_other_work_took_is_kept_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A quarter of a core of other work; the workers' threads waited for a third of the time they were ready."""
    plan = plan_of(tmp_path)
    run, profile = await lived(plan, FakeWorkers(ends=[(11, 0), (12, 0)]))
    assert profile.contention is not None
    assert profile.contention.other_cores == pytest.approx(0.25)
    assert profile.contention.wait_share == pytest.approx(1 / 3)
    with Journal(tmp_path) as journal:
        assert await finish(plan, run, journal, None) == 0
    said = capsys.readouterr()
    result = json.loads(said.out.splitlines()[-1])
    assert result["contention"]["other_cores"] == pytest.approx(0.25)
    assert result["contention"]["lost_share"] == pytest.approx(1 / 3)
    assert "the workers waited for a core 33 % of the time" in said.err
    assert "profile again on a quiet one" in said.err
