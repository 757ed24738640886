"""`turnbuckle train --aggregate` as a user types it, by its own key on a secured server: faults, what it gives back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.aggregations import AggregationChange, AggregationEvent
from schemas.roles import Role
from services._runtime.bus.nats import NatsBus
from services._runtime.exit_code import ExitCode
from tests.support.cluster_lab import ServiceProcess
from tests.support.deadline import until
from tests.support.local_aggregators import assignment, listen
from tests.support.secured_nats import SecuredNats

BIN = Path(sys.executable).parent
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "trainer"
START_S, DEADLINE_S = 240.0, 480
"""torch takes seconds to import, more on a busy machine."""
ENDLESS = 1_000_000

pytestmark = [
    pytest.mark.host,  # an aggregator and two ranks import torch for each start, and the registration has to expire
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SecuredNats]:
    async with SecuredNats(tmp_path / "secrets") as made:
        await made.declare()
        yield made


@pytest.fixture
async def operator(server: SecuredNats) -> AsyncIterator[NatsBus]:
    bus = await server.bus(Role.OPERATOR)
    yield bus
    await bus.close(5)


def environment(server: SecuredNats, role: Role) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "TURNBUCKLE_"))}
    return kept | server.environment(role)


@pytest.fixture
async def service(server: SecuredNats, tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    ours = {
        "TURNBUCKLE_HEALTH_PORT": "0",
        "TURNBUCKLE_AGGREGATOR__PROCESSES": "1",
        "TURNBUCKLE_AGGREGATOR__CONTROL_GROUPS": "off",  # one that is killed leaves its group to an agent: none here
    }
    started = ServiceProcess("aggregator", environment(server, Role.AGGREGATOR) | ours, tmp_path / "aggregator.log")
    await until(lambda: any(line["event"] == "lead_taken" for line in started.log()), within_s=START_S, what="the lead")
    yield started
    started.kill()


def children_of(pid: int) -> list[int]:
    """Those that any of its threads has started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def aggregator_of(service: ServiceProcess) -> int:
    (pid,) = children_of(service.pid)
    return pid


def ranks_of(command: Command) -> list[int]:
    (torchrun,) = children_of(command.process.pid)
    return sorted(children_of(torchrun))


class Command:
    """One that runs, and the events that it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self._events: Iterator[dict[str, Any]] = map(json.loads, process.stdout)
        self.seen: list[dict[str, Any]] = []

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next event that is wanted."""
        for event in self._events:
            self.seen.append(event)
            if wanted(event):
                return event
        assert self.process.stderr is not None
        raise AssertionError(f"it has ended before: {self.process.stderr.read()[-2_000:]} {self.seen[-5:]}")

    async def until_step(self, least: int) -> int:
        """Progress of so many steps."""
        event = await asyncio.to_thread(self.until, lambda each: each["event"] == "progress" and each["done"] >= least)
        return int(event["done"])

    async def end(self) -> tuple[int, str]:
        """Its exit code and standard error, once it has ended; what it has printed is in `seen`."""

        def wait() -> tuple[int, str]:
            self.seen += self._events
            _, said = self.process.communicate(timeout=DEADLINE_S)
            return self.process.returncode, said

        return await asyncio.to_thread(wait)

    @property
    def said(self) -> list[str]:
        """What its ranks have."""
        return [event["text"] for event in self.seen if event["event"] == "output"]

    @property
    def result(self) -> dict[str, Any]:
        """Its last event of this kind."""
        return [event for event in self.seen if event["event"] == "result"][-1]


@contextmanager
def training(directory: Path, steps: int, *options: str, server: SecuredNats | None) -> Iterator[Command]:
    """The example's, killed at the end of the block; with a server aggregated, by the trainer's key."""
    given = ["--data", f"{EXAMPLE}/data.py:batches", "--steps", str(steps), "--device", "cpu", "--json", *options]
    line: list[str | Path] = [BIN / "turnbuckle", "train", EXAMPLE / "plan.json", f"{EXAMPLE}/model.py:build", *given]
    variables = environment(server, Role.TRAINER) if server is not None else None
    pipe = subprocess.PIPE
    with subprocess.Popen(
        line if server is None else [*line, "--aggregate"],
        cwd=directory,
        env=variables,
        stdout=pipe,
        stderr=pipe,
        text=True,
    ) as process:
        try:
            yield Command(process)
        finally:
            process.kill()


async def given_back(operator: NatsBus) -> bool:
    return await assignment(operator, "train") is None


async def test_a_lost_aggregator_and_a_request_to_stop_cost_no_step(
    server: SecuredNats, operator: NatsBus, service: ServiceProcess, tmp_path: Path
) -> None:
    heard: list[AggregationEvent] = await listen(operator)
    with training(tmp_path, ENDLESS, "--checkpoint", "saved", "--checkpoint-every", "20", server=server) as first:
        await asyncio.to_thread(first.until, lambda event: "saved after step 20" in event.get("text", ""))
        os.kill(aggregator_of(service), signal.SIGKILL)
        await until(lambda: [each.change for each in heard][-1:] == [AggregationChange.RESTORED], within_s=DEADLINE_S)
        done = await first.until_step(60)
        first.process.send_signal(signal.SIGTERM)
        code, said = await first.end()

    assert (code, said) == (0, "")
    assert any(text.startswith("the ranges are lost (attempt 1 of train is lost") for text in first.said), first.said
    steps = [event["done"] for event in first.seen if event["event"] == "progress"]
    assert steps == sorted(steps), "no step was done twice"
    assert first.result["stopped"]
    stopped = int(first.result["step"])
    assert stopped >= done
    assert [each.change for each in heard[:3]] == [
        AggregationChange.PLACED,
        AggregationChange.LOST,
        AggregationChange.RESTORED,
    ]
    assert await given_back(operator)

    with training(tmp_path, stopped + 30, "--checkpoint", "saved", server=server) as second:
        code, said = await second.end()
    assert (code, said) == (0, "")
    assert f"goes on after step {stopped}" in second.said
    assert second.result["step"] == stopped + 30
    assert await given_back(operator)
    # What it has saved goes on without aggregators as well.
    with training(tmp_path, stopped + 60, "--checkpoint", "saved", server=None) as third:
        code, said = await third.end()
    assert (code, third.result["step"]) == (0, stopped + 60), said
    claim = (tmp_path / "saved" / "aggregation-claim").read_text()
    assert claim not in service.log_path.read_text() + server.log_path.read_text() + "".join(first.said)
    assert "iolation" not in server.log_path.read_text()


async def test_the_loss_is_that_of_a_training_without_aggregators(
    server: SecuredNats, operator: NatsBus, service: ServiceProcess, tmp_path: Path
) -> None:
    assert service.running
    losses = []
    for with_aggregators in (True, False):
        place = tmp_path / str(with_aggregators)
        place.mkdir()
        with training(place, 30, server=server if with_aggregators else None) as command:
            code, said = await command.end()
        assert (code, said) == (0, "")
        losses.append(command.result["loss"])
    # In float32, with sums in another order.
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert await given_back(operator)


async def test_a_killed_rank_and_a_killed_command_go_on_at_the_checkpoint(
    server: SecuredNats, operator: NatsBus, service: ServiceProcess, tmp_path: Path
) -> None:
    assert service.running
    saving = ("--checkpoint", "saved", "--checkpoint-every", "20")
    with training(tmp_path, ENDLESS, *saving, server=server) as first:
        await first.until_step(41)
        os.kill(ranks_of(first)[-1], signal.SIGKILL)
        code, said = await first.end()
    assert code == ExitCode.RESUMABLE
    assert "was killed (SIGKILL)" in said
    assert await given_back(operator)

    with training(tmp_path, ENDLESS, *saving, server=server) as second:
        await second.until_step(61)
        left = ranks_of(second)
        second.process.kill()
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), what="its ranks have saved and ended")
    assert not await given_back(operator), "a killed command gives nothing back"

    with training(tmp_path, 200, *saving, server=server) as third:
        code, said = await third.end()
    assert (code, third.result["step"]) == (0, 200), said
    assert any(text.startswith("goes on after step") for text in third.said)
    assert await given_back(operator)


async def test_without_the_service_it_is_69_before_anything_is_started(server: SecuredNats, tmp_path: Path) -> None:
    with training(tmp_path, 5, server=server) as command:
        code, said = await command.end()
    assert code == ExitCode.UNAVAILABLE
    assert "no aggregator service answers" in said
    assert "turnbuckle run aggregator" in said
    assert command.seen == []
