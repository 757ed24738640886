"""An agent is killed and started again while the Docker Engine answers late, or not at all: the sum of limits holds."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from schemas.apps import AppSpec
from tests.support.cluster_lab import MIB, ClusterLab, ServiceProcess, poll
from tests.support.deadline import until
from tests.support.docker_lab import CuttableProxy, DockerLab

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
MIXED = AppSpec(name="mixed", cpu_limit=0.6, memory_limit=512 * MIB)
DOCKER_ONLY = AppSpec(name="docker-only", cpu_limit=0.3, memory_limit=256 * MIB)
STATE = Path("/run/turnbuckle")
SETTLED_S = 3.0
"""After all sources have answered: what was wrongly believed would be handed out within it."""


class Fault(NamedTuple):
    """What meets the agent that is started again."""

    delay_s: float = 0.0
    """Before the engine answers."""
    down_s: float = 0.0
    """For which the engine's socket refuses connections."""
    lost_state: bool = False
    """Whether the state directory's notes of containers are lost."""


FAULTS = {
    "1 s late": Fault(delay_s=1),
    "3 s late": Fault(delay_s=3),
    "down": Fault(down_s=5),
    "3 s late, without its notes": Fault(delay_s=3, lost_state=True),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[DockerLab]:
    lab = DockerLab()
    try:
        yield lab
    finally:
        lab.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CuttableProxy]:
    forwarder = CuttableProxy(tmp_path_factory.mktemp("engine") / "docker.sock")
    await forwarder.open()
    yield forwarder
    await forwarder.cut()


async def launch_agent(cluster: ClusterLab, proxy: CuttableProxy) -> ServiceProcess:
    options = {"AGENT__NODE": "n1", "AGENT__MANAGED_ROOT": cluster.root, "AGENT__DOCKER": "auto"}
    return await cluster.launch("agent", **options, AGENT__DOCKER_URL=proxy.url).ready()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def busy(bare_cluster: ClusterLab, engine: DockerLab, proxy: CuttableProxy) -> AsyncIterator[int]:
    """Busy containers of Docker and of `turnbuckle exec` that share limits; how many."""
    await bare_cluster.launch_allocator().ready()
    await launch_agent(bare_cluster, proxy)
    root = docker_root(bare_cluster)
    for spec in (MIXED, DOCKER_ONLY):
        await bare_cluster.announce(spec)
        for number in range(2):
            labels = {"turnbuckle.app": spec.name, "turnbuckle.name": f"d{number}"}
            engine.run(
                "sh", "-c", "while :; do :; done",
                name=f"{spec.name}{number}", labels=labels, cgroup_parent=f"/{root}/{spec.name}",
            )  # fmt: skip
    for number in range(2):
        bare_cluster.container(MIXED.name, f"e{number}").tell("burn")
    count = 6
    await poll(lambda: all_managed(bare_cluster, count), within_s=60, what="all containers with limits")
    yield count
    engine.close()
    remove_groups(bare_cluster, root)


def remove_groups(cluster: ClusterLab, root: str) -> None:
    """The groups that the engine made above those of its containers."""
    for tree in (cluster.tree.cpu, cluster.tree.cpuacct, cluster.tree.memory):
        for directory in (*(f"{root}/{spec.name}" for spec in (MIXED, DOCKER_ONLY)), root):
            with contextlib.suppress(FileNotFoundError):
                Path(tree, directory).rmdir()


def docker_root(cluster: ClusterLab) -> str:
    """Where the containers of Docker are put, for the observer."""
    return f"{cluster.root}-docker"


async def all_managed(cluster: ClusterLab, count: int) -> bool:
    states = await cluster.states()
    rows = [row for state in states.values() for row in state.containers]
    return len(rows) == count and all(row.quota_us > 0 and row.report_age_s < 1 for row in rows)


async def restart_with(cluster: ClusterLab, proxy: CuttableProxy, fault: Fault) -> None:
    """Kill the agent and start another one, which meets the fault; returns when the fault is over."""
    [agent] = cluster.running("agent")
    await agent.signal(signal.SIGKILL)
    proxy.delay_s = fault.delay_s
    if fault.down_s:
        await proxy.cut()
    if fault.lost_state:
        for note in list((STATE / cluster.root / "originals").iterdir()):
            note.unlink(missing_ok=True)
    await launch_agent(cluster, proxy)
    await asyncio.sleep(fault.down_s + 3 * fault.delay_s)
    if fault.down_s:
        await proxy.open()
    proxy.delay_s = 0.0


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_the_sum_of_limits_holds_while_docker_is_not_heard(bare_cluster, proxy, busy, fault, record_figure):
    observer = bare_cluster.observe(bare_cluster.root, docker_root(bare_cluster))
    await until(lambda: len(observer.seen()) == 2, within_s=60, what="an observer that sees both applications")
    await restart_with(bare_cluster, proxy, fault)
    await poll(lambda: all_managed(bare_cluster, busy), within_s=60, what="all containers managed again")
    await asyncio.sleep(SETTLED_S)
    seen = observer.stop()

    above = {
        spec.name: sum(
            sum(reading.quota_us for reading in groups.values()) > spec.cpu_limit_us
            or sum(reading.limit_bytes for reading in groups.values()) > int(spec.memory_limit)
            for _, groups in seen[spec.name].samples
        )
        for spec in (MIXED, DOCKER_ONLY)
    }
    record_figure("samples", {name: len(observed.samples) for name, observed in seen.items()})
    record_figure("highest_quota_us", {name: observed.highest_quota_us for name, observed in seen.items()})
    record_figure("highest_limit_mib", {name: observed.highest_limit_bytes / MIB for name, observed in seen.items()})
    assert above == {MIXED.name: 0, DOCKER_ONLY.name: 0}
