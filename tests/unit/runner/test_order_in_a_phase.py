"""Phases that come earlier or later than they are looked for."""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from schemas.scheduling import IterationSample, Pace
from services.runner.node_workers import NodeWorkers
from services.runner.tcp_counters import JobKey
from tests.support.shared_uplink import Demand, Noise, SharedUplink, UplinkJob

KEY = JobKey("j0", 1)
PERIOD_US = 940_000


def test_a_job_that_has_begun_to_send_earlier_than_usual_is_not_paused() -> None:
    """It computes for 0.9 s, and in this iteration for 0.065 s less: nobody has looked since its phase's last end."""
    link = SharedUplink([Demand(0.9, 475_000)], 1, Noise(jitter=0.0, hiccup_every=0))
    (job,), pacing = link.jobs, link._pacing
    link.run(8)
    pacing.pace(KEY, Pace(begin_ns=1, period_us=PERIOD_US))
    link.run_for(0.5)
    paced = pacing._jobs[KEY]
    assert paced.phases.is_known
    job.left_s -= 0.065
    link.run_for(job.left_s + 0.003)

    assert job.is_sending
    assert not paced.phases.is_sending, "as far as the runner knows"
    pacing.pace(KEY, Pace(begin_ns=link._time_ns() + 500_000_000, period_us=PERIOD_US))
    assert job.is_sending, "not stopped"
    assert paced.phases.is_sending


def test_a_job_whose_counters_cannot_be_read_is_not_paused_by_what_was_seen_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = SharedUplink([Demand(0.9, 475_000)], 1, Noise(jitter=0.0, hiccup_every=0))
    (job,), pacing = link.jobs, link._pacing
    link.run(8)
    pacing.pace(KEY, Pace(begin_ns=1, period_us=PERIOD_US))
    link.run(10)
    link.run_for(0.5)
    assert pacing._jobs[KEY].phases.ended_ns is not None

    def refuse(_: object) -> NoReturn:
        raise OSError(errno.ENOBUFS, "No buffer space available")

    later = Pace(begin_ns=link._time_ns() + 700_000_000, period_us=PERIOD_US)
    with monkeypatch.context() as broken:
        broken.setattr(pacing._traffic, "read", refuse)
        pacing.pace(KEY, later)
        assert job.is_computing, "not stopped"


def test_a_worker_that_was_started_since_the_last_search_is_paused_with_the_others() -> None:
    """Searches are a second apart; one that goes on computes during the pause, and begins to send before the others."""
    link = SharedUplink([Demand(0.9, 475_000)], 1, Noise(jitter=0.0, hiccup_every=0))
    (job,), pacing = link.jobs, link._pacing
    link.run(8)
    pacing.pace(KEY, Pace(begin_ns=1, period_us=PERIOD_US))
    link.run(10)
    link.run_for(0.5)
    assert pacing._jobs[KEY].phases.ended_ns is not None
    second = UplinkJob("j0", job.demand, Noise(), random.Random(1), interleave=True)
    second.key, second.now = second.key._replace(rank=1), lambda: link.now_s
    pacing._workers = cast("NodeWorkers", SimpleNamespace(living=lambda: [job, second], find=lambda *_: job))
    assert second.is_computing
    pacing.pace(KEY, Pace(begin_ns=link._time_ns() + 700_000_000, period_us=PERIOD_US))

    assert (job.is_computing, second.is_computing) == (False, False)


def test_a_brief_phase_that_comes_late_is_told_with_its_own_times() -> None:
    """By 0.4 s, after it was looked for first; nothing is told of it before, and the next one is told once again."""
    link = SharedUplink([Demand(0.9, 475_000)], 1, Noise(jitter=0.0, hiccup_every=0))
    (job,), pacing = link.jobs, link._pacing
    link.run(8)
    pacing.pace(KEY, Pace(begin_ns=1, period_us=PERIOD_US))
    link.run(12)
    told: list[IterationSample] = []
    pacing._setup = replace(pacing._setup, publish=told.append)
    link.run_for(0.5)
    assert pacing._jobs[KEY].phases.is_brief
    told.clear()
    job.left_s += 0.4
    late_ns = link._time_ns() + round(job.left_s * 1e9)
    link.run_for(job.left_s + 0.02)
    assert told == []
    link.run_for(0.4)

    begins_ns = [each.time_ns + 1_000 * each.period_us for each in told]
    assert begins_ns == [pytest.approx(late_ns, abs=10_000_000)] * len(told)
    assert told[-1].ended_ns == pytest.approx(late_ns + 40_000_000, abs=10_000_000)
    link.run_for(4 * 0.94)  # until three are alike again
    told.clear()
    link.run_for(0.94)
    assert [bool(each.due_ns) for each in told] == [True]
