"""Work for a collector and an advisor that run in containers: cloud jobs that end, and questions about others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from schemas.jobs import JobRecord
from schemas.message import Message
from schemas.predictions import Prediction, RankReply, RankRequest
from schemas.services.advisor import ADVISOR_RANK
from schemas.streams import JOB_STREAM, PREDICTION_STREAM, StreamSpec
from services._runtime.bus.api import BusError, Delivery
from services._runtime.bus.nats import NatsBus
from services.collector.cloud.grid import JobRequest
from services.collector.cloud.providers import open_providers
from services.collector.settings import CollectorSettings
from tests.support.fake_vertex import FakeVertex, VertexServer
from tests.support.grid_files import grid_requests
from tests.support.training_jobs import features, profile

_JOB_S: Final = 1.0
"""Seconds from one job's end to the next one's."""
_QUESTION_S: Final = 0.3


class Cloud:
    """Vertex AI on an address that containers reach, and jobs in it that end one after another."""

    def __init__(self, host: str) -> None:
        self.submitted: list[str] = []
        self._vertex = FakeVertex()
        self._server = VertexServer(self._vertex, host)
        self._waiting: Iterator[JobRequest] = iter(grid_requests(workers=list(range(1, 200))))  # 796 jobs
        settings = CollectorSettings.load({}, project="p", vertex_endpoint=self._server.endpoint)
        self._client, _ = open_providers(settings)

    def end_one(self) -> None:
        """Another job has run and ended."""
        request = next(self._waiting)
        self._client.create(request)
        self._vertex.advance(10_000)
        self.submitted.append(request.plan.job)

    def overlay(self, path: Path) -> Path:
        """Write a compose file that leads the collector here, and has the advisor know the shipped records."""
        collector = {"PROJECT": "p", "VERTEX_ENDPOINT": self._server.endpoint, "POLL_S": "0.5"}
        services = {
            "collector": {f"TURNBUCKLE_COLLECTOR__{name}": value for name, value in collector.items()},
            "advisor": {"TURNBUCKLE_ADVISOR__DATASETS": "shipped", "TURNBUCKLE_ADVISOR__RETRAIN_AFTER": "10000"},
        }
        content = {"services": {name: {"environment": given} for name, given in services.items()}}
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    def close(self) -> None:
        """Refuse connections."""
        self._server.stop()


@contextmanager
def cloud_for_containers(host: str) -> Iterator[Cloud]:
    """Until the end of the block."""
    cloud = Cloud(host)
    try:
        yield cloud
    finally:
        cloud.close()


class Load:
    """Ends a job each second and asks the advisor three times a second; counts both."""

    def __init__(self, bus: NatsBus, cloud: Cloud) -> None:
        self.cloud = cloud
        self.answered: dict[str, float] = {}
        """When a question was answered, by its job's name (monotonic seconds)."""
        self._bus = bus
        self._asked = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """In the background of a block."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._end_jobs()), group.create_task(self._ask())]
            yield
            for task in tasks:
                task.cancel()

    async def _end_jobs(self) -> None:
        while True:
            await asyncio.to_thread(self.cloud.end_one)
            await asyncio.sleep(_JOB_S)

    async def _ask(self) -> None:
        while True:
            with contextlib.suppress(BusError):
                await self.ask()
            await asyncio.sleep(_QUESTION_S)

    async def ask(self) -> RankReply:
        """Where to run a job that nobody has run.

        Raises:
            BusError: nobody answers, or there is no model yet.
        """
        self._asked += 1
        job = f"asked-{self._asked}"
        request = RankRequest(
            job=job, task=features("task9"), profile=profile("task9"), workers=(1, 2), batch_sizes=(64,)
        )
        reply = await self._bus.request(ADVISOR_RANK.template.subject(self._bus.root), request, timeout_s=5)
        assert isinstance(reply, RankReply)
        self.answered[job] = time.monotonic()
        return reply

    async def recorded(self) -> Counter[str]:
        """How often the stream holds each job."""
        return Counter(found.job for found in await self._stored(JOB_STREAM) if isinstance(found, JobRecord))

    async def predicted(self) -> Counter[str]:
        """The same of predictions that were given."""
        return Counter(found.job for found in await self._stored(PREDICTION_STREAM) if isinstance(found, Prediction))

    async def _stored(self, stream: StreamSpec) -> list[Message]:
        found: list[Message] = []

        async def take(delivery: Delivery) -> None:
            found.append(delivery.message)

        replay = await self._bus.replay(stream, take)
        await replay.caught_up()
        await replay.stop()
        return found


def bridge_address(client: Any) -> str:
    """Of this host on Docker's default bridge: containers of any network reach it there.

    By the interface: Docker 20.10 names no gateway of a bridge that it has just made, only of one that it has found.
    """
    name = client.networks.get("bridge").attrs["Options"]["com.docker.network.bridge.name"]
    shown = subprocess.run(["ip", "-json", "-4", "address", "show", "dev", name], capture_output=True, check=True)
    return str(json.loads(shown.stdout)[0]["addr_info"][0]["local"])
