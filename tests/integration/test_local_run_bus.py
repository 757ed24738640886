"""The local run's tool with a real nats-server: samples while it runs, each profile once, also one from before."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from schemas.runs import RunProfile, RunSample
from schemas.streams import RUN_STREAM
from schemas.subjects import RUN_PROFILES, RUN_SAMPLES
from services._runtime.bus.api import Delivery
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.options import BusOptions
from tests.support.deadline import until
from tests.support.local_runs import ROOT, SLEEP, arguments

pytestmark = [pytest.mark.root, pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(120)]


async def run(out: Path, name: str, url: str) -> tuple[int, list[dict[str, object]], str]:
    """The tool to its end, with a bus."""
    command = [
        word for word in arguments(out, "--workers", "2", "--seconds", "0.8", "--run", name) if word != "--no-bus"
    ]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TURNBUCKLE_", "NATS_"))}
    process = await asyncio.create_subprocess_exec(
        *command,
        "sh",
        "-c",
        SLEEP,
        cwd=ROOT,
        env={**kept, "NATS_URL": url, "XDG_CONFIG_HOME": "/nonexistent"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, told = await process.communicate()
    assert process.returncode is not None
    return process.returncode, [json.loads(line) for line in said.splitlines()], told.decode()


async def test_without_a_server_and_then_with_one(tmp_path: Path) -> None:
    code, events, told = await run(tmp_path / "out", "early", "nats://127.0.0.1:1")
    assert code == 0, told
    assert (events[-1]["event"], events[-1]["published"]) == ("result", False)
    assert "no bus" in told
    async with EmbeddedNats() as server:
        bus = await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=60))
        samples: list[RunSample] = []

        def hear(delivery: Delivery) -> None:
            assert isinstance(delivery.message, RunSample)
            samples.append(delivery.message)

        await bus.subscribe(RUN_SAMPLES.pattern(bus.root), hear)
        code, events, told = await run(tmp_path / "out", "late", server.url)
        assert code == 0, told
        assert events[-1]["published"] is True
        told_of = [event for event in events if event["event"] == "sample"]
        await until(lambda: len(samples) == 2 * len(told_of), what="two workers' samples")
        assert {sample.run for sample in samples} == {"late"}
        assert {sample.worker for sample in samples} == {"master", "worker-1"}
        stored: list[Delivery] = []
        await read_stored(bus, RUN_STREAM, RUN_PROFILES.pattern(bus.root), 0.0, stored.append)
        profiles = [delivery.message for delivery in stored if isinstance(delivery.message, RunProfile)]
        assert [profile.run for profile in profiles] == ["early", "late"]
        await bus.close(2.0)
