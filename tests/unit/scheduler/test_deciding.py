"""The leader's loop: what is decided about when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from schemas.scheduling import JobPlanned, ScheduleEvent, WorkerChange
from services.scheduler.core.state import State, fold
from services.scheduler.deciding import Decider, Inbox, Sources
from tests.support.turns import HOUR_NS, START_NS, change, long_runs_short_waits


class Log:
    """A lead that is never lost, at a moment of the test's choice."""

    name = "a"

    def __init__(self, state: State) -> None:
        self.state = state
        self.entries: list[ScheduleEvent] = []

    def time_ns(self) -> int:
        return START_NS + HOUR_NS

    async def append(self, entry: ScheduleEvent) -> int:
        self.entries.append(entry)
        self.state = fold(self.state, [entry])
        return len(self.entries)


@pytest.fixture
def log() -> Log:
    return Log(long_runs_short_waits())


def decider(log: Log, inbox: Inbox, answered: tuple[JobPlanned, ...] = ()) -> Decider:
    """The planner's answers never cease, if there are any."""
    runtime: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic=lambda: 0.0),
        settings=SimpleNamespace(policy="index", lost_after_s=330.0),
        telemetry=SimpleNamespace(
            counter=lambda _name: SimpleNamespace(value=0), histogram=lambda _name: SimpleNamespace(observe=float)
        ),
    )

    sources = Sources(lambda *_: None, lambda _: None, lambda _: (), lambda _: answered, lambda _: None)
    return Decider(runtime, log, inbox, sources)  # type: ignore[arg-type]


async def test_workers_that_never_cease_to_tell_do_not_put_a_quantum_off(log: Log) -> None:
    inbox = Inbox()
    inbox.open()
    inbox.put_events([change(WorkerChange.READY)])
    deciding = decider(log, inbox)

    await deciding._step()
    await deciding._step()

    first, second = log.entries
    assert first.decision is not None
    assert [stop.job for stop in first.decision.stops] == ["long"]
    assert first.worked == ()
    assert [event.change for event in second.worked] == [WorkerChange.READY]
    assert second.decision is None


async def test_answers_of_the_planner_that_never_cease_do_not_put_workers_off(log: Log) -> None:
    inbox = Inbox()
    inbox.open()
    answer = JobPlanned(job="short", attempt=1, nodes=("n1",))
    deciding = decider(log, inbox, (answer,))
    await deciding._step()  # a quantum was over
    inbox.put_events([change(WorkerChange.READY)])

    for _ in range(3):
        await deciding._step()

    assert [(entry.answered, len(entry.worked)) for entry in log.entries[1:]] == [
        ((answer,), 0),
        ((), 1),
        ((answer,), 0),
    ]
    assert inbox.arrived.is_set()
