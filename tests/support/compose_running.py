"""A running compose project with the demo: its bus, its decisions, and how a service of it is killed."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Final

from docker.models.containers import Container

from schemas.containers import ContainerChange, ContainerEvent
from schemas.limits import LimitDecisions
from schemas.streams import CONTAINER_STREAM
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from tests.support.compose_lab import LOADS, ComposeProject, Limits, SumWatch, limits_of
from tests.support.deadline import until

CPU_LIMIT_US, MEMORY_LIMIT_BYTES = 75_000, 1 << 30
"""Of demo/app.yaml."""
BACK_S: Final = 180.0
"""A service that was killed is healthy again within this."""
_KEPT_FOR_SECONDS: Final = {"KV_tb_nodes", "KV_tb_reconcilers", "KV_tb_leases"}
"""Heartbeats."""


class Decisions:
    """When quotas of the demo were decided about."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def take(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, LimitDecisions) and delivery.message.app == "demo":
            self.times_s.append(time.monotonic())

    async def next_one(self) -> None:
        seen = len(self.times_s)
        await until(lambda: len(self.times_s) > seen, within_s=60, what="a decision")


class Running:
    """The project, and a connection to its bus."""

    def __init__(self, project: ComposeProject, bus: NatsBus, decisions: Decisions) -> None:
        self.project = project
        self.bus = bus
        self.decisions = decisions

    def limits(self) -> dict[str, Limits | None]:
        return {name: limits_of(self.project.container(name), self.project.layout) for name in LOADS}

    async def told_of(self, container: Container) -> list[ContainerChange]:
        """What the stream holds of a container, as soon as that is anything."""
        deadline = time.monotonic() + 60
        while not (changes := await self._events(container.id)):
            assert time.monotonic() < deadline, "the container was not told of"
        return changes

    async def _events(self, container_id: str) -> list[ContainerChange]:
        found: list[ContainerChange] = []

        async def take(delivery: Delivery) -> None:
            event = delivery.message
            if isinstance(event, ContainerEvent) and event.container.endswith(container_id[:12]):
                found.append(event.change)

        replay = await self.bus.replay(CONTAINER_STREAM, take)
        await replay.caught_up()
        await replay.stop()
        return found


def start(project: ComposeProject, bystanders: list[Container], app: str | None, **options: object) -> Container:
    """A container with nothing to do, labelled for an application or not at all."""
    container = project.client.containers.run(
        project.container("web").image.id,
        entrypoint=["sleep", "1000"],
        labels={"turnbuckle.app": app} if app else {},
        detach=True,
        init=True,
        network_mode="none",
        **options,
    )
    bystanders.append(container)
    return container


def crash(project: ComposeProject, service: str) -> None:
    """Its process dies: the restart policy has to bring it back."""
    before = project.container(service)
    os.kill(int(before.attrs["State"]["Pid"]), signal.SIGKILL)
    deadline = time.monotonic() + BACK_S
    while (now := project.client.containers.get(before.id)).attrs["RestartCount"] == before.attrs["RestartCount"]:
        assert time.monotonic() < deadline, f"{service} was not started again: {now.attrs['State']}"
        time.sleep(0.02)


def kill(project: ComposeProject, service: str) -> None:
    """The engine takes a kill for a wish: it is `up` that starts it again."""
    project.run("kill", service)
    assert project.containers(service) == []


def assert_within_limits(sums: SumWatch) -> None:
    """Of what was seen of the demo's containers."""
    assert sums.samples > 20
    assert sums.highest_quota_us <= CPU_LIMIT_US
    assert sums.highest_memory_bytes <= MEMORY_LIMIT_BYTES


def assert_nothing_is_gone(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> None:
    """Of what streams held; `ComposeProject.streams` at two moments."""
    for name in {name for name, state in before.items() if state["messages"]} - _KEPT_FOR_SECONDS:
        assert after[name]["first_seq"] == before[name]["first_seq"], name
        assert after[name]["messages"] >= before[name]["messages"], name
