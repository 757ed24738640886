"""What is published of a training: batches of steps, and events with the plan and what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.plans import Alternative, PlanReason, Strategy
from schemas.trainings import MAX_STEP_ROWS, STEP_COLUMNS, StepBatch, TrainingChange, TrainingEvent
from services._runtime.exit_code import ExitCode
from services.trainer.commands.publication import Publication
from services.trainer.commands.training import is_step
from services.trainer.core.pauses import Pause
from services.trainer.core.progress import Progress
from services.trainer.core.publication import Start, published_plan, step_batches
from tests.support.measured_runs import measured_run
from tests.support.trainer_plans import plan_of

PLAN = plan_of([6, 2], [2, 1], [3, 1])


class Taken:
    """A publisher that keeps all."""

    def __init__(self) -> None:
        self.messages: list[StepBatch | TrainingEvent] = []

    def publish(self, message: StepBatch | TrainingEvent) -> None:
        self.messages.append(message)

    async def close(self) -> str:
        return ""

    @property
    def events(self) -> list[TrainingEvent]:
        return [message for message in self.messages if isinstance(message, TrainingEvent)]


def report(rows: int, rank: int = 1) -> dict[str, Any]:
    """As a rank writes it."""
    columns = {name: list(range(rows)) for name in STEP_COLUMNS}
    return {"rank": rank, "lost_lines": 0, "loss": [None] * rows, "end_us": [0] * rows, **columns}


def test_a_report_of_many_steps_becomes_batches_without_a_gap() -> None:
    batches = list(step_batches(Start("j", "n1", "t"), report(MAX_STEP_ROWS + 3), 7))

    assert [len(batch.step) for batch in batches] == [MAX_STEP_ROWS, 3]
    assert [step for batch in batches for step in batch.memory_bytes] == list(range(MAX_STEP_ROWS + 3))
    assert {(batch.rank, batch.node, batch.time_ns) for batch in batches} == {(1, "n1", 7)}


def test_a_plan_is_published_without_what_was_not_chosen_or_is_run() -> None:
    told = {"alternatives": (Alternative(strategy=Strategy.EVEN, step_us=3.0),), "launch": ("torchrun",)}
    assert published_plan(PLAN.model_copy(update=told)) == PLAN


def test_a_plan_that_no_event_holds_is_left_out() -> None:
    # 1,000 devices of some 150 bytes each.
    assert published_plan(plan_of([1] * 1_000, [1] * 1_000, [1] * 1_000)) is None
    # 16 of them are what a machine has.
    assert published_plan(plan_of([1] * 16, [1] * 16, [1] * 16)) is not None
    # 40 of them, each of a kind of 300 characters and 900 bytes: too many bytes, though not too many characters.
    many = plan_of([1] * 40, [1] * 40, [1] * 40)
    devices = tuple(device.model_copy(update={"kind": "\u5feb" * 300}) for device in many.devices)
    assert published_plan(many.model_copy(update={"devices": devices})) is None


def test_events_count_up_and_say_what_was_measured_last() -> None:
    taken = Taken()
    publication = Publication(PLAN, 100, "saved", taken)
    publication.started()
    publication.changes["resumed"](40)
    publication.progress(Progress(60, 100, 1_500.0, 1.0, 80.0, 0.5))
    publication.drift(PlanReason(measured=1_600.0, threshold=1.0, unit="us", sentence="longer"))
    publication.changes["saved"](100)
    workers = (TrainingChange.READY, TrainingChange.JOINED, TrainingChange.LEFT, TrainingChange.GENERATION)
    for change in workers:
        publication.worker(change, worker="worker-2", workers=2, usd=0.5, cause="killed")
    publication.continued(Pause(2, 100, 700, after_failure=True), workers=2, usd=0.5, cause="killed")
    publication.ended(ExitCode.OK, "done after step 100", measured_run(1.2))

    assert [event.change for event in taken.events] == list(TrainingChange)
    assert [event.sequence for event in taken.events] == list(range(10))
    assert [event.step for event in taken.events] == [0, 40, 60] + [100] * 7
    assert [event.measured_step_us for event in taken.events] == [0, 0] + [1_600] * 8
    assert [event.plan is not None for event in taken.events] == [True] + [False] * 9
    assert [event.run for event in taken.events] == [None] * 9 + [measured_run(1.2)]
    assert len({event.message_id for event in taken.events}) == 10
    of_workers = {(event.worker, event.workers, event.usd, event.cause) for event in taken.events[4:8]}
    assert of_workers == {("worker-2", 2, 0.5, "killed")}
    assert [event.pause_us for event in taken.events] == [0] * 8 + [700, 0]
    assert (taken.events[-1].exit_code, taken.events[2].cause) == (0, "longer")
    assert {(event.job, event.total, event.predicted_step_us) for event in taken.events} == {("j", 100, 1)}


def test_each_start_has_an_id_of_its_own() -> None:
    first, second = Taken(), Taken()
    for taken in (first, second):
        Publication(PLAN, 1, "", taken).started()
    assert first.events[0].training != second.events[0].training


def test_without_a_publisher_nothing_is_made() -> None:
    publication = Publication(PLAN, 1, "", None)
    publication.started()
    publication.steps({})  # not even looked at


@pytest.mark.parametrize("value", [True, -1, 1 << 62, 1.5, "3", None, [1]])
def test_what_the_users_code_prints_as_an_event_is_no_step(value: object) -> None:
    assert not is_step(value)
    assert is_step(0)
