"""Limits follow usage: CPU bursts and memory growth of real processes in real control groups."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from schemas.apps import AppSpec
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer, MessageLog
from tests.support.deadline import until

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
PERIOD_US = 100_000
DEMAND_US = PERIOD_US // 2
"""Half a core: the demand is there also while other work on the machine takes a part of the core away."""
START_US = DEMAND_US // 10
GAMMA_US = PERIOD_US // 5
"""The default gamma, 0.2 cores."""
ATTEMPTS = 3
"""The best counts: other work on the machine takes periods away."""


@dataclass(frozen=True)
class Burst:
    """How a container was followed, in its own periods."""

    to_reach: int
    to_fall: int


def periods_until(rows: list[dict[str, int]], start: int, reached) -> int | None:
    """Periods from row `start` (exclusive) to the first row that is as wanted; None: none is yet."""
    elapsed = 0
    for row in rows[start + 1 :]:
        elapsed += max(row["periods"], 1)
        if reached(row):
            return elapsed
    return None


async def follow_burst(cluster: ClusterLab, spec: AppSpec, container: LabContainer) -> Burst:
    """From an idle container at a tenth of its demand through a burst and back."""
    await cluster.announce(spec.model_copy(update={"container_max_cpu": START_US / PERIOD_US}))
    await until(lambda: 0 < container.quota_us <= START_US, within_s=60, what="a tenth of the demand")
    async with cluster.batches(spec.name) as log:
        await until(lambda: len(log.rows(container.key)) >= 3, what="idle batches")
        await cluster.announce(spec)
        container.tell(f"burn {DEMAND_US / PERIOD_US}")
        try:
            to_reach = await _reach(log, container)
        finally:
            container.tell("idle")
        return Burst(to_reach, await _fall(log, container))


async def _reach(log: MessageLog, container: LabContainer) -> int:
    """Periods from the first one that shows the burst, throttled or not yet."""

    def rows():
        return log.rows(container.key)

    def begun():
        return next((i for i, row in enumerate(rows()) if row["throttled"] or row["used_us"] > START_US / 2), None)

    def reached():
        return periods_until(rows(), begun(), lambda row: row["quota_us"] >= 0.95 * DEMAND_US)

    await until(lambda: begun() is not None, what="the burst in a batch")
    assert rows()[begun() - 1]["quota_us"] <= 1.5 * START_US
    await until(lambda: reached() is not None, within_s=60, what="95 % of the demand")
    return reached()


async def _fall(log: MessageLog, container: LabContainer) -> int:
    """At most gamma of headroom is left to an idle container."""
    burst = len(log.rows(container.key)) - 1

    def idle():
        rows = log.rows(container.key)
        return next((i for i in range(burst, len(rows)) if rows[i]["used_us"] < 0.05 * DEMAND_US), None)

    def fallen():
        return periods_until(log.rows(container.key), idle(), lambda row: row["quota_us"] <= GAMMA_US)

    await until(lambda: idle() is not None, what="an idle period")
    await until(lambda: fallen() is not None, within_s=60, what="the fall")
    return fallen()


@pytest.mark.machine
async def test_a_burst_is_followed_within_ten_periods_and_given_back_within_two_windows(cluster, record_figure):
    spec = AppSpec(name="burst", cpu_limit=3 * DEMAND_US / PERIOD_US, memory_limit=512 * MIB)
    container = cluster.container(spec.name, "web")
    bursts: list[Burst] = []
    while len(bursts) < ATTEMPTS:
        bursts.append(await follow_burst(cluster, spec, container))
        if bursts[-1].to_reach <= 10 and bursts[-1].to_fall <= 2 * spec.window:
            break
    record_figure("bursts", repr(bursts))
    assert min(burst.to_reach for burst in bursts) <= 10, bursts
    assert min(burst.to_fall for burst in bursts) <= 2 * spec.window, bursts


async def test_reclaim_shrinks_an_idle_containers_limit_to_usage_plus_delta(cluster):
    spec = await cluster.announce(AppSpec(name="reclaim", cpu_limit=0.5, memory_limit=512 * MIB))
    async with cluster.decisions(spec.name) as log:
        container = cluster.container(spec.name, "cache")
        container.tell(f"hold {20 * MIB} {1000 * MIB}")
        await asyncio.wait_for(asyncio.to_thread(container.wait_said, "held"), 60)

        def reclaimed() -> bool:
            reading = container.read()
            wanted = pytest.approx(reading.usage_bytes + spec.delta, abs=MIB)
            return reading.usage_bytes >= 20 * MIB and reading.limit_bytes == wanted

        await until(reclaimed, what="usage and delta")

        def limits() -> list[int]:
            return [row["limit_to_bytes"] for row in log.rows(container.key) if row["limit_to_bytes"]]

        await until(lambda: len(limits()) >= 2, what="the first limit and the reclaim told")
    assert limits()[0] == spec.initial_memory_bytes(1) // 4096 * 4096, limits()


@pytest.mark.machine
async def test_a_limit_grows_ahead_of_usage(cluster, record_figure):
    """60 MiB/s up to 300 MiB from a limit of 64 MiB: nobody is killed, and the limit is never reached."""
    spec = await cluster.announce(AppSpec(name="growth", cpu_limit=1, memory_limit=512 * MIB, sigma=1 - 64 / 512))
    container = cluster.container(spec.name, "cache", limit_bytes=64 * MIB)
    await until(lambda: container.quota_us > 0, what="the first limits")
    assert container.limit_bytes == 64 * MIB

    async with cluster.batches(spec.name) as log:
        container.tell(f"hold {300 * MIB} {60 * MIB}")
        await asyncio.wait_for(asyncio.to_thread(container.wait_said, "held"), 60)
        await until(lambda: log.rows(container.key)[-1]["memory_usage_bytes"] >= 300 * MIB, what="all of it in use")
        rows = log.rows(container.key)

    least_bytes = min(row["memory_limit_bytes"] - row["memory_usage_bytes"] for row in rows)
    record_figure("least MiB between usage and limit", least_bytes // MIB)
    assert container.alive
    assert rows[-1]["oom_kills"] == 0
    assert least_bytes > 0
    assert container.limit_bytes <= spec.memory_limit
