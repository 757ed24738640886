"""What `turnbuckle jobs top` shows: on a narrow terminal, and of jobs that have ended."""

from __future__ import annotations

import pytest
from rich.console import Console

from schemas.scheduling import JobPhase, JobShift, LinkScore, QueuedJob, QueueReply
from services.scheduler.commands.queue_view import render_top
from services.scheduler.commands.top import Samples
from tests.support.job_queue import queued, small_queue
from tests.support.traffic import profile, sample

NOW_NS = 10**18
LONG = "bert-large-pretraining"


def running(job: str, **changes: object) -> QueuedJob:
    fields = {"workers": 2, "slots": 2, "nodes": ("n1", "n3"), "attempt": 1, "why": "the largest index of all jobs"}
    return queued(job, JobPhase.RUNNING, NOW_NS, **(fields | changes))


def reply(*jobs: QueuedJob, links: tuple[LinkScore, ...] = ()) -> QueueReply:
    return small_queue(NOW_NS, jobs=jobs, links=links)


def shown(told: QueueReply, samples: Samples, width: int = 80) -> list[str]:
    """Lines."""
    console = Console(width=width, soft_wrap=True)
    with console.capture() as capture:
        console.print(render_top(told, samples.of_running(told)))
    return capture.get().splitlines()


@pytest.fixture
def turns() -> QueueReply:
    jobs = [
        running(
            job,
            traffic=profile(job, 1_240, 540),
            shift=JobShift(job=job, attempt=1, period_ms=1_250, shift_ms=shift_ms),
            congestion_control="mltcp_cubic",
        )
        for job, shift_ms in ((LONG, 0), ("vgg", 1_041))
    ]
    link = LinkScore(link="rack-1-up", bits_per_s=10**8, jobs=(LONG, "vgg"), unshifted=0.5645, score=1.0)
    return reply(*jobs, links=(link,))


def test_eighty_columns_have_room_for_every_figure(turns: QueueReply) -> None:
    samples = Samples()
    late = {"phase_error_us": -120_000, "frozen_us": 540_000, "congestion_control": "mltcp_cubic"}
    samples.latest = {job: sample(job, **late) for job in (LONG, "vgg")}
    lines = shown(turns, samples)
    words = [" ".join(line.split()) for line in lines]

    assert all(len(line) <= 80 for line in lines)
    assert "vgg 1.24 s 540 ms 6.44 MiB 1041/1250 ms -120 ms 540 ms mltcp_cubic" in words
    long = next(line for line in words if line.startswith("bert") and "1.24 s" in line)
    assert long.endswith("… 1.24 s 540 ms 6.44 MiB 0/1250 ms -120 ms 540 ms mltcp_cubic"), "only its name is cut"
    assert any(line.startswith("rack-1-up 100Mbit 0.56 1.00 bert-large-pretraining") for line in words)
    assert any(line.startswith("vgg running n1 n3 0s not known the largest index") for line in words)
    wide = [" ".join(line.split()) for line in shown(turns, samples, 160)]
    assert any(line.startswith("vgg running 2 n1 n3 0s 0s not known not known 1.24 s 1.00 the") for line in wide)


def test_a_job_that_has_ended_leaves_no_iteration(turns: QueueReply) -> None:
    samples = Samples()
    samples.latest = {job: sample(job) for job in ("over", "again", "vgg")}
    over = queued("over", JobPhase.ENDED, NOW_NS, ended_ns=NOW_NS, attempt=1)
    told = reply(over, running("again", attempt=2), *turns.jobs)

    assert samples.of_running(told).keys() == {"vgg"}
    assert not any(line.startswith(("over", "again")) and "1.24 s" in line for line in shown(told, samples))


def test_a_link_has_no_score_before_its_jobs_are_known(turns: QueueReply) -> None:
    link = LinkScore(link="up", bits_per_s=10**8, jobs=("new", "vgg"), unshifted=1.0, score=1.0, why="new is not known")
    lines = [" ".join(line.split()) for line in shown(reply(running("new"), *turns.jobs, links=(link,)), Samples())]

    assert "up 100Mbit - - new vgg new is not known" in lines
    assert not any("1.24 s 1.00" in line for line in lines)
