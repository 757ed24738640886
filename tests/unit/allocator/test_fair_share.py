"""Fair shares of scarce memory: what nobody asks for is granted; where several ask, who is below its share is first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.arrays.limit_values import MARGIN_BYTES, PAGE_BYTES, RECLAIM_BYTES
from services.allocator.budget.fair_share import GREW_BYTES, fair_shares, guaranteed, within_share
from services.allocator.memory.policy import MemoryState, MemoryView
from tests.support.examples import examples
from tests.support.lending_shop import MIB, Shop
from tests.support.memory_policy import decide_memory

sizes = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=12)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@given(sizes, st.integers(4 * MIB, 1 << 44), st.data())
def test_only_who_asks_is_guaranteed_anything_and_all_together_fit_the_application(usage, limit, data):
    count, used = len(usage), np.array(usage)
    held = used + np.array(data.draw(st.lists(st.integers(0, 1 << 30), min_size=count, max_size=count)))
    grew = np.array(data.draw(st.lists(st.integers(0, 1 << 30), min_size=count, max_size=count)))
    share = fair_shares(ints(limit), ints(count))
    least = guaranteed(np.full(count, share[0]), held, used, grew)
    assert least.sum() <= limit
    asks = (grew > GREW_BYTES) | (held - used < np.minimum(MARGIN_BYTES, held // 8))
    assert (least[~asks] == 0).all()
    assert (least[asks] >= np.minimum(share[0], used[asks] + 2 * MARGIN_BYTES)).all()


@given(sizes, st.data())
def test_the_part_of_a_raise_within_the_share_ends_there(limits, data):
    count = len(limits)
    wish = np.array(data.draw(st.lists(st.integers(0, 1 << 40), min_size=count, max_size=count)))
    share, held = ints(data.draw(st.integers(0, 1 << 40))), np.array(limits)
    within = within_share(np.zeros(count, np.int64), held, wish, share)
    assert ((within >= 0) & (within <= wish)).all()
    assert (held + within <= np.maximum(share[0], held)).all()
    assert ((within == wish) | (held + within >= share[0])).all()


@st.composite
def scarce_views(draw: st.DrawFn) -> MemoryView:
    """One application whose containers wish for more than is free."""
    count = draw(st.integers(2, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    usage = random.integers(1, 300, count) * MIB
    ordered = usage + random.choice([0, 1, 4, 30], count) * MIB
    limit = int(ordered.sum()) + draw(st.integers(0, 60)) * MIB
    return MemoryView(
        app=np.zeros(count, np.int32),
        fresh=np.ones(count, np.bool_),
        usage_bytes=usage,
        previous_usage_bytes=np.maximum(usage - random.integers(0, 40, count) * MIB, 1),
        reclaimable_bytes=np.zeros(count, np.int64),
        ordered_bytes=ordered,
        min_bytes=np.full(count, 4 * MIB),
        max_bytes=np.full(count, 1 << 40),
        share_bytes=ints(limit // count // PAGE_BYTES * PAGE_BYTES),
        limit_bytes=ints(limit),
        withheld_bytes=ints(0),
        delta_bytes=ints(50 * MIB),
        node_short=np.zeros(count, np.bool_),
    )


@settings(deadline=None, max_examples=examples(200))
@given(scarce_views())
def test_no_container_below_its_share_is_refused_survival_while_one_above_gets_more(view):
    rows, share = np.arange(len(view.app)), int(view.share_bytes[0])
    targets = decide_memory(MemoryState(len(rows)), view, rows, reclaim=False).target_bytes
    growth = np.maximum(view.usage_bytes - view.previous_usage_bytes, 0)
    survival = view.usage_bytes + np.maximum(3 * growth, MARGIN_BYTES)
    refused = (targets + RECLAIM_BYTES < np.minimum(survival, share)) & (view.ordered_bytes < share)
    beyond = (targets > view.ordered_bytes) & (targets > max(share, 0))
    assert not (refused.any() and beyond.any())
    assert targets.sum() <= max(view.limit_bytes[0], view.ordered_bytes.sum())


@settings(deadline=None, max_examples=examples(100))
@given(scarce_views())
def test_the_order_of_containers_makes_no_difference(view):
    rows = np.arange(len(view.app))
    columns = ("usage_bytes", "previous_usage_bytes", "ordered_bytes")
    backwards = replace(view, **{name: getattr(view, name)[::-1].copy() for name in columns})
    forth, back = (decide_memory(MemoryState(len(rows)), each, rows, reclaim=False) for each in (view, backwards))
    assert (forth.target_bytes == back.target_bytes[::-1]).all()


def test_below_its_share_a_container_comes_before_one_above():
    """20 MiB are free; both need 40 to survive the loop. The one at 40 of 150 gets them, the one at 240 nothing."""
    held = np.array([40, 240]) * MIB
    view = MemoryView(
        app=np.zeros(2, np.int32),
        fresh=np.ones(2, np.bool_),
        usage_bytes=held,
        previous_usage_bytes=held - 40 * MIB // 3,
        reclaimable_bytes=np.zeros(2, np.int64),
        ordered_bytes=held,
        min_bytes=np.full(2, 4 * MIB),
        max_bytes=np.full(2, 1 << 40),
        share_bytes=ints(150 * MIB),
        limit_bytes=ints(300 * MIB),
        withheld_bytes=ints(0),
        delta_bytes=ints(50 * MIB),
        node_short=np.zeros(2, np.bool_),
    )
    targets = decide_memory(MemoryState(2), view, np.arange(2), reclaim=False).target_bytes
    assert (targets // MIB).tolist() == [60, 240]


# -- the whole allocation --------------------------------------------------------------------------------------------


def pair(sigma: float = 0.2) -> Shop:
    """256 MiB; a large container, and a small one that idles on another node."""
    made = Shop({"n1": {"large-1": [100, 90, 0]}, "n2": {"small-1": [100, 8, 0]}}, memory_limit=256 * MIB, sigma=sigma)
    return made.periods(15).periods(1, reclaim=True).periods(5)


def grow_as_far_as_it_goes(shop: Shop, node: str, container: str) -> tuple[int, str]:
    """What a container reaches that uses all it gets and asks for more, MiB, and why it is refused then."""
    refusal, row = "", shop.rows[node][container]
    for _ in range(60):
        row[1] = limit_mib = row[0]
        shop.periods(1)
        shop.grant(node, container, shop.left_mib(node))
        if row[0] == limit_mib:
            reply, updates = shop.ask(node, container, 50)
            shop.carry_out(updates)
            refusal = reply.denial
            if refusal:
                break
    return row[0], refusal


@pytest.mark.parametrize("sigma", [0, 0.2, 0.5])
def test_a_container_reaches_what_the_others_leave_however_far_above_its_share(sigma):
    """The small one uses 8 of 256 MiB, and keeps two margins of 4."""
    reached_mib, why = grow_as_far_as_it_goes(pair(sigma), "n1", "large-1")
    assert 256 - 8 - 10 <= reached_mib <= 256 - 8
    assert why.startswith("shop may use 256 MiB")


def test_one_below_its_share_that_asks_later_gets_what_a_larger_one_does_not_use():
    shop = pair()
    grow_as_far_as_it_goes(shop, "n1", "large-1")
    shop.use("large-1", 150)
    reached_mib, why = grow_as_far_as_it_goes(shop, "n2", "small-1")
    assert 256 - 150 - 12 <= reached_mib <= 256 - 150
    assert "fair share" not in why, "nobody else asks"


def test_nothing_in_use_is_taken_for_one_below_its_share():
    shop = pair()
    reached_mib, _ = grow_as_far_as_it_goes(shop, "n1", "large-1")
    grow_as_far_as_it_goes(shop, "n2", "small-1")
    assert shop.rows["n1"]["large-1"][0] == reached_mib


def test_what_becomes_free_goes_to_the_one_below_its_share_where_both_ask():
    """Both wait at their limits, the large one asks first, and 40 MiB become free elsewhere: nothing for it."""
    rows = {"n1": {"large-1": [100, 90, 0]}, "n2": {"small-1": [60, 8, 0]}, "n3": {"idle-1": [60, 8, 0]}}
    shop = Shop(rows, memory_limit=256 * MIB, sigma=0).periods(15).periods(1, reclaim=True).periods(5)
    shop.use("idle-1", 48)
    shop.periods(5)
    large_mib, _ = grow_as_far_as_it_goes(shop, "n1", "large-1")
    small = shop.rows["n2"]["small-1"]
    small[1] = small[0]
    shop.use("idle-1", 8)
    shop.periods(1)
    before_mib = small[0] + shop.left_mib("n2")
    for node, container in (("n1", "large-1"), ("n2", "small-1")):
        shop.carry_out(shop.ask(node, container, 30)[1])
    assert small[0] + shop.left_mib("n2") >= before_mib + 25
    assert large_mib > 85 > small[0], "their share is 85"


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.tuples(st.sampled_from(["a-1", "b-1", "c-1"]), st.integers(1, 250)), max_size=25))
def test_limits_and_reserves_never_exceed_the_application_and_come_to_rest(steps):
    rows = {"n1": {"a-1": [60, 10, 0], "b-1": [60, 10, 0]}, "n2": {"c-1": [60, 10, 0]}}
    shop = Shop(rows, memory_limit=256 * MIB, sigma=0.2).periods(3)
    node_of = {key: node for node, group in rows.items() for key in group}
    for key, usage_mib in steps:
        node, row = node_of[key], rows[node_of[key]][key]
        row[1] = min(usage_mib, row[0])
        shop.periods(1)
        if usage_mib > row[0]:
            _, updates = shop.ask(node, key, usage_mib - row[0])
            shop.carry_out(updates)
            shop.grant(node, key, min(usage_mib - row[0], shop.left_mib(node)))
        shop.periods(1)
        assert sum(each[0] for group in rows.values() for each in group.values()) + sum(map(shop.left_mib, rows)) <= 256
    shop.periods(40)
    orders = shop.orders
    shop.periods(20)
    assert shop.orders == orders, "with constant usage nothing is ordered any more"
