"""`turnbuckle jobs` against a scheduler that answers as it is told, over a real server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from schemas.roles import Role
from schemas.scheduling import (
    IterationSample,
    IterationSource,
    JobAction,
    JobHistoryLine,
    JobPhase,
    JobShift,
    JobSpan,
    LinkScore,
    Preemption,
    TrafficPhase,
    TrafficProfile,
)
from schemas.subjects import ITERATIONS
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.cli.main import app
from tests.support.authority import make_ca
from tests.support.deadline import until
from tests.support.fake_scheduler import NOW_NS, RUNNING, FakeScheduler, queued
from tests.support.pseudo_terminal import PseudoTerminal
from tests.support.secured_nats import SecuredNats

TRAIN = "workers: 2\nrun: python train.py\n"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    """One for all: nothing here is stored, and a connection's services end with it."""
    made = EmbeddedNats()
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop())


@pytest.fixture
async def bus(server: EmbeddedNats) -> AsyncIterator[NatsBus]:
    connection = await NatsBus.connect(BusOptions(servers=(server.url,)))
    yield connection
    await connection.close(2.0)


@pytest.fixture
async def scheduler(bus: NatsBus) -> FakeScheduler:
    made = FakeScheduler(bus)
    await made.serve()
    return made


async def jobs(bus: NatsBus, *arguments: str, env: dict[str, str] | None = None) -> Result:
    """In a thread of this process."""
    words = ["jobs", arguments[0], "--server", str(bus.options.servers[0]), *arguments[1:]]
    done = await asyncio.to_thread(CliRunner().invoke, app, words, env={"COLUMNS": "300", **(env or {})})
    assert "Traceback" not in done.output
    return done


async def start(
    bus: NatsBus, *arguments: str, stdout: int = subprocess.PIPE, env: dict[str, str] | None = None
) -> asyncio.subprocess.Process:
    """In a process of its own, for what is interrupted."""
    words = ["jobs", arguments[0], "--server", str(bus.options.servers[0]), *arguments[1:]]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli", *words, stdout=stdout, stderr=subprocess.PIPE, env=env
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, (out or b"").decode(), err.decode()


def words(text: str) -> str:
    return " ".join(text.split())


# -- submit ---------------------------------------------------------------------------------------------------------


async def test_a_file_is_submitted_and_its_place_told(scheduler: FakeScheduler, bus: NatsBus, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(TRAIN + "preemption: checkpoint\n")
    scheduler.warnings = ("needs 16 slots, the cluster has 4: it will never start",)
    done = await jobs(bus, "submit", str(tmp_path / "train.yaml"), "--workers", "3")
    (request,) = scheduler.submitted
    name = done.stdout.strip()

    assert done.exit_code == 0, done.stderr
    assert request.spec.job == name
    assert name.startswith("train-")
    assert len(name) == len("train-abcd")
    assert (request.spec.workers, request.spec.command) == (3, ("/bin/sh", "-c", "python train.py"))
    assert request.by.endswith(os.uname().nodename)
    said = words(done.stderr)
    assert f"{name}: 3 workers, 3 slots; place 3 in the queue" in said
    assert "(in 1m00s)" in said
    assert "its end is not known; no estimate" in said
    assert "needs 2 slots, and 1 are left behind those before it" in said
    assert "warning: needs 16 slots, the cluster has 4: it will never start" in said
    assert "cannot be preempted" not in said


async def test_a_command_is_submitted_with_its_own_options(scheduler: FakeScheduler, bus: NatsBus) -> None:
    options = "--name mine --workers 2 --slots 1 --preemption restart --estimate 40m --retries 1 --memory 2GiB --cpu .5"
    variables = ["--env", "A=1=2", "--env", "FROM_SHELL", "--task", "digits", "--grace", "1m", "--directory", "/srv"]
    command = ["python", "train.py", "--workers", "9", "--", "-v"]
    done = await jobs(bus, "submit", *options.split(), *variables, "--", *command, env={"FROM_SHELL": "secret"})
    spec = scheduler.submitted[0].spec

    assert done.exit_code == 0, done.stderr
    assert list(spec.command) == command
    assert (spec.job, spec.workers, spec.preemption, spec.estimate_s) == ("mine", 2, Preemption.RESTART, 2_400)
    assert (spec.retries, spec.memory_bytes, spec.cpu_cores, spec.grace_s) == (1, 2 << 30, 0.5, 60)
    assert (spec.environment, spec.directory) == ({"A": "1=2", "FROM_SHELL": "secret"}, "/srv")
    assert spec.task is not None
    assert spec.task.task == "digits"


async def test_a_job_that_cannot_be_preempted_is_told_how_it_could(scheduler: FakeScheduler, bus: NatsBus) -> None:
    done = await jobs(bus, "submit", "--", "./train.sh")
    spec = scheduler.submitted[0].spec

    assert "cannot be preempted: `preemption:` is not set" in done.stderr
    assert "signal.signal(signal.SIGTERM" in done.stderr
    assert (spec.job[:6], spec.command, spec.directory) == ("train-", ("./train.sh",), str(Path.cwd()))

    asked = await jobs(bus, "submit", "--preemption", "never", "--", "./train.sh")

    assert "cannot be preempted" not in asked.stderr


async def test_the_answer_is_printed_as_json(scheduler: FakeScheduler, bus: NatsBus) -> None:
    done = await jobs(bus, "submit", "--name", "mine", "--json", "--", "true")
    reply = json.loads(done.stdout)

    assert (reply["job"]["job"], reply["waiting_before"]) == ("mine", 2)
    assert scheduler.submitted


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["{tmp}/none.yaml"], 66, "none.yaml cannot be read"),
        (["{tmp}/wrong.yaml"], 78, "wrong.yaml:2: unknown field 'wrokers': did you mean 'workers'?"),
        ([], 2, "give either a job's FILE, or its command after --"),
        (["{tmp}/train.yaml", "--", "true"], 2, "give either a job's FILE, or its command after --"),
        (["--"], 2, "give either a job's FILE, or its command after --"),
        (["--env", "NOT_THERE", "--", "true"], 2, "'NOT_THERE' is not NAME=VALUE, and no variable of this shell"),
        (["--estimate", "soon", "--", "true"], 2, "'soon' is no period"),
        (["--workers", "0", "--", "true"], 78, "the command line: workers: "),
        (["--memory", "much", "--", "true"], 78, "the command line: memory: "),
        (["--name", "try", "--", "true"], 1, "there is a job 'try' already: choose another --name"),
    ],
)
async def test_what_cannot_be_submitted_is_told(
    scheduler: FakeScheduler, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    (tmp_path / "train.yaml").write_text(TRAIN)
    (tmp_path / "wrong.yaml").write_text("run: x\nwrokers: 2\n")
    done = await jobs(scheduler.bus, "submit", *(argument.format(tmp=tmp_path) for argument in arguments))

    assert done.exit_code == code, done.output
    assert said in words(done.stderr.replace("│", " "))
    assert scheduler.submitted == []


# -- submit --wait --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "code", "said"),
    [
        (JobPhase.ENDED, 0, "ended"),
        (JobPhase.FAILED, 1, "error: mine failed: worker 1 exited with 3"),
        (JobPhase.CANCELLED, 1, "error: mine was cancelled: worker 1 exited with 3"),
    ],
)
async def test_a_job_is_followed_to_its_end(
    scheduler: FakeScheduler, bus: NatsBus, phase: JobPhase, code: int, said: str
) -> None:
    running = asyncio.create_task(
        jobs(bus, "submit", "--name", "mine", "--preemption", "never", "--wait", "--", "true")
    )
    await until(lambda: "mine" in scheduler.jobs, within_s=60, what="the submission")
    scheduler.history.append(JobHistoryLine(time_ns=NOW_NS + 9, sequence=9, what=str(phase), why="it says so"))
    scheduler.jobs["mine"] = queued("mine", phase, why="worker 1 exited with 3")
    done = await running

    assert done.exit_code == code, done.output
    assert said in words(done.stderr)
    assert f"#9 {phase}: it says so" in done.stderr
    assert done.stderr.count("#7 submitted") == 1


async def test_an_interrupt_leaves_the_job_running_and_says_so(scheduler: FakeScheduler, bus: NatsBus) -> None:
    process = await start(bus, "submit", "--name", "mine", "--preemption", "never", "--wait", "--", "true")
    assert process.stderr is not None
    first = b""
    while b"#8 started" not in first:
        first += await asyncio.wait_for(process.stderr.readline(), 60)
    process.send_signal(signal.SIGINT)
    code, _, err = await ended(process)

    assert code == 130
    assert "mine goes on without this command: `turnbuckle jobs cancel mine` ends it" in err
    assert scheduler.controlled == []


# -- queue, top, nodes, explain --------------------------------------------------------------------------------------


async def test_the_queue_says_who_runs_where_and_why_others_wait(scheduler: FakeScheduler, bus: NatsBus) -> None:
    done = await jobs(bus, "queue")
    head, columns, *rows = done.stdout.splitlines()

    assert scheduler.jobs
    assert head == ("4 slots, 2 taken; policy index; leader s1; 1 of 2 jobs have an estimate; n2 drained")
    assert columns.split()[:4] == ["job", "state", "slots", "on"]
    running, waiting, failed = [words(row) for row in rows]
    assert running.startswith("try running 2 n1 n2 4m10s 0s 1m50s (50s-3m50s) ends ")
    assert running.endswith("runs: 4 slots were left at its turn")
    assert (
        waiting
        == "big waiting 16 - 0s 30m00s not known not known needs 16 slots, and the cluster has 4: it will never start"
    )
    assert failed.startswith("bad failed 2 - 0s 0s - failed ")


async def test_the_queue_without_jobs_says_how_to_submit_one(bus: NatsBus) -> None:
    scheduler = FakeScheduler(bus, nodes=())
    await scheduler.serve()
    scheduler.jobs.clear()
    done = await jobs(bus, "queue")

    assert "turnbuckle jobs submit --workers 2 -- python train.py" in words(done.stdout)
    assert "no node yet: `turnbuckle run runner` on each host adds one" in words(done.stdout)
    assert "no node yet" in words((await jobs(bus, "nodes")).stdout)


@pytest.mark.parametrize("command", ["queue", "top --once", "explain try"])
async def test_json_is_the_schedulers_own_answer(scheduler: FakeScheduler, bus: NatsBus, command: str) -> None:
    done = await jobs(bus, *command.split(), "--json")
    found = json.loads(done.stdout)
    job = found["jobs"][0] if "jobs" in found else found["job"]

    assert scheduler.jobs
    assert (job["job"], job["phase"], job["estimate"]["median_s"]) == ("try", "running", 360)


async def test_top_shows_who_holds_the_slots_of_each_node(scheduler: FakeScheduler, bus: NatsBus) -> None:
    done = await jobs(bus, "top", "--once")
    lines = [words(line) for line in done.stdout.splitlines()]

    assert scheduler.jobs
    assert "n1 █░ try 1 ready" in lines
    assert "n2 █░ try 1 drained" in lines


async def test_top_shows_shared_links_and_the_latest_iterations(scheduler: FakeScheduler, bus: NatsBus) -> None:
    profile = TrafficProfile(
        job="try",
        attempt=1,
        period_ms=1_240,
        phases=(TrafficPhase(begin_ms=0, end_ms=540, bits_per_s=100_000_000),),
        sent_bytes=6_750_000,
        congestion_control="reno",
    )
    shift = JobShift(job="try", attempt=1, period_ms=1_240, shift_ms=541)
    scheduler.jobs["try"] = RUNNING.model_copy(
        update={"traffic": profile, "shift": shift, "congestion_control": "reno"}
    )
    scheduler.links = (
        LinkScore(link="up-1", bits_per_s=10**8, jobs=("try", "x"), unshifted=0.565, score=0.98),
        LinkScore(
            link="up-2", bits_per_s=25 * 10**9, jobs=("try", "y"), unshifted=0.8, score=0.8, why="y is not known"
        ),
    )
    lines = [words(line) for line in (await jobs(bus, "top", "--once")).stdout.splitlines()]

    assert "up-1 100Mbit 0.56 0.98 try x" in lines
    assert "up-2 25Gbit 0.80 - try y y is not known" in lines
    assert "try 1.24 s 540 ms 6.44 MiB 541/1240 ms - - reno" in lines
    assert "1.24 s 0.80 runs: 4 slots were left" in next(line for line in lines if line.startswith("try running"))
    explained = words((await jobs(bus, "explain", "try")).stdout)
    assert (
        "an iteration takes 1.24 s and sends 6.44 MiB by reno in 540 ms of it; shifted by 541 of 1240 ms" in explained
    )

    process = await start(bus, "top", "--json")
    assert process.stdout is not None
    sample = IterationSample(
        job="try",
        attempt=1,
        rank=0,
        node="n1",
        time_ns=1,
        period_us=1_300_000,
        sending_us=600_000,
        sent_bytes=6_750_000,
        source=IterationSource.SOCKETS,
        phase_error_us=-20_000,
    )
    async with asyncio.timeout(60):
        while not (told := json.loads(await process.stdout.readline()))["iterations"]:
            bus.publish(ITERATIONS.subject(bus.root, job="try", node="n1"), sample)
    process.send_signal(signal.SIGINT)
    code, _, err = await ended(process)

    assert (code, err) == (0, "")
    assert told["iterations"]["try"]["phase_error_us"] == -20_000
    assert told["links"][0]["score"] == 0.98


@pytest.mark.parametrize("arguments", [("top",), ("queue", "--watch")])
async def test_a_live_view_without_a_terminal_prints_until_it_is_interrupted(
    scheduler: FakeScheduler, bus: NatsBus, arguments: tuple[str, ...]
) -> None:
    process = await start(bus, *arguments)
    assert process.stdout is not None
    printed = b""
    while printed.count(b"policy index") < 2:
        printed += await asyncio.wait_for(process.stdout.readline(), 60)
    process.send_signal(signal.SIGINT)
    code, _, err = await ended(process)

    assert scheduler.jobs
    assert (code, err) == (0, "")


async def test_a_live_view_on_a_terminal_leaves_behind_how_the_jobs_stand_at_its_end(
    scheduler: FakeScheduler, bus: NatsBus
) -> None:
    with PseudoTerminal.opened() as terminal:
        process = await start(bus, "top", stdout=terminal.file.fileno(), env=os.environ | {"TERM": "xterm"})
        await until(lambda: "bad" in terminal.text(), what="the first picture")
        scheduler.jobs["try"] = queued("try", JobPhase.ENDED, ended_ns=NOW_NS)
        process.send_signal(signal.SIGINT)
        code, _, err = await ended(process)
        left_behind = terminal.left_behind()

    assert (code, err) == (0, "")
    assert "policy index" in left_behind
    assert "ended" in next(line for line in left_behind.splitlines() if line.startswith("try"))


async def test_nodes_are_listed_with_what_they_have(scheduler: FakeScheduler, bus: NatsBus) -> None:
    done = await jobs(bus, "nodes")
    rows = [words(line) for line in done.stdout.splitlines()]

    assert scheduler.nodes
    assert rows[1] == "n1 ready 2 1 0 0.50 1 GiB r1 127.0.0.1 try"
    assert rows[2] == "n2 drained 2 1 0 0.50 1 GiB - - try"

    found = json.loads((await jobs(bus, "nodes", "--json")).stdout)

    assert [(node["node"], node["jobs"]) for node in found] == [("n1", {"try": 1}), ("n2", {"try": 1})]


async def test_explain_has_the_numbers_and_hides_values_of_variables(scheduler: FakeScheduler, bus: NatsBus) -> None:
    done = await jobs(bus, "explain", "try")
    said = words(done.stdout)

    assert scheduler.jobs
    assert said.startswith("try: running on n1 n2, attempt 1; ends ")
    assert "python train.py with KEY in /srv" in said
    assert "***" not in said
    assert "2 workers of 1 slot; saves its state when it is preempted, and goes on later" in said
    assert "estimated 6m00s (5m00s-8m00s) by the advisor; 4m10s so far, 1m50s (50s-3m50s) left" in said
    assert "#7 submitted: by ann@gpu-01" in said
    assert (
        "#8 started: on n1 n2; 4 slots were left; turn 3 of the order; 4 slots free then; index 0.77 per slot-hour; "
        "had 1m30s of one slot" in said
    )


@pytest.mark.parametrize(("ran_s", "where"), [(200, "below"), (400, "inside of"), (500, "above")])
async def test_explain_compares_estimate_and_truth(
    scheduler: FakeScheduler, bus: NatsBus, ran_s: float, where: str
) -> None:
    scheduler.jobs["try"] = RUNNING.model_copy(update={"phase": JobPhase.ENDED, "ran_s": ran_s, "nodes": ()})

    assert f"{where} the interval" in words((await jobs(bus, "explain", "try")).stdout)


# -- control --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("preempt", "try", "--for", "10m"), {"job": "try", "action": JobAction.PREEMPT, "for_s": 600.0}),
        (("release", "try"), {"job": "try", "action": JobAction.RELEASE}),
        (("cancel", "try"), {"job": "try", "action": JobAction.CANCEL}),
        (("drain", "n1"), {"drain": "n1"}),
        (("undrain", "n1"), {"undrain": "n1"}),
    ],
)
async def test_a_request_reaches_the_scheduler(
    scheduler: FakeScheduler, bus: NatsBus, arguments: tuple[str, ...], expected: dict[str, Any]
) -> None:
    done = await jobs(bus, *arguments)
    (request,) = scheduler.controlled

    assert (done.exit_code, done.stdout) == (0, "")
    assert f"{arguments[1]}: as asked" in done.stderr
    assert request.model_dump(exclude_defaults=True, exclude={"by"}) == expected
    assert request.by

    found = json.loads((await jobs(bus, *arguments, "--json")).stdout)

    assert (found["action"], found["done"]) == (arguments[0], f"{arguments[1]}: as asked")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("preempt", "none"), 1, "no job 'none'"),
        (("preempt", "try", "--for", "long"), 2, "'long' is no period"),
        (("release", "none"), 1, "no job 'none'"),
        (("cancel", "No!"), 2, "'No!' is no job's name"),
        (("explain", "none"), 1, "no job 'none'"),
        (("logs", "none"), 1, "no job 'none'"),
        (("drain", "n9"), 1, "no node 'n9'"),
        (("undrain", "n9"), 1, "no node 'n9'"),
    ],
)
async def test_an_unknown_job_or_node_is_told(
    scheduler: FakeScheduler, bus: NatsBus, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = await jobs(bus, *arguments)

    assert scheduler.controlled == []
    assert done.exit_code == code
    assert said in words(done.stderr.replace("│", " "))


@pytest.mark.parametrize(
    "command",
    ["submit -- true", "queue", "top --once", "explain a", "logs a", "preempt a", "release a", "cancel a", "nodes"],
)
async def test_without_a_scheduler_each_command_says_how_to_start_one(bus: NatsBus, command: str) -> None:
    done = await jobs(bus, *command.split())

    assert done.exit_code == 69
    assert "no scheduler answers: `turnbuckle run scheduler` starts one, `turnbuckle up --cluster 4x2`" in words(
        done.stderr
    )


async def test_an_observer_may_read_the_queue_and_run_nothing(tmp_path: Path) -> None:
    async with SecuredNats(tmp_path / "secrets", tls=make_ca(tmp_path / "tls", "127.0.0.1")) as server:
        await server.declare()
        bus = await NatsBus.connect(server.options(Role.SCHEDULER))
        scheduler = FakeScheduler(bus)
        await scheduler.serve_queries()
        for command in ("submit -- true", "cancel try", "drain n1"):
            words_typed = ["jobs", *command.split()]
            done = await asyncio.to_thread(CliRunner().invoke, app, words_typed, env=server.environment(Role.OBSERVER))

            assert done.exit_code == 77, done.output
            assert "this needs the operator's key" in words(done.stderr)
        for role in (Role.OBSERVER, Role.OPERATOR):
            done = await asyncio.to_thread(CliRunner().invoke, app, ["jobs", "queue"], env=server.environment(role))

            assert done.exit_code == 0, done.output
            assert "policy index" in done.stdout
        assert (scheduler.submitted, scheduler.controlled) == ([], [])
        await bus.close(2.0)


# -- logs -----------------------------------------------------------------------------------------------------------


async def test_logs_of_all_workers_are_prefixed_and_of_one_are_not(scheduler: FakeScheduler, bus: NatsBus) -> None:
    await scheduler.serve_logs_of("n2")
    scheduler.logs = {(1, 0): "a\nb\nc\n", (1, 1): "d\nno end"}

    assert (await jobs(bus, "logs", "try", "-n", "2")).stdout == "0| b\n0| c\n1| d\n1| no end\n"
    assert (await jobs(bus, "logs", "try", "--worker", "1")).stdout == "d\nno end\n"

    lines = (await jobs(bus, "logs", "try", "--json")).stdout.splitlines()

    assert json.loads(lines[-1]) == {"worker": 1, "attempt": 1, "line": "no end"}


async def test_a_job_that_could_not_be_started_has_no_log_but_a_reason(scheduler: FakeScheduler, bus: NatsBus) -> None:
    span = JobSpan(attempt=1, begin_ns=NOW_NS - 10**9, end_ns=NOW_NS, nodes=("n1",))
    scheduler.jobs["bad"] = queued("bad", JobPhase.FAILED, workers=1, spans=(span,), why="worker 0 on n1: no such file")
    scheduler.logs = {(1, 0): ""}
    done = await jobs(bus, "logs", "bad")

    assert (done.exit_code, done.stdout) == (0, "")
    assert "bad wrote nothing: worker 0 on n1: no such file" in words(done.stderr)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("try", "--worker", "2"), "try has no worker 2: its workers are 0 to 1"),
        (("try", "--attempt", "3"), "try has no attempt 3: known are 1"),
        (("big",), "big was not started yet (waiting): -f waits for it"),
        (("try", "--worker", "0"), "no log of worker 0 in attempt 1"),
    ],
)
async def test_logs_that_are_not_there_are_told(
    scheduler: FakeScheduler, bus: NatsBus, arguments: tuple[str, ...], said: str
) -> None:
    done = await jobs(bus, "logs", *arguments)

    assert scheduler.logs == {}
    assert done.exit_code == 1
    assert said in words(done.stderr)


async def test_a_node_without_a_runner_is_named(scheduler: FakeScheduler, bus: NatsBus) -> None:
    scheduler.logs = {(1, 0): "a\n", (1, 1): "b\n"}
    done = await jobs(bus, "logs", "try")

    assert done.exit_code == 69
    assert done.stdout == "0| a\n"
    assert "no runner of n2 answers: `turnbuckle run runner` on that host starts one" in words(done.stderr)


async def test_logs_are_followed_over_attempts_until_the_end(scheduler: FakeScheduler, bus: NatsBus) -> None:
    scheduler.logs, scheduler.running = {(1, 0): "one\n"}, {1}
    process = await start(bus, "logs", "try", "-f", "--worker", "0")
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"one\n"

    scheduler.logs[1, 0] += "two\nthr"

    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"two\n"

    scheduler.logs[1, 0] += "ee\n"
    scheduler.running = {2}
    span = JobSpan(attempt=2, begin_ns=NOW_NS, nodes=("n2", "n1"))
    await scheduler.serve_logs_of("n2")
    scheduler.logs[2, 0] = "four\n"
    scheduler.jobs["try"] = RUNNING.model_copy(update={"attempt": 2, "spans": (*RUNNING.spans, span)})

    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"three\n"
    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"four\n"

    scheduler.logs[2, 0] += "last"
    scheduler.jobs["try"] = scheduler.jobs["try"].model_copy(update={"phase": JobPhase.ENDED, "nodes": ()})
    code, out, err = await ended(process)

    assert (code, out) == (0, "last\n")
    assert "attempt 2 on n2 n1" in err


async def test_logs_are_followed_although_the_runner_does_not_know_the_worker_yet(
    scheduler: FakeScheduler, bus: NatsBus
) -> None:
    """It is ordered a moment after the decision."""
    process = await start(bus, "logs", "try", "-f", "--worker", "0")
    await until(lambda: scheduler.logs_asked >= 2, what="the runner is asked again")
    scheduler.logs[1, 0] = "one\n"
    scheduler.jobs["try"] = RUNNING.model_copy(update={"phase": JobPhase.ENDED, "nodes": ()})
    code, out, _ = await ended(process)

    assert (code, out) == (0, "one\n")


# -- completion -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("jobs explain ", {"try", "big", "bad"}),
        ("jobs cancel ", {"try", "big"}),
        ("jobs logs t", {"try"}),
        ("jobs drain ", {"n1", "n2"}),
        ("jobs undrain n2", {"n2"}),
    ],
)
async def test_names_are_completed_from_the_bus(
    scheduler: FakeScheduler, bus: NatsBus, typed: str, offered: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.scheduler.commands.asking._COMPLETION_S", 60.0)  # else a shell waits for a second
    found = await completed(typed, str(bus.options.servers[0]))

    assert scheduler.jobs
    assert found == offered


async def test_without_a_scheduler_nothing_is_offered(bus: NatsBus) -> None:
    assert await completed("jobs explain ", str(bus.options.servers[0])) == set()


async def completed(typed: str, server: str) -> set[str]:
    line = f"turnbuckle {typed}"
    asked = {"_TURNBUCKLE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = await asyncio.to_thread(
        CliRunner().invoke, app, [], env=asked | {"NATS_URL": server}, prog_name="turnbuckle"
    )
    assert done.stderr == ""
    return set(done.stdout.split())
