"""The profile `jobs` of compose.yaml by a real docker-compose: scheduler and runner in containers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest

from tests.support import compose_lab
from tests.support.compose_lab import ROOT, ComposeProject
from tests.support.compose_running import BACK_S, crash
from tests.support.jobs_command import JobsCommand
from tests.support.up_process import until

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]
SERVICES = ("nats", "scheduler", "runner")
LEARN = ("--", "python3", "learn.py", "--steps")
ENDLESS = "100000"


@pytest.fixture(scope="module")
def project() -> Iterator[ComposeProject]:
    compose_lab.require("docker-compose", "debootstrap")
    compose_lab.make_images("scheduler", "runner")
    project = ComposeProject()
    directory = project.state_directory / "jobs"
    project.environment |= {
        "COMPOSE_PROFILES": "jobs",
        "TURNBUCKLE_JOBS_DIRECTORY": str(directory),
        "TURNBUCKLE_NODE": "",
    }
    directory.mkdir(parents=True)
    directory.chmod(0o777)  # workers are nobody's
    shutil.copy(ROOT / "docs/examples/jobs/learn.py", directory)
    try:
        project.up(*SERVICES)
        project.wait_healthy(*SERVICES)
        yield project
    finally:
        project.remove()


@pytest.fixture
def jobs(project: ComposeProject) -> JobsCommand:
    return JobsCommand(project.state_directory / "jobs", project.url, compose_lab.plain_environment())


def test_a_job_runs_to_its_end(jobs: JobsCommand) -> None:
    jobs("submit", "--name", "short", "--wait", *LEARN, "40")
    assert jobs.phase("short") == "ended"
    assert "step 40:" in jobs.log("short")
    assert "runner" in jobs("nodes")


def test_a_job_saves_its_state_when_its_runner_is_stopped_and_goes_on_with_the_next(
    project: ComposeProject, jobs: JobsCommand
) -> None:
    """As `up` does with a new image: another container takes the stopped one's place."""
    jobs("submit", "--name", "saves", "--preemption", "checkpoint", *LEARN, ENDLESS)
    until(lambda: re.search(r"step [0-9]+:", jobs.log("saves")), "it makes progress")
    project.run("rm", "--stop", "--force", "runner")
    project.up("--no-deps", "runner")
    until(lambda: jobs.changes("saves").count("started") == 2, "it is started again")
    happened = jobs.changes("saves")
    assert "stopped" in happened
    assert not {"lost", "unsaved"} & set(happened)
    first = until(lambda: re.search(r"begins at step (\d+) of", log(jobs, "saves", 2)), "it goes on")
    assert int(first[1]) > 0
    jobs("cancel", "saves")


def test_a_job_of_a_runner_that_dies_is_started_again_and_a_scheduler_that_dies_is_not_missed(
    project: ComposeProject, jobs: JobsCommand
) -> None:
    """Their containers are started again by Docker."""
    jobs("submit", "--name", "dies", "--preemption", "checkpoint", *LEARN, ENDLESS)
    until(lambda: "begins at step 0" in log(jobs, "dies", 1), "it runs")
    crash(project, "scheduler")
    crash(project, "runner")
    project.wait_healthy(*SERVICES, within_s=BACK_S)
    until(jobs.answers, "a scheduler leads")
    until(lambda: jobs.changes("dies").count("started") == 2, "it is started again")
    assert "lost" in jobs.changes("dies")
    until(lambda: "begins at step 0" in log(jobs, "dies", 2), "it runs again")
    jobs("cancel", "dies")
    until(lambda: jobs.phase("dies") == "cancelled", "its end")


def log(jobs: JobsCommand, job: str, attempt: int) -> str:
    """What its only worker wrote in an attempt; the last lines."""
    return jobs.log(job, "--attempt", str(attempt))
