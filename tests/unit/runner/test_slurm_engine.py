"""The engine over a Slurm in memory and real files: orders, crashes, lost answers, spoiled files."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from schemas.scheduling import (
    OrderAction,
    Pace,
    Preemption,
    WorkerChange,
    WorkerLogRequest,
    WorkEvent,
    WorkOrder,
    WorkReply,
)
from services._runtime.clock import SystemClock
from services._runtime.telemetry.logging import get_logger
from services.runner.slurm.engine import Engine, EngineOptions
from services.runner.slurm.files import SharedFiles
from services.runner.slurm.reporter import Reporter
from tests.support.fake_slurm import FakeSlurm
from tests.support.slurm_jobs import slurm_order

ENDS = frozenset(WorkerChange) - {WorkerChange.STARTED, WorkerChange.READY}


class Lab:
    """An engine that can be started anew."""

    def __init__(self, directory: Path, renewed_after_s: float = 0.0) -> None:
        self.slurm = FakeSlurm(directory)
        self.options = EngineOptions("root", settle_s=0.0, held_s=0.0, log_s=0.0, renewed_after_s=renewed_after_s)
        self.files = SharedFiles(directory)
        self.events: list[WorkEvent] = []
        self.sequence = 0
        self._loop = asyncio.Runner()
        self.run = self._loop.run
        self.start()

    def close(self) -> None:
        """End its event loop."""
        self._loop.close()

    def start(self) -> None:
        """A new process."""
        log = get_logger("test")
        reporter = Reporter(SystemClock(), log, 1, self.files.last_words, self.events.append)
        self.engine = Engine(self.options, self.files, self.slurm, reporter)
        self.run(self.engine.open())
        self.poll()

    def poll(self) -> None:
        """Twice: what a step does is seen by the next one."""
        for _ in range(2):
            self.run(self.engine.poll())

    def order(self, action: OrderAction, order: WorkOrder) -> WorkReply:
        """The answer to an order about an attempt."""
        self.sequence += 1
        changes = {"action": action, "sequence": self.sequence}
        if action is not OrderAction.RUN:
            changes |= {"spec": None, "nodes": ()}
        return self.run(self.engine.obey(order.model_copy(update=changes), "n1"))

    def ends(self, attempt: int) -> dict[int, WorkerChange]:
        """Of each worker of an attempt, as reported last."""
        return {each.rank: each.change for each in self.events if each.attempt == attempt and each.change in ENDS}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "shared")
    yield made
    made.close()


RUN, STOP, KILL, CHECK, FORGET = (
    OrderAction.RUN,
    OrderAction.STOP,
    OrderAction.KILL,
    OrderAction.CHECK,
    OrderAction.FORGET,
)
ORDER = slurm_order(preemption=Preemption.CHECKPOINT)
SECOND = slurm_order(("n2", "n1"), attempt=2, preemption=Preemption.CHECKPOINT)


def test_stops_and_goes_on(lab: Lab) -> None:
    assert lab.order(RUN, ORDER).obeyed
    lab.slurm.start_waiting()
    lab.poll()
    assert [each.change for each in lab.events] == [WorkerChange.STARTED, WorkerChange.READY] * 2
    reply = lab.order(STOP, ORDER)
    lab.poll()
    assert reply.obeyed
    assert lab.ends(1) == dict.fromkeys(range(2), WorkerChange.STOPPED)
    assert [worker.last.change for worker in lab.order(CHECK, ORDER).workers if worker.last] == [
        WorkerChange.STOPPED
    ] * 2
    assert lab.order(FORGET, ORDER).obeyed
    assert lab.order(RUN, SECOND).obeyed
    lab.slurm.start_waiting()
    lab.slurm.end(0)
    lab.poll()
    assert lab.ends(2) == dict.fromkeys(range(2), WorkerChange.ENDED)
    assert len(lab.slurm.jobs) == 1
    assert not list(lab.files._directory.glob("resnet/1/*"))


def test_a_held_job_is_not_released_in_the_second_in_which_it_gave_up_its_nodes(tmp_path: Path) -> None:
    """They would refuse it. Here a second has 0.3 s; a lower bound, so that a slow machine does not matter."""
    made = Lab(tmp_path / "shared", renewed_after_s=0.3)
    made.order(RUN, ORDER)
    made.slurm.start_waiting()
    begin_s = time.monotonic()
    made.order(STOP, ORDER)
    made.poll()
    made.order(RUN, SECOND)
    assert time.monotonic() - begin_s >= 0.3
    assert [(job.state, job.held) for job in made.slurm.jobs.values()] == [("PENDING", False)]
    made.close()


def test_a_job_that_its_node_did_not_start_is_lost(lab: Lab) -> None:
    """Nothing of it has run: it goes on in another attempt."""
    lab.order(RUN, ORDER)
    lab.slurm.jobs[1].state, lab.slurm.jobs[1].reason = "FAILED", "NonZeroExitCode"
    lab.poll()
    assert lab.ends(1) == dict.fromkeys(range(2), WorkerChange.LOST)
    assert lab.events[-1].reason == "Slurm: FAILED (NonZeroExitCode)"


def test_a_lost_answer_of_sbatch(lab: Lab) -> None:
    lab.slurm.loses_answers = True
    assert not lab.order(RUN, ORDER).obeyed
    assert "did not answer" in lab.order(RUN, ORDER).reason
    lab.slurm.loses_answers = False
    lab.poll()
    assert lab.order(RUN, ORDER).obeyed
    lab.slurm.start_waiting()
    lab.poll()
    assert len(lab.slurm.jobs) == 1
    assert {each.change for each in lab.events} == {WorkerChange.STARTED, WorkerChange.READY}


def test_it_begins_after_the_queue_was_read(lab: Lab) -> None:
    """The queue as of an order a moment ago says that it waits, its directory says that it has begun."""
    lab.order(RUN, ORDER)
    lab.slurm.start_waiting()
    lab.order(RUN, ORDER)
    assert {each.change for each in lab.events} == {WorkerChange.STARTED, WorkerChange.READY}
    assert [(job.state, job.held) for job in lab.slurm.jobs.values()] == [("RUNNING", False)]


def test_jobs_are_not_paced(lab: Lab) -> None:
    order = slurm_order()
    lab.order(OrderAction.RUN, order)
    paced = lab.order(OrderAction.PACE, order.model_copy(update={"pace": Pace(begin_ns=1, period_us=1_000)}))
    withdrawn = lab.order(OrderAction.PACE, order)

    assert (paced.obeyed, paced.reason) == (False, "jobs in a Slurm cluster are not paced")
    assert withdrawn.obeyed


def test_refused_by_slurm(lab: Lab) -> None:
    lab.slurm.refuses = "Batch job submission failed: Invalid account"
    assert lab.order(RUN, ORDER).obeyed
    assert lab.ends(1) == dict.fromkeys(range(2), WorkerChange.FAILED)
    assert "Invalid account" in lab.events[-1].reason
    lab.slurm.refuses = ""
    lab.start()
    assert lab.order(RUN, ORDER).obeyed
    assert lab.slurm.jobs == {}


def test_an_order_that_cannot_be_a_job_has_failed(lab: Lab) -> None:
    reply = lab.order(RUN, slurm_order(environment={"A-B": "1"}))
    assert reply.obeyed
    assert [worker.last.change for worker in reply.workers if worker.last] == [WorkerChange.FAILED] * 2
    assert not lab.order(RUN, ORDER.model_copy(update={"spec": None})).obeyed


def test_an_attempt_that_is_still_stopping_is_in_the_way(lab: Lab) -> None:
    lab.order(RUN, ORDER)
    lab.slurm.start_waiting()
    reply = lab.order(RUN, SECOND)
    assert not reply.obeyed
    assert "still in Slurm's hands" in reply.reason


def test_nothing_is_forgotten_while_it_runs(lab: Lab) -> None:
    lab.order(RUN, ORDER)
    lab.slurm.start_waiting()
    assert not lab.order(FORGET, ORDER).obeyed


@pytest.mark.parametrize("forgotten", [True, False])
def test_killed_while_it_waits_to_start_again(lab: Lab, *, forgotten: bool) -> None:
    lab.order(RUN, ORDER)
    lab.slurm.start_waiting()
    lab.order(STOP, ORDER)
    lab.poll()
    if forgotten:
        lab.order(FORGET, ORDER)
    assert [(job.state, job.held) for job in lab.slurm.jobs.values()] == [("PENDING", True)]
    assert lab.order(KILL, ORDER).obeyed
    assert lab.order(KILL, ORDER).obeyed
    assert [job.state for job in lab.slurm.jobs.values()] == ["CANCELLED"]
    assert lab.order(FORGET, ORDER).obeyed
    assert lab.ends(1) == dict.fromkeys(range(2), WorkerChange.STOPPED)


def test_a_kill_of_a_forgotten_attempt_leaves_the_next_one(lab: Lab) -> None:
    lab.order(RUN, ORDER)
    lab.slurm.start_waiting()
    lab.order(STOP, ORDER)
    lab.poll()
    lab.order(FORGET, ORDER)
    lab.order(RUN, SECOND)
    assert lab.order(KILL, ORDER).obeyed
    assert [(job.state, job.held) for job in lab.slurm.jobs.values()] == [("PENDING", False)]
    lab.slurm.start_waiting()
    lab.order(STOP, SECOND)
    lab.poll()
    assert lab.order(KILL, ORDER).obeyed
    assert [(job.state, job.held) for job in lab.slurm.jobs.values()] == [("PENDING", True)]


def test_a_kill_while_slurm_is_away_is_refused_and_obeyed_later(lab: Lab) -> None:
    lab.order(RUN, ORDER)
    lab.slurm.start_waiting()
    lab.order(STOP, ORDER)
    lab.poll()
    lab.order(FORGET, ORDER)
    lab.slurm.down = True
    assert not lab.order(KILL, ORDER).obeyed
    lab.slurm.down = False
    lab.poll()
    assert lab.order(KILL, ORDER).obeyed
    assert [job.state for job in lab.slurm.jobs.values()] == ["CANCELLED"]


def test_held_for_too_long(lab: Lab) -> None:
    """Its training job was cancelled while it waited, and no order to kill it came through."""
    lab.order(RUN, ORDER)
    lab.slurm.start_waiting()
    lab.order(STOP, ORDER)
    lab.poll()
    lab.order(FORGET, ORDER)
    lab.run(lab.engine.tidy())
    assert [job.state for job in lab.slurm.jobs.values()] == ["CANCELLED"]


@pytest.mark.parametrize("name", ["job.json", "1/attempt.json"])
def test_spoiled_files_are_named_and_stop_no_other_job(lab: Lab, name: str) -> None:
    lab.order(RUN, ORDER)
    (lab.files._directory / "resnet" / name).write_text("{")
    reply = lab.order(RUN, ORDER)
    assert not reply.obeyed
    assert "is spoiled" in reply.reason
    other = slurm_order(job="other")
    assert lab.order(RUN, other).obeyed
    lab.slurm.jobs.pop(1)
    lab.slurm.start_waiting()
    lab.poll()
    assert {each.job for each in lab.events} == {"other"}


@pytest.mark.parametrize("content", ["", "x y\n", "1\n", "\0\0"])
def test_spoiled_notes_are_no_notes(lab: Lab, content: str) -> None:
    lab.order(RUN, ORDER)
    lab.slurm.start_waiting()
    (lab.files._directory / "resnet" / "1" / "0.exit").write_text(content)
    lab.poll()
    assert lab.ends(1) == {}


def test_a_directory_that_cannot_be_written_refuses(lab: Lab) -> None:
    (lab.files._directory / "resnet").write_text("in the way")
    reply = lab.order(RUN, ORDER)
    assert not reply.obeyed
    assert "nothing can be recorded" in reply.reason
    assert lab.slurm.jobs == {}


def test_logs(lab: Lab) -> None:
    lab.order(RUN, ORDER)
    lab.slurm.start_waiting()
    log = lab.files.log("resnet", 1, 1)
    log.write_bytes(b"one\ntwo\nthree\n")
    read = lab.files.read_log(WorkerLogRequest(job="resnet", rank=1, lines=2))
    assert read is not None
    assert (read.text, read.next_offset, read.over, read.attempt) == ("two\nthree\n", 14, False, 1)
    lab.slurm.end(0)
    read = lab.files.read_log(WorkerLogRequest(job="resnet", rank=1, offset=8))
    assert read is not None
    assert (read.text, read.over) == ("three\n", True)
    assert lab.files.read_log(WorkerLogRequest(job="resnet", rank=5)) is None


class History(RuleBasedStateMachine):
    """Whatever is ordered, lost, killed or cancelled: no attempt runs twice, and each is reported one end."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.lab = Lab(Path(self._directory.name) / "shared")
        self.attempt = 0
        self.order = ORDER

    def teardown(self) -> None:
        self.lab.close()
        self._directory.cleanup()

    @rule(nodes=st.sampled_from([("n1", "n2"), ("n2", "n1"), ("n1", "n1")]))
    @precondition(lambda self: self.attempt == 0 or len(self.lab.ends(self.attempt)) == 2)
    def run_next(self, nodes: tuple[str, ...]) -> None:
        self.attempt += 1
        self.order = slurm_order(nodes, self.attempt, preemption=Preemption.CHECKPOINT)
        self.lab.order(RUN, self.order)

    @rule(action=st.sampled_from([RUN, STOP, KILL]))
    @precondition(lambda self: self.attempt > 0 and len(self.lab.ends(self.attempt)) < 2)
    def repeat(self, action: OrderAction) -> None:
        self.lab.order(action, self.order)

    @rule()
    @precondition(lambda self: self.attempt > 0 and len(self.lab.ends(self.attempt)) == 2)
    def forget(self) -> None:
        self.lab.order(FORGET, self.order)

    @rule()
    def slurm_starts(self) -> None:
        self.lab.slurm.start_waiting()

    @rule(code=st.sampled_from([0, 1, 137]))
    def workers_end(self, code: int) -> None:
        self.lab.slurm.end(code)

    @rule()
    def poll(self) -> None:
        self.lab.poll()

    @rule()
    def crash(self) -> None:
        self.lab.start()

    @rule(down=st.booleans(), loses=st.booleans())
    def weather(self, *, down: bool, loses: bool) -> None:
        self.lab.slurm.down, self.lab.slurm.loses_answers = down, loses

    @rule(state=st.sampled_from(["CANCELLED", "NODE_FAIL", "requeued"]))
    def somebody_interferes(self, state: str) -> None:
        for job in self.lab.slurm.jobs.values():
            if job.state == "RUNNING":
                job.state = "PENDING" if state == "requeued" else state

    @invariant()
    def no_attempt_begins_twice(self) -> None:
        begun = [(name, attempt) for name, attempt, _ in self.lab.slurm.begins]
        assert len(begun) == len(set(begun))
        assert all(count == 1 for count in self.lab.slurm.begins.values())

    @invariant()
    def one_end_each(self) -> None:
        reported: dict[tuple[int, int], set[WorkerChange]] = {}
        for event in self.lab.events:
            if event.change in ENDS:
                reported.setdefault((event.attempt, event.rank), set()).add(event.change)
        assert all(len(kinds) == 1 for kinds in reported.values()), reported

    @invariant()
    def one_runs(self) -> None:
        assert sum(job.state == "RUNNING" for job in self.lab.slurm.jobs.values()) <= 1


TestHistory = History.TestCase


def test_the_record_is_small_and_holds_no_environment(lab: Lab) -> None:
    lab.order(RUN, slurm_order(environment={"TOKEN": "hidden-value"}))
    written = [path.read_text() for path in lab.files._directory.rglob("*") if path.is_file()]
    assert not any("hidden-value" in text for text in written)
    assert set(json.loads((lab.files._directory / "resnet" / "job.json").read_text())) == {
        "sequence",
        "attempt",
        "run",
        "lineage",
    }
