"""`turnbuckle layers --publish`, `turnbuckle run planner` and `turnbuckle plan --task` over a real NATS server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from schemas.plans import Plan
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services._runtime.exit_code import ExitCode
from services.cli.main import app
from services.collector.layers.publishing import publish_on
from services.planner.commands.plan import read_profile
from services.planner.service import Planner
from services.planner.settings import PlannerSettings
from tests.support.service_in_process import run_in_process

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "planner"
PROFILES = [read_profile(EXAMPLE / f"{kind}.json") for kind in ("l4", "a6000", "p40")]
PLANNED = ("--strategy", "even,by_speed,uneven", "--json")


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedNats]:
    async with EmbeddedNats() as started:
        yield started


async def asked(server: EmbeddedNats, *words: str) -> Result:
    line = ["plan", "--devices", str(EXAMPLE / "cluster.yaml"), "--batch", "64", "--server", server.url, *words]
    return await asyncio.to_thread(CliRunner().invoke, app, line)


async def test_the_planner_is_asked_where_no_files_are_given(server: EmbeddedNats) -> None:
    bus = await NatsBus.connect(BusOptions(servers=(server.url,)))
    for one in PROFILES[:2]:
        await publish_on(bus, one)
    async with run_in_process(Planner, PlannerSettings.load({}, timeout_s=60), bus):
        missing = await asked(server, "--task", PROFILES[0].task)
        assert missing.exit_code == ExitCode.UNAVAILABLE
        assert f"{PROFILES[0].task}: no layer profile of p40" in " ".join(missing.output.split())

        await publish_on(bus, PROFILES[2])
        done = await asked(server, "--task", PROFILES[0].task, *PLANNED)
        assert done.exit_code == ExitCode.OK, done.output
        files = [str(EXAMPLE / f"{one.kind}.json") for one in PROFILES]
        here = Plan.model_validate(json.loads((await asked(server, *files, *PLANNED)).stdout))
        found = Plan.model_validate(json.loads(done.stdout))
        assert found.devices == here.devices
    await bus.close(2)


async def test_without_a_planner_it_says_what_starts_one(server: EmbeddedNats) -> None:
    done = await asked(server, "--task", "any")

    assert done.exit_code == ExitCode.UNAVAILABLE
    assert "no planner answers: `turnbuckle run planner` starts one" in " ".join(done.output.split())


async def test_files_and_a_task_exclude_each_other(server: EmbeddedNats) -> None:
    assert (await asked(server)).exit_code == ExitCode.USAGE
    assert (await asked(server, str(EXAMPLE / "l4.json"), "--task", "any")).exit_code == ExitCode.USAGE
