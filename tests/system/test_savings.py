"""Real control groups that came with limits of their own: what enforcing would save, then saves, also after a crash."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest
from typer.testing import CliRunner

from schemas.apps import AppSpec
from services.cli.main import app as main
from tests.support.cluster_lab import MIB, ClusterLab, poll
from tests.support.deadline import until

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

CAME_WITH_US = 50_000
APP = "frugal"


async def covered(cluster: ClusterLab, mode: str, seconds: float) -> dict[str, Any]:
    """Sums of a mode, once more than so many seconds are covered."""

    async def found() -> dict[str, Any] | None:
        arguments = ["savings", "--app", APP, "--json", "--server", cluster.nats.url]
        done = await asyncio.to_thread(CliRunner().invoke, main, arguments)
        totals = json.loads(done.stdout)["totals"] if done.exit_code == 0 else []
        return next((each for each in totals if each["mode"] == mode and each["covered_s"] > seconds), None)

    sums: dict[str, Any] = await poll(found, what=f"{seconds} s of {mode}")
    return sums


async def test_what_groups_came_with_is_the_baseline_before_and_after_their_limits_were_changed(
    bare_cluster: ClusterLab, record_figure
) -> None:
    cluster = bare_cluster
    agent, allocator = cluster.launch_agent(), cluster.launch_allocator(ALLOCATOR__SAVINGS_EVERY_S="1")
    await agent.ready()
    await allocator.ready()
    spec = AppSpec(name=APP, cpu_limit=2.0, memory_limit=512 * MIB, mode="observe")
    containers = [cluster.container(APP, name, CAME_WITH_US, 128 * MIB) for name in ("web", "db")]
    await cluster.announce(spec)  # afterwards: no second is counted with one of them
    observed = await covered(cluster, "observe", 5.0)

    # Two groups of half a core and 128 MiB: 1 core and 0.25 GiB for each second that is covered.
    hours = observed["covered_s"] / 3_600
    assert observed["cpu"]["baseline"] == observed["memory"]["baseline"] == ["configured"]
    assert observed["cpu"]["baseline_core_h"] == pytest.approx(hours)
    assert observed["memory"]["baseline_gib_h"] == pytest.approx(hours / 4)
    assert 0 < observed["cpu"]["saved_core_h"] < hours
    assert [each.quota_us for each in containers] == [CAME_WITH_US] * 2, "nothing is written"
    record_figure("of a core that idle groups would give back", f"{observed['cpu']['saved_core_h'] / hours:.2f}")

    await cluster.announce(spec.model_copy(update={"mode": "enforce"}))
    await until(lambda: all(each.quota_us < CAME_WITH_US for each in containers), what="lower quotas")
    before = await covered(cluster, "enforce", 1.0)
    await agent.signal(signal.SIGKILL)
    agent = await cluster.launch_agent().ready()
    enforced = await covered(cluster, "enforce", before["covered_s"] + 3.0)

    assert enforced["cpu"]["baseline"] == ["configured"]
    assert enforced["cpu"]["baseline_core_h"] == pytest.approx(enforced["covered_s"] / 3_600)
    assert enforced["cpu"]["saved_core_h"] > 0
    await agent.signal(signal.SIGTERM)
    assert [each.quota_us for each in containers] == [CAME_WITH_US] * 2, "restored"
    for each in containers:
        cluster.remove(each)
