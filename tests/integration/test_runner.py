"""A runner with real workers: started once, seen to their end, stopped as asked, told as events."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from schemas.scheduling import OrderAction, Preemption, RunnerInfo, WorkerChange, WorkerLogRequest
from schemas.streams import RUNNERS
from services._runtime.bus.name_registration import NameHolder
from services.runner import service
from services.runner.worker_files import StopRequest, boot_s
from services.runner.worker_log import REMOVED
from tests.support.deadline import until
from tests.support.recorded_spans import recorded_spans
from tests.support.runner_lab import (
    FOREVER,
    JOB,
    NODE,
    OBEDIENT,
    STUBBORN,
    RunnerLab,
    end_of,
    job_spec,
    lives,
    order,
    python,
    run_order,
    started,
)

STARTED, READY, STOPPED = WorkerChange.STARTED, WorkerChange.READY, WorkerChange.STOPPED
UNSAVED, ENDED, FAILED, LOST = WorkerChange.UNSAVED, WorkerChange.ENDED, WorkerChange.FAILED, WorkerChange.LOST

DAY_S = 86_400
FENCE_S = 10.0
"""Longer than a shim takes to start on a busy machine: an order that is older starts nothing."""


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[..., RunnerLab]]:
    labs: list[RunnerLab] = []

    def make(**settings: object) -> RunnerLab:
        labs.append(RunnerLab(tmp_path, **settings))
        return labs[-1]

    yield make
    for lab in labs:
        lab.end_workers()


@pytest.fixture
def lab(make_lab: Callable[..., RunnerLab]) -> RunnerLab:
    return make_lab()


async def test_what_the_node_offers_is_registered(lab: RunnerLab) -> None:
    async with lab.runner():
        entry = await lab.bus.bucket(RUNNERS).get(NODE)
        assert entry is not None
        info = entry.message
        assert isinstance(info, RunnerInfo)
        assert (info.node, info.slots, info.engine, info.address) == (NODE, 4, "processes", "127.0.0.1")
        assert info.cores == os.cpu_count()
    assert await lab.bus.bucket(RUNNERS).get(NODE) is None, "deregistered at its end"


async def test_at_its_end_no_heartbeat_takes_the_name_again(lab: RunnerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    release = NameHolder.release

    async def release_and_yield(name: NameHolder) -> None:
        await release(name)
        for _ in range(1_000):
            await asyncio.sleep(0)  # what else is due on the event loop

    monkeypatch.setattr(service, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(NameHolder, "release", release_and_yield)
    async with lab.runner():
        pass

    assert await lab.bus.bucket(RUNNERS).get(NODE) is None


async def test_a_worker_that_ends_by_itself(lab: RunnerLab) -> None:
    event = await lab.run_to_the_end(job_spec(lab.work, ("sh", "-c", "echo hello; sleep 0.2"), preemption="never"))

    assert lab.changes() == [STARTED, READY, ENDED]
    assert (event.exit_code, event.node, event.oom_kills) == (0, NODE, 0)
    assert 0.15 <= event.ran_s < 60
    assert lab.files().log.read_text() == "hello\n"


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        (("sh", "-c", "echo first; echo 'no such file' >&2; exit 3"), 3, "first\nno such file"),
        (("sh", "-c", "echo oh; kill -SEGV $$"), -signal.SIGSEGV, "oh"),
        (("no-such-program",), None, "no-such-program: command not found"),
        (("/etc/passwd",), None, "/etc/passwd cannot be executed: Permission denied"),
        (("sh", "-c", "yes 1234567890 | head -n 5000; exit 1"), 1, "1234567890"),
    ],
)
async def test_a_worker_that_fails(lab: RunnerLab, command: tuple[str, ...], code: int | None, reason: str) -> None:
    event = await lab.run_to_the_end(job_spec(lab.work, command))

    assert (event.change, event.exit_code) == (FAILED, code)
    assert reason in event.reason
    assert len(event.reason) <= 500


async def test_a_directory_that_is_not_there(lab: RunnerLab) -> None:
    event = await lab.run_to_the_end(job_spec(lab.work / "nowhere"))

    assert event.change is FAILED
    assert event.reason.startswith(f"its directory {lab.work}/nowhere cannot be entered")
    assert event.reason.endswith("No such file or directory")


async def test_more_slots_than_are_free(lab: RunnerLab) -> None:
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, slots=3)))
        await lab.until_change(STARTED)
        other = job_spec(lab.work, job="other", workers=2)
        reply = await lab.ask(run_order(other))

        assert reply.obeyed
        lasts = [worker.last for worker in reply.workers]
        assert [last.change for last in lasts if last is not None] == [FAILED, FAILED]
        assert lasts[0] is not None
        assert lasts[0].reason == "no room: 2 slots are needed, 1 of 4 are free on n1"
        await lab.ask(order(OrderAction.KILL))
        await lab.until_change(UNSAVED)


async def test_a_gang_knows_its_ranks(lab: RunnerLab) -> None:
    """Ranks 0 and 2 are here, 1 elsewhere: as torchrun would number them."""
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR MASTER_PORT TURNBUCKLE_JOB"
    code = f"import os, json; print(json.dumps([os.environ[n] for n in {names.split()!r}] + sorted(os.environ)))"
    spec = job_spec(lab.work, python(code), workers=3, environment={"EPOCHS": "3", "RANK": "77"})
    await lab.listen()
    async with lab.runner():
        reply = await lab.ask(run_order(spec, nodes=(NODE, "n2", NODE)))
        assert [worker.rank for worker in reply.workers] == [0, 2]
        await lab.until_change(ENDED, rank=0)
        await lab.until_change(ENDED, rank=2)
    written = [json.loads(lab.files(rank).log.read_text()) for rank in (0, 2)]

    assert written[0][:9] == ["0", "3", "0", "2", "0", "0", "127.0.0.1", "29500", JOB]
    assert written[1][:9] == ["2", "3", "1", "2", "0", "0", "127.0.0.1", "29500", JOB]
    assert "EPOCHS" in written[0]


async def test_a_jobs_plan_is_a_file_that_its_worker_reads(lab: RunnerLab) -> None:
    planned = run_order(job_spec(lab.work, ("sh", "-c", 'cat "$TURNBUCKLE_PLAN"'))).model_copy(
        update={"plan": '{"batch": 64}'}
    )
    await lab.listen()
    async with lab.runner():
        await lab.ask(planned)
        await lab.until_change(ENDED)

    assert lab.files().log.read_text() == planned.plan
    assert lab.files().plan.stat().st_mode & 0o777 == 0o644, "the worker has another user"


async def test_nothing_of_the_runners_own_keys_is_handed_on(lab: RunnerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://secret@127.0.0.1:4222")
    monkeypatch.setenv("TURNBUCKLE_NATS_NKEY_SEED_FILE", "/secret")
    monkeypatch.setenv("SOME_TOKEN", "secret")
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    command = python("import os; print(dict(os.environ))")
    spec = job_spec(lab.work, command, environment={"NATS_URL": "nats://the-jobs-own:4222"})
    await lab.run_to_the_end(spec)
    environment = lab.files().log.read_text()

    assert "secret" not in environment
    assert "nats://the-jobs-own:4222" in environment
    assert "'VIRTUAL_ENV': '/venv'" in environment


def exiting(code: int) -> tuple[str, ...]:
    """A command that exits so at SIGTERM."""
    return ("sh", "-c", f"trap 'exit {code}' TERM; echo at work; while :; do sleep 0.05; done")


@pytest.mark.parametrize(
    ("command", "preemption", "change"),
    [
        (OBEDIENT, Preemption.CHECKPOINT, STOPPED),
        (FOREVER, Preemption.CHECKPOINT, STOPPED),
        (FOREVER, Preemption.NEVER, UNSAVED),
        (("sh", "-c", "trap 'exit 0' TERM; echo at work; while :; do sleep 0.05; done"), Preemption.NEVER, STOPPED),
        (
            ("sh", "-c", "trap 'exit 1' TERM; echo at work; while :; do sleep 0.05; done"),
            Preemption.CHECKPOINT,
            UNSAVED,
        ),
        (OBEDIENT, Preemption.RESTART, UNSAVED),
    ],
)
async def test_a_stop(lab: RunnerLab, command: tuple[str, ...], preemption: Preemption, change: WorkerChange) -> None:
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, command, preemption=preemption)))
        if command is not FOREVER:
            await lab.until_log("at work")
        await lab.until_change(STARTED)
        for _ in range(2):
            assert (await lab.ask(order(OrderAction.STOP))).obeyed
        event = await lab.until_change(change)

    assert event.took_s < 20, "the grace period"
    assert end_of(lab.files()).killed == (preemption is Preemption.RESTART)


async def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace_period(lab: RunnerLab) -> None:
    """It starts a child in a session of its own, too, which nothing but its process group would end."""
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, STUBBORN, grace_s=0.3)))
        await lab.until_log("at work")
        await lab.ask(order(OrderAction.STOP))
        event = await lab.until_change(UNSAVED)

    assert event.took_s >= 0.3
    assert (event.exit_code, end_of(lab.files()).killed) == (-signal.SIGKILL, True)
    assert event.reason.startswith("killed, as it had not stopped in time")


async def test_a_kill_during_the_grace_period_is_at_once(lab: RunnerLab) -> None:
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, STUBBORN, grace_s=3_600)))
        await lab.until_log("at work")
        await lab.ask(order(OrderAction.STOP))
        await lab.ask(order(OrderAction.KILL))
        event = await lab.until_change(UNSAVED)

    assert event.took_s < 60


async def test_what_a_worker_leaves_running_is_killed(lab: RunnerLab) -> None:
    command = ("sh", "-c", "sleep 3600 & echo child $!; (sleep 3600 & echo child $!); exit 0")
    await lab.run_to_the_end(job_spec(lab.work, command))
    children = [int(line.split()[1]) for line in lab.files().log.read_text().splitlines()]

    assert len(children) == 2
    await until(lambda: not any(lives(pid) for pid in children), what="their end")


async def test_ready_is_when_the_file_is_there(lab: RunnerLab) -> None:
    command = ("sh", "-c", 'sleep 0.3; touch "$TURNBUCKLE_READY_FILE"; while :; do sleep 0.05; done')
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, command)))
        await lab.until_change(STARTED)
        ready = await lab.until_change(READY)
        await lab.ask(order(OrderAction.STOP))
        event = await lab.until_change(STOPPED)

    assert 0.3 <= ready.took_s < 60
    assert event.ran_s < (end_of(lab.files()).time_ns - started(lab.files()).time_ns) / 1e9 - 0.25


async def test_without_the_file_it_is_ready_since_its_start(make_lab: Callable[..., RunnerLab]) -> None:
    lab = make_lab(ready_within_s=0.2)
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work)))
        assert (await lab.until_change(READY)).took_s == 0
        await lab.ask(order(OrderAction.KILL))
        assert (await lab.until_change(UNSAVED)).ran_s >= 0.2


# -- orders ------------------------------------------------------------------------------------------------------------


async def test_orders_may_come_twice(lab: RunnerLab) -> None:
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, OBEDIENT)))
        await lab.until_log("at work")
        await lab.until_change(STARTED)
        pid = started(lab.files()).pid
        for action in (OrderAction.RUN, OrderAction.CHECK):
            asked = run_order(job_spec(lab.work, OBEDIENT)) if action is OrderAction.RUN else order(action, sequence=1)
            reply = await lab.ask(asked)
            assert (reply.obeyed, reply.workers[0].pid) == (True, pid)
        await lab.ask(order(OrderAction.STOP))
        await lab.until_change(STOPPED)
        reply = await lab.ask(run_order(job_spec(lab.work, OBEDIENT), sequence=2))

    assert reply.workers[0].last is not None
    assert (reply.workers[0].last.change, reply.workers[0].pid) == (STOPPED, 0)
    assert lab.files().log.read_text().count("at work") == 1


async def test_an_older_order_is_refused_also_after_a_restart(lab: RunnerLab) -> None:
    async with lab.runner():
        assert (await lab.ask(order(OrderAction.CHECK, sequence=9))).obeyed
    async with lab.runner():
        reply = await lab.ask(run_order(job_spec(lab.work), sequence=8, attempt=2))

    assert not reply.obeyed
    assert reply.reason == "it is of sequence 8, after one of 9 was obeyed"
    assert not lab.files(attempt=2).directory.exists()


@pytest.mark.parametrize(
    ("action", "change"), [(OrderAction.CHECK, LOST), (OrderAction.STOP, STOPPED), (OrderAction.KILL, STOPPED)]
)
async def test_of_what_is_not_known_nothing_is_started_any_more(
    lab: RunnerLab, action: OrderAction, change: WorkerChange
) -> None:
    async with lab.runner():
        reply = await lab.ask(order(action, sequence=1))
        assert reply.workers[0].last is not None
        assert reply.workers[0].last.change is change
        late = await lab.ask(run_order(job_spec(lab.work)))

    assert late.workers[0].last == reply.workers[0].last
    assert not lab.files().log.exists()


async def test_forget_keeps_the_log_and_removes_what_is_secret(lab: RunnerLab) -> None:
    await lab.listen()
    async with lab.runner():
        command = "while [ ! -e go ]; do sleep 0.05; done; echo $PASSWORD | wc -c"
        spec = job_spec(lab.work, ("sh", "-c", command), environment={"PASSWORD": "hunter2"})
        await lab.ask(run_order(spec))
        early = await lab.ask(order(OrderAction.FORGET, sequence=1))
        (lab.work / "go").touch()
        await lab.until_change(ENDED)
        assert (await lab.ask(order(OrderAction.FORGET))).obeyed
        assert (await lab.ask(order(OrderAction.FORGET))).obeyed
        log = await lab.log(WorkerLogRequest(job=JOB))
        late = await lab.ask(run_order(spec, sequence=2))

    assert early.reason == "ranks [0] have not ended"
    assert (log.text, log.over) == ("8\n", True)
    assert late.workers[0].last is not None
    assert late.workers[0].last.change is ENDED, "it is not started again"
    assert {path.name for path in lab.files().directory.iterdir()} == {"exit.json", "forgotten", "lock", "log"}


async def test_a_kill_of_what_was_forgotten_leaves_nothing_new(lab: RunnerLab) -> None:
    """As the scheduler orders when a job is cancelled while it waits."""
    await lab.run_to_the_end(job_spec(lab.work, ("echo", "done")))
    async with lab.runner():
        await lab.ask(order(OrderAction.FORGET))
        kept = sorted(path.name for path in lab.files().log.parent.iterdir())
        assert (await lab.ask(order(OrderAction.KILL))).obeyed
        assert (await lab.ask(order(OrderAction.FORGET))).obeyed
        assert sorted(path.name for path in lab.files().log.parent.iterdir()) == kept
        assert lab.files().log.read_text() == "done\n"


async def test_logs_of_forgotten_workers_go_after_some_days(make_lab: Callable[..., RunnerLab]) -> None:
    lab = make_lab(log_days=0.0)
    await lab.listen()
    async with lab.runner() as runner:
        await lab.ask(run_order(job_spec(lab.work, ("true",))))
        await lab.until_change(ENDED)
        assert runner.workers is not None
        assert runner.workers.remove_old(time.time() + DAY_S) == 0, "no order has said that it is not needed"
        await lab.ask(order(OrderAction.FORGET))
        assert runner.workers.remove_old(time.time() + 1) == 1

    assert list((lab.state / NODE / "jobs").iterdir()) == []


async def test_what_nobody_says_to_forget_goes_after_a_month(lab: RunnerLab) -> None:
    await lab.listen()
    async with lab.runner() as runner:
        await lab.ask(run_order(job_spec(lab.work, ("true",))))
        await lab.until_change(ENDED)
        assert runner.workers is not None
        assert runner.workers.remove_old(time.time() + 29 * DAY_S) == 0
        assert runner.workers.remove_old(time.time() + 31 * DAY_S) == 1


async def test_a_part_of_a_gang_is_ordered_again(lab: RunnerLab) -> None:
    """The scheduler has heard of the first one's start, and of the second one's not."""
    asked = run_order(job_spec(lab.work, OBEDIENT, workers=2))
    await lab.listen()
    async with lab.runner():
        await lab.ask(asked)
        await lab.until_change(STARTED, rank=1)
        pid = started(lab.files(1)).pid
        reply = await lab.ask(asked.model_copy(update={"ranks": (1,)}))
        assert [(worker.rank, worker.pid) for worker in reply.workers] == [(1, pid)]
        await lab.ask(order(OrderAction.KILL, ranks=(0, 1)))
        await lab.until_change(UNSAVED, rank=1)


@pytest.mark.parametrize(
    "change",
    [
        {"spec": None},
        {"nodes": ("n2",)},
        {"nodes": (NODE, NODE)},
        {"ranks": (1,)},
        {"job": "another"},
    ],
)
async def test_an_order_that_contradicts_itself_is_refused(lab: RunnerLab, change: dict[str, object]) -> None:
    asked = run_order(job_spec(lab.work)).model_copy(update=change)
    async with lab.runner():
        reply = await lab.ask(asked)

    assert not reply.obeyed
    assert reply.reason


async def test_order_start_and_end_are_one_trace(lab: RunnerLab) -> None:
    with recorded_spans() as spans:
        await lab.run_to_the_end(job_spec(lab.work, ("sh", "-c", "exit 3")))
        ordered, ran = spans.named("runner.order"), spans.named("runner.worker")

    assert spans.parent_of(ran) is ordered
    assert ordered.attributes == {"turnbuckle.job": JOB, "turnbuckle.node": NODE, "turnbuckle.action": "run"}
    assert ran.attributes is not None
    assert ran.attributes["error.type"] == "failed"
    assert ran.start_time == started(lab.files()).time_ns


# -- logs --------------------------------------------------------------------------------------------------------------


async def test_a_log_is_read_in_parts(lab: RunnerLab) -> None:
    await lab.run_to_the_end(job_spec(lab.work, ("sh", "-c", "for i in 1 2 3 4; do echo line $i; done; echo äö")))
    async with lab.runner():
        last = await lab.log(WorkerLogRequest(job=JOB, lines=2))
        whole = await lab.log(WorkerLogRequest(job=JOB, attempt=1, offset=0))
        rest = await lab.log(WorkerLogRequest(job=JOB, offset=7))
        beyond = await lab.log(WorkerLogRequest(job=JOB, offset=10_000))

    assert (last.attempt, last.text, last.over) == (1, "line 4\näö\n", True)
    assert whole.text == "line 1\nline 2\nline 3\nline 4\näö\n"
    assert whole.next_offset == last.next_offset == len(whole.text.encode())
    assert rest.text == whole.text[7:]
    assert (beyond.text, beyond.next_offset) == ("", whole.next_offset)


async def test_a_log_stays_within_its_bound(make_lab: Callable[..., RunnerLab]) -> None:
    """10 MB are written; on the disk are at most 1 MB and what is written within a second."""
    lab = make_lab(log_bytes=1 << 20)
    code = "import time\nfor i in range(100):\n print('x' * 99_999)\n time.sleep(.01)\nprint('last', flush=True)"
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, python(code + "\ntime.sleep(3600)"))))
        await lab.until_log("last")
        status = lab.files().log.stat

        await until(lambda: status().st_blocks * 512 <= 1 << 20, what="a small log")
        reply = await lab.log(WorkerLogRequest(job=JOB, offset=0))
        tail = await lab.log(WorkerLogRequest(job=JOB, lines=1))
        await lab.ask(order(OrderAction.KILL))
        await lab.until_change(UNSAVED)

    assert reply.text.startswith(REMOVED)
    assert "\0" not in reply.text
    assert tail.text == "last\n"


# -- without the bus ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preemption", "change"),
    [(Preemption.CHECKPOINT, STOPPED), (Preemption.RESTART, UNSAVED), (Preemption.NEVER, None)],
)
async def test_the_fence(
    make_lab: Callable[..., RunnerLab], preemption: Preemption, change: WorkerChange | None
) -> None:
    """The runner is gone; a worker that may be preempted stops by itself, as its job may run elsewhere by now."""
    lab = make_lab(fence_after_s=FENCE_S)
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, OBEDIENT, preemption=preemption)))
        await lab.until_change(STARTED)
        await lab.until_log("at work")
        left_s = boot_s()
    if change is None:
        await until(lambda: boot_s() > left_s + FENCE_S + 2, what="the time for a fence, and two of its polls")
    else:
        await until((lab.files().directory / "exit.json").exists, what="its end")
        assert end_of(lab.files()).asked == "fence"
    async with lab.runner():
        if change is None:
            assert lives(started(lab.files()).pid)
            lab.files().write(StopRequest(0.0))
            change = UNSAVED
        event = await lab.until_change(change)
    assert (preemption is Preemption.NEVER) or event.reason.startswith("stopped after 10 s without the bus")
