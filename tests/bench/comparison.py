"""The naive way beside ours, interleaved in one run: reading, telling and writing limits, as ratios."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import DockerException

from schemas.cfs import CfsBatch
from schemas.subjects import CFS
from services._host.cgroup_snapshot import WriteOutcome
from services._host.cgroupfs import detect
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.agent.cgroup.open import open_host
from services.agent.ports import ContainerHandle
from services.cli.up.demo_docker import ensure_host_image, host_mounts
from tests.bench.cluster import Cluster
from tests.bench.containers import Containers
from tests.bench.figures import Spread
from tests.bench.synthetic_agents import Load, SyntheticAgents

_V1_FILES = (("cpu", "cpu.stat"), ("cpuacct", "cpuacct.usage"), ("memory", "memory.usage_in_bytes"))
_V2_FILES = (("cpu", "cpu.stat"), ("memory", "memory.current"))
_DOCKER_CALLS = 5
_READ_ROUNDS = 5
_MESSAGE_PERIODS = 10


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours and the naive way, us each, and how many times dearer the naive way is."""

    what: str
    unit: str
    ours: Spread
    naive: Spread
    ratio: Spread

    @classmethod
    def of(cls, what: str, unit: str, pairs: list[tuple[float, float]]) -> Comparison:
        """From repetitions of (ours, naive)."""
        return cls(
            what,
            unit,
            Spread.of([ours for ours, _ in pairs]),
            Spread.of([naive for _, naive in pairs]),
            Spread.of([naive / ours for ours, naive in pairs]),
        )


def compare_reading(containers: Containers, repetitions: int) -> Comparison:
    """Kept descriptors and `pread` against opening every file for every reading."""
    layout = detect()
    host = open_host(layout)
    handles = [handle for found in containers.found if (handle := host.open(found)) is not None]
    files = _V1_FILES if layout.version == 1 else _V2_FILES
    paths = [
        f"{layout.directories(group.directory)[controller]}/{name}"
        for group in containers.groups
        for controller, name in files
    ]

    def kept() -> None:
        for handle in handles:
            handle.read()

    def opened() -> None:
        for path in paths:
            _parse(Path(path).read_bytes())

    try:
        kept()
        pairs = [(_cpu_us(kept, containers.count), _cpu_us(opened, containers.count)) for _ in range(repetitions)]
    finally:
        for handle in handles:
            handle.close()
    return Comparison.of("read: kept descriptors v. open/read", "CPU us per container", pairs)


def _parse(text: bytes) -> list[int]:
    return [int(word) for word in text.split() if word.isdigit()]


def _cpu_us(work: Callable[[], None], containers: int) -> float:
    begin_ns = time.thread_time_ns()
    for _ in range(_READ_ROUNDS):
        work()
    return (time.thread_time_ns() - begin_ns) / 1e3 / containers / _READ_ROUNDS


async def compare_messages(cluster: Cluster, count: int, repetitions: int) -> Comparison:
    """One batch of columns against one message per container: publish, server, receive and decode, in two clients."""
    sender = await NatsBus.connect(BusOptions(servers=(cluster.server.url,), name="bench-sender"))
    missing, complete = 0, asyncio.Event()

    def take(_delivery: Delivery) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            complete.set()

    subscription = await cluster.bus.subscribe(CFS.pattern(cluster.bus.root), take)
    await cluster.bus.flush(2.0)

    async def cost_us(batches: list[CfsBatch]) -> float:
        nonlocal missing
        missing = len(batches) * _MESSAGE_PERIODS
        complete.clear()
        begin_ns = time.process_time_ns()
        for _ in range(_MESSAGE_PERIODS):
            for batch in batches:
                sender.publish(CFS.subject(sender.root, app=batch.app, node=batch.node), batch)
            await sender.flush(5.0)
        await complete.wait()
        return (time.process_time_ns() - begin_ns) / 1e3 / count / _MESSAGE_PERIODS

    try:
        agents = SyntheticAgents(sender, Load(count, count, count, 0.3))
        whole = agents.batches(time.time_ns())
        single = _one_by_one(whole[0])
        await cost_us(whole)
        pairs = [(await cost_us(whole), await cost_us(single)) for _ in range(repetitions)]
    finally:
        await subscription.stop()
        await sender.close(2.0)
    return Comparison.of(f"tell: a batch of {count} v. one message each", "CPU us per container, both ends", pairs)


def _one_by_one(batch: CfsBatch) -> list[CfsBatch]:
    columns = {name: batch.column(name) for name in CfsBatch.column_types}
    head = batch.model_dump(exclude={"containers", *CfsBatch.column_types})
    return [
        CfsBatch.build([key], {name: column[row : row + 1] for name, column in columns.items()}, **head)
        for row, key in enumerate(batch.keys)
    ]


def compare_writing(containers: Containers, repetitions: int) -> Comparison | str:
    """A direct quota write against `docker update`; a text that says why where no Docker Engine answers."""
    try:
        client = docker.APIClient(version="auto", timeout=10)
    except DockerException as error:
        return f"docker update not compared: {str(error)[:120]}"
    container_id = ""
    handle = open_host(detect()).open(containers.found[-1])
    try:
        made = client.create_container(
            ensure_host_image(client), ["sleep", "1000"], host_config=client.create_host_config(binds=host_mounts())
        )
        container_id = str(made["Id"])
        client.start(container_id)
        if handle is None:
            return "docker update not compared: the container has vanished"
        pairs = [
            (_write_us(handle), _docker_update_us(client, container_id, turn))
            for turn in range(repetitions * _DOCKER_CALLS)
        ]
    except (DockerException, OSError) as error:
        return f"docker update not compared: {str(error)[:120]}"
    finally:
        if handle is not None:
            handle.close()
        with suppress(DockerException):
            if container_id:
                client.remove_container(container_id, force=True)
        client.close()
    return Comparison.of("write: control file v. docker update", "wall us per write", pairs)


def _write_us(handle: ContainerHandle) -> float:
    begin_ns = time.perf_counter_ns()
    outcomes = [handle.write_quota(quota_us) for quota_us in range(6_000, 6_020)]
    spent_us = (time.perf_counter_ns() - begin_ns) / 1e3 / len(outcomes)
    if any(outcome is not WriteOutcome.WRITTEN for outcome in outcomes):
        raise OSError("a quota was not written")
    return spent_us


def _docker_update_us(client: docker.APIClient, container_id: str, turn: int) -> float:
    begin_ns = time.perf_counter_ns()
    client.update_container(container_id, cpu_period=100_000, cpu_quota=50_000 + 1_000 * (turn % 10))
    return (time.perf_counter_ns() - begin_ns) / 1e3
