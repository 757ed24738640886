"""A minute of random crashes and freezes under load; `make soak` does it for ten."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.soak import jobs
from tests.soak.soak import Soak

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
SEED = 3
SECONDS = 60.0


@pytest.mark.timeout(720)
@pytest.mark.filterwarnings("ignore:unclosed <StreamWriter:ResourceWarning")  # nats-py, of an attempt to reconnect
async def test_nothing_is_lost_wrongly_killed_or_left_hanging_by_random_crashes_and_freezes(
    bare_cluster, record_figure
):
    report = await Soak(bare_cluster, SEED).run(SECONDS)
    gc.collect()  # while the warning is still ignored

    record_figure("report", report.text)
    assert not report.troubles, report.text
    assert sum(report.faults.values()) >= 15
    assert report.faults.keys() >= {"kill -9 agent", "kill -9 allocator", "kill -9 nats-server"}
    assert report.grown >= 60
    assert report.samples >= 20 * SECONDS


@pytest.mark.timeout(720)
@pytest.mark.filterwarnings("ignore:unclosed <StreamWriter:ResourceWarning")  # as above
async def test_no_training_job_is_lost_or_started_twice_by_random_crashes_and_freezes(tmp_path: Path, record_figure):
    report = await jobs.soak(SEED, SECONDS, tmp_path)
    gc.collect()  # while the warning is still ignored

    record_figure("report", report.text)
    assert not report.troubles, report.text
    assert sum(report.faults.values()) >= 15
    assert report.faults.keys() >= {"kill -9 scheduler", "kill -9 runner", "kill -9 nats-server"}
    assert report.submitted == report.ended >= 10
