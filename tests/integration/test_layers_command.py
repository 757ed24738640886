"""`turnbuckle layers` on a real chain, and a plan by what it writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.layers import Dtype, LayerProfile
from schemas.plans import Plan
from schemas.streams import LAYER_STREAM
from services._jobs.malloc_tunables import TUNABLES, WANTED
from services._runtime.bus.api import Delivery
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services._runtime.exit_code import ExitCode
from services.cli.main import app
from tests.support.tool_process import run_tool

pytestmark = [pytest.mark.host, pytest.mark.slow, pytest.mark.timeout(600)]
WITHIN_S = 400.0
"""It takes 7 s of a processor, and loads torch twice."""
"""Several processes that import torch for each test."""

JOB = Path(__file__).parents[1] / "support" / "trainer_job"
CLUSTER = """
machines:
  a: {devices: [{kind: cpu, count: 2, memory: 4GiB}], inside: {rate: 10Gbit, latency_ms: 0.1}}
"""


def planned(profile: Path, directory: Path) -> Plan:
    """By the command, for two devices of this kind."""
    cluster = directory / "cluster.yaml"
    cluster.write_text(CLUSTER)
    done = CliRunner().invoke(app, ["plan", str(profile), "--devices", str(cluster), "--batch", "6", "--json"])
    assert done.exit_code == ExitCode.OK, done.output
    return Plan.model_validate(json.loads(done.stdout))


async def stored_profile(url: str) -> LayerProfile:
    """The only one on the bus."""
    bus = await NatsBus.connect(BusOptions(servers=(url,)))
    found: list[LayerProfile] = []

    async def take(delivery: Delivery) -> None:
        assert isinstance(delivery.message, LayerProfile)
        found.append(delivery.message)

    replay = await bus.replay(LAYER_STREAM, take)
    await replay.caught_up()
    await bus.close(2)
    (profile,) = found
    return profile


async def test_a_profile_that_is_published_is_not_printed_as_well() -> None:
    model = ("--data", f"{JOB}/small_data.py:lines", "--batch-up-to", "1", "--publish")
    async with EmbeddedNats() as server:
        place = {"NATS_URL": server.url}
        code, tool = await run_tool(
            "layers.command", f"{JOB}/small_model.py:build", *model, environment=place, within_s=WITHIN_S
        )
        stored = await stored_profile(server.url)

    assert code == ExitCode.OK, tool.events
    result = tool.events[-1]
    assert (result["event"], result["published"], result["kind"], result["written"]) == ("result", True, "cpu", "")
    assert "profile" not in result
    assert stored.microbatches == 1


NOTING = """
import os
from pathlib import Path
import torch
from torch import nn

def build():
    Path({seen!r}).write_text(os.environ.get("GLIBC_TUNABLES", ""))
    return nn.Sequential(nn.Linear(4, 4)), torch.ones(1, 4)
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ":".join(f"{name}={value}" for name, value in WANTED.items())),
        ("glibc.malloc.arena_max=1", "glibc.malloc.arena_max=1"),
    ],
)
async def test_layers_are_measured_with_the_settings_of_malloc_of_a_rank(
    given: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of `trainer-worker`, which has more or less memory in use with others, or the user's."""
    for name in (*(name for name in os.environ if name.startswith("MALLOC_")), "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "model.py").write_text(NOTING.format(seen=str(tmp_path / "seen")))
    words = (f"{tmp_path}/model.py:build", "--batch-up-to", "1", "--out", tmp_path / "cpu.json")
    code, tool = await run_tool("layers.command", *words, environment={TUNABLES: given}, within_s=WITHIN_S)

    assert code == ExitCode.OK, tool.events
    assert (tmp_path / "seen").read_text() == expected


async def test_a_plan_is_made_of_what_was_measured(tmp_path: Path) -> None:
    """Five layers in float64: an embedding of 19 x 12, a block (24 + 12 x 24 + 24 + 24 x 12 + 12 parameters) twice."""
    out = tmp_path / "cpu.json"
    model = ("--data", f"{JOB}/small_data.py:lines", "--batch-up-to", "3", "--out", out, "--publish")
    async with EmbeddedNats() as server:
        place = {"NATS_URL": server.url}
        code, tool = await run_tool(
            "layers.command", f"{JOB}/small_model.py:build", *model, environment=place, within_s=WITHIN_S
        )
        stored = await stored_profile(server.url)

    assert code == ExitCode.OK, tool.events
    told = [event["event"] for event in tool.events]
    assert told == ["progress"] * 12 + ["row"] * 4 + ["result"]
    assert (tool.events[11]["done"], tool.events[11]["total"]) == (12, 12)
    profile = LayerProfile.model_validate_json(out.read_bytes())
    assert stored == profile
    assert tool.events[-1]["published"]
    assert (profile.kind, profile.dtype, profile.refused, profile.microbatches) == ("cpu", Dtype.FLOAT64, "", 3)
    assert profile.order == (0, 1, 2, 1, 3)
    assert profile.construction_bytes == 0, "the trainer needs no room for the whole model"
    parameters = [(layer.name, layer.count, layer.parameters, layer.flat_bytes) for layer in profile.classes]
    assert parameters == [
        ("Embedding", 1, 228, 1_824),
        ("Block", 2, 636, 5_088),
        ("Tanh", 1, 0, 0),
        ("Linear", 1, 247, 1_976),
    ]
    assert sum(device.samples for device in planned(out, tmp_path).devices) == 6
