"""After any chaos: once messages arrive again, every container gets what it needs, and writes come to rest."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.apps import AppSpec
from tests.support.examples import examples
from tests.support.lossy_cluster import LossyCluster

MIB = 1 << 20
DEMAND = [(30_000, 50 * MIB)] * 6
"""Six containers of 30 ms per period and 50 MiB, in an application of 4 cores and 2 GiB: there is room for all."""


def chaos(cluster, seed):
    """Thirty random events of every kind."""
    chance = random.Random(seed)
    for _ in range(30):
        machine = chance.choice(cluster.machines)
        usage = [(chance.randint(0, 200_000), chance.randint(0, 200 * MIB)) for _ in range(6)]
        event = chance.choice(["run", "run", "run", "deliver", "deliver", "drop", "late", "agent", "allocator"])
        if event == "run" or not cluster.network:
            cluster.run(machine, usage)
        elif event == "deliver":
            cluster.deliver(chance.randrange(len(cluster.network)), keep=chance.random() < 0.3)
        elif event == "drop":
            cluster.drop(chance.randrange(len(cluster.network)))
        elif event == "late":
            cluster.give_up_waiting(chance.randrange(len(cluster.network)))
        elif event == "agent":
            cluster.start_agent(machine)
        else:
            cluster.start_allocator()


def quiet_periods(cluster, count):
    """Periods in which everything arrives, in order."""
    for _ in range(count):
        for machine in cluster.machines:
            cluster.run(machine, DEMAND)
            while cluster.network:
                cluster.deliver(0)


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 1 << 32), policy=st.sampled_from(["waterfill", "escra"]))
def test_everyone_is_served_and_writes_rest_after_the_network_has_healed(seed, policy):
    cluster = LossyCluster(AppSpec(name="shop", cpu_limit=4, memory_limit=2048 * MIB, policy=policy))
    for machine in (0, 0, 0, 1, 1, 1):
        cluster.start_container(cluster.machines[machine])
    chaos(cluster, seed)
    quiet_periods(cluster, 60)

    assert all(container.quota_us >= 0.95 * 30_000 for container in cluster.containers())
    assert all(container.limit_bytes >= 50 * MIB for container in cluster.containers())

    before = [len(container.writes) for container in cluster.containers()]
    quiet_periods(cluster, 10)

    assert [len(container.writes) for container in cluster.containers()] == before


def test_pending_containers_get_capacity_although_their_node_reports_in_other_steps():
    """Room that is kept for them in one step must not be given back to the others in the next."""
    cluster = LossyCluster(AppSpec(name="shop", cpu_limit=4, memory_limit=2048 * MIB))
    first, second = cluster.machines
    for _ in range(3):
        cluster.start_container(first)
    for _ in range(20):
        for machine in cluster.machines:
            cluster.run(machine, [(200_000, 50 * MIB)] * 3)
            while cluster.network:
                cluster.deliver(0)
    assert cluster.quota_sum_us() > 0.99 * 400_000, "three of two cores each share all four"
    for _ in range(3):
        cluster.start_container(second)
    quiet_periods(cluster, 40)

    assert all(container.quota_us >= 0.95 * 30_000 for container in cluster.containers())
