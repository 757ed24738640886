"""An agent is killed and started again while the Docker Engine does not answer: the sum of limits holds."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.apps import AppSpec
from tests.support.cluster_lab import MIB, ClusterLab, ServiceProcess, poll
from tests.support.docker_lab import CuttableProxy, DockerLab
from tests.support.engine_faults import ENGINE_TIMEOUT_S, NODE_EXPIRY_S, Fault, RestartLab, all_managed, highest_sums

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
MIXED = AppSpec(name="mixed", cpu_limit=0.6, memory_limit=512 * MIB)
DOCKER_ONLY = AppSpec(name="docker-only", cpu_limit=0.3, memory_limit=256 * MIB)
STATE = Path("/run/turnbuckle")
FAULT = Fault(down_s=5)
"""The unit tests have every other: late, in any order, without the state directory (test_late_sources.py there)."""


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
    options |= {"AGENT__DOCKER_URL": proxy.url, "AGENT__DOCKER_TIMEOUT_S": str(ENGINE_TIMEOUT_S)}
    return await cluster.launch("agent", **options).ready()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def busy(bare_cluster: ClusterLab, engine: DockerLab, proxy: CuttableProxy) -> AsyncIterator[int]:
    """Busy containers of Docker and of `turnbuckle exec` that share limits; how many."""
    await bare_cluster.launch_allocator(ALLOCATOR__NODE_EXPIRY_S=str(NODE_EXPIRY_S)).ready()
    await launch_agent(bare_cluster, proxy)
    root = docker_root(bare_cluster)
    for spec in (MIXED, DOCKER_ONLY):
        await bare_cluster.announce(spec)
        for number in range(2):
            labels = {"turnbuckle.app": spec.name, "turnbuckle.name": f"d{number}"}
            engine.run(
                "sh",
                "-c",
                "while :; do :; done",
                name=f"{spec.name}{number}",
                labels=labels,
                cgroup_parent=f"/{root}/{spec.name}",
                network_mode="none",
            )
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


async def test_the_sum_of_limits_holds_while_docker_is_not_heard(bare_cluster, proxy, busy, record_figure):
    observer = bare_cluster.observe(bare_cluster.root, docker_root(bare_cluster))
    notes = STATE / bare_cluster.root / "originals"
    lab = RestartLab(bare_cluster, proxy, lambda: launch_agent(bare_cluster, proxy), notes, busy, observer)
    await lab.observe_for(1)

    await lab.restart_with(FAULT)
    await lab.settle()

    for spec in (MIXED, DOCKER_ONLY):
        quota_us, limit_bytes = highest_sums(lab.samples, [spec.name])
        record_figure(f"highest sums of {spec.name} in {len(lab.samples)} samples", (quota_us, limit_bytes / MIB))
        assert (quota_us <= spec.cpu_limit_us, limit_bytes <= int(spec.memory_limit)) == (True, True)
