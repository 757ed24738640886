"""The collector's cloud and file tools as processes, with a real nats-server and Google's wire protocols."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.jobs import JobRecord
from schemas.streams import JOB_STREAM
from schemas.subjects import JOB_RECORDS
from services._jobs.record_files import read_job_file, write_job_file
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.options import BusOptions
from services.cli.toolkit.supervisor import free_port
from services.collector.cloud.providers import open_providers
from tests.support.fake_google_cloud import FakeGoogleCloud
from tests.support.grid_files import grid_fields, grid_requests
from tests.support.job_records import job_record, run_profile
from tests.support.tool_process import Tool, run_tool

pytestmark = pytest.mark.slow  # every process loads Google's libraries: 2-10 s
LABEL = "turnbuckle_job"
QUICK = ("--poll", "0.2", "--visible-after", "0.5", "--parallel", "3")


@asynccontextmanager
async def passing_time(google: FakeGoogleCloud) -> AsyncIterator[None]:
    """Cloud jobs start and end meanwhile: a minute each tenth of a second."""

    async def advance() -> None:
        while True:
            google.vertex.advance(60)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(advance())
    try:
        yield
    finally:
        task.cancel()


@pytest.fixture
def google() -> Any:
    with FakeGoogleCloud() as fake:
        yield fake


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    async with EmbeddedNats(store_directory=tmp_path / "nats") as made:
        yield made


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(grid_fields()))
    return path


def submitted(google: FakeGoogleCloud) -> Counter[str]:
    return Counter(job.labels[LABEL] for job in google.vertex.jobs.values())


async def stored(server: EmbeddedNats) -> list[JobRecord]:
    """What the stream holds."""
    found: list[JobRecord] = []

    def take(delivery: Any) -> None:
        found.append(delivery.message)

    bus = await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=60))
    await read_stored(bus, JOB_STREAM, JOB_RECORDS.pattern(bus.root), 0.0, take)
    await bus.close(2)
    return found


async def test_a_grid_is_submitted_to_its_end(google: FakeGoogleCloud, grid: Path, tmp_path: Path) -> None:
    async with passing_time(google):
        code, tool = await run_tool(
            "cloud.vertex_jobs", "submit", grid, *QUICK, "--out", tmp_path / "out", environment=google.environment()
        )
    assert code == 0
    assert submitted(google) == Counter(request.plan.job for request in grid_requests())
    result = tool.events[-1]
    assert (result["event"], result["created"], result["succeeded"], result["total"]) == ("result", 8, 8, 8)
    assert {event["event"] for event in tool.events} == {"progress", "row", "result"}


@pytest.mark.host  # two tools or more, each loads Google's libraries
async def test_a_submission_that_is_killed_goes_on_without_doubling(
    google: FakeGoogleCloud, grid: Path, tmp_path: Path
) -> None:
    """Killed -9 right after the second job was told of, then interrupted by hand, then left alone."""
    command = ("cloud.vertex_jobs", "submit", grid, *QUICK, "--out", tmp_path / "out")
    google.vertex.list_lag_s = 0.0
    first = await Tool.start(*command, environment=google.environment())
    await first.until_event("row", change="created")
    await first.until_event("row", change="created")
    await first.kill()
    second = await Tool.start(*command, environment=google.environment())
    async with passing_time(google):
        await second.until_event("row", change="created")
        second.process.send_signal(signal.SIGINT)
        code, err = await second.end()
        assert code == 130
        assert "interrupted; what was finished is kept" in err
        assert (await run_tool(*command, environment=google.environment()))[0] == 0
    assert submitted(google) == Counter(request.plan.job for request in grid_requests())


async def test_two_submissions_of_one_directory_are_refused(
    google: FakeGoogleCloud, grid: Path, tmp_path: Path
) -> None:
    command = ("cloud.vertex_jobs", "submit", grid, *QUICK, "--out", tmp_path / "out")
    first = await Tool.start(*command, environment=google.environment())
    await first.until_event("row")
    code, second = await run_tool(*command, environment=google.environment())
    await first.kill()
    assert code == 69
    assert "another process writes to" in second.events[-1]["message"]


@pytest.fixture
def bad_grid(tmp_path: Path) -> Path:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(grid_fields(workers=[0])))
    return path


async def test_what_is_wrong_on_the_command_line_and_in_the_file(grid: Path, bad_grid: Path, tmp_path: Path) -> None:
    code, tool = await run_tool("cloud.vertex_jobs", "submit", grid, "--out", tmp_path / "out")
    assert code == 69
    assert "no cloud is configured" in tool.events[-1]["message"]
    code, tool = await run_tool("cloud.vertex_jobs", "submit", bad_grid, "--dry-run")
    assert code == 65
    assert "workers.0: Input should be greater than or equal to 1" in tool.events[-1]["message"]
    assert (await run_tool("cloud.vertex_jobs", "conquer"))[0] == 2


async def test_what_ends_a_tool_is_called_an_error_as_in_every_other_command(tmp_path: Path) -> None:
    nowhere, mapping = tmp_path / "none.csv", tmp_path / "none.yaml"
    tool = await Tool.start("transfer.import_jobs", "import", nowhere, "--mapping", mapping)
    code, err = await tool.end()

    assert code == 66
    assert err.startswith(f"error: {tmp_path}/none.yaml cannot be read: No such file")
    assert tool.events[-1]["message"].startswith(f"{tmp_path}/none.yaml cannot be read")


@pytest.mark.host  # two tools or more, each loads Google's libraries
async def test_finished_jobs_are_ingested_once_by_two_at_the_same_time(
    google: FakeGoogleCloud, server: EmbeddedNats, tmp_path: Path
) -> None:
    """Two people, two directories, one bus; then one of them again."""
    cloud, _ = open_providers(google.settings(billing=False))
    for request in grid_requests():
        cloud.create(request)
        google.bigquery.charge({LABEL: request.plan.job, "team": "ml"}, 2.0, credits_usd=(-0.5,))
    google.vertex.advance(10_000)
    environment = google.environment() | {"NATS_URL": server.url}

    one, two = await asyncio.gather(
        *(
            run_tool("cloud.vertex_jobs", "ingest", "--out", tmp_path / name, environment=environment)
            for name in ("one", "two")
        )
    )
    again = await run_tool("cloud.vertex_jobs", "ingest", "--out", tmp_path / "one", environment=environment)

    assert (one[0], two[0], again[0]) == (0, 0, 0)
    found = await stored(server)
    assert Counter(record.job for record in found) == Counter(request.plan.job for request in grid_requests())
    assert {record.cost_usd for record in found} == {1.5}
    assert again[1].events[-1]["records"] == 8
    assert not [event for event in again[1].events if event["event"] in {"row", "published"}]


@pytest.mark.host  # two tools or more, each loads Google's libraries
async def test_without_a_bus_the_journal_keeps_what_the_next_start_publishes(
    google: FakeGoogleCloud, server: EmbeddedNats, tmp_path: Path
) -> None:
    cloud, _ = open_providers(google.settings(billing=False))
    cloud.create(grid_requests()[0])
    google.vertex.advance(10_000)
    command = ("cloud.vertex_jobs", "ingest", "--out", tmp_path / "out")
    nowhere = {"NATS_URL": f"nats://127.0.0.1:{free_port()}"}
    environment = google.environment(billing=False)

    code, tool = await run_tool(*command, environment=environment | nowhere)
    assert code == 69
    assert tool.events[-1]["event"] == "error"
    code, tool = await run_tool(*command, environment=environment | {"NATS_URL": f"tls://127.0.0.1:{server.port}"})
    assert code == 78, "no later attempt would be any better"
    assert "speaks without TLS" in tool.events[-1]["message"]
    assert "1 records are kept" in tool.events[-1]["message"]
    google.vertex.jobs.clear()
    code, tool = await run_tool(*command, environment=environment | {"NATS_URL": server.url})
    assert code == 0
    assert [event["event"] for event in tool.events] == ["published", "result"]
    assert len(await stored(server)) == 1


async def test_a_dry_run_says_what_it_would_read_and_record(google: FakeGoogleCloud, tmp_path: Path) -> None:
    cloud, _ = open_providers(google.settings(billing=False))
    cloud.create(grid_requests()[0])
    google.bigquery.charge({LABEL: grid_requests()[0].plan.job}, 2.0)
    google.vertex.advance(10_000)

    code, tool = await run_tool(
        "cloud.vertex_jobs", "ingest", "--dry-run", "--out", tmp_path / "out", environment=google.environment()
    )
    assert code == 0
    assert [event["event"] for event in tool.events] == ["progress", "row", "result"]
    assert tool.events[0]["billing_bytes"] == 4096
    assert tool.events[1]["cost_usd"] == 2.0
    assert tool.events[2]["records"] == 0


async def test_records_go_in_and_out_of_the_bus(server: EmbeddedNats, tmp_path: Path) -> None:
    records = [job_record(number) for number in range(1, 31)]
    write_job_file(tmp_path / "in.parquet", records, [run_profile(1)])
    environment = {"NATS_URL": server.url}
    for name in ("first", "second"):  # two journals: the stream is asked
        command = ("transfer.import_jobs", "import", tmp_path / "in.parquet", "--out", tmp_path / name)
        code, tool = await run_tool(*command, environment=environment)
        assert code == 0
        assert tool.events[-1]["unpublished"] == 0
    code, _ = await run_tool("transfer.import_jobs", "export", tmp_path / "out.parquet", environment=environment)

    assert code == 0
    content = read_job_file(tmp_path / "out.parquet")
    assert sorted(content.records, key=lambda record: record.configuration.workers) == records
    assert content.profiles == (run_profile(1),)
