"""What pacing does in a second: wake-ups, samples of counters, messages, system calls for a pause. In virtual time.

`tests.bench.interleave.pacing_cost` measures what that takes; these are what does not depend on a machine.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from schemas.scheduling import IterationSample, Pace
from services._runtime.clock import SystemClock
from services._runtime.telemetry.logging import get_logger
from services.runner.node_workers import NodeWorkers
from services.runner.pacing import Pacing, PacingSetup
from services.runner.tcp_counters import JobKey
from services.runner.worker import Origin, Worker, WorkerKey
from services.runner.worker_files import Pause, Started, WorkerFiles, boot_s
from tests.support.runner_lab import intent
from tests.support.shared_uplink import GOODPUT_BYTES_PER_S, Demand, Noise, SharedUplink

COMPUTE_S = 0.9
WAIT_NS = 100_000_000
SECONDS = 60.0


class Kind(NamedTuple):
    """Of jobs that take turns."""

    jobs: int
    sending_s: float

    @property
    def period_s(self) -> float:
        return COMPUTE_S + self.sending_s


BRIEF = Kind(8, 0.04)
"""Their phases are over before the silence that ends them, 0.12 s."""
LONG = Kind(3, 0.2)


class Work(NamedTuple):
    """Of a runner, for each iteration of a job, or each second."""

    turns_per_s: float
    samples: float
    """Of its counters."""
    messages: float
    waited: float
    """Pauses."""


class PacedJobs(SharedUplink):
    """Jobs that send one after another; a job whose turn comes later waits for `WAIT_NS` in each iteration."""

    def __init__(self, kind: Kind, jitter: float, *, waits: bool) -> None:
        size, apart_s = round(kind.sending_s * GOODPUT_BYTES_PER_S), kind.period_s / kind.jobs
        demands = [Demand(COMPUTE_S, size, number * apart_s) for number in range(kind.jobs)]
        super().__init__(demands, 1, Noise(jitter=jitter, hiccup_every=0))
        self._kind, self._waits = kind, waits

    def _on_sample(self, sample: IterationSample) -> None:
        if self._waits and sample.due_ns:
            self.pace(sample.job, sample.due_ns + WAIT_NS)

    def pace(self, job: str, begin_ns: int) -> None:
        """Obey an order."""
        self._pacing.pace(JobKey(job, 1), Pace(begin_ns=begin_ns, period_us=round(1e6 * self._kind.period_s)))
        self._set_timer()


def work(kind: Kind, jitter: float, monkeypatch: pytest.MonkeyPatch, *, waits: bool) -> Work:
    """Of a minute, once all jobs are known and paced."""
    link = PacedJobs(kind, jitter, waits=waits)
    counted: Counter[str] = Counter()
    observe = Pacing._observe

    def count(pacing: Pacing, job: Any, sent: Any) -> None:
        counted["samples"] += 1
        observe(pacing, job, sent)

    monkeypatch.setattr(Pacing, "_observe", count)
    link.run(6)
    for job in link.jobs:
        link.pace(job.key.job, 1)
    link.run_for(20.0)
    before = Counter(counted, turns=link.turns, messages=link.samples, pauses=link._pacing._pauses)
    begun = sum(len(job.iterations) for job in link.jobs)
    link.run_for(SECONDS)
    after = Counter(counted, turns=link.turns, messages=link.samples, pauses=link._pacing._pauses)
    iterations = sum(len(job.iterations) for job in link.jobs) - begun
    assert iterations >= 0.8 * SECONDS * kind.jobs / (kind.period_s + waits * 0.1)
    per_iteration = {name: (after[name] - before[name]) / iterations for name in ("samples", "messages", "pauses")}
    return Work((after["turns"] - before["turns"]) / SECONDS, *per_iteration.values())


@pytest.mark.parametrize(("jitter", "most_samples", "most_messages"), [(0.0, 1.05, 1.05), (0.015, 1.6, 1.25)])
def test_jobs_with_brief_phases_are_sampled_once_an_iteration_and_in_common_wakeups(
    jitter: float, most_samples: float, most_messages: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.5 iterations a second. With jitter they meet now and then, as none waits, and are not as brief any more."""
    found = work(BRIEF, jitter, monkeypatch, waits=False)

    assert found.samples <= most_samples
    assert found.turns_per_s <= 6.5
    assert found.messages <= most_messages, "as it has ended, with all of the iteration"
    assert found.waited == 0


@pytest.mark.parametrize(("jitter", "most_samples"), [(0.0, 2.1), (0.005, 2.6)])
def test_jobs_with_long_phases_are_sampled_twice_an_iteration(
    jitter: float, most_samples: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.7 iterations a second; who waits for such a phase's end has to know of its begin in time."""
    found = work(LONG, jitter, monkeypatch, waits=False)

    assert found.samples <= most_samples
    assert found.turns_per_s <= 7.0
    assert found.messages == pytest.approx(2.0, abs=0.1), "one as it begins, one as it has ended"
    assert found.waited == 0


def test_a_wait_in_each_iteration_costs_a_turn_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """7.7 iterations a second. An order's own sample is no turn."""
    found = work(BRIEF, 0.0, monkeypatch, waits=True)

    assert found.waited == pytest.approx(1.0, abs=0.1)
    assert found.samples <= 2.1, "one more before it is paused"
    assert found.turns_per_s <= 12.0
    assert found.messages == pytest.approx(1.0, abs=0.1)


def test_an_order_that_follows_a_sample_at_once_takes_none_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    link = PacedJobs(BRIEF, 0.0, waits=False)
    link.run(8)
    for job in link.jobs:
        link.pace(job.key.job, 1)
    link.run_for(5.0)
    sampled: list[str] = []
    read = link._pacing._traffic.read

    def note(keys: Iterable[JobKey]) -> Any:
        sampled.extend(key.job for key in keys)
        return read(keys)

    monkeypatch.setattr(link._pacing._traffic, "read", note)
    while not sampled:
        link._do_next()
    told = len(sampled)
    link.pace(sampled[0], link._time_ns() + 1)
    assert len(sampled) == told
    link.run_for(0.02)
    told = sampled.count("j0")
    link.pace("j0", link._time_ns() + 2)
    assert sampled.count("j0") == told + 1


# -- the loop ------------------------------------------------------------------------------------------------------


def idle_pacing() -> Pacing:
    """Of a runner without workers, on the event loop's own time."""
    workers = SimpleNamespace(living=list)
    setup = PacingSetup("n1", 30.0, lambda _: None)
    return Pacing(setup, cast("NodeWorkers", workers), SystemClock(), get_logger("pacing"))


@pytest.mark.virtual_time
async def test_without_jobs_a_turn_comes_each_second_and_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    turn = Pacing._turn

    def count(pacing: Pacing, now_ns: int) -> None:
        nonlocal turns
        turns += 1
        turn(pacing, now_ns)

    monkeypatch.setattr(Pacing, "_turn", count)
    running = asyncio.create_task(idle_pacing().run())
    await asyncio.sleep(100.0)
    running.cancel()
    await asyncio.wait({running})
    seen = turns
    await asyncio.sleep(100.0)

    assert 75 <= seen <= 85
    assert turns == seen, "none after its end"


@pytest.mark.virtual_time
async def test_a_turn_that_fails_ends_it_with_its_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the process ends, and is started again, rather than to pace no more without a word."""
    pacing = idle_pacing()
    running = asyncio.create_task(pacing.run())
    await asyncio.sleep(10.0)

    def fail(_pacing: Pacing, _now_ns: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Pacing, "_turn", fail)
    with pytest.raises(ZeroDivisionError):
        await running


# -- one pause -------------------------------------------------------------------------------------------------------

_EVENTS: list[str] = []
_COUNTING = [False]


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _COUNTING[0] and event in {"open", "os.rename", "os.kill"}:
        _EVENTS.append(f"{event} {arguments[0]}")


@contextmanager
def counted() -> Iterator[list[str]]:
    """Files that are opened or renamed meanwhile, and signals that are sent (sys.addaudithook)."""
    if not _EVENTS:
        sys.addaudithook(_note)  # for good
    _EVENTS.clear()
    _COUNTING[0] = True
    try:
        yield _EVENTS
    finally:
        _COUNTING[0] = False


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """One that runs, in a group with a freezer."""
    group = tmp_path / "group"
    group.mkdir()
    (group / "cgroup.freeze").touch()
    directory = tmp_path / "worker"
    directory.mkdir()
    files = WorkerFiles(directory)
    place = {"paths": [str(group)], "parents": 0, "kills_file": "", "freezer": str(group / "cgroup.freeze")}
    files.write(intent(directory, group=place))
    files.write(Started(os.getpid(), 1, 1))
    made = Worker(WorkerKey("try", 1, 0), directory, Origin("n1", 1))
    made.refresh()
    return made


def test_a_pause_opens_two_files_and_its_end_one(worker: Worker) -> None:
    """The record and the freezer; no signal to the shim, which reads the record in time by itself."""
    worker.pause(boot_s() + 2.0)  # the first makes the record
    worker.thaw()
    changed_ns, record = worker.files.changed_ns(), worker.files.directory / "pause.json"
    node, freezer = record.stat().st_ino, Path(str(worker.intent.group["freezer"]))  # type: ignore[union-attr,index]
    until_s = boot_s() + 2.0
    with counted() as paused:
        assert worker.pause(until_s)
        state, seen = freezer.read_text(), list(paused)
    assert state == "1"
    assert seen[:2] == [f"open {record}", f"open {freezer}"], seen
    assert len(seen) == 3, "the last is this test's"
    with counted() as thawed:
        worker.thaw()
        seen = list(thawed)
    assert seen == [f"open {freezer}"]
    assert freezer.read_text() == "0"
    assert worker.files.read(Pause) == Pause(until_s)
    assert record.stat().st_ino == node
    assert worker.files.changed_ns() == changed_ns, "so no record is read again for it"


def test_a_short_pause_wakes_the_shim_as_it_would_read_of_it_too_late(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[bool] = []
    monkeypatch.setattr(Worker, "_wake_shim", lambda _: woken.append(True))
    worker.pause(boot_s() + 100.0)
    assert woken == []
    worker.pause(boot_s() + 0.5)
    assert woken == [True]
