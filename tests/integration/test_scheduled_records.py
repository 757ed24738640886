"""From a job that has ended to the estimate of the next one: services as processes, a real nats-server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas.jobs import JobRecord, JobState, TaskFeatures
from schemas.predictions import PredictReply, PredictRequest
from schemas.scheduling import (
    EstimateSource,
    JobEnded,
    JobSpec,
    QueueReply,
    QueueRequest,
    ScheduleEvent,
    SubmitReply,
    SubmitRequest,
    task_of,
)
from schemas.services.advisor import ADVISOR_PREDICT
from schemas.services.scheduler import SCHEDULER_QUEUE, SCHEDULER_SUBMIT
from schemas.streams import JOB_STREAM
from schemas.subjects import JOB_RECORDS, RUN_PROFILES
from services._runtime.bus.api import BusError, RequestRefusedError
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.options import BusOptions
from services.collector.write_ahead_log import read_journal
from tests.support.asking import ask_until_answered
from tests.support.deadline import until
from tests.support.scheduled_jobs import (
    BEGAN_NS,
    SECOND_NS,
    cluster_node,
    ending,
    job_ended,
    job_spec,
    store,
    submission,
)
from tests.support.training_jobs import features, profile

ROOT = Path(__file__).resolve().parents[2]
WORKERS = (1, 2, 4)
TASKS = ("task1", "task2", "task3")
pytestmark = [pytest.mark.host, pytest.mark.slow, pytest.mark.timeout(300)]
"""Three services or four for each test, and every process loads its libraries: 2-10 s."""


class Lab:
    """A server, and services that come and go."""

    def __init__(self, directory: Path, server: EmbeddedNats) -> None:
        self.directory = directory
        self.server = server
        self.processes: list[subprocess.Popen[bytes]] = []
        self.bus: NatsBus

    def start(self, service: str, **settings: str) -> subprocess.Popen[bytes]:
        """A process of a service."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBUCKLE_", "NATS_"))}
        given = {f"TURNBUCKLE_{service.upper()}__{name}": value for name, value in settings.items()}
        environment = kept | {"NATS_URL": self.server.url, "XDG_CONFIG_HOME": "/nonexistent"} | given
        with (self.directory / f"{service}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"services.{service}"], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def collector(self) -> subprocess.Popen[bytes]:
        """Its journal is the same one at every start."""
        return self.start("collector", DIRECTORY=str(self.journal))

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    @property
    def journalled(self) -> int:
        """Records in the journal."""
        return len(list(read_journal(self.journal))) if (self.journal / "records.jsonl").exists() else 0

    async def stored(self) -> list[JobRecord]:
        """What the bus holds."""
        found: list[Any] = []
        pattern = JOB_RECORDS.pattern(self.bus.root)
        await read_stored(self.bus, JOB_STREAM, pattern, 0.0, lambda delivery: found.append(delivery.message))
        return found

    async def until_stored(self, count: int) -> list[JobRecord]:
        """Wait for so many records."""
        deadline = time.monotonic() + 150
        while len(found := await self.stored()) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records are stored"
            await asyncio.sleep(0.05)
        return found

    async def until_slots(self, count: int) -> None:
        """Wait for the cluster's slots."""
        deadline = time.monotonic() + 60
        while True:
            reply = await ask_until_answered(self.bus, SCHEDULER_QUEUE, QueueRequest())
            assert isinstance(reply, QueueReply)
            if reply.slots == count:
                return
            assert time.monotonic() < deadline, f"{reply.slots} of {count} slots are there"
            await asyncio.sleep(0.1)

    async def submit(self, spec: JobSpec) -> SubmitReply:
        """Submit a job."""
        reply = await ask_until_answered(self.bus, SCHEDULER_SUBMIT, SubmitRequest(spec=spec))
        assert isinstance(reply, SubmitReply)
        return reply

    async def predict(self, request: PredictRequest) -> PredictReply:
        """Ask the advisor, again while it has no model."""
        deadline = time.monotonic() + 150
        subject = ADVISOR_PREDICT.template.subject(self.bus.root)
        while True:
            try:
                reply = await self.bus.request(subject, request, timeout_s=10)
            except BusError as error:
                refused = isinstance(error, RequestRefusedError) and error.code != 503
                if refused or time.monotonic() > deadline:
                    raise AssertionError(f"{error}\n{self._log()}") from error
                await asyncio.sleep(0.3)
            else:
                assert isinstance(reply, PredictReply)
                return reply

    def _log(self) -> str:
        return (self.directory / "advisor.log").read_text(errors="replace")[-3_000:]

    async def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        await self.bus.close(2)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with EmbeddedNats(store_directory=tmp_path / "nats") as server:
        made = Lab(tmp_path, server)
        made.bus = await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=60))
        yield made
        await made.close()


PLACE = cluster_node(slots=8, memory_bytes=4 << 30).configuration(job_spec(workers=2))
"""Two workers of one slot each on the node of the test below."""


def sleeping(job: str, task: str, workers: int, seconds: float) -> JobSpec:
    """Its workers sleep, and end."""
    command = ("/bin/sleep", str(seconds))
    return JobSpec(job=job, workers=workers, command=command, directory="/", task=TaskFeatures(task=task))


def run_time_s(task: TaskFeatures, workers: int) -> float:
    """Work divided among workers, and what each adds."""
    return 20.0 + 6e-6 * task.forward_flops * task.epochs / workers + 2.0 * workers


def history(*tasks: TaskFeatures, run: str = "") -> list[ScheduleEvent]:
    """Every task on each number of workers, three times with a spread of 2 %."""
    events: list[ScheduleEvent] = []
    for task in tasks:
        for workers in WORKERS:
            for repeat in range(3):
                spec = job_spec(f"{task.task}-{workers}", workers=workers, task=task, run=run and f"{run}-{task.task}")
                ran_s = run_time_s(task, workers) * (0.98 + 0.02 * repeat)
                submitted_ns = BEGAN_NS + repeat * SECOND_NS
                events += [submission(spec), ending(job_ended(spec, ran_s=ran_s, submitted_ns=submitted_ns))]
    return events


def question(spec: JobSpec) -> PredictRequest:
    """As the scheduler asks about a submission."""
    configuration = cluster_node().configuration(spec)
    return PredictRequest(task=task_of(spec.job, spec.task), run=spec.run, configurations=(configuration,))


async def test_once_each_also_if_killed_between_end_and_record(lab: Lab) -> None:
    """Killed while it reads the stream, killed with the records on disk; then its journal is lost."""
    jobs: list[JobEnded] = []
    for number in range(3):
        spec = job_spec(f"job-{number}")
        jobs.append(job_ended(spec))
        await store(lab.bus, submission(spec), ending(jobs[-1]))
    first = lab.collector()
    await until((lab.journal / "records.jsonl").exists, what="its journal")
    first.kill()
    first.wait()
    second = lab.collector()
    await until(lambda: lab.journalled == 3, what="the records on disk")
    second.kill()
    second.wait()
    third = lab.collector()
    await lab.until_stored(3)
    third.terminate()
    assert third.wait(60) == 0
    lab.journal.rename(lab.directory / "lost")
    fourth = lab.collector()
    await until(lambda: lab.journalled == 3, what="the records on disk again")
    await until(lambda: b'{"published"' in (lab.journal / "records.jsonl").read_bytes(), what="their marks")
    spec = job_spec("job-3")
    await store(lab.bus, submission(spec), ending(job_ended(spec)))
    await lab.until_stored(4)
    fourth.terminate()
    assert fourth.wait(60) == 0

    names = [f"job-{number}-{BEGAN_NS}" for number in range(4)]
    assert Counter(record.job for record in await lab.stored()) == Counter(names)


async def test_the_next_job_of_a_known_task_has_an_estimate(lab: Lab) -> None:
    """Tasks that are known by nothing but their jobs, as most are; the one asked about has no features."""
    tasks = [TaskFeatures(task=name, epochs=3 + number, forward_flops=2e6) for number, name in enumerate(TASKS)]
    await store(lab.bus, *history(*tasks))
    lab.collector()
    assert len(await lab.until_stored(27)) == 27
    lab.start("advisor", MIN_RECORDS="20", RETRAIN_DEBOUNCE_S="0.2", REFRESH_INTERVAL_S="0.2")

    reply = await lab.predict(question(job_spec("task2-xkqz", workers=2)))

    (found,) = reply.predictions
    assert found.known, found.why_unknown
    assert found.cost_usd is None
    truth_s = run_time_s(tasks[1], 2)
    assert found.time_s.low <= truth_s <= found.time_s.high
    assert found.time_s.median == pytest.approx(truth_s, rel=0.1)


async def test_another_task_is_known_by_its_local_run_only(lab: Lab) -> None:
    """Its own jobs are not needed; without them and without a local run the answer is "not known"."""
    tasks = [features(name) for name in TASKS]
    for name in (*TASKS, "task4"):
        run = profile(name, run=f"local-{name}")
        lab.bus.publish_event(RUN_PROFILES.subject(lab.bus.root, run=run.run), run, message_id=run.run)
    await store(lab.bus, *history(*tasks, run="local"))
    lab.collector()
    await lab.until_stored(27)
    lab.start("advisor", MIN_RECORDS="20", RETRAIN_DEBOUNCE_S="0.2", REFRESH_INTERVAL_S="0.2")

    with_run = await lab.predict(question(job_spec("new", workers=2, task=features("task4"), run="local-task4")))
    without = await lab.predict(question(job_spec("new", workers=2, task=features("task5"))))

    assert with_run.predictions[0].known, with_run.predictions[0].why_unknown
    assert not without.predictions[0].known
    assert "local run" in without.predictions[0].why_unknown


async def test_from_jobs_that_ran_to_the_estimate_of_the_next_one(lab: Lab) -> None:
    """Scheduler, runner, collector and advisor: nothing is made up but what the jobs do, which is to sleep."""
    lab.start("scheduler", ANNOUNCE_LIMITS="false")
    run_as = {"RUN_AS": "root"} if os.geteuid() == 0 else {}
    state = {"STATE_DIRECTORY": str(lab.directory / "runner"), "CONTROL_GROUPS": "off", "WORKERS_AT_STOP": "stop"}
    lab.start("runner", NODE="n1", SLOTS="8", CORES="1", MEMORY_BYTES="4GiB", ADDRESS="127.0.0.1", **state, **run_as)
    lab.collector()
    await lab.until_slots(8)
    for repeat in range(3):
        for number, task in enumerate(TASKS, start=1):
            for workers in WORKERS:
                await lab.submit(sleeping(f"{task}-{workers}-{repeat}", task, workers, 0.2 * number))
    records = await lab.until_stored(27)
    assert {record.state for record in records} == {JobState.SUCCEEDED}
    assert {record.configuration.instance_type for record in records} == {"8-slots-1.0-cores"}
    # At least what it slept, and not what it waited for slots.
    slept_s = {task: 0.2 * number for number, task in enumerate(TASKS, start=1)}
    assert all(record.duration_s and record.duration_s >= slept_s[record.task.task] for record in records)
    lab.start("advisor", MIN_RECORDS="20", RETRAIN_DEBOUNCE_S="0.2", REFRESH_INTERVAL_S="0.2")
    next_one = sleeping("next", TASKS[1], 2, 0.4)
    await lab.predict(PredictRequest(task=task_of(next_one.job, next_one.task), configurations=(PLACE,)))

    job = (await lab.submit(next_one)).job

    assert job.estimate_source is EstimateSource.ADVISOR
    assert job.estimate is not None
    alike = [record.duration_s or 0 for record in records if record.task.task == TASKS[1]]
    assert min(alike) / 2 < job.estimate.median_s < max(alike) * 2
    assert (await lab.submit(sleeping("other", "never-seen", 2, 0.4))).job.estimate_source is EstimateSource.NONE
