"""What the console folds out of what trainings say: beside their plans, while they are heard."""

from __future__ import annotations

import time
from typing import Any, cast

import msgpack
import numpy as np
import pytest

from schemas.codec import encode
from schemas.subjects import STEPS
from schemas.trainings import TrainingChange
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_subscriptions import NatsBuffer
from services._runtime.bus.options import BusOptions
from services.console.hub import Hub
from services.console.source import BusSource
from services.console.trainings import ENDED_FOR_S, MOST_TRAININGS, SILENT_AFTER_S, Trainings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.training_reports import event, steps

TIME_S = 1_700_000_000.0
PLACE = ("train", "n1")
KEY = "training/train/n1"


class Told:
    """A fold, and what it told last."""

    def __init__(self) -> None:
        self.trainings = Trainings()
        self.now_s = 100.0

    def tick(self, seconds: float = 1.0, *, connected: bool = True) -> dict[str, dict[str, Any]]:
        """End a second, or several; messages by key."""
        self.now_s += seconds
        changes = self.trainings.tick(TIME_S + self.now_s, self.now_s, connected=connected)
        return {key: msgpack.unpackb(data) | {"removed": removed} for key, data, removed in changes}

    def start(self, age_s: float = 0.0, **changes: Any) -> None:
        self.trainings.add_event(PLACE, event(**changes), self.now_s, age_s)

    def step(self, **changes: Any) -> None:
        self.trainings.add_steps(PLACE, steps(**changes), self.now_s)


def test_a_training_beside_its_plan() -> None:
    told = Told()
    told.start(total=50, generation=2)
    told.step(generation=2, step=(4, 5), step_us=(10, 30), memory_bytes=(1, 2))
    told.step(generation=2, step=(4, 5), step_us=(12, 30), rank=1, memory_bytes=(7, 7))
    now = told.tick()[KEY]

    # Medians of the ranks' steps: 20 and 21 us; the step is as long as that of the slowest rank.
    assert (now["step_us"], now["predicted_us"]) == (21, [1, 1, 1])
    assert (now["step"], now["total"], now["generation"]) == (6, 50, 2)
    assert (now["batch"], now["engine"], now["drift"], now["end"]) == (8, "layered", "", "")
    assert [device["samples"] for device in now["devices"]] == [6, 2]
    assert [device["state_share"] for device in now["devices"]] == [0.75, 0.25]
    assert [device["memory_bytes"] for device in now["devices"]] == [2, 7]


def test_where_nothing_trains_nothing_is_told() -> None:
    assert Told().tick() == {}


def test_a_drift_is_told_until_the_next_start() -> None:
    told = Told()
    told.start()
    told.trainings.add_event(PLACE, event(TrainingChange.DRIFT, cause="too slow"), told.now_s, 0.0)
    assert told.tick()[KEY]["drift"] == "too slow"
    told.start(training="next", time_ns=2)
    assert told.tick()[KEY]["drift"] == ""


@pytest.mark.parametrize(
    ("code", "cause", "said"),
    [(0, "done after step 9", "done after step 9"), (75, "rank 1 failed", "exit code 75: rank 1 failed")],
)
def test_an_end_is_shown_for_a_minute(code: int, cause: str, said: str) -> None:
    told = Told()
    told.start()
    told.trainings.add_event(PLACE, event(TrainingChange.ENDED, exit_code=code, cause=cause), told.now_s, 0.0)
    assert told.tick()[KEY]["end"] == said
    assert not told.tick(ENDED_FOR_S - 2)[KEY]["removed"]
    assert told.tick(2)[KEY] == {"type": "console.TrainingGone", "job": "train", "node": "n1", "removed": True}
    assert told.tick() == {}


def test_a_silent_one_is_not_shown_but_while_nothing_can_be_heard_and_comes_back_with_its_plan() -> None:
    told = Told()
    told.start()
    told.step()
    told.tick()
    assert told.tick(SILENT_AFTER_S, connected=False) == {}
    assert told.tick()[KEY]["removed"]
    assert told.tick() == {}
    told.step()
    assert told.tick()[KEY]["batch"] == 8


def test_steps_of_a_minute_are_waited_for() -> None:
    told = Told()
    told.start()
    told.step(step_us=(60_000_000, 60_000_000))
    told.tick()
    assert not told.tick(590)[KEY]["removed"]  # ten steps are 600 s
    assert told.tick(20)[KEY]["removed"]


def test_what_was_stored_is_known_and_shown_once_it_is_heard() -> None:
    told = Told()
    told.start(age_s=86_400.0)
    assert told.tick() == {}
    told.step()
    assert told.tick()[KEY]["devices"] != []


def test_an_event_of_an_earlier_start_changes_nothing() -> None:
    told = Told()
    told.step(training="second", time_ns=9)
    told.start(training="first", time_ns=3)
    told.trainings.add_event(PLACE, event(TrainingChange.ENDED, training="first", time_ns=4), told.now_s, 0.0)
    now = told.tick()[KEY]
    assert (now["end"], now["devices"]) == ("", [])


def test_without_its_plan_steps_are_shown() -> None:
    told = Told()
    told.step(step_us=(5, 5))
    now = told.tick()[KEY]
    assert (now["step_us"], now["predicted_us"], now["devices"]) == (5, [0, 0, 0], [])


def test_the_history_has_measured_and_predicted_and_gaps() -> None:
    told = Told()
    told.start()
    for step_us in (3, 5):
        told.step(step_us=(step_us, step_us))
        told.tick()
        told.tick()
    series = told.trainings.history(PLACE)
    assert series is not None
    assert np.nan_to_num(series.values, nan=-1).tolist() == [[3, -1, 5, -1], [1, -1, 1, -1]]
    assert told.trainings.history(("other", "n1")) is None


def test_hosts_that_invent_jobs_push_out_nothing_that_is_shown() -> None:
    told = Told()
    told.step()
    told.tick()
    for number in range(2 * MOST_TRAININGS):
        told.trainings.add_steps((f"job-{number}", "n9"), steps(), told.now_s)
    shown = told.tick()
    assert KEY in shown
    assert len(shown) == MOST_TRAININGS
    told.trainings.add_steps(("late", "n9"), steps(), told.now_s)
    assert "training/late/n9" not in told.tick()


def test_more_ranks_than_are_shown_cost_nothing() -> None:
    told = Told()
    for rank in range(1_024):
        told.step(rank=rank)
    (training,) = told.trainings._trainings.values()
    assert len(training.memory_bytes) == len(training.new_us) == 64


def test_what_was_stored_before_the_host_started_is_not_shown() -> None:
    """The clock counts from there: a day ago is before its beginning."""
    told = Told()
    told.now_s = 5.0
    told.start(age_s=86_400)
    assert told.tick() == {}


async def test_steps_that_came_before_the_next_start_do_not_take_its_place() -> None:
    """They wait until the second ends, but not beyond an event that came after them."""
    bus = NatsBus(BusOptions())
    source = BusSource(bus, Hub())
    buffer = NatsBuffer(bus, source.observation)
    source.observations.append(buffer)
    now_ns = time.time_ns()
    last = steps(job="train", node="n1", training="earlier", time_ns=now_ns)
    buffer._take(STEPS.subject(bus.root, job="train", node="n1").text.encode(), b"", encode(last))
    drift = event(TrainingChange.DRIFT, cause="too slow", training="next", time_ns=now_ns)
    source.event(Delivery("tb.evt.train.train.n1", drift, 1))
    buffer.deliver()
    ((_, data, _),) = source.trainings.tick(TIME_S, time.monotonic(), connected=True)
    assert msgpack.unpackb(data)["drift"] == "too slow"


def test_an_event_whose_subject_names_nobody_is_passed_over() -> None:
    """Whoever may publish events may store it: what comes after it in the stream is read all the same."""
    source = BusSource(cast("NatsBus", MemoryBus(MemoryBroker(), "tb")), Hub())
    for job in ("=zz", "train"):
        source.event(Delivery(f"tb.evt.train.{job}.n1", event(time_ns=time.time_ns()), 1))
    found = source.trainings.tick(TIME_S, time.monotonic(), connected=True)
    assert [key for key, _, _ in found] == [KEY]
