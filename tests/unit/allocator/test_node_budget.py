"""Two applications that together promise more memory than their node has: who gets what, and what is said."""

import numpy as np
import pytest
from pydantic import ValidationError

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.codec import decode, encode
from schemas.oom import OomCause, OomKind
from services.agent.memory.node_budget import MemoryBudget, default_reserved_bytes
from services.allocator.arrays.limit_values import NO_BOUND
from services.allocator.budget.node_headroom import fit_to_nodes
from services.allocator.state.rows import Rows
from tests.support.shared_node import SharedNode

MIB, GIB = 1 << 20, 1 << 30
APPS = tuple(AppSpec(name=name, cpu_limit=2, memory_limit=2 * GIB) for name in ("shop", "cache"))


def node_of_2_gib(apps=APPS):
    return SharedNode(apps, MemoryBudget(2 * GIB, default_reserved_bytes(2 * GIB), 100 * MIB))


def period(shared, *, reclaim=False):
    """All keep what they have; everything arrives."""
    shared.run([container.usage_bytes for container in shared.containers()])
    shared.poll()
    shared.deliver_all(reclaim=reclaim)


def in_use(container, used_bytes):
    container.run(0, memory_bytes=used_bytes)


def kills(shared):
    return sum(container.oom_kills for container in shared.containers())


def test_growers_of_both_applications_meet_our_refusal_before_the_node_is_full():
    """1792 MiB are allocatable. Both grow by 20 MiB per period, which is 200 MiB/s, until somebody is refused."""
    shared = node_of_2_gib()
    for spec in APPS:
        shared.start_container(spec.name)
    period(shared)
    refusals = []
    for step in range(200):
        for position in range(2):
            shared.touch(position, 20 * MIB)
        period(shared, reclaim=step % 50 == 49)
        refusals += [line for line in shared.told if line.kind is OomKind.GRANT_DENIED and line not in refusals]
        if refusals:
            break

    assert kills(shared) == 0, "refused before anybody was killed"
    used_bytes = sum(container.usage_bytes for container in shared.containers())
    assert used_bytes > 1300 * MIB, "the node was nearly full by then"
    assert shared.highest_bytes <= 1792 * MIB
    assert "the memory budget of node n1 is used up" in refusals[0].reason
    assert "of 1792.0 MiB that are allocatable" in refusals[0].reason


@pytest.mark.parametrize("others", [0, 8, 19])
def test_limits_of_observed_containers_take_nothing_from_an_enforced_one(others):
    """24 GiB, and containers that came with 2 GiB each, 40 GiB together, and use 200 MiB: most of the node is free.

    Enforced, one of them is cut to what it uses, and gets what it needs again: 800 MiB, in steps of 10.
    """
    spec = AppSpec(name="shop", cpu_limit=2, memory_limit=4 * GIB)
    shared = SharedNode((spec,), MemoryBudget(24 * GIB, default_reserved_bytes(24 * GIB), 100 * MIB))
    shared.host.available_bytes = 15 * GIB
    grower = shared.start_container("shop", limit_bytes=2 * GIB, quota_us=100_000)
    in_use(grower, 200 * MIB)
    for _ in range(others):
        in_use(shared.start_container("old", limit_bytes=2 * GIB, quota_us=50_000), 200 * MIB)
    for _ in range(100):
        period(shared, reclaim=True)
    assert grower.limit_bytes == 250 * MIB
    for step in range(80):
        shared.touch(0, 10 * MIB)
        period(shared, reclaim=step % 50 == 49)
        assert not grower.paused
    assert (kills(shared), grower.usage_bytes) == (0, 1000 * MIB)
    assert shared.told == []


def test_without_a_budget_both_are_given_more_than_the_node_has():
    """What the test above would show without a budget: the kernel's global kill is next."""
    shared = SharedNode(APPS, budget=None)
    for spec in APPS:
        shared.start_container(spec.name)
    period(shared)
    for _ in range(90):
        for position in range(2):
            shared.touch(position, 20 * MIB)
        period(shared)
    assert shared.highest_bytes > 2 * GIB


def test_an_idle_application_leaves_the_node_to_one_that_needs_it():
    """Neither first limits nor reserves of one take what the node has left from the other."""
    shared = node_of_2_gib()
    shared.start_container("shop")
    for _ in range(5):
        period(shared)
    grower = shared.start_container("cache")
    for step in range(60):
        shared.touch(1, 20 * MIB)
        period(shared, reclaim=step % 50 == 49)
    assert grower.usage_bytes == 60 * 20 * MIB
    assert grower.oom_kills == 0


def test_what_one_gives_back_the_other_gets():
    shared = node_of_2_gib()
    first, second = shared.start_container("shop"), shared.start_container("cache")
    period(shared)
    for step in range(65):
        shared.touch(0, 20 * MIB)
        period(shared, reclaim=step % 50 == 49)
    first.free(1000 * MIB)
    for step in range(120):  # a recall keeps the peak of the last ten seconds at most
        period(shared, reclaim=step % 50 == 49)
    for step in range(50):
        shared.touch(1, 20 * MIB)
        period(shared, reclaim=step % 50 == 49)
    assert second.usage_bytes == 50 * 20 * MIB
    assert kills(shared) == 0


def test_an_owner_does_not_ask_in_vain_each_period():
    """Refused once, it knows what the node has left: no order goes out that would be refused again."""
    shared = node_of_2_gib()
    shared.start_container("shop")
    in_use(shared.start_container("other", limit_bytes=2000 * MIB), 1700 * MIB)  # no allocator owns it
    for _ in range(10):
        period(shared)
    before = shared.node.budget.rejections
    for _ in range(50):
        shared.touch(0, 1 * MIB)
        period(shared)
    assert shared.node.budget.rejections == before
    assert all(line.cause is not OomCause.NODE for line in shared.told)


def test_a_refused_request_says_what_the_node_lacks_not_the_application():
    shared = node_of_2_gib()
    grower = shared.start_container("shop")
    in_use(shared.start_container("other", limit_bytes=2000 * MIB), 1700 * MIB)
    for _ in range(5):
        period(shared)
    shared.touch(0, 300 * MIB)
    for _ in range(6):
        period(shared)
    (line,) = [line for line in shared.told if line.kind is OomKind.GRANT_DENIED]
    assert line.reason.startswith("the memory budget of node n1 is used up")
    assert "the application's containers there have no slack" in line.reason
    assert (grower.oom_kills, grower.limit_bytes <= 92 * MIB) == (1, True)  # at its own limit, as is standard


@pytest.mark.parametrize(
    ("room_mib", "expected_mib"), [(NO_BOUND // MIB, [200, 300, 50]), (120, [140, 180, 50]), (0, [100, 100, 50])]
)
def test_raises_share_what_their_node_has_left(room_mib, expected_mib):
    """Two rows of one node ask for 100 and 200 MiB; a third is cut."""
    rows = Rows()
    rows.append(3)
    rows.limit_bytes[:] = before = np.full(3, 100 * MIB)
    ordered = np.array([200, 300, 50]) * MIB
    got = fit_to_nodes(rows, before, ordered, np.array([min(room_mib * MIB, NO_BOUND)]))
    assert (got // MIB).tolist() == expected_mib


@pytest.mark.parametrize("absurd_bytes", [-2, 1 << 62, 1 << 70])
def test_a_host_cannot_say_more_than_sums_can_hold(absurd_bytes):
    """One host's key in wrong hands: what it sends must not overflow an allocator's sums."""
    batch = node_of_2_gib().node.empty_batch("shop", 1)
    with pytest.raises(ValidationError):
        CfsBatch.model_validate(batch.model_dump() | {"node_headroom_bytes": absurd_bytes})


def test_the_most_that_a_host_can_say_is_no_trouble():
    shared = node_of_2_gib()
    grower = shared.start_container("shop")
    for _ in range(4):
        shared.run([0])
        batches = [decode(item[1]) for item in shared.network]
        most = {"node_headroom_bytes": (1 << 62) - 1}
        shared.network = [("batch", encode(batch.model_copy(update=most))) for batch in batches]
        shared.deliver_all()
    assert 0 < grower.limit_bytes <= 1792 * MIB
