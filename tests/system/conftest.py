"""One cluster per module: nats-server, an allocator, an agent. Every test uses an application of its own."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from tests.support.cluster_lab import ClusterLab


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterLab]:
    """Only the server."""
    lab = ClusterLab(tmp_path_factory.mktemp("cluster"))
    try:
        yield await lab.start()
    finally:
        await lab.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(bare_cluster: ClusterLab) -> ClusterLab:
    """With one allocator and one agent, ready."""
    agent, allocator = bare_cluster.launch_agent(), bare_cluster.launch_allocator()
    await agent.ready()
    await allocator.ready()
    return bare_cluster


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def no_write_is_a_no_op(bare_cluster: ClusterLab) -> AsyncIterator[None]:
    """Whatever a test does: a value that the kernel holds is never written again (it would refill the quota)."""
    yield
    assert await bare_cluster.no_op_writes() == 0


@pytest.fixture
def record_figure(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Log a measured figure; ``--log-cli-level=INFO`` shows it."""
    logger = logging.getLogger("figures")
    return lambda name, value: logger.info("%s: %s = %s", request.node.name, name, value)
