"""The collector as a process, with a real nats-server and Google's wire protocols: once each, whatever dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from schemas.jobs import CostKind, JobRecord
from schemas.streams import JOB_STREAM
from schemas.subjects import JOB_RECORDS
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.options import BusOptions
from services.cli.toolkit.supervisor import free_port
from services.collector.cloud.providers import open_providers
from services.collector.write_ahead_log import read_journal
from tests.support.deadline import until
from tests.support.fake_google_cloud import FakeGoogleCloud
from tests.support.grid_files import grid_requests
from tests.support.http_health import Answers

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow  # every process loads Google's libraries: 2-10 s
LABEL = "turnbuckle_job"


class Lab:
    """A server, a cloud, and collectors that come and go."""

    def __init__(self, directory: Path, google: FakeGoogleCloud, server: EmbeddedNats) -> None:
        self.directory = directory
        self.google = google
        self.server = server
        self.jobs = [request.plan.job for request in grid_requests()]
        self._processes: list[asyncio.subprocess.Process] = []

    def submit(self, count: int) -> None:
        """Jobs that have ended."""
        cloud, _ = open_providers(self.google.settings(billing=False))
        for request in grid_requests()[:count]:
            cloud.create(request)
        self.google.vertex.advance(10_000)

    async def collector(self, *, cloud: bool = True, **variables: str) -> tuple[asyncio.subprocess.Process, Answers]:
        """A process of the service, and how to ask it."""
        port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBUCKLE_", "NATS_"))}
        settings = {
            "NATS_URL": self.server.url,
            "XDG_CONFIG_HOME": "/nonexistent",
            "TURNBUCKLE_HEALTH_PORT": str(port),
            "TURNBUCKLE_SHUTDOWN_GRACE_S": "30",
            "TURNBUCKLE_COLLECTOR__DIRECTORY": str(self.directory),
            **(self.google.environment(billing=False) if cloud else {}),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.collector",
            cwd=ROOT,
            env=kept | settings | variables,
            stderr=asyncio.subprocess.PIPE,
        )
        self._processes.append(process)
        return process, Answers(port)

    async def bus(self) -> NatsBus:
        """A connection of the test's own."""
        return await NatsBus.connect(BusOptions(servers=(self.server.url,), connect_deadline_s=60))

    async def stored(self, bus: NatsBus) -> list[JobRecord]:
        """What the stream holds."""
        found: list[JobRecord] = []

        def take(delivery: Any) -> None:
            found.append(delivery.message)

        await read_stored(bus, JOB_STREAM, JOB_RECORDS.pattern(bus.root), 0.0, take)
        return found

    async def until_stored(self, bus: NatsBus, count: int) -> list[JobRecord]:
        """Wait for so many records."""
        deadline = time.monotonic() + 60
        while len(found := await self.stored(bus)) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records are stored"
            await asyncio.sleep(0.05)
        return found

    async def close(self) -> None:
        """Stop what runs."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with EmbeddedNats(store_directory=tmp_path / "nats") as server:
        with FakeGoogleCloud() as google:
            made = Lab(tmp_path / "journal", google, server)
            yield made
            await made.close()


async def _end(process: asyncio.subprocess.Process) -> tuple[int | None, list[dict[str, Any]]]:
    process.send_signal(signal.SIGTERM)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, [json.loads(line) for line in err.decode().splitlines() if line.startswith("{")]


async def test_jobs_with_settled_costs_are_told_of_once(lab: Lab) -> None:
    bus = await lab.bus()
    lab.submit(3)
    for number, job in enumerate(lab.jobs[:2]):
        lab.google.bigquery.charge({LABEL: job, "team": "ml"}, 1.0 + number, credits_usd=(-0.25,))
    process, answers = await lab.collector(**lab.google.environment())

    found = await lab.until_stored(bus, 2)

    assert {record.job: record.cost_usd for record in found} == {lab.jobs[0]: 0.75, lab.jobs[1]: 1.75}
    assert all(record.cost_kind is CostKind.BILLED for record in found)
    await answers.until("/readyz", 200)
    await answers.until("/metrics", 200, "turnbuckle_collector_cost_pending_jobs 1.0")
    await answers.until("/metrics", 200, "turnbuckle_collector_published_records_total 2.0")  # stored comes first
    code, log = await _end(process)
    assert code == 0
    assert [line["event"] for line in log].count("published") == 2
    await bus.close(2)


async def test_a_cloud_that_hangs_delays_no_end(lab: Lab) -> None:
    """A call may take its whole 30 s; SIGTERM does not wait for it."""
    lab.google.vertex.slow = threading.Event()
    process, answers = await lab.collector()
    deadline = time.monotonic() + 60
    while "ListCustomJobs" not in lab.google.vertex.calls:
        assert time.monotonic() < deadline, "it never asked"
        await asyncio.sleep(0.05)
    await answers.until("/livez", 200)
    code, log = await _end(process)
    lab.google.vertex.slow.set()
    assert code == 0
    assert "cloud_poll_abandoned" in [line["event"] for line in log]


async def test_without_a_cloud_it_says_so_and_is_healthy(lab: Lab) -> None:
    process, answers = await lab.collector(cloud=False)

    await answers.until("/readyz", 200)
    await answers.until("/metrics", 200, "turnbuckle_collector_cloud_configured_info 0.0")
    code, log = await _end(process)
    assert code == 0
    assert [line["remedy"] for line in log if line["event"] == "no_cloud_configured"]


@pytest.mark.host  # two collectors or more
async def test_killed_between_journal_and_publish(lab: Lab) -> None:
    """The bus is away, the record is on disk, kill -9; the next start publishes it, and the one after that nothing."""
    bus = await lab.bus()
    lab.submit(2)
    lab.server.kill()
    process, _ = await lab.collector()
    journal = lab.directory / "records.jsonl"
    await until(lambda: journal.exists() and len(list(read_journal(lab.directory))) == 2, what="records")
    process.kill()
    await process.communicate()
    await lab.server.start()
    await until(lambda: bus.connected, what="the test's own connection")
    lab.google.vertex.jobs.clear()  # only the journal knows them now

    process, answers = await lab.collector()
    assert len(await lab.until_stored(bus, 2)) == 2
    await _end(process)
    process, answers = await lab.collector()
    await answers.until("/metrics", 200, "turnbuckle_collector_unpublished_records 0.0")
    await _end(process)

    assert Counter(record.job for record in await lab.stored(bus)) == Counter(lab.jobs[:2])
    await bus.close(2)


@pytest.mark.host  # two collectors or more
async def test_killed_again_and_again(lab: Lab) -> None:
    """Killed with -9 at moments that nobody chose; every job is stored, and once."""
    bus = await lab.bus()
    lab.submit(8)
    for step in range(6):
        process, answers = await lab.collector()
        if step % 2:
            await answers.until("/livez", 200)
        else:
            await lab.until_stored(bus, min(8, 1 + step))
        process.kill()
        await process.communicate()
    process, _ = await lab.collector()
    await lab.until_stored(bus, 8)
    await _end(process)

    assert Counter(record.job for record in await lab.stored(bus)) == Counter(lab.jobs)
    await bus.close(2)


@pytest.mark.host  # two collectors or more
async def test_a_lost_journal_doubles_nothing(lab: Lab) -> None:
    """A new machine, or a second replica with a directory of its own: the stream is asked before anything is sent."""
    bus = await lab.bus()
    lab.submit(4)
    first, _ = await lab.collector()
    await lab.until_stored(bus, 4)
    lab.directory = lab.directory.with_name("another")
    second, answers = await lab.collector()
    await answers.until("/metrics", 200, "turnbuckle_collector_already_stored_records_total 4.0")
    await _end(first)
    await _end(second)

    assert Counter(record.job for record in await lab.stored(bus)) == Counter(lab.jobs[:4])
    await bus.close(2)


async def test_two_replicas_of_one_directory_are_refused(lab: Lab) -> None:
    first, answers = await lab.collector()
    await answers.until("/readyz", 200)
    second, _ = await lab.collector()
    _, err = await asyncio.wait_for(second.communicate(), 60)
    assert second.returncode == 78
    assert b"another process writes to" in err
    assert b"TURNBUCKLE_COLLECTOR__DIRECTORY" in err
    await _end(first)


async def test_a_cloud_that_is_away_is_said_and_waited_for(lab: Lab) -> None:
    """Readiness says what is wrong; nothing ends, and it goes on by itself."""
    bus = await lab.bus()
    lab.submit(1)
    lab.google.vertex.fail("ListCustomJobs", grpc.StatusCode.UNAVAILABLE, "as told", times=1_000_000)
    process, answers = await lab.collector()
    await answers.until("/readyz", 503, "cloud: list jobs of projects/p")
    lab.google.vertex.fail_no_more("ListCustomJobs")
    await lab.until_stored(bus, 1)
    await answers.until("/readyz", 200)
    assert (await _end(process))[0] == 0
    await bus.close(2)
