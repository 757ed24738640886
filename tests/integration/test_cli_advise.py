"""`turnbuckle advise` and `turnbuckle jobs` against a real NATS server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from schemas.jobs import JobRecord
from schemas.message import Message
from schemas.predictions import ModelName, RankRequest
from schemas.runs import RunEnd
from schemas.services.advisor import ADVISOR_RANK
from schemas.subjects import JOB_RECORDS
from services._jobs.record_files import write_job_file
from services._runtime.bus.api import Delivery, RequestRefusedError
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.advisor.core.answers import ModelContext, rank
from services.advisor.core.catalogue import listing
from services.advisor.core.questions import BadQuestionError
from services.advisor.records import Records
from services.cli.main import app
from tests.support.fake_model import FakeModel
from tests.support.training_jobs import profile, records

MODEL = ModelName(model="fake", version="fake-1", data_hash="h", records=9, tasks=3, trained_ns=1)
JOB = "name: mine\ntask: {task: a, parameter_count: 5000}\nworkers: [1, 2, 4]\nbatch_sizes: [16, 64]\n"


@pytest.fixture
async def bus() -> AsyncIterator[NatsBus]:
    async with EmbeddedNats() as server:
        connection = await NatsBus.connect(BusOptions(servers=(server.url,)))
        yield connection
        await connection.close(2.0)


@pytest.fixture
async def asked(bus: NatsBus) -> list[RankRequest]:
    """What an advisor with a plain law was asked; it answers for real."""
    held = Records()
    for record in records(("a", "b")):
        assert held.add(record) is None
    first = records(("a",))[0]
    rented = first.configuration.model_copy(update={"provider": "gcp", "instance_type": "rented"})
    unpriced = {"job": "rented", "configuration": rented, "price": None}
    assert held.add(first.model_copy(update=unpriced)) is None
    assert held.add_run(profile("a")) is None
    advice = ModelContext(FakeModel(), MODEL, listing((), (), None, held.jobs.values()), held.measured())
    requests: list[RankRequest] = []

    async def answer(delivery: Delivery) -> Message:
        assert isinstance(delivery.message, RankRequest)
        requests.append(delivery.message)
        if delivery.message.task.task == "untrained":
            raise RequestRefusedError(503, "the first model is being trained on 9 records (3 s so far): retry")
        try:
            return rank(delivery.message, advice)
        except BadQuestionError as error:
            raise RequestRefusedError(400, str(error)) from error

    await bus.serve_queries("advisor", "0.1.0", "for tests", {ADVISOR_RANK: answer})
    await bus.flush(60)
    return requests


async def turnbuckle(bus: NatsBus, *arguments: str) -> tuple[int, str, str]:
    """In a thread of this process: a tenth of a second instead of a whole one."""
    done = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--server", bus.options.servers[0]])
    return done.exit_code, done.stdout, done.stderr


def job(tmp_path: Path, text: str = JOB) -> str:
    (tmp_path / "job.yaml").write_text(text)
    return str(tmp_path / "job.yaml")


async def test_a_ranked_answer_in_every_form(bus: NatsBus, asked: list[RankRequest], tmp_path: Path) -> None:
    """On the terminal, as JSON, as a picture."""
    front = tmp_path / "front.png"

    shown = await turnbuckle(bus, "advise", job(tmp_path), "--plot", str(front))
    as_json = await turnbuckle(bus, "advise", job(tmp_path), "--json", "--objective", "time", "--top", "2")

    assert shown[0] == as_json[0] == 0, shown[2] + as_json[2]
    assert "24 configurations, smallest cost first" in shown[1]
    assert front.read_bytes().startswith(b"\x89PNG")
    answer = json.loads(as_json[1])
    # the fastest: 4 large machines, 3600 s / (4 x 4) = 225 s
    assert answer["ranked"][0]["time_s"]["median"] == 225.0
    assert len(answer["ranked"]) == 2
    assert asked[0].job == "mine"


async def test_options_reach_the_advisor(bus: NatsBus, asked: list[RankRequest], tmp_path: Path) -> None:
    """Budget in dollars, deadline in hours, the local run by name."""
    code, _, err = await turnbuckle(
        bus,
        "advise",
        job(tmp_path),
        "--budget",
        "3",
        "--deadline",
        "0.5",
        "--spot",
        "--profile",
        "run-a",
        "--prices",
        "gcp-gce",
    )

    assert code == 0, err
    assert (asked[0].budget_usd, asked[0].deadline_s, asked[0].spot, asked[0].run) == (3.0, 1800.0, True, "run-a")
    assert asked[0].price_sources == ("gcp-gce",)


async def test_nothing_can_be_recommended(bus: NatsBus, asked: list[RankRequest], tmp_path: Path) -> None:
    """Exit code 1, "not known" on the terminal; JSON is printed all the same."""
    path = job(tmp_path, JOB.replace("[1, 2, 4]", "[64]"))

    shown = await turnbuckle(bus, "advise", path)
    as_json = await turnbuckle(bus, "advise", path, "--json")

    assert shown[0] == as_json[0] == 1
    assert "not known: nothing can be recommended" in shown[1]
    assert json.loads(as_json[1])["ranked"] == []


async def test_a_skypilot_task_needs_machines_to_rent(bus: NatsBus, asked: list[RankRequest], tmp_path: Path) -> None:
    """Emulated ones are none; described ones of a cloud are."""
    out = tmp_path / "task.yaml"
    machine = "{instance_type: big, provider: gcp, workers: 2, vcpu: 8, memory_gb: 32}"
    cloud = f"{JOB}configurations: [{machine}]\nobjective: time\n"

    refused = await turnbuckle(bus, "advise", job(tmp_path), "--skypilot", str(out))
    written = await turnbuckle(bus, "advise", job(tmp_path, cloud), "--skypilot", str(out))

    assert refused[0] == 1
    assert "cannot rent machines of emulated" in refused[2]
    assert written[0] == 0, written[2]
    assert yaml.safe_load(out.read_text())["resources"]["instance_type"] == "big"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("task: {task: mystery}\n", (1, "nothing is known of the task 'mystery'")),
        ("task: a\nconfigurations: [{instance_type: larg, workers: 1}]\n", (1, "did you mean 'large'?")),
        ("task: {task: untrained, epochs: 1}\n", (69, "is being trained")),
        ("task: a\nbudget_usd: -4\n", (78, "greater than 0")),
        ("task: a\nprofile: run-x\n", (1, "no local run 'run-x' is known")),
    ],
)
async def test_bad_questions(
    bus: NatsBus, asked: list[RankRequest], tmp_path: Path, text: str, expected: tuple[int, str]
) -> None:
    """A sentence and an exit code each, never a traceback."""
    code, words = expected

    found, _, err = await turnbuckle(bus, "advise", job(tmp_path, text))

    assert (found, words in " ".join(err.split())) == (code, True), err


async def test_a_profile_of_three_seconds(bus: NatsBus, asked: list[RankRequest], tmp_path: Path) -> None:
    """As a file: read here, refused by the advisor."""
    short = profile("a", samples=3).model_copy(update={"end": RunEnd.TIMED_OUT})
    (tmp_path / "run.json").write_text(short.model_dump_json())

    code, _, err = await turnbuckle(bus, "advise", job(tmp_path), "--profile", str(tmp_path / "run.json"))

    assert code == 1
    assert "lasted 3 s: at least 5 s are needed" in " ".join(err.split())


@pytest.mark.parametrize("option", [("--budget", "-1"), ("--budget", "nan"), ("--deadline", "0"), ("--top", "0")])
async def test_bad_options(bus: NatsBus, tmp_path: Path, option: tuple[str, str]) -> None:
    """Are named, with exit code 2."""
    code, _, err = await turnbuckle(bus, "advise", job(tmp_path), *option)

    assert code == 2
    assert option[0] in err


async def test_nobody_answers(bus: NatsBus, tmp_path: Path) -> None:
    """Says how to start an advisor; without a file, what to name."""
    nobody = await turnbuckle(bus, "advise", job(tmp_path))
    nothing = await turnbuckle(bus, "advise")

    assert nobody[0] == 69
    assert "no advisor answers" in nobody[2]
    assert nothing[0] == 2


# -- jobs ----------------------------------------------------------------------------------------------------------


async def publish(bus: NatsBus, found: list[JobRecord]) -> None:
    for record in found:
        bus.publish_event(JOB_RECORDS.subject(bus.root, job=record.job), record, message_id=record.job)
    await bus.flush(60)


async def test_without_a_record_jobs_list_says_who_keeps_them_and_where_live_jobs_are(bus: NatsBus) -> None:
    code, _, said = await turnbuckle(bus, "jobs", "list")

    assert code == 0
    assert "turnbuckle run collector keeps the scheduler's" in " ".join(said.split())
    assert "turnbuckle jobs queue" in " ".join(said.split())


async def test_jobs_are_listed_and_shown(bus: NatsBus) -> None:
    """By task, one by one, filtered, as JSON; one with all its fields."""
    await publish(bus, records(("a", "b.c")))

    by_task = await turnbuckle(bus, "jobs", "list")
    failed = await turnbuckle(bus, "jobs", "list", "--state", "out_of_memory", "--task", "b.c", "--json")
    every = await turnbuckle(bus, "jobs", "list", "--all", "--dataset", "made-up")
    none = await turnbuckle(bus, "jobs", "list", "--task", "z")
    one = await turnbuckle(bus, "jobs", "show", "b.c-large-2-64")
    as_json = await turnbuckle(bus, "jobs", "show", "b.c-large-2-64", "--json")
    gone = await turnbuckle(bus, "jobs", "show", "gone")
    nameless = await turnbuckle(bus, "jobs", "show", "")

    assert [line.split()[:4] for line in by_task[1].splitlines()[1:]] == [
        ["made-up", "a", "24", "21"],
        ["made-up", "b.c", "24", "21"],
    ]
    assert {record["job"] for record in json.loads(failed[1])} == {f"b.c-small-{n}-64" for n in (1, 2, 4)}
    assert len(every[1].splitlines()) == 49
    assert "no such job (48 are known)" in none[2]
    assert ["configuration.instance_type", "large"] in [line.split() for line in one[1].splitlines()]
    assert nameless[0] == 1
    assert json.loads(as_json[1])["configuration"]["workers"] == 2
    assert gone[0] == 1
    assert "no job 'gone' is known" in gone[2]


async def test_no_jobs_at_all(bus: NatsBus) -> None:
    """Says how to get some."""
    code, out, err = await turnbuckle(bus, "jobs", "list")

    assert (code, out) == (0, "")
    assert "turnbuckle jobs import" in err


# -- the example ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server and an advisor of its own, a task left out, and the answer beside what was measured."""
    path = tmp_path / "made.parquet"
    tasks = [f"task{number}" for number in range(4)]
    write_job_file(path, records(tasks), [profile(task) for task in tasks])
    monkeypatch.setattr("services.cli.advise.example.shipped_file", lambda: path)

    done = CliRunner().invoke(app, ["advise", "--example", "--task", "task2", "--json"])

    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["model"]["tasks"] == 3
    assert answer["considered"] == 24
    assert answer["measured"]["task"] == "task2"
    assert len(answer["measured"]["time_s"]) == 21


def test_the_example_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that says what to do; a task that is not there is named with those that are."""
    monkeypatch.setattr("services.cli.advise.example.shipped_dataset", lambda: None)
    nothing = CliRunner().invoke(app, ["advise", "--example"])
    path = tmp_path / "made.parquet"
    write_job_file(path, records(("a",)), [profile("a")])
    monkeypatch.setattr("services.cli.advise.example.shipped_file", lambda: path)
    unknown = CliRunner().invoke(app, ["advise", "--example", "--task", "b"])

    assert nothing.exit_code == unknown.exit_code == 78
    assert "ships no data set" in nothing.stderr
    assert "no task 'b'" in unknown.stderr


async def test_own_jobs_are_simulated(bus: NatsBus) -> None:
    """Those that began in the time, a slot for each worker; what tells no start or duration is left out and counted."""
    day_ns, now_ns = 86_400 * 10**9, time.time_ns()
    long, short, old, untold = records(("a",))[:4]
    configuration = long.configuration.model_copy(update={"workers": 2})
    mine = [
        each.model_copy(
            update={"started_ns": now_ns - age * day_ns, "duration_s": duration_s} | {"configuration": configuration}
        )
        for each, age, duration_s in ((long, 2, 5_000.0), (short, 2, 60.0), (old, 40, 60.0))
    ]
    await publish(bus, [*mine, untold.model_copy(update={"started_ns": 0})])

    code, out, err = await turnbuckle(
        bus, "jobs", "simulate", "--history", "30d", "--slots", "2", "--policy", "fifo,srsf", "--json"
    )
    fifo, srsf = json.loads(out)

    assert code == 0, err
    assert "1 records tell no start or duration" in err
    assert (fifo["jobs"], srsf["jobs"]) == (2, 2)
    assert srsf["mean_jct_s"] <= fifo["mean_jct_s"]


async def test_where_no_own_job_is_known_that_is_said(bus: NatsBus) -> None:
    await publish(bus, [])
    code, _, err = await turnbuckle(bus, "jobs", "simulate", "--history", "12h", "--slots", "2")
    assert code == 1
    assert "no job began within 12h" in err

    code, _, err = await turnbuckle(bus, "jobs", "simulate", "--history", "a month", "--slots", "2")
    assert code == 2
    assert "is not a number of days or hours" in " ".join(err.split())
