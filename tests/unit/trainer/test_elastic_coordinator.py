"""The coordinator of an elastic training, with workers that only say what a test has them say."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

import pytest

from schemas.trainings import StepBatch, TrainingChange, TrainingEvent
from services._runtime.command.errors import UnavailableError
from services._runtime.exit_code import ExitCode
from services.trainer.commands.elastic import Coordinator, ElasticTraining
from services.trainer.commands.outcome import Ended, exit_of
from services.trainer.commands.publication import Publication
from services.trainer.commands.registration import TrainingRegistration, TrainingTakenError
from services.trainer.commands.starters import Launch, ProcessExit
from services.trainer.commands.train_output import TrainOutput
from services.trainer.commands.training import Training
from services.trainer.core.batch_schedule import parse_schedule
from services.trainer.core.elastic import FIRST_STEPS, LEAST_STEPS, Goal, Policy
from services.trainer.core.pauses import PauseSummary
from tests.support.trainer_plans import plan_of

T = TypeVar("T")
HASTE = Goal(Policy.DEADLINE, 1, 3, usd_per_hour=3_600, deadline_s=1e-9)
"""No number of workers is fast enough: as many as there may be."""


class Taken:
    """A publisher that keeps events."""

    def __init__(self) -> None:
        self.events: list[TrainingEvent] = []

    def publish(self, message: StepBatch | TrainingEvent) -> None:
        if isinstance(message, TrainingEvent):
            self.events.append(message)

    async def close(self) -> str:
        return ""


class Stdin:
    """What a worker is told."""

    def __init__(self) -> None:
        self.orders: list[tuple[int, list[str]]] = []

    def write(self, line: bytes) -> None:
        given = json.loads(line)
        self.orders.append((given["generation"], given["members"]))

    def close(self) -> None:
        self.orders.append((0, []))


class FakeProgram:
    """A worker's: it says what a test has it say, and ends when it is killed."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        self.stdin, self.stdout, self.stderr = Stdin(), asyncio.StreamReader(), asyncio.StreamReader()
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.signals: list[signal.Signals] = []
        self.is_removed = False
        """What it was in."""
        self.started_ns = time.monotonic_ns()

    def say(self, event: str, **fields: object) -> None:
        self.stdout.feed_data(json.dumps({"event": event, **fields}).encode() + b"\n")

    def end(self, code: int) -> None:
        self.code.set_result(code)
        self.stdout.feed_eof()
        self.stderr.feed_eof()

    def send(self, number: signal.Signals) -> None:
        if self.code.done():
            return
        self.signals.append(number)
        if number is signal.SIGKILL:
            self.end(-number)

    async def wait(self) -> ProcessExit:
        code = await self.code
        for _ in range(10):  # it takes its time
            await asyncio.sleep(0)
        self.is_removed = True
        return ProcessExit(code, time.monotonic_ns())

    def close_output(self) -> None:
        raise AssertionError("its output has ended")


class Registered:
    """A registration: writes wait while they are held, and fail from a generation on that another one has taken."""

    def __init__(self, taken_at: int = 0) -> None:
        self.written: list[tuple[int, bool]] = []
        self.taken_at = taken_at
        self.free = asyncio.Event()
        self.free.set()

    async def record(self, number: int, _workers: int, _first_step: int, *, is_formed: bool) -> None:
        await self.free.wait()
        if number == self.taken_at:
            raise TrainingTakenError("training j has a coordinator already, process 7 on elsewhere")
        self.written.append((number, is_formed))

    async def renew(self) -> None:
        await asyncio.Event().wait()


class Lab:
    """A coordinator, and the starter of its workers."""

    def __init__(self, goal: Goal) -> None:
        self.workers: dict[str, FakeProgram] = {}
        self.signal_at = ""
        """The signal comes while this worker is being started."""
        self.cannot_start = ""
        """This worker."""
        plan = plan_of([12], [1], [1])
        self.taken = Taken()
        training = ElasticTraining(Training(plan, (), 1_000, "saved"), goal, parse_schedule("12"))
        publication = Publication(plan, 1_000, "saved", self.taken)
        self.coordinator = Coordinator(training, TrainOutput(as_json=True), publication, (), self)

    @staticmethod
    def now_ns() -> int:
        return time.monotonic_ns()

    async def start(self, launch: Launch) -> FakeProgram:
        if launch.name == self.cannot_start:
            raise UnavailableError("python cannot be started: Cannot allocate memory")
        if launch.name == self.signal_at:
            self.coordinator.on_signal()
        assert launch.arguments == ("--name", launch.name)
        assert launch.name == f"worker-{launch.rank}"
        self.workers[launch.name] = FakeProgram()
        return self.workers[launch.name]

    def register(self, taken_at: int = 0) -> Registered:
        """With a bus from now on; must be called before the first worker is ready."""
        made = Registered(taken_at)
        self.coordinator.registration = cast("TrainingRegistration", made)
        return made

    async def worker(self, number: int) -> FakeProgram:
        """Once it is started."""
        return await self.once(lambda: self.workers.get(f"worker-{number}"))

    async def order(self, worker: FakeProgram, generation: int) -> list[str]:
        """Members of a generation, once the worker is told."""
        return await self.once(lambda: dict(worker.stdin.orders).get(generation))

    async def once(self, found: Callable[[], T | None]) -> T:
        """What is found, once it is there."""
        async with asyncio.timeout(60):
            while (value := found()) is None:  # noqa: ASYNC110 - what changes is in the process that is tested
                await asyncio.sleep(0)
        return value

    def measured(self, generation: int, first: int = 0, later_us: int = 0) -> None:
        """Enough steps of rank 0: each takes 1,000 us, and ends so much later than its number in milliseconds."""
        steps = list(range(first, first + FIRST_STEPS + LEAST_STEPS))
        columns: dict[str, Any] = {name: [1_000] * len(steps) for name in ("step_us", "compute_us", "loss")}
        columns["end_us"] = [step * 1_000 + later_us for step in steps]
        self.coordinator._take({"rank": 0, "generation": generation, "step": steps, **columns})

    def changes(self) -> list[tuple[TrainingChange, str]]:
        """What was published."""
        return [(event.change, event.worker) for event in self.taken.events]


def run(lab: Lab, script: Callable[[], Awaitable[None]]) -> Ended:
    """The coordinator beside a script, until both have ended."""

    async def both() -> Ended:
        ended, _ = await asyncio.gather(lab.coordinator.run(), script())
        return ended

    return asyncio.run(both())


async def formed(lab: Lab, *members: FakeProgram, number: int = 1) -> None:
    """A generation of these, once all are told."""
    for member in members:
        await lab.order(member, number)
    members[0].say("generation", number=number, workers=len(members), step=0, kept=number > 1)
    await lab.once(lambda: lab.coordinator._formed == number or None)


def test_workers_join_once_all_that_live_are_ready() -> None:
    lab = Lab(HASTE)

    async def script() -> None:
        first = await lab.worker(1)
        first.say("ready")
        assert await lab.order(first, 1) == ["worker-1"]
        await formed(lab, first)
        lab.measured(1)
        second = await lab.worker(2)  # twice as many at once: two
        second.say("ready")
        assert await lab.order(first, 2) == await lab.order(second, 2) == ["worker-1", "worker-2"]
        await formed(lab, first, second, number=2)
        lab.measured(2, 50)
        third = await lab.worker(3)
        third.end(-9)  # before it is ready: it is forgotten
        await lab.once(lambda: (TrainingChange.LEFT, "worker-3") in lab.changes() or None)
        assert 3 not in dict(first.stdin.orders)
        lab.measured(2, 100)
        fourth = await lab.worker(4)
        fourth.say("ready")
        assert await lab.order(second, 3) == ["worker-1", "worker-2", "worker-4"]
        first.say("result", step=1_000, loss=1.0, stopped=False)
        for worker in (first, second, fourth):
            worker.end(0)

    ended = run(lab, script)

    assert exit_of(ended) == (ExitCode.OK, "done after step 1000")
    joined = [worker for change, worker in lab.changes() if change is TrainingChange.JOINED]
    assert joined == ["worker-1", "worker-2", "worker-4"]
    generations = [event for event in lab.taken.events if event.change is TrainingChange.GENERATION]
    assert [event.workers for event in generations] == [1, 2]
    assert "until the deadline" in generations[1].cause
    # 3,600 USD an hour: a dollar for each worker's second that has begun
    assert lab.taken.events[-1].usd >= 4


def test_the_pause_of_a_change_is_published_and_summed_up() -> None:
    lab = Lab(HASTE)

    async def script() -> None:
        first = await lab.worker(1)
        first.say("ready")
        await formed(lab, first)
        lab.measured(1)  # its last step, 12, ends at 12,000 us
        second = await lab.worker(2)
        second.say("ready")
        await formed(lab, first, second, number=2)
        lab.measured(2, 13, 2_500)  # step 13 ends at 13,000 + 2,500 us, and takes 1,000
        second.end(-9)
        await formed(lab, first, number=3)
        lab.measured(3, 20, 9_000)  # after step 25, it goes back to 20, which ends at 29,000
        first.say("result", step=1_000, loss=1.0, stopped=False)
        first.end(0)

    assert exit_of(run(lab, script))[0] == ExitCode.OK
    pauses = [(event.pause_us, event.workers) for event in lab.taken.events if event.change is TrainingChange.CONTINUED]
    # 15,500 - 1,000 - 12,000 us; then 29,000 - 1,000 - 27,500 us
    assert pauses == [(2_500, 2), (500, 1)]
    assert lab.coordinator.pauses.changes == PauseSummary(1, 2_500, 2_500)
    assert lab.coordinator.pauses.failures == PauseSummary(1, 500, 500)
    causes = [event.cause for event in lab.taken.events if event.change is TrainingChange.CONTINUED]
    assert "until the deadline" in causes[0]
    assert causes[1] == "worker-2 was killed (-9)"


def test_where_a_member_is_killed_the_others_go_on() -> None:
    lab = Lab(Goal(Policy.BUDGET, 2, 2))

    async def script() -> None:
        first, second = await lab.worker(1), await lab.worker(2)
        second.say("ready")
        first.say("ready")
        await formed(lab, first, second)
        second.end(-9)
        assert await lab.order(first, 2) == ["worker-1"]
        await formed(lab, first, number=2)
        lab.measured(2)  # fewer than two: another one is started
        third = await lab.worker(3)
        third.say("ready")
        assert await lab.order(first, 3) == ["worker-1", "worker-3"]
        first.say("result", step=1_000, loss=1.0, stopped=False)
        first.end(0)
        third.end(0)

    assert exit_of(run(lab, script))[0] == ExitCode.OK


def test_members_of_a_group_that_fails_form_another_one() -> None:
    lab = Lab(Goal(Policy.BUDGET, 2, 2))

    async def script() -> None:
        first, second = await lab.worker(1), await lab.worker(2)
        first.say("ready")
        second.say("ready")
        await formed(lab, first, second)
        first.say("broken", number=1, cause="timed out")
        second.say("broken", number=1, cause="connection closed")
        assert await lab.order(first, 2) == ["worker-1", "worker-2"]
        await formed(lab, first, second, number=2)
        assert 3 not in dict(first.stdin.orders)
        first.say("broken", number=2, cause="timed out")
        await lab.order(first, 3)
        first.say("broken", number=3, cause="timed out")  # the third without a step in between

    assert exit_of(run(lab, script))[0] == ExitCode.RESUMABLE


def test_reports_that_come_together_start_one_worker() -> None:
    """The second comes while the first one's worker is being started."""
    lab = Lab(HASTE)

    async def script() -> None:
        first = await lab.worker(1)
        first.say("ready")
        await formed(lab, first)
        lab.measured(1)
        lab.measured(1, 50)
        second = await lab.worker(2)
        second.say("ready")
        assert await lab.order(second, 2) == ["worker-1", "worker-2"]
        assert list(lab.workers) == ["worker-1", "worker-2"]
        for worker in (first, second):
            worker.say("result", step=1_000, loss=1.0, stopped=False)
            worker.end(0)

    assert exit_of(run(lab, script))[0] == ExitCode.OK


def test_members_go_on_where_another_worker_cannot_be_started() -> None:
    lab = Lab(HASTE)
    lab.cannot_start = "worker-2"

    async def script() -> None:
        first = await lab.worker(1)
        first.say("ready")
        await formed(lab, first)
        lab.measured(1)
        await lab.once(lambda: lab.coordinator._deaths or None)
        lab.measured(1, 50)
        third = await lab.worker(3)
        third.say("ready")
        assert await lab.order(first, 2) == ["worker-1", "worker-3"]
        for worker in (first, third):
            worker.say("result", step=1_000, loss=1.0, stopped=False)
            worker.end(0)

    assert exit_of(run(lab, script))[0] == ExitCode.OK


def test_a_member_that_hangs_is_killed_once_the_others_have_waited_for_it() -> None:
    lab = Lab(Goal(Policy.BUDGET, 2, 2))
    lab.coordinator.elastic = replace(lab.coordinator.elastic, silent_after_s=0.0)

    async def script() -> None:
        first, second = await lab.worker(1), await lab.worker(2)
        first.say("ready")
        second.say("ready")
        await formed(lab, first, second)
        first.say("forming", number=2)
        first.say("broken", number=1, cause="timed out")
        await lab.once(lambda: second.signals or None)
        assert await lab.order(first, 3) == ["worker-1"]
        assert first.signals == []
        first.say("result", step=1_000, loss=1.0, stopped=False)
        first.end(0)

    assert exit_of(run(lab, script))[0] == ExitCode.OK


def test_fewer_workers_are_ordered_of_those_that_train() -> None:
    lab = Lab(Goal(Policy.BUDGET, 1, 3, usd_per_hour=3_600, budget_usd=1e-9))

    async def script() -> None:
        first = await lab.worker(1)
        await lab.coordinator._start(1)
        second = await lab.worker(2)
        first.say("ready")
        second.say("ready")
        await formed(lab, first, second)
        lab.measured(1)
        assert await lab.order(second, 2) == await lab.order(first, 2) == ["worker-1"]
        second.end(0)
        await lab.once(lambda: (TrainingChange.LEFT, "worker-2") in lab.changes() or None)
        first.say("result", step=1_000, loss=1.0, stopped=False)
        first.end(0)

    assert exit_of(run(lab, script))[0] == ExitCode.OK
    left = [event.cause for event in lab.taken.events if event.change is TrainingChange.LEFT]
    assert left[0] == "worker-2 has left"


def test_where_it_is_cut_short_all_that_workers_were_in_is_removed_before_it_ends() -> None:
    """Who called removes it, too: not two at the same time."""
    lab = Lab(Goal(Policy.BUDGET, 2, 2))
    lab.cannot_start = "worker-2"

    async def script() -> None:
        with pytest.raises(UnavailableError, match="Cannot allocate memory"):
            await lab.coordinator.run()
        assert lab.workers["worker-1"].signals == [signal.SIGKILL] * len(lab.workers["worker-1"].signals)
        assert lab.workers["worker-1"].is_removed

    asyncio.run(script())


def test_an_order_that_a_newer_one_follows_while_it_is_recorded_is_not_sent() -> None:
    """Members would wait for one that is gone; who was to leave by it is told by the newer one."""
    lab = Lab(Goal(Policy.BUDGET, 3, 3))

    async def script() -> None:
        registration = lab.register()
        workers = [await lab.worker(number) for number in (1, 2, 3)]
        for worker in workers:
            worker.say("ready")
        await formed(lab, *workers)
        registration.free.clear()
        lab.coordinator._form(["worker-1", "worker-3"])
        first, second, third = workers
        third.end(-9)
        await lab.once(lambda: lab.coordinator._order.number == 3 or None)
        registration.free.set()
        assert await lab.order(first, 3) == await lab.order(second, 3) == ["worker-1"]
        for worker in (first, second):
            assert 2 not in dict(worker.stdin.orders)
        second.end(0)
        first.say("result", step=1_000, loss=1.0, stopped=False)
        first.end(0)

    assert exit_of(run(lab, script))[0] == ExitCode.OK


def test_a_generation_that_forms_after_the_next_is_ordered_does_not_replace_that_one_on_the_bus() -> None:
    lab = Lab(Goal(Policy.BUDGET, 2, 2))

    async def script() -> None:
        registration = lab.register()
        first, second = await lab.worker(1), await lab.worker(2)
        first.say("ready")
        second.say("ready")
        await lab.order(first, 1)
        lab.coordinator._form(["worker-1"])
        await lab.order(first, 2)
        first.say("generation", number=1, workers=2, step=0, kept=False)
        await lab.once(lambda: lab.coordinator._formed == 1 or None)
        await formed(lab, first, number=2)
        await lab.once(lambda: (2, True) in registration.written or None)
        assert registration.written == [(1, False), (2, False), (2, True)]
        second.end(0)
        first.say("result", step=1_000, loss=1.0, stopped=False)
        first.end(0)

    assert exit_of(run(lab, script))[0] == ExitCode.OK


def test_where_another_coordinator_has_the_training_members_are_killed_and_save_nothing() -> None:
    """The other one has gone on at the last checkpoint, in the same directory."""
    lab = Lab(Goal(Policy.BUDGET, 1, 1))

    async def script() -> None:
        lab.register(taken_at=2)
        first = await lab.worker(1)
        first.say("ready")
        await formed(lab, first)
        lab.coordinator._form(["worker-1"])
        await lab.once(lambda: first.signals or None)
        assert set(first.signals) == {signal.SIGKILL}
        assert 2 not in dict(first.stdin.orders)

    assert run(lab, script).result is None
    assert "process 7 on elsewhere" in str(lab.coordinator.taken)
    assert len(lab.workers) == 1, "none is started in its place"


def test_what_a_worker_refuses_ends_all() -> None:
    lab = Lab(Goal(Policy.BUDGET, 2, 2))

    async def script() -> None:
        first, second = await lab.worker(1), await lab.worker(2)
        first.say("error", rank=1, message="no chain", exit_code=ExitCode.BAD_DATA)
        first.end(ExitCode.BAD_DATA)
        await lab.once(lambda: second.signals or None)
        assert set(second.signals) == {signal.SIGKILL}

    assert exit_of(run(lab, script)) == (ExitCode.BAD_DATA, "rank 1: no chain")


def test_what_is_killed_again_and_again_is_not_started_for_ever() -> None:
    lab = Lab(Goal(Policy.BUDGET, 1, 1))

    async def script() -> None:
        for number in (1, 2, 3):
            (await lab.worker(number)).end(-9)

    code, text = exit_of(run(lab, script))
    assert code == ExitCode.RESUMABLE
    assert "rank 3 was killed (SIGKILL)" in text
    assert len(lab.workers) == 3


def test_members_save_at_the_first_signal_and_who_is_no_member_ends() -> None:
    lab = Lab(HASTE)

    async def script() -> None:
        first = await lab.worker(1)
        first.say("ready")
        await formed(lab, first)
        lab.measured(1)
        second = await lab.worker(2)
        lab.coordinator.on_signal()
        assert first.signals == [signal.SIGTERM]
        assert second.signals == [signal.SIGKILL]
        first.say("result", step=20, loss=1.0, stopped=True)
        first.end(0)

    assert exit_of(run(lab, script)) == (ExitCode.OK, "stopped after step 20")


def test_a_worker_that_is_being_started_when_all_stop_ends_too() -> None:
    lab = Lab(HASTE)
    lab.signal_at = "worker-2"

    async def script() -> None:
        first = await lab.worker(1)
        first.say("ready")
        await formed(lab, first)
        lab.measured(1)
        second = await lab.worker(2)
        await lab.once(lambda: second.signals or None)
        assert second.signals == [signal.SIGKILL]
        first.say("result", step=20, loss=1.0, stopped=True)
        first.end(0)

    assert exit_of(run(lab, script)) == (ExitCode.OK, "stopped after step 20")


def test_a_stop_before_the_first_generation_waits_for_it() -> None:
    lab = Lab(HASTE)

    async def script() -> None:
        first = await lab.worker(1)
        lab.coordinator.on_signal()
        assert first.signals == [signal.SIGTERM]
        first.say("ready")
        assert await lab.order(first, 1) == ["worker-1"]
        # a container's first process drops a signal that comes before it can take it: it is sent again
        assert first.signals == [signal.SIGTERM] * 2
        first.say("result", step=20, loss=None, stopped=True)
        first.end(0)

    assert exit_of(run(lab, script)) == (ExitCode.OK, "stopped after step 20")


def test_a_member_that_is_killed_while_all_stop_is_not_waited_for() -> None:
    lab = Lab(Goal(Policy.BUDGET, 2, 2))

    async def script() -> None:
        first, second = await lab.worker(1), await lab.worker(2)
        first.say("ready")
        second.say("ready")
        await formed(lab, first, second)
        lab.coordinator.on_signal()
        second.end(-9)
        assert await lab.order(first, 2) == ["worker-1"]
        first.end(-9)

    code, text = exit_of(run(lab, script))
    assert code == ExitCode.RESUMABLE
    assert "rank 1 was killed" in text
    assert len(lab.workers) == 2, "none is started any more"


def test_the_second_signal_kills_all() -> None:
    lab = Lab(HASTE)

    async def script() -> None:
        first = await lab.worker(1)
        first.say("ready")
        await formed(lab, first)
        lab.coordinator.on_signal()
        lab.coordinator.on_signal()

    assert exit_of(run(lab, script))[0] == ExitCode.INTERRUPTED
