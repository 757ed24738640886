"""Docker containers of an application that has no room for them: the sum of its memory stays within its limit."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.apps import AppSpec
from services._host.cgroupfs import paths_of_pid
from tests.support.cluster_lab import MIB, ClusterLab, poll
from tests.support.deadline import until
from tests.support.docker_lab import DockerLab

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
GROWING_S = 120.0
TOLERANCE = 1.05
GROW = "import time\nheld = [bytes(b'x') * (1 << 20) for _ in range({mib})]\ntime.sleep(1000)"
KILLED = 137


@pytest.fixture
def engine() -> Iterator[DockerLab]:
    lab = DockerLab()
    try:
        yield lab
    finally:
        lab.close()


class MemorySum(threading.Thread):
    """The most that the memory groups of some containers have held together, read 100 times a second.

    Files cannot be read at one instant: of two readings in a row the lesser counts for each.
    """

    def __init__(self, groups: Path) -> None:
        super().__init__(daemon=True)
        self.ids: list[str] = []
        self.most_bytes, self.samples = 0, 0
        self.most_of: list[int] = []
        """MiB of each."""
        self._groups = groups
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.01):
            ids = list(self.ids)
            used = [min(pair) for pair in zip(*([self._read(each) for each in ids] for _ in range(2)), strict=True)]
            if sum(used) > self.most_bytes:
                self.most_bytes, self.most_of = sum(used), [size // MIB for size in used]
            self.samples += 1

    def _read(self, container_id: str) -> int:
        for name in ("memory.usage_in_bytes", "memory.current"):
            try:
                return int((self._groups / container_id / name).read_text(encoding="ascii"))
            except OSError:
                continue
        return 0

    def stays_within(self, limit_bytes: int, record_figure: Callable[[str, object], None]) -> None:
        """The end of it."""
        self._ended.set()
        self.join()
        record_figure("most, MiB", f"{self.most_bytes / MIB:.1f} {self.most_of} in {self.samples} samples")
        assert self.samples > 100
        assert self.most_bytes < limit_bytes * TOLERANCE, (self.most_bytes // MIB, self.most_of)


@pytest_asyncio.fixture(loop_scope="module")
async def services(bare_cluster: ClusterLab) -> ClusterLab:
    if not bare_cluster.running("agent"):
        await bare_cluster.launch_allocator().ready()
        await bare_cluster.launch_agent(docker="auto").ready()
    return bare_cluster


@pytest_asyncio.fixture(loop_scope="module")
async def memory(services: ClusterLab, engine: DockerLab) -> MemorySum:
    """At work, over no container yet."""
    idle = await asyncio.to_thread(engine.run, name="idle")
    pid = engine.client.inspect_container(idle)["State"]["Pid"]
    path = paths_of_pid(services.layout, pid)["memory"]
    assert path is not None
    started = MemorySum(Path(path).parent)
    started.start()
    return started


async def grow(engine: DockerLab, memory: MemorySum, app: str, mib: int, **host: object) -> str:
    """A container whose program takes so much as fast as it can."""
    command = ("/usr/bin/python3", "-S", "-E", "-c", GROW.format(mib=mib))
    labels = {"turnbuckle.app": app}
    name = f"{app}-{len(memory.ids)}"
    container_id = await asyncio.to_thread(engine.run, *command, name=name, labels=labels, **host)
    memory.ids.append(container_id)
    return container_id


def state(engine: DockerLab, container_id: str) -> dict[str, object]:
    return engine.client.inspect_container(container_id)["State"]


async def test_eight_that_grow_and_are_restarted_stay_within_their_applications_limit(
    services: ClusterLab, engine: DockerLab, memory: MemorySum, record_figure
):
    """One that is killed comes back in a new control group, which has limits before its program runs."""
    spec = await services.announce(AppSpec(name=f"eight{os.getpid()}", cpu_limit=4, memory_limit=512 * MIB))
    policy = {"Name": "on-failure", "MaximumRetryCount": 0}
    for _ in range(8):
        await grow(engine, memory, spec.name, 400, restart_policy=policy)
    await asyncio.sleep(GROWING_S)
    restarts = [engine.client.inspect_container(each)["RestartCount"] for each in memory.ids]
    record_figure("restarts", restarts)
    memory.stays_within(spec.memory_limit, record_figure)
    assert sum(restarts) > 8


async def test_a_container_of_a_full_application_does_not_grow_beside_its_limit(
    services: ClusterLab, engine: DockerLab, memory: MemorySum, record_figure
):
    spec = await services.announce(AppSpec(name=f"full{os.getpid()}", cpu_limit=0.5, memory_limit=256 * MIB))
    first = await grow(engine, memory, spec.name, 225)
    await poll(lambda: _uses(services, spec.name, 225 * MIB), what="the first has grown")
    second = await grow(engine, memory, spec.name, 900)
    await until(lambda: not state(engine, second)["Running"], within_s=60, what="the second is killed")
    memory.stays_within(spec.memory_limit, record_figure)
    assert state(engine, second)["ExitCode"] == KILLED
    assert state(engine, first)["Running"]


async def _uses(cluster: ClusterLab, app: str, size_bytes: int) -> bool:
    return sum(each.memory_usage_bytes for each in (await cluster.state(app)).containers) > size_bytes
