"""Traces across services, as a collector receives them: real processes, a real nats-server, real OTLP."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.predictions import RankRequest
from schemas.services.advisor import ADVISOR_RANK
from schemas.subjects import JOB_RECORDS, RUN_PROFILES
from services._runtime.bus.api import BusError
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services._runtime.telemetry.otel_lifetime import exporting_spans
from services._runtime.telemetry.otel_settings import Origin, read_otel_settings
from services.collector.cloud.providers import open_providers
from tests.support.bus_lab import NatsLab
from tests.support.deadline import until
from tests.support.fake_google_cloud import FakeGoogleCloud
from tests.support.fake_network import mac
from tests.support.grid_files import grid_requests
from tests.support.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from tests.support.reconciler_lab import ReconcilerLab
from tests.support.telemetry_rules import assert_all_declared
from tests.support.training_jobs import features, profile, records

ROOT = Path(__file__).resolve().parents[2]
TASKS = tuple(f"task{number}" for number in range(4))
JOB = "name: mine\ntask: {task: task0}\nworkers: [1, 2, 4]\nbatch_sizes: [16, 64]\n"
SURROUNDINGS = {"XDG_CONFIG_HOME": "/nonexistent", "TURNBUCKLE_SHUTDOWN_GRACE_S": "30"}
PATIENCE_S = 120.0
"""Importing scikit-learn takes a minute on a machine at its limit."""


def steps(lineage: list[ReceivedSpan]) -> list[tuple[str, str]]:
    """Who did what, from the root on."""
    return [(span.service.removeprefix("turnbuckle-"), span.name) for span in lineage]


def ending_with(receiver: OtlpReceiver, name: str, root: str) -> list[list[ReceivedSpan]]:
    """What led to each span of a name, where it began with another."""
    lineages = [receiver.lineage(span) for span in receiver.spans if span.name == name]
    return [lineage for lineage in lineages if lineage[0].name == root]


async def test_from_a_route_event_to_applied_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of a remote MAC; what was told and written because of it is one trace."""
    async with EmbeddedNats() as server:
        with otlp_receiver() as receiver:
            for name, value in receiver.environment.items():
                monkeypatch.setenv(name, value)
            settings = read_otel_settings("reconciler", receiver.environment)
            nats = NatsLab(server)
            lab = ReconcilerLab(tmp_path, await nats.bus(), await nats.bus())
            lab.put_in_place(monkeypatch)
            with exporting_spans(settings, Origin("reconciler", "1")):
                await lab.listen()
                async with lab.reconciler() as reconciler:
                    await until(lambda: reconciler.loop.counts.full > 0, what="the first reconcile")
                    lab.network.learn(mac(0), "10.255.0.3")
                    await until(lambda: lab.rules == {mac(0): "10.255.0.3"}, what="the rule")
                    await until(lambda: lab.routes and lab.tc, what="what is told")
                await nats.close()

    passes = [span for span in receiver.spans if span.name == "reconciler.reconcile"]
    in_sync = [span for span in passes if span.attributes["turnbuckle.rules.in_sync"] == 1]
    (one,) = [span for span in in_sync if span.attributes["turnbuckle.rules.written"] > 0]  # others only look again
    assert one.parent_id == ""
    assert one.attributes["turnbuckle.rules.verified"] is True
    assert "fdb" in one.attributes["turnbuckle.causes"]
    below = {(span.name, span.kind) for span in receiver.trace(one.trace_id)}
    assert below == {
        ("reconciler.reconcile", "internal"),
        ("publish evt.route.{node}", "producer"),
        ("process evt.route.{node}", "consumer"),
        ("publish evt.tc.{node}", "producer"),
        ("process evt.tc.{node}", "consumer"),
    }
    assert_all_declared(receiver.spans)


class Ground:
    """A nats-server, an advisor that has learned, a collector of telemetry."""

    def __init__(self, server: EmbeddedNats, receiver: OtlpReceiver, directory: Path) -> None:
        self.server = server
        self.receiver = receiver
        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, **variables: str) -> subprocess.Popen[bytes]:
        """One of our own modules."""
        unrelated = ("TURNBUCKLE_", "NATS_", "OTEL_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(unrelated)}
        environment = kept | SURROUNDINGS | self.receiver.environment | {"NATS_URL": self.server.url} | variables
        with self.log.open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env=environment, stderr=log)
        self.processes.append(process)
        return process

    @property
    def log(self) -> Path:
        """Of all processes."""
        return self.directory / "log"

    def end(self) -> None:
        """Of all."""
        for process in self.processes:
            process.kill()
            process.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """The advisor's first model is trained on what it finds on the bus."""
    async with EmbeddedNats() as server:
        with otlp_receiver() as receiver:
            made = Ground(server, receiver, tmp_path_factory.mktemp("ground"))
            bus = await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=60))
            try:
                for task in TASKS:
                    run = profile(task)
                    bus.publish_event(RUN_PROFILES.subject(bus.root, run=run.run), run, message_id=run.run)
                for record in records(TASKS):
                    bus.publish_event(JOB_RECORDS.subject(bus.root, job=record.job), record, message_id=record.job)
                await bus.flush(60)
                advisor = {
                    "ALGORITHM": "linear",
                    "REFRESH_INTERVAL_S": "0.2",
                    "RETRAIN_DEBOUNCE_S": "0.2",
                    "RETRAIN_AFTER": "1",
                }
                made.start(
                    "services.advisor", **{f"TURNBUCKLE_ADVISOR__{name}": value for name, value in advisor.items()}
                )
                await _until_it_answers(bus)
                yield made
            finally:
                made.end()
                await bus.close(2.0)


async def _until_it_answers(bus: NatsBus) -> None:
    request = RankRequest(task=features(TASKS[0]), profile=profile(TASKS[0]))
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await bus.request(ADVISOR_RANK.template.subject(bus.root), request, timeout_s=10)
            except BusError:
                await asyncio.sleep(0.2)
            else:
                return


@pytest.mark.host  # advisor, collector and scikit-learn: a training each
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
async def test_from_advise_to_the_prediction(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    command = ground.start("services.cli", "advise", str(tmp_path / "job.yaml"), "--json")
    assert await asyncio.to_thread(command.wait, PATIENCE_S) == 0, ground.log.read_text()[-2000:]
    published = "publish evt.prediction.{job}"
    await until(lambda: ending_with(ground.receiver, published, "cli.advise"), what="the trace")

    (lineage,) = ending_with(ground.receiver, published, "cli.advise")
    assert steps(lineage) == [
        ("cli", "cli.advise"),
        ("cli", "request cmd.advisor.rank"),
        ("advisor", "respond cmd.advisor.rank"),
        ("advisor", published),
    ]
    (rank,) = ending_with(ground.receiver, "advisor.rank", "cli.advise")
    assert steps(rank)[:-1] == steps(lineage)[:-1]
    assert rank[-1].attributes["turnbuckle.model"]
    assert lineage[0].attributes == {"turnbuckle.job": "mine"}
    assert_all_declared(ground.receiver.spans)


@pytest.mark.host  # advisor, collector and scikit-learn: a training each
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
async def test_from_a_collected_job_to_training(ground: Ground, tmp_path: Path) -> None:
    """A job ends in the cloud; the collector writes it down and tells of it, the advisor learns from it."""
    with FakeGoogleCloud() as google:
        cloud, _ = open_providers(google.settings(billing=False))
        cloud.create(grid_requests()[0])
        google.vertex.advance(10_000)
        journal = {"TURNBUCKLE_COLLECTOR__DIRECTORY": str(tmp_path / "journal")}
        ground.start("services.collector", **google.environment(billing=False), **journal)
        trained = ("advisor.train", "collector.record")
        await until(lambda: ending_with(ground.receiver, *trained), within_s=PATIENCE_S, what="the trace")

    lineage = ending_with(ground.receiver, *trained)[0]
    assert steps(lineage) == [
        ("collector", "collector.record"),
        ("collector", "publish evt.job.{job}"),
        ("advisor", "process evt.job.{job}"),
        ("advisor", "advisor.train"),
    ]
    assert [span.kind for span in lineage] == ["internal", "producer", "consumer", "internal"]
    assert lineage[0].attributes["turnbuckle.jobs"] == [grid_requests()[0].plan.job]
    assert lineage[-1].attributes["turnbuckle.records"] == len(records(TASKS)) + 1
    assert_all_declared(ground.receiver.spans)
