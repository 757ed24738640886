"""Docker containers of an application that has no room for them: the sum of its memory stays within its limit."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.apps import AppSpec
from services._host.cgroupfs import paths_of_pid
from tests.support.cluster_lab import MIB, ClusterLab, poll
from tests.support.docker_lab import DockerLab

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
GROWN_S = float(os.environ.get("GROWN_S", "120"))
TOLERANCE = 1.05
GROW = "import time\nheld = [bytes(b'x') * (1 << 20) for _ in range({mib})]\ntime.sleep(1000)"


@pytest.fixture
def engine() -> Iterator[DockerLab]:
    lab = DockerLab()
    try:
        yield lab
    finally:
        lab.close()


class MemorySum(threading.Thread):
    """The most that the memory groups of some containers have held together, read 100 times a second."""

    def __init__(self, groups: Path, ids: list[str]) -> None:
        super().__init__(daemon=True)
        self.most_bytes, self.most_unlimited, self.samples = 0, 0, 0
        self.most_of: list[int] = []
        self.ended = threading.Event()
        self._groups, self._ids = groups, ids

    def run(self) -> None:
        while not self.ended.wait(0.01):
            used = [self._read(each, "memory.usage_in_bytes", "memory.current") for each in list(self._ids)]
            if sum(used) > self.most_bytes:
                self.most_bytes, self.most_of = sum(used), [size // MIB for size in used]
            self.samples += 1

    def _read(self, container_id: str, *names: str) -> int:
        for name in names:
            try:
                return int((self._groups / container_id / name).read_text(encoding="ascii"))
            except OSError:
                continue
        return 0


def groups_of(cluster: ClusterLab, engine: DockerLab, container_id: str) -> Path:
    """The directory that has all containers' groups of the memory controller."""
    pid = engine.client.inspect_container(container_id)["State"]["Pid"]
    path = paths_of_pid(cluster.layout, pid)["memory"]
    assert path is not None
    return Path(path).parent


async def start(cluster: ClusterLab, spec: AppSpec) -> None:
    await cluster.launch_allocator().ready()
    await cluster.launch_agent(docker="auto").ready()
    await cluster.announce(spec)


def grower(engine: DockerLab, app: str, name: str, mib: int, **host: object) -> str:
    command = ("/usr/bin/python3", "-S", "-E", "-c", GROW.format(mib=mib))
    return engine.run(*command, name=name, labels={"turnbuckle.app": app}, **host)


async def test_eight_that_grow_and_are_restarted_stay_within_their_application_s_limit(
    bare_cluster: ClusterLab, engine: DockerLab, record_figure
):
    """A container that is killed comes back in a new control group, which has limits before it grows."""
    spec = AppSpec(name=f"eight{os.getpid()}", cpu_limit=4, memory_limit=512 * MIB)
    await start(bare_cluster, spec)
    idle = await asyncio.to_thread(engine.run, name="idle", labels={})
    ids: list[str] = []
    memory = MemorySum(groups_of(bare_cluster, engine, idle), ids)
    memory.start()
    policy = {"Name": "on-failure", "MaximumRetryCount": 0}
    for number in range(8):
        ids.append(await asyncio.to_thread(grower, engine, spec.name, f"g{number}", 400, restart_policy=policy))
    await asyncio.sleep(GROWN_S)
    memory.ended.set()
    restarts = sum(engine.client.inspect_container(each)["RestartCount"] for each in ids)
    record_figure("most_mib", memory.most_bytes / MIB)
    record_figure("of", memory.most_of)
    record_figure("restarts", restarts)
    record_figure("samples", memory.samples)
    assert restarts > 8
    assert memory.most_bytes < spec.memory_limit * TOLERANCE, (memory.most_bytes // MIB, memory.most_of)
