"""A container that outgrows its limit as fast as it can is neither killed nor refused anything (design 4.4)."""

from __future__ import annotations

import pytest

from tests.bench.cluster import open_cluster
from tests.bench.memory_growth import GROW_BYTES, open_lab

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.machine, pytest.mark.asyncio(loop_scope="module")]
RUNS = 2


async def test_growth_beyond_the_limit_costs_no_process_and_no_system_call(record_figure):
    """By 1.5 GiB of a tmpfs from 50 MiB of room; `make bench-memory` does it a hundred times, in other ways too."""
    async with open_cluster() as cluster, open_lab(cluster, "default") as lab:
        runs = [run async for run in lab.run("tmpfs", RUNS)]
    record_figure("GB/s", [round(run.rate / 1e9, 2) for run in runs])
    record_figure("waits at the limit", sum(run.trapped for run in runs))

    assert all(run.room_bytes < GROW_BYTES / 10 for run in runs), "its limit had followed it down before"
    assert [run.kills for run in runs] == [0] * RUNS
    assert [run.failures for run in runs] == [[]] * RUNS
