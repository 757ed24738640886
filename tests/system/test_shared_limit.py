"""The sum of all limits of an application stays below its own, whatever happens: seen by an independent observer."""

from __future__ import annotations

import asyncio
import random
import signal
import time

import pytest

from schemas.apps import AppSpec
from services._runtime.bus.api import RequestRefusedError
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer, poll
from tests.support.deadline import until
from tests.support.limit_observer import Observation

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.machine, pytest.mark.asyncio(loop_scope="module")]
LEAST_S = 15.0


def assert_never_above(seen: Observation, spec: AppSpec, least_rate_hz: float = 10) -> None:
    """Within the limit, but for the floor of one that has come, in every sample, and there were enough of those."""
    assert len(seen.samples) >= least_rate_hz * seen.duration_s, f"{len(seen.samples)} in {seen.duration_s:.1f} s"
    assert seen.highest_quota_us <= spec.cpu_limit_us + spec.floor_quota_us
    assert seen.highest_limit_bytes <= spec.memory_limit + spec.container_floor_memory


class Churn:
    """Containers of one application that burn in turns, grow and shrink, come and go. Repeatable by its seed."""

    def __init__(self, cluster: ClusterLab, app: str, count: int) -> None:
        self._cluster = cluster
        self._app = app
        self._random = random.Random(app)
        self._serial = 0
        self.containers: list[LabContainer] = []
        for _ in range(count):
            self._add()

    def _add(self) -> None:
        self._serial += 1
        self.containers.append(self._cluster.container(self._app, f"c{self._serial}"))

    def turn(self) -> None:
        """Every container but one idles; some hold memory."""
        burning = self._random.choice(self.containers)
        for container in self.containers:
            container.tell("burn" if container is burning else "idle")
        # Less than delta: while there is no allocator nobody raises a limit.
        self._random.choice(self.containers).tell(f"hold {self._random.randrange(40) * MIB} {60 * MIB}")

    async def replace_one(self) -> None:
        """One goes, another comes."""
        gone = self.containers.pop(self._random.randrange(len(self.containers)))
        await asyncio.to_thread(self._cluster.remove, gone)
        self._add()


async def test_sums_hold_while_containers_burn_come_and_go_and_the_allocator_is_restarted(cluster, record_figure):
    """Once gracefully, once by SIGKILL; one application per policy."""
    specs = [
        await cluster.announce(AppSpec(name=f"churn-{policy}", cpu_limit=0.7, memory_limit=400 * MIB, policy=policy))
        for policy in ("waterfill", "escra")
    ]
    observer = cluster.observe()
    churns = [Churn(cluster, spec.name, 3) for spec in specs]
    [allocator] = cluster.running("allocator")
    [agent] = cluster.running("agent")
    start_s = time.monotonic()
    restarts = {8: signal.SIGTERM, 16: signal.SIGKILL}
    turn = 0
    while turn < 24 or time.monotonic() - start_s < LEAST_S:
        turn += 1
        for churn in churns:
            churn.turn()
        if turn % 4 == 0:
            await asyncio.gather(*(churn.replace_one() for churn in churns))
        if turn in restarts:
            await allocator.signal(restarts[turn])
            allocator = cluster.launch_allocator()
        batches = await agent.metric("turnbuckle_agent_samples_total")
        await poll(lambda since=batches: _ticked(agent, since + 5), within_s=60, what="five more periods")
    await allocator.ready()
    await poll(lambda: _all_admitted(cluster, specs), within_s=60, what="all containers admitted again")

    seen = observer.stop()
    for spec in specs:
        record_figure(f"{spec.name} highest quota / limit", seen[spec.name].highest_quota_us / spec.cpu_limit_us)
        record_figure(
            f"{spec.name} highest memory / limit", seen[spec.name].highest_limit_bytes / int(spec.memory_limit)
        )
        assert seen[spec.name].duration_s >= LEAST_S
        assert_never_above(seen[spec.name], spec)
        assert seen[spec.name].highest_quota_us > 0.8 * spec.cpu_limit_us, "the limit was never in use"
        assert seen[spec.name].most_groups >= 3
    assert await agent.metric("turnbuckle_agent_quota_writes_total") > 50
    for churn in churns:
        for container in churn.containers:
            assert container.alive
            cluster.remove(container)


async def _ticked(agent, ticks: float) -> bool:
    return await agent.metric("turnbuckle_agent_samples_total") >= ticks


async def _all_admitted(cluster: ClusterLab, specs: list[AppSpec]) -> bool:
    try:
        states = [await cluster.state(spec.name) for spec in specs]
    except RequestRefusedError:  # not yet known to who was asked
        return False
    return all(len(state.containers) == 3 and all(c.admitted for c in state.containers) for state in states)


async def test_two_agents_share_one_limit(cluster, record_figure):
    """The load moves from one agent's container to the other's, and the quota follows."""
    other_root = f"{cluster.root}-b"
    second = cluster.launch_agent(node="n2", root=other_root)
    await second.ready()
    spec = await cluster.announce(AppSpec(name="shared", cpu_limit=0.8, memory_limit=256 * MIB))
    observer = cluster.observe(cluster.root, other_root)
    here = cluster.container(spec.name, "here")
    there = cluster.container(spec.name, "there", root=other_root)
    await until(lambda: here.quota_us > 0 and there.quota_us > 0, within_s=60, what="both admitted")

    for burning, idle in ((here, there), (there, here), (here, there)):
        idle.tell("idle")
        burning.tell("burn")
        await until(
            lambda b=burning, i=idle: b.quota_us >= 0.7 * spec.cpu_limit_us and i.quota_us <= 0.3 * spec.cpu_limit_us,
            within_s=60,
            what="the quota at the one that burns",
        )
    state = await cluster.state(spec.name)
    assert {container.node for container in state.containers} == {"n1", "n2"}
    assert state.cpu_committed_us + state.cpu_free_us == spec.cpu_limit_us

    seen = observer.stop()[spec.name]
    record_figure("highest quota / limit", seen.highest_quota_us / spec.cpu_limit_us)
    assert_never_above(seen, spec)
    assert await second.metric("turnbuckle_agent_quota_writes_total") > 0
    assert await second.signal(signal.SIGTERM) == 0
