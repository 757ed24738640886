"""An application that runs out of memory: first what others do not use, then the kernel's kill, and it says why."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from schemas.apps import AppSpec
from schemas.oom import OomKind
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer
from tests.support.deadline import until
from tests.support.growing import grow, grown
from tests.support.invariant_checker import InvariantChecker, watch
from tests.support.tmpfs_writer import TmpfsWriter

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.machine, pytest.mark.asyncio(loop_scope="module")]


async def hold(container: LabContainer, size_mib: int) -> None:
    """Grow, or fall, to so much; fails if the load is killed meanwhile."""
    grow(container, size_mib)
    await grown(container)


async def admitted(*containers: LabContainer) -> None:
    await until(lambda: all(c.guarded and c.limit_bytes > 0 for c in containers), within_s=60, what="all guarded")


async def test_slack_of_others_is_taken_back_before_anybody_is_killed(cluster: ClusterLab):
    """One has just given 130 MiB back and still has the limit; the other one needs it at once."""
    spec = await cluster.announce(AppSpec(name="slack", cpu_limit=0.8, memory_limit=300 * MIB))
    rich, poor, quiet = (cluster.container(spec.name, name) for name in ("rich", "poor", "quiet"))
    async with watch(cluster, spec) as checker:
        await admitted(rich, poor, quiet)
        await hold(rich, 130)
        await hold(rich, 4)
        slack_bytes = rich.limit_bytes - rich.read().usage_bytes
        assert slack_bytes > 100 * MIB

        await hold(poor, 200)
        assert checker.rules.kills == []
        assert rich.limit_bytes < slack_bytes, "its slack has been taken back"
        assert poor.limit_bytes > 200 * MIB
        assert rich.alive
        assert quiet.alive
        await checker.settled()
    assert checker.rules.kills == []
    for container in (rich, poor, quiet):
        cluster.remove(container)


async def assert_killed_with_reason(checker: InvariantChecker, container: LabContainer, spec: AppSpec) -> None:
    event = await checker.told(container.key, OomKind.KILL)
    assert f"{spec.name} may use {int(spec.memory_limit) // MIB} MiB" in event.reason, event.reason
    assert event.oom_kills == 1
    [refusal, *_] = checker.events(container.key, OomKind.GRANT_DENIED, OomKind.OOM_KILLER_ENABLED)
    assert f"{spec.name} may use" in refusal.reason


async def test_when_nothing_is_left_the_kernel_kills_the_event_says_why_and_the_rest_runs_on(
    cluster: ClusterLab, record_figure
):
    spec = await cluster.announce(AppSpec(name="exhausted", cpu_limit=0.8, memory_limit=256 * MIB))
    greedy, modest, quiet = (cluster.container(spec.name, name) for name in ("greedy", "modest", "quiet"))
    async with watch(cluster, spec) as checker:
        await admitted(greedy, modest, quiet)
        await hold(modest, 60)
        grow(greedy, 400)
        await until(lambda: not greedy.alive, within_s=60, what="the kernel's kill")
        await assert_killed_with_reason(checker, greedy, spec)
        record_figure("longest pause, seconds", round(checker.rules.longest_pause_s, 3))
        record_figure("most of the limit that the files held", round(checker.rules.highest_limit_share, 3))
        assert checker.rules.highest_limit_share > 0.9

        await hold(modest, 120)
        await hold(quiet, 60)
        await checker.settled()
    assert not checker.rules.killed_while_available
    assert modest.alive
    assert quiet.alive
    for container in (modest, quiet, greedy):
        cluster.remove(container)


async def test_a_large_container_gets_all_that_a_small_one_does_not_use_and_is_told_which_calls_may_have_failed(
    cluster: ClusterLab, record_figure
):
    """Memory of a tmpfs can be neither reclaimed nor ended by a kill; the large one's writes fail, and it lives on.

    Fair shares are 128 MiB. The small one does not ask while the large one takes more; what that frees later it gets.
    """
    spec = await cluster.announce(AppSpec(name="fair", cpu_limit=0.8, memory_limit=256 * MIB))
    large, small = (cluster.container(spec.name, name) for name in ("large", "small"))
    writer = await asyncio.to_thread(TmpfsWriter)
    with ExitStack() as filled:
        filled.callback(writer.close)
        async with watch(cluster, spec) as checker:
            await admitted(large, small)
            large.add_process(writer.pid)
            await asyncio.to_thread(writer.fill)
            record_figure("large, small: MiB of 256", (large.limit_bytes // MIB, small.limit_bytes // MIB))
            await all_but_what_the_small_one_uses(large, small, checker)
            await asyncio.to_thread(filled.close)
            await hold(small, 120)
            assert checker.rules.kills == []
            await checker.settled()
    for container in (large, small):
        cluster.remove(container)


async def all_but_what_the_small_one_uses(large: LabContainer, small: LabContainer, checker: InvariantChecker) -> None:
    """Its limit is what the small one leaves, but for two margins of 4 MiB, rounding, and the 2 MiB it gave back."""
    assert large.limit_bytes > 256 * MIB - small.read().usage_bytes - 16 * MIB
    hits = await checker.told(large.key, OomKind.LIMIT_HITS)
    assert "can have failed with EFAULT or ENOMEM" in hits.reason
    assert small.alive
    assert checker.rules.kills == []
