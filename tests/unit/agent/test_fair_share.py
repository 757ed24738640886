"""At a full application: who is above its fair share gets nothing of what others below theirs may still claim."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.oom import OomKind
from services.agent.memory.growth import MIB
from services.agent.memory.records import RequestOutcome
from services.agent.memory.reserve import UNKNOWN_SHARE, FairShare, Holding, claim_bytes, grantable_bytes, is_above
from tests.support.agent_node import Node
from tests.support.fake_host import FakeHost
from tests.support.guarded_node import MS, PERIOD_NS, guarded
from tests.support.limit_orders import reserve_order, send

sizes = st.integers(0, 1 << 40)
shares = st.builds(FairShare, st.integers(1, 1 << 40), st.integers(0, 1 << 38))
holdings = st.lists(st.builds(Holding, sizes, sizes), max_size=8)


def test_a_small_one_may_claim_its_growth_up_to_its_share():
    fair = FairShare(128 * MIB, 25 * MIB)
    assert claim_bytes(fair, Holding(8 * MIB, 16 * MIB)) == 17 * MIB
    assert claim_bytes(fair, Holding(120 * MIB, 124 * MIB)) == 4 * MIB
    assert claim_bytes(fair, Holding(8 * MIB, 60 * MIB)) == 0
    assert claim_bytes(fair, Holding(8 * MIB, -1)) == 0


def test_above_its_share_a_container_leaves_the_claims_of_others():
    fair, small = FairShare(128 * MIB, 25 * MIB), Holding(8 * MIB, 16 * MIB)
    assert grantable_bytes(fair, 200 * MIB, 40 * MIB, [small]) == 23 * MIB
    assert grantable_bytes(fair, 200 * MIB, 10 * MIB, [small]) == 0
    assert grantable_bytes(fair, 120 * MIB, 10 * MIB, [small]) == 8 * MIB, "up to its share"
    assert grantable_bytes(UNKNOWN_SHARE, 200 * MIB, 40 * MIB, [small]) == 40 * MIB


@given(shares, sizes, sizes, holdings)
def test_grants_never_exceed_the_reserve_and_beyond_the_share_never_touch_a_claim(fair, limit, reserve, others):
    most = grantable_bytes(fair, limit, reserve, others)
    assert 0 <= most <= reserve
    if limit + most > fair.share_bytes:
        assert reserve - most >= min(sum(claim_bytes(fair, other) for other in others), reserve)
    else:
        assert most == min(reserve, max(most, fair.share_bytes - limit)), "within its share nothing is refused"


@given(shares, sizes)
def test_who_has_its_share_is_above(fair, limit):
    assert is_above(fair, limit) == (limit >= fair.share_bytes)
    assert not is_above(UNKNOWN_SHARE, limit)


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
def node(host):
    return Node("n1", 7, host, host.reserve_store)


def fair_order(node, given_mib, *, seq, share_mib=128, growth_mib=25):
    order = reserve_order(given_mib * MIB, seq=seq)
    send(
        node,
        order.model_copy(update={"fair_share_bytes": (share_mib * MIB,), "fair_growth_bytes": (growth_mib * MIB,)}),
    )


def test_the_last_of_the_reserve_goes_to_the_small_one_and_not_to_the_large_one(node, host):
    """Without fair shares the large one took all of it, and the small one was killed at its limit, again and again."""
    _, large = guarded(node, host, limit_mib=200, usage_mib=100, name="large")
    _, small = guarded(node, host, limit_mib=16, usage_mib=8, name="small")
    fair_order(node, 20, seq=9)
    node.sample(PERIOD_NS, 2)
    large.touch(99 * MIB)
    node.take_notifications(PERIOD_NS + MS)
    assert large.limit_bytes == 203 * MIB, "3 of the 20 MiB: 17 are kept"

    small.touch(7 * MIB)
    node.take_notifications(PERIOD_NS + 2 * MS)
    assert small.limit_bytes > 16 * MIB
    assert large.limit_bytes == 203 * MIB


def test_a_refusal_ends_the_wait_of_the_largest_first(node, host):
    key_large, large = guarded(node, host, limit_mib=200, usage_mib=100, name="large")
    key_small, small = guarded(node, host, limit_mib=16, usage_mib=8, name="small")
    small.touch(20 * MIB)
    node.take_notifications(4 * MS)
    large.touch(150 * MIB)
    node.take_notifications(5 * MS)
    (asked,) = node.events.take_requests()
    assert asked.key == key_small, "it waits longest"
    node.events.take_events()
    node.memory.answered(asked, RequestOutcome(denial="shop may use 256 MiB"), 6 * MS)

    released = [line.key for line in node.events.take_events() if line.kind is OomKind.OOM_KILLER_ENABLED]
    assert released == [key_large]
