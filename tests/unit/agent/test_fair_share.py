"""At a full application: who is above its fair share gets nothing of what others below theirs may still claim."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.oom import OomKind
from services.agent.memory.growth import MIB
from services.agent.memory.reserve import UNKNOWN_SHARE, Asking, grantable_bytes, is_above
from tests.support.agent_node import Node
from tests.support.fake_host import FakeHost
from tests.support.guarded_node import MS, PERIOD_NS, guarded, refuse_until
from tests.support.limit_orders import reserve_order, send

sizes = st.integers(0, 1 << 40)
shares = st.integers(1, 1 << 40)
asking = st.lists(st.builds(Asking, sizes, sizes), max_size=8)
SHARE = 128 * MIB


def test_above_its_share_a_container_leaves_what_others_below_theirs_ask_for():
    small, above = Asking(17 * MIB, 16 * MIB), Asking(50 * MIB, 130 * MIB)
    assert grantable_bytes(SHARE, 200 * MIB, 40 * MIB, [small]) == 23 * MIB
    assert grantable_bytes(SHARE, 200 * MIB, 10 * MIB, [small]) == 0
    assert grantable_bytes(SHARE, 200 * MIB, 40 * MIB, [above]) == 40 * MIB
    assert grantable_bytes(SHARE, 200 * MIB, 40 * MIB, [Asking(500 * MIB, 100 * MIB)]) == 12 * MIB, "up to its share"
    assert grantable_bytes(SHARE, 120 * MIB, 10 * MIB, [small]) == 8 * MIB, "up to its own"
    assert grantable_bytes(UNKNOWN_SHARE, 200 * MIB, 40 * MIB, [small]) == 40 * MIB


@given(shares, sizes, sizes, asking)
def test_grants_never_exceed_the_reserve_nor_touch_what_is_asked_below_a_share(share, limit, reserve, others):
    most = grantable_bytes(share, limit, reserve, others)
    assert 0 <= most <= reserve
    asked = sum(min(other.asked_bytes, max(share - other.limit_bytes, 0)) for other in others)
    if limit + most > share:
        assert reserve - most >= min(asked, reserve)
    else:
        assert most == min(reserve, max(most, share - limit)), "within its share nothing is refused"
    if not asked:
        assert most == reserve, "what nobody asks for is free"


@given(shares, sizes)
def test_who_has_its_share_is_above(share, limit):
    assert is_above(share, limit) == (limit >= share)
    assert not is_above(UNKNOWN_SHARE, limit)


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
def node(host):
    return Node("n1", 7, host, host.reserve_store)


def fair_order(node, given_mib, *, seq):
    order = reserve_order(given_mib * MIB, seq=seq)
    send(node, order.model_copy(update={"fair_share_bytes": (SHARE,), "fair_growth_bytes": (0,)}))


def test_the_large_one_is_granted_what_nobody_else_asks_for(node, host):
    _, large = guarded(node, host, limit_mib=200, usage_mib=100, name="large")
    guarded(node, host, limit_mib=16, usage_mib=8, name="small")
    fair_order(node, 20, seq=9)
    large.touch(99 * MIB)
    node.take_notifications(PERIOD_NS)
    assert large.limit_bytes == 220 * MIB


def test_the_last_of_the_reserve_goes_to_the_small_one_that_waits_and_not_to_the_large_one(node, host):
    """Without fair shares the large one took all of it, and the small one was killed at its limit, again and again."""
    _, large = guarded(node, host, limit_mib=200, usage_mib=100, name="large")
    _, small = guarded(node, host, limit_mib=16, usage_mib=8, name="small")
    small.touch(20 * MIB)
    large.touch(100 * MIB)
    node.take_notifications(PERIOD_NS)
    assert (small.paused, small.limit_bytes, large.limit_bytes) == (True, 16 * MIB, 200 * MIB), "the reserve is empty"

    fair_order(node, 10, seq=9)

    # 4 MiB are what the small one lacked, and as much is kept for it, as it has asked only now.
    assert (small.limit_bytes, large.limit_bytes) == (20 * MIB, 202 * MIB)


def test_a_refusal_ends_the_wait_of_the_largest_first(node, host):
    key_large, large = guarded(node, host, limit_mib=200, usage_mib=100, name="large")
    _, small = guarded(node, host, limit_mib=16, usage_mib=8, name="small")
    small.touch(20 * MIB)
    node.take_notifications(4 * MS)
    large.touch(150 * MIB)
    node.take_notifications(5 * MS)
    node.events.take_events()
    refuse_until(node, 6 * MS, lambda: large.oom_kills + small.oom_kills)

    released = [line.key for line in node.events.take_events() if line.kind is OomKind.OOM_KILLER_ENABLED]
    assert released == [key_large]
