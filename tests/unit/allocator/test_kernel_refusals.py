"""What the kernel refuses binds one container, not its application: real allocator and agent, a kernel that refuses.

SharedNode's containers are busy: without a refusal each of n containers gets about 1/n of the limit.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.apps import AppSpec
from services.allocator.explain import summary
from tests.support.app_states import app_state, container_state
from tests.support.examples import examples
from tests.support.lossy_cluster import floors
from tests.support.shared_node import SharedNode

MIB = 1 << 20
SECOND = 10
"""Periods."""
MOST_IN_A_MINUTE = 12
"""Writes that are tried of one refused limit: after 0.2, 0.4, ... 25.6 s, then every 30 s, and some before the first
reply."""
JOIN_PERIODS = 10
FAULT_PERIODS = 20
"""A lost reply is known after a second, and the order after it needs some periods."""
BOTH = frozenset({"quota", "memory"})
"""Files that can be written."""
POLICIES = pytest.mark.parametrize("policy", ["waterfill", "escra"])


def shared_by(policy="waterfill", cores=1.5, memory=300 * MIB, **values):
    spec = AppSpec(name="shop", cpu_limit=cores, memory_limit=memory, policy=policy, **values)
    return SharedNode((spec,), None, busy=True)


def periods(shared, count, usage_mib=10):
    for _ in range(count):
        shared.run([usage_mib * MIB] * len(shared.found))
        shared.deliver_all()


def attempts(container, what, since_ns):
    return sum(when_ns > since_ns and kind == what for when_ns, kind, _ in container.attempts)


@POLICIES
def test_a_burst_does_not_keep_a_newcomer_without_limits(policy):
    """The application of the report: 1.5 cores, one container with all of them, a burst of 1.0 that nobody lowers."""
    shared = shared_by(policy)
    first = shared.start_container("shop", burst_us=100_000)
    periods(shared, 3 * SECOND)
    assert first.quota_us > 140_000
    second = shared.start_container("shop")
    periods(shared, JOIN_PERIODS)

    assert first.quota_us == 100_000  # no less is accepted; the agent finds that by itself
    assert 0 < second.quota_us <= 50_000
    assert 0 < second.limit_bytes <= 290 * MIB
    periods(shared, 3 * SECOND)
    assert first.quota_us + second.quota_us <= 150_000
    assert second.quota_us > 45_000  # all that is left


@POLICIES
def test_a_refused_cut_is_tried_seldom_and_heals(policy):
    shared = shared_by(policy)
    first = shared.start_container("shop")
    periods(shared, 3 * SECOND)
    first.writable = frozenset({"memory"})
    held_us = first.quota_us
    second = shared.start_container("shop")
    periods(shared, JOIN_PERIODS)
    began_ns = shared.now_ns
    periods(shared, 60 * SECOND)

    assert first.quota_us == held_us
    assert attempts(first, "quota", began_ns) <= MOST_IN_A_MINUTE
    first.writable = BOTH
    shared.owners["shop"].set_spec("shop", shared.specs[0].model_copy(update={"cpu_limit": 1.0}))
    periods(shared, 31 * SECOND)
    assert first.quota_us + second.quota_us <= 100_000


@POLICIES
def test_a_floor_that_takes_all_leaves_others_their_minimum(policy):
    """The sum exceeds the limit by no more than what is refused; nobody stays without limits."""
    shared = shared_by(policy, cores=1.0)
    first = shared.start_container("shop")
    periods(shared, 3 * SECOND)
    first.writable = frozenset({"memory"})
    others = [shared.start_container("shop") for _ in range(3)]
    periods(shared, JOIN_PERIODS)

    held_us = first.quota_us
    assert held_us > 95_000
    for other in others:
        assert 1_000 <= other.quota_us <= max(1_000, 100_000 - held_us)
        assert other.limit_bytes > 0
    assert shared.limits_bytes() <= 300 * MIB


def test_without_any_quota_a_container_gets_its_memory_limit_and_counts_what_it_uses():
    """Of an unlimited one that is busy that is a core here (`SharedNode.busy`)."""
    shared = shared_by()
    first = shared.start_container("shop", writable=frozenset({"memory"}))
    second = shared.start_container("shop")
    periods(shared, JOIN_PERIODS)
    assert 0 < first.limit_bytes < 200 * MIB
    assert second.limit_bytes > 0
    periods(shared, 3 * SECOND)
    # 150 000 less the 100 000 that the first one uses
    assert (first.quota_us, 45_000 < second.quota_us <= 50_000) == (-1, True)
    began_ns = shared.now_ns
    periods(shared, 60 * SECOND)
    assert attempts(first, "quota", began_ns) <= 4
    first.writable = BOTH
    periods(shared, 31 * SECOND)
    assert 60_000 < first.quota_us <= 100_000


def test_without_any_memory_limit_a_container_gets_its_quota_and_counts_what_it_uses():
    shared = shared_by()
    first = shared.start_container("shop", writable=frozenset({"quota"}))
    second = shared.start_container("shop")
    periods(shared, JOIN_PERIODS, usage_mib=60)
    assert 0 < first.quota_us < 150_000
    assert second.quota_us > 0
    assert first.limit_bytes == -1
    # 300 MiB less the 60 MiB that the first one uses
    assert 0 < shared.limits_bytes() <= 240 * MIB
    first.writable = BOTH
    periods(shared, 31 * SECOND, usage_mib=60)
    assert 0 < first.limit_bytes <= 240 * MIB


@POLICIES
def test_below_a_parent_with_less_a_container_gets_what_the_parent_allows_and_others_the_rest(policy):
    """The report's second application: 1.5 cores for two, and a parent of 0.5."""
    shared = shared_by(policy)
    below = shared.start_container("shop", parent_quota_us=50_000)
    beside = shared.start_container("shop")
    periods(shared, JOIN_PERIODS)
    assert below.quota_us == 50_000
    assert below.limit_bytes > 0
    began_ns = shared.now_ns
    periods(shared, 60 * SECOND)
    assert below.quota_us == 50_000
    assert beside.quota_us > 95_000
    assert attempts(below, "quota", began_ns) <= MOST_IN_A_MINUTE
    below.parent_quota_us = 0
    shared.at_rest = {1}
    periods(shared, 31 * SECOND)
    assert below.quota_us > 90_000


def test_a_group_below_with_more_is_a_floor():
    shared = shared_by()
    first = shared.start_container("shop", child_quota_us=90_000)
    periods(shared, 3 * SECOND)
    second = shared.start_container("shop")
    periods(shared, 3 * SECOND)
    assert 90_000 <= first.quota_us < 100_000
    assert 50_000 < second.quota_us <= 150_000 - first.quota_us


def test_a_memory_limit_that_is_refused_is_a_floor_for_memory_only():
    """The application's memory limit is lowered; one container's cannot be."""
    shared = shared_by()
    first, second = (shared.start_container("shop") for _ in range(2))
    periods(shared, 6 * SECOND)
    held_bytes = first.limit_bytes
    first.writable = frozenset({"quota"})
    spec = shared.specs[0].model_copy(update={"memory_limit": 100 * MIB, "cpu_limit": 0.5})
    shared.owners["shop"].set_spec("shop", spec)
    began_ns = shared.now_ns
    periods(shared, 60 * SECOND)
    assert first.limit_bytes == held_bytes
    assert attempts(first, "memory", began_ns) <= MOST_IN_A_MINUTE
    assert first.quota_us + second.quota_us <= 50_000
    first.writable = BOTH
    periods(shared, 31 * SECOND)
    assert shared.limits_bytes() <= 100 * MIB


@pytest.mark.parametrize("restarted", ["agent", "owner"])
def test_a_restart_forgets_what_was_refused_and_learns_it_again(restarted):
    shared = shared_by()
    first = shared.start_container("shop", burst_us=100_000)
    second = shared.start_container("shop")
    periods(shared, 3 * SECOND)
    if restarted == "agent":
        shared.start_agent()
    else:
        shared.start_owner(shared.specs[0])
    third = shared.start_container("shop")
    began_ns = shared.now_ns
    periods(shared, 2 * JOIN_PERIODS)
    assert first.quota_us == 100_000
    assert second.quota_us > 0
    assert third.quota_us > 0
    assert first.quota_us + second.quota_us + third.quota_us <= 150_000
    assert attempts(first, "quota", began_ns) <= MOST_IN_A_MINUTE


def test_the_reason_is_known_until_the_kernel_accepts_again():
    shared = shared_by()
    first = shared.start_container("shop", parent_quota_us=50_000)
    shared.start_container("shop")
    periods(shared, 5 * SECOND)
    owner = shared.owners["shop"]
    reason = "the kernel refuses more than 0.50 cores: the group above has 50000"
    assert [owner.kernel_refusals.of_row(row, shared.now_ns) for row in (0, 1)] == [reason, ""]
    first.parent_quota_us = 0
    shared.at_rest = {1}
    periods(shared, 31 * SECOND)
    assert owner.kernel_refusals.of_row(0, shared.now_ns) == ""
    assert owner.kernel_refusals.reasons == {}


def test_the_summary_names_three_containers_and_counts_the_others():
    containers = [container_state(f"c{number}", kernel_refusal="the kernel refuses more") for number in range(5)]
    assert summary(app_state(container_state("well"))).endswith("(policy waterfill, mode enforce)")
    said = "; ".join(f"c{number}: the kernel refuses more" for number in range(3))
    assert summary(app_state(*containers)).endswith(f"enforce); {said}; 2 more of which limits are refused")


REFUSAL = st.fixed_dictionaries(
    {
        "moment": st.integers(0, 40),
        "burst_us": st.sampled_from([0, 0, 20_000, 60_000, 150_000]),
        "child_quota_us": st.sampled_from([0, 0, 5_000, 40_000]),
        "parent_quota_us": st.sampled_from([0, 0, 30_000, 80_000]),
        "writable": st.sets(st.sampled_from(["quota", "memory"])).map(frozenset),
    }
)


def can_refuse(container, refusal):
    """A kernel accepts no rule that what it holds breaks already: a burst above the quota, a parent with less."""
    quota_us = container.quota_us
    floor_us = max(refusal["burst_us"], refusal["child_quota_us"])
    parent_us = refusal["parent_quota_us"]
    return (quota_us < 0 or floor_us <= quota_us) and (not parent_us or floor_us <= parent_us >= quota_us)


def refuse(shared, refusals, moment):
    for container, refusal in zip(shared.containers(), refusals, strict=False):
        if refusal["moment"] == moment:
            container.writable = refusal["writable"]
            if can_refuse(container, refusal):
                for name in ("burst_us", "child_quota_us", "parent_quota_us"):
                    setattr(container, name, refusal[name])


def deliver(shared, fault):
    """What is under way, and what follows from it."""
    if fault == "agent":
        shared.start_agent()
    elif fault == "owner":
        shared.start_owner(shared.specs[0])
    elif fault == "late":
        return
    elif fault == "lost":
        for kind in ("batch", "update"):
            for item in [item for item in shared.network if item[0] == kind]:
                shared.deliver(next(index for index, other in enumerate(shared.network) if other is item))
        while shared.network:
            shared.drop(0)
    elif fault == "doubled" and shared.network:
        for index in range(len(shared.network)):
            shared.deliver(index, keep=True)
    shared.deliver_all()


def refused_excess(shared):
    """What containers hold, or use without any limit, that they cannot be made to give back."""
    excess_us = excess_bytes = 0
    for container in shared.containers():
        floor_us = max(container.burst_us, container.child_quota_us)
        held_us = max(container.quota_us, 0)
        excess_us += held_us if "quota" not in container.writable else min(floor_us, held_us)
        excess_bytes += max(container.limit_bytes, 0) * ("memory" not in container.writable)
    return excess_us, excess_bytes


@settings(max_examples=examples(40), deadline=None)
@given(
    case=st.tuples(
        st.sampled_from(["waterfill", "escra"]), st.sampled_from([0.5, 1.5, 3.0]), st.sampled_from([128, 512])
    ),
    refusals=st.lists(REFUSAL, min_size=1, max_size=4),
    joins=st.lists(st.integers(0, 60), min_size=1, max_size=2),
    faults=st.lists(st.sampled_from(["lost", "doubled", "late", "agent", "owner", None]), max_size=40),
)
def test_whatever_is_refused_all_that_join_have_limits_and_all_heals(case, refusals, joins, faults):
    """At first messages are lost, doubled or late, and both sides restart: some periods after the last fault."""
    policy, cores, memory_mib = case
    shared = shared_by(policy, cores=cores, memory=memory_mib * MIB)
    for _ in refusals:
        shared.start_container("shop")
    newcomers, before_us, before_bytes = [], 0, 0
    for moment in range(80):
        refuse(shared, refusals, moment)
        if moment in joins:
            newcomers.append((moment, shared.start_container("shop")))
        shared.run([10 * MIB] * len(shared.found))
        deliver(shared, faults[moment] if moment < len(faults) else None)
        floor_us, floor_bytes = floors(shared.owners["shop"])
        excess_us, excess_bytes = np.add(refused_excess(shared), (floor_us, floor_bytes)).tolist()
        # A burst of another hand raises nothing: the sum does not rise where it is beyond what may be.
        assert shared.quotas_us() <= max(cores * 100_000 + excess_us, before_us)
        assert shared.limits_bytes() <= max(memory_mib * MIB + excess_bytes, before_bytes)
        before_us, before_bytes = shared.quotas_us(), shared.limits_bytes()
        for joined, container in newcomers:
            if moment >= max(joined + JOIN_PERIODS, len(faults) + FAULT_PERIODS):
                assert container.quota_us > 0
                assert container.limit_bytes > 0
    began_ns = shared.now_ns
    periods(shared, 60 * SECOND)
    for container in shared.containers()[: len(refusals)]:
        if "quota" not in container.writable:
            assert attempts(container, "quota", began_ns) <= MOST_IN_A_MINUTE
        if "memory" not in container.writable:
            assert attempts(container, "memory", began_ns) <= MOST_IN_A_MINUTE
    for container in shared.containers():
        container.writable = BOTH
        container.burst_us = container.child_quota_us = container.parent_quota_us = 0
    periods(shared, 40 * SECOND)
    assert shared.quotas_us() <= cores * 100_000
    assert shared.limits_bytes() <= memory_mib * MIB
    assert all(container.quota_us > 0 for container in shared.containers())
    assert all(container.limit_bytes > 0 for container in shared.containers())
