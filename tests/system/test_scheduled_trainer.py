"""`turnbuckle train` as a job that is preempted: it saves, goes on, ends as if nothing had happened, and says so."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.streams import TRAINING_STREAM
from schemas.subjects import TRAINING_EVENTS
from schemas.trainings import TrainingChange, TrainingEvent
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.options import BusOptions
from services.cli.toolkit.supervisor import free_port
from tests.support.jobs_command import JobsCommand
from tests.support.up_process import CLI, environment, until, up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "trainer"
STEPS = 120
WITHIN_S = 240
SLOW = """
import time
from pathlib import Path
def loss(output, target):
    if Path(__file__).with_name("slow").exists():
        time.sleep(0.5)
    return (output - target).square().mean(dim=1).sum()
"""
"""A second a step until the test has preempted it; then as fast as it can."""
IN_ITS_DIRECTORY = 'exec "$0" "$@" --checkpoint "$TURNBUCKLE_CHECKPOINT_DIR"'


def training(directory: Path) -> list[str]:
    given = ["--data", f"{EXAMPLE}/data.py:batches", "--steps", str(STEPS), "--device", "cpu"]
    model = ["train", f"{EXAMPLE}/plan.json", f"{EXAMPLE}/model.py:build"]
    return [*CLI, *model, *given, "--loss", f"{directory}/losses.py:loss"]


def same_weights(one: Path, other: Path) -> bool:
    """Of two checkpoints, and the optimizer's moments; in a process of its own, as torch is large."""
    code = (
        "import sys; from pathlib import Path; from tests.support.trainer_cases import plain, same_bits;"
        "states = [plain(Path(path)) for path in sys.argv[1:]]; sys.exit(not (states[0] and same_bits(*states)))"
    )
    root = Path(__file__).parents[2]
    return (
        subprocess.run([sys.executable, "-c", code, one, other], cwd=root, timeout=WITHIN_S, check=False).returncode
        == 0
    )


async def events(url: str) -> list[TrainingEvent]:
    bus = await NatsBus.connect(BusOptions(servers=(url,), connect_deadline_s=60))
    stored: list[Delivery] = []
    await read_stored(bus, TRAINING_STREAM, TRAINING_EVENTS.pattern("tb"), 0.0, stored.append)
    await bus.close(2.0)
    return [delivery.message for delivery in stored if isinstance(delivery.message, TrainingEvent)]


def test_a_preempted_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text(SLOW)
    (tmp_path / "slow").touch()
    port, env = free_port(), environment()
    if os.geteuid() == 0:  # the test's own directory is root's
        env["TURNBUCKLE_RUNNER__RUN_AS"] = "root"
    url = f"nats://127.0.0.1:{port}"
    with up(tmp_path, "--simulate", "--cluster", "2x1", "--no-live", "--port", str(port), env=env):
        jobs = JobsCommand(tmp_path, url, env)
        until(jobs.answers, "a scheduler", WITHIN_S)
        command = ["sh", "-c", IN_ITS_DIRECTORY, *training(tmp_path)]
        jobs("submit", "--name", "first", "--preemption", "checkpoint", "--grace", "200s", "--", *command)
        until(lambda: f" of {STEPS} " in jobs.log("first"), "it makes steps", WITHIN_S)
        jobs("preempt", "first", "--for", "1s")
        until(lambda: "stopped" in jobs.changes("first"), "its stop", WITHIN_S)
        (tmp_path / "slow").unlink()
        until(lambda: jobs.phase("first") == "ended", "its end", WITHIN_S)
        happened, last = jobs.changes("first"), jobs.log("first", "--attempt", "2")
        # Drift says how fast this machine is just now.
        told = [event for event in asyncio.run(events(url)) if event.change is not TrainingChange.DRIFT]

    saved = tmp_path / "turnbuckle-checkpoints" / "first"
    assert "unsaved" not in happened
    assert f"done after step {STEPS} of {STEPS}" in last
    assert [(event.generation, str(event.change)) for event in told] == [
        *((1, change) for change in ("started", "saved", "ended")),
        *((2, change) for change in ("started", "resumed", "saved", "ended")),
    ]
    assert {event.job for event in told} == {"first"}
    stopped_after = told[1].step
    assert 0 < stopped_after < STEPS
    assert (told[2].exit_code, told[2].cause) == (0, f"stopped after step {stopped_after}")
    assert (told[4].step, told[6].step, told[6].cause) == (stopped_after, STEPS, f"done after step {STEPS}")

    whole = [*training(tmp_path), "--checkpoint", "whole"]
    subprocess.run(whole, cwd=tmp_path, env=env, timeout=WITHIN_S, check=True, stdout=subprocess.DEVNULL)
    assert same_weights(saved / f"step-{STEPS:09d}", tmp_path / "whole" / f"step-{STEPS:09d}")
