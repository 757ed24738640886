"""Reserves: what nodes may grant by themselves, and what is told to one that asks for more."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.arrays.limit_values import PAGE_BYTES
from services.allocator.memory.reserve_plan import ReserveView, plan
from services.allocator.state.node_reserves import ReserveReport, Reserves
from tests.support.lending_shop import SECOND_NS, Shop

MIB = 1 << 20


def ints(*values):
    return np.array(values, dtype=np.int64)


def node_reserves(*left_mib):
    """One application on so many nodes, with this much left in each reserve."""
    reserves = Reserves()
    for node, left in enumerate(left_mib):
        row = reserves.add(0, node)
        reserves.ack(ints(row), ReserveReport(ints(1), ints(left * MIB), ints(0), ints(0)))
    return reserves


def view(reserves, pool_mib, *, withheld_mib=100, kept_mib=0, weight=None, now_ns=0, room_mib=1 << 40):
    held = int(reserves.committed_bytes.sum())
    count = len(reserves.app)
    nodes = int(reserves.in_use.sum())
    return ReserveView(
        pool_bytes=ints(pool_mib * MIB),
        free_bytes=ints(pool_mib * MIB - held),
        withheld_bytes=ints(withheld_mib * MIB),
        pending_bytes=ints(kept_mib * MIB),
        guaranteed_bytes=np.zeros(count, np.int64),
        share_bytes=np.zeros(count, np.int64),
        weight=ints(*([1] * nodes if weight is None else weight), *[0] * (count - nodes)),
        reachable=np.ones(count, dtype=np.bool_),
        now_ns=now_ns,
        node_headroom_bytes=np.full(max(nodes, 1), room_mib * MIB, dtype=np.int64),
    )


def planned(reserves, given_view):
    index, granted_total_bytes = plan(reserves, given_view)
    return dict(zip(index.tolist(), (granted_total_bytes // MIB).tolist(), strict=True))


def test_the_withheld_share_is_spread_by_containers():
    reserves = node_reserves(0, 0)

    assert planned(reserves, view(reserves, 1000, weight=[3, 1])) == {0: 75, 1: 25}


def test_no_more_is_spread_than_the_application_has():
    reserves = node_reserves(0, 0)

    assert planned(reserves, view(reserves, 40)) == {0: 20, 1: 20}


def test_a_reserve_near_its_target_is_left_alone():
    reserves = node_reserves(42, 58)

    assert planned(reserves, view(reserves, 1000)) == {}


def test_a_request_comes_first_and_takes_from_the_others():
    reserves = node_reserves(0, 80)
    reserves.record_request(0, 60 * MIB, 60 * MIB, now_ns=0)

    assert planned(reserves, view(reserves, 80)) == {1: 10}, "nothing is free yet: the other one gives first"
    reserves.ack(ints(1), ReserveReport(ints(2), ints(10 * MIB), ints(0), ints(0)))
    assert planned(reserves, view(reserves, 80)) == {0: 70}


def test_a_node_without_containers_gives_everything_back():
    reserves = node_reserves(30, 3)

    assert planned(reserves, view(reserves, 1000, withheld_mib=30, weight=[1, 0])) == {1: 0}


def test_an_order_in_flight_counts_until_it_is_reported():
    reserves = node_reserves(10)
    reserves.record_update(ints(0), ints(50 * MIB), ints(0), 7, 0)
    assert reserves.committed_bytes[0] == 50 * MIB

    reserves.ack(ints(0), ReserveReport(ints(2), ints(10 * MIB), ints(4 * MIB), ints(6)))
    assert reserves.committed_bytes[0] == 46 * MIB, "not seen yet; what was granted is in a container's limit"

    reserves.ack(ints(0), ReserveReport(ints(3), ints(50 * MIB), ints(4 * MIB), ints(7)))
    assert reserves.committed_bytes[0] == 46 * MIB
    assert reserves.acked[0]


def test_a_lost_order_is_sent_again():
    reserves = node_reserves(0)
    reserves.record_update(ints(0), ints(100 * MIB), ints(0), 1, 0)

    assert planned(reserves, view(reserves, 1000, now_ns=SECOND_NS // 2)) == {}
    assert planned(reserves, view(reserves, 1000, now_ns=2 * SECOND_NS)) == {0: 100}


@given(
    left_mib=st.lists(st.integers(0, 300), min_size=1, max_size=6),
    asked_mib=st.integers(0, 2000),
    pool_mib=st.integers(-100, 1500),
    weights=st.data(),
)
def test_raises_never_exceed_what_is_free(left_mib, asked_mib, pool_mib, weights):
    reserves = node_reserves(*left_mib)
    if asked_mib:
        reserves.record_request(0, asked_mib * MIB, asked_mib * MIB, 0)
    count = len(left_mib)
    given_view = view(
        reserves, pool_mib, weight=weights.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    )
    before = reserves.grant_committed_bytes.copy()
    index, granted_total_bytes = plan(reserves, given_view)

    assert (granted_total_bytes >= reserves.used_bytes[index]).all()
    assert np.maximum(granted_total_bytes - before[index], 0).sum() <= max(int(given_view.free_bytes[0]), 0)
    assert (granted_total_bytes % PAGE_BYTES == 0).all()


def test_where_nothing_is_free_a_request_takes_from_a_reserve_that_is_near_its_target():
    """Of 100 MiB 10 are asked for. The other node's 9/10 of the rest, 81, are nearer than a quarter of what it has."""
    reserves = node_reserves(0, 100)
    assert planned(reserves, view(reserves, 100, weight=[1, 9])) == {}
    reserves.record_request(0, 10 * MIB, 10 * MIB, now_ns=0)
    assert planned(reserves, view(reserves, 100, weight=[1, 9])) == {1: 81}


# -- the whole allocation --------------------------------------------------------------------------------------------


@pytest.fixture
def shop():
    """1000 MiB, 200 of them in two reserves. a and b use 100 of 150 MiB each after a reclaim; 500 are free."""
    made = Shop({"n1": {"a-1": [400, 100, 0]}, "n2": {"b-1": [400, 100, 0]}}, memory_limit=1000 * MIB)
    return made.periods(15).periods(1, reclaim=True).periods(5)


@pytest.fixture
def full():
    """1000 MiB, nothing withheld: a and b have 500 each and use nearly all of it."""
    made = Shop({"n1": {"a-1": [500, 100, 0], "b-1": [500, 100, 0]}}, memory_limit=1000 * MIB, sigma=0)
    made.periods(5)
    made.use("a-1", 498)
    made.use("b-1", 497)
    return made.periods(2)


def test_every_node_gets_its_part_of_the_withheld_share(shop):
    assert shop.given_mib() == {"n1": 100, "n2": 100}


def test_a_request_is_filled_from_what_is_free(shop):
    reply, updates = shop.ask("n1", "a-1", 150)
    shop.carry_out(updates)

    assert (reply.granted_bytes // MIB, reply.denial) == (150, "")
    assert shop.given_mib() == {"n1": 250, "n2": 100}


def test_what_others_have_in_reserve_and_as_slack_follows_when_they_have_given_it(shop):
    reply, updates = shop.ask("n1", "a-1", 900)

    assert reply.granted_bytes == 500 * MIB
    assert reply.reclaiming_bytes == (100 + 42) * MIB, "the other reserve, and what b has above usage + 8 MiB"
    shop.carry_out(updates)
    assert shop.given_mib() == {"n1": 100 + 500 + 100 + 42, "n2": 0}, "b does not ask"
    assert (shop.rows["n1"]["a-1"][0], shop.rows["n2"]["b-1"][0]) == (150, 108)


def test_asking_again_while_the_order_is_under_way_is_not_refused(shop):
    _, lost = shop.ask("n1", "a-1", 500)
    again, _ = shop.ask("n1", "a-1", 500)
    assert (lost[0].reserve_given_bytes, again.granted_bytes, again.denial) == ((600 * MIB,), 0, "")

    shop.now_ns += SECOND_NS // 4
    third, updates = shop.ask("n1", "a-1", 500)
    assert third.denial == ""
    assert [update.reserve_given_bytes for update in updates if update.node == "n1"] == [(600 * MIB,)], "sent again"


def test_nothing_left_is_said_with_figures(full):
    reply, updates = full.ask("n1", "a-1", 50)

    assert updates == ()
    assert reply.denial == "shop may use 1000 MiB: its 2 containers hold 1000 MiB and use it, 0 MiB are reserves"


def test_capacity_of_pending_containers_is_granted_to_a_request():
    made = Shop({"n1": {"a-1": [250, 100, 0]}}, memory_limit=1000 * MIB, sigma=0, announced_containers=4)
    made.periods(5)
    made.use("a-1", 248)
    made.periods(2)
    assert made.given_mib() == {"n1": 0}

    reply, updates = made.ask("n1", "a-1", 50)
    made.carry_out(updates)

    assert (reply.denial, made.given_mib()) == ("", {"n1": 50})


def test_page_cache_of_others_is_taken_before_a_task_dies(full):
    full.use("b-1", 497, reclaimable_mib=400)
    full.periods(1)
    reply, updates = full.ask("n1", "a-1", 50)
    full.carry_out(updates)

    assert (reply.denial, full.rows["n1"]["b-1"][0]) == ("", 450)
    assert full.given_mib() == {"n1": 50}


def test_a_request_to_a_replica_that_is_not_the_owner_is_neither_granted_nor_refused(shop):
    shop.allocation.release("shop")
    reply, updates = shop.ask("n1", "a-1", 50)

    assert (reply.epoch, reply.granted_bytes, reply.denial, updates) == (0, 0, "", ())


def test_limits_and_reserves_and_the_rest_are_the_whole(shop):
    pools = shop.allocation.pools()
    limits = sum(row[0] for rows in shop.rows.values() for row in rows.values()) * MIB

    assert pools.reserved_bytes[0] == sum(shop.given.values())
    assert pools.limit_committed_bytes[0] == limits + sum(shop.given.values()) <= 1000 * MIB


def test_switching_to_observe_takes_the_reserves_back(shop):
    shop.allocation.set_spec("shop", shop.spec.model_copy(update={"mode": "observe"}))
    shop.periods(1)

    assert shop.given_mib() == {"n1": 0, "n2": 0}


def test_withdrawing_takes_the_reserves_back(shop):
    updates = shop.allocation.withdraw("shop", shop.step_time())
    shop.carry_out(updates)

    assert shop.given_mib() == {"n1": 0, "n2": 0}
    assert shop.allocation.owned.epoch_of("shop") == 0
