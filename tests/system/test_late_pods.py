"""An agent is killed and started again, without its notes and before the container runtime answers: the sum holds.

Control groups are the kernel's, below a kubelet's directory in a corner of its own; only the runtime is a fake one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio

from schemas.apps import AppSpec
from tests.support.cluster_lab import MIB, ClusterLab, ServiceProcess, poll
from tests.support.cri_lab import FakeRuntime, serving
from tests.support.deadline import until
from tests.support.docker_lab import CuttableProxy
from tests.support.engine_faults import (
    ENGINE_TIMEOUT_S,
    NODE_EXPIRY_S,
    Fault,
    RestartLab,
    all_managed,
    highest_sums,
    waits_for,
)

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
MIXED = AppSpec(name="mixed", cpu_limit=0.6, memory_limit=512 * MIB)
PODS_ONLY = AppSpec(name="pods-only", cpu_limit=0.3, memory_limit=256 * MIB)
FAULT = Fault(delay_s=3, lost_state=True)
"""That it is not there at all: test_late_sources.py, for Docker; all the rest: the unit tests."""
Pods = dict[str, str]
"""By application: the directory of its pod."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sockets, and the state of the agents."""
    return tmp_path_factory.mktemp("pods")


@pytest.fixture(scope="module")
def runtime(directory: Path) -> Iterator[FakeRuntime]:
    fake = FakeRuntime()
    with serving(fake, directory / "runtime.sock"):
        yield fake


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(directory: Path, runtime: FakeRuntime) -> AsyncIterator[CuttableProxy]:
    forwarder = CuttableProxy(directory / "cri.sock", str(directory / "runtime.sock"))
    await forwarder.open()
    yield forwarder
    await forwarder.cut()


def kubepods(cluster: ClusterLab) -> str:
    """The directory of a class of pods, for the observer: pods are below it, and their containers below them."""
    return f"{cluster.root}-pods/kubepods/burstable"


async def launch_agent(cluster: ClusterLab, directory: Path) -> ServiceProcess:
    options = {"AGENT__NODE": "n1", "AGENT__MANAGED_ROOT": cluster.root, "AGENT__DOCKER": "off", "AGENT__PODS": "on"}
    options |= {"AGENT__CRI_SOCKET": str(directory / "cri.sock"), "AGENT__PODS_TIMEOUT_S": str(ENGINE_TIMEOUT_S)}
    return await cluster.launch("agent", **options, AGENT__STATE_DIRECTORY=str(directory / "state")).ready()


def start_pod(cluster: ClusterLab, runtime: FakeRuntime, app: str) -> str:
    """A pod with two busy containers; returns the name of its directory."""
    pod, sandbox_id = f"pod{uuid4()}", uuid4().hex * 2
    runtime.add_pod(sandbox_id, labels={"turnbuckle.app": app})
    for number in range(2):
        container_id = uuid4().hex * 2
        runtime.add_container(container_id, sandbox_id, f"p{number}")
        cluster.container_in(f"{kubepods(cluster)}/{pod}/{container_id}").tell("burn")
    return pod


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def busy(bare_cluster: ClusterLab, directory: Path, proxy: CuttableProxy, runtime: FakeRuntime) -> Pods:
    """Busy containers of pods and of `turnbuckle exec` that share limits."""
    await bare_cluster.launch_allocator(ALLOCATOR__NODE_EXPIRY_S=str(NODE_EXPIRY_S)).ready()
    await launch_agent(bare_cluster, directory)
    pods = {}
    for spec in (MIXED, PODS_ONLY):
        await bare_cluster.announce(spec)
        pods[spec.name] = start_pod(bare_cluster, runtime, spec.name)
    for number in range(2):
        bare_cluster.container(MIXED.name, f"e{number}").tell("burn")
    await poll(lambda: all_managed(bare_cluster, len(bare_cluster.containers)), what="all containers with limits")
    return pods


@pytest.fixture
def lab(bare_cluster: ClusterLab, directory: Path, proxy: CuttableProxy, busy: Pods) -> RestartLab:
    observer = bare_cluster.observe(bare_cluster.root, kubepods(bare_cluster))
    notes = directory / "state" / bare_cluster.root / "originals"
    count = len(bare_cluster.containers)
    return RestartLab(bare_cluster, proxy, lambda: launch_agent(bare_cluster, directory), notes, count, observer)


async def test_the_sum_of_limits_holds_while_the_runtime_is_not_heard(lab, busy, runtime, record_figure):
    await lab.observe_for(1)
    answers = runtime.questions

    agent = await lab.restart_with(FAULT)
    await until(lambda: runtime.questions >= answers + 2, what="both answers of the runtime")
    await lab.settle()

    assert ["kubernetes"] in waits_for(agent), "it has sampled before the runtime answered"
    for spec in (MIXED, PODS_ONLY):
        quota_us, limit_bytes = highest_sums(lab.samples, [spec.name, busy[spec.name]])
        record_figure(f"highest sums of {spec.name} in {len(lab.samples)} samples", (quota_us, limit_bytes / MIB))
        assert (quota_us <= spec.cpu_limit_us, limit_bytes <= int(spec.memory_limit)) == (True, True)
