"""The service in this process: what it says when something is wrong, and that it goes on by itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.streams import JOB_STREAM
from services._runtime.settings_error import SettingsError, UnusableSettingsError
from services.collector.cloud.providers import open_providers
from services.collector.service import Collector
from services.collector.settings import CollectorSettings
from services.collector.write_ahead_log import Journal, read_journal
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.fake_google_cloud import FakeGoogleCloud, HttpFailure
from tests.support.grid_files import grid_requests
from tests.support.job_records import job_record
from tests.support.service_in_process import run_in_process

pytestmark = pytest.mark.virtual_time


LABEL = "turnbuckle_job"


@pytest.fixture
def google() -> Iterator[FakeGoogleCloud]:
    with FakeGoogleCloud() as fake:
        yield fake


def submit(google: FakeGoogleCloud, count: int = 1) -> list[str]:
    """Jobs that have ended; their labels."""
    cloud, _ = open_providers(google.settings(billing=False))
    jobs = [cloud.create(request).job for request in grid_requests()[:count]]
    google.vertex.advance(10_000)
    return jobs


def stored(broker: MemoryBroker) -> int:
    stream = broker.stream(JOB_STREAM.stream_name("tb"))
    assert stream is not None
    return len(stream.messages)


async def test_a_full_disk_is_said_and_passes(
    google: FakeGoogleCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(google, 2)
    broker = MemoryBroker()
    settings = google.settings(billing=False, directory=tmp_path)
    async with run_in_process(Collector, settings, MemoryBus(broker)) as collector:
        with monkeypatch.context() as patch:

            def full(*_: object) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            patch.setattr("services.collector.write_ahead_log.os.pwrite", full)
            await until(lambda: "no space left for" in (collector.not_ready() or ""), what="the reason")
            assert (collector.not_ready() or "").startswith("journal: ")
        await until(lambda: collector.not_ready() is None and stored(broker) == 2, what="both records")


async def test_billing_away_is_said_and_other_jobs_go_on(google: FakeGoogleCloud, tmp_path: Path) -> None:
    (job,) = submit(google)
    google.bigquery.charge({LABEL: job}, 1.0)
    google.bigquery.failures = [HttpFailure(403, "accessDenied", times=3)]
    broker = MemoryBroker()
    settings = google.settings(directory=tmp_path, lookback_days=3_650)
    async with run_in_process(Collector, settings, MemoryBus(broker)) as collector:
        await until(lambda: "jobs: billing: read p.billing" in (collector.not_ready() or ""), what="why")
        await until(lambda: stored(broker) == 1 and collector.not_ready() is None, what="the record")


async def test_what_a_journal_holds_is_published_also_without_a_cloud(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(job_record(1))
    broker = MemoryBroker()
    settings = CollectorSettings.load({}, directory=tmp_path)
    async with run_in_process(Collector, settings, MemoryBus(broker)) as collector:
        await until(lambda: stored(broker) == 1, what="the record")
        assert collector.not_ready() is None
    assert len(list(read_journal(tmp_path))) == 1


async def test_a_directory_that_cannot_be_used_ends_it_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = CollectorSettings.load({}, directory=tmp_path / "file")
    with pytest.raises(UnusableSettingsError, match="TURNBUCKLE_COLLECTOR__DIRECTORY names another place"):
        async with run_in_process(Collector, settings, MemoryBus(MemoryBroker())):
            pass


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"BILLING_TABLE": "x; DROP"}, "is no table: write project.dataset.table"),
        ({"LABEL": "Job Label"}, "is no label key"),
        ({"VERTEX_ENDPOINT": "ftp://x"}, "is no endpoint"),
        ({"COST_MIN_AGE_HOURS": "100", "COST_TIMEOUT_HOURS": "10"}, "no cost would ever be read"),
        ({"PROJCT": "p"}, "did you mean TURNBUCKLE_COLLECTOR__PROJECT?"),
        ({"REGION": "us/central"}, "pattern"),
    ],
)
def test_settings_that_cannot_be_are_named(variables: dict[str, Any], complaint: str) -> None:
    environ = {f"TURNBUCKLE_COLLECTOR__{name}": value for name, value in variables.items()}
    with pytest.raises(SettingsError) as raised:
        CollectorSettings.load(environ)
    assert complaint in str(raised.value)


def test_a_key_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text('{"type": "service_account"}')
    settings = CollectorSettings.load({"TURNBUCKLE_COLLECTOR__CREDENTIALS_FILE": str(tmp_path / "key.json")})
    assert settings.credentials is not None
    assert "service_account" not in settings.print_config()
