"""What holds for both CPU policies, whatever happened before (design 4.3)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.reasons import Reason
from services.allocator.cpu.dead_band import CUT_SHARE, CUT_US, RAISE_SHARE
from tests.support.cfs_plant import PERIOD_US, POLICIES, CfsPlant, decide
from tests.support.examples import examples
from tests.support.policy_situations import Situation, situations

EXAMPLES = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
both = pytest.mark.parametrize("policy", sorted(POLICIES))


def sums(situation: Situation, values: np.ndarray) -> np.ndarray:
    return np.bincount(situation.view.app, values, len(situation.view.limit_us)).astype(np.int64)


@both
@EXAMPLES
@given(data=st.data())
def test_targets_stay_within_bounds_and_limits(policy: str, data: st.DataObject) -> None:
    situation = data.draw(situations(policy))
    view, targets = situation.view, situation.decide()
    assert (targets.target_us >= view.min_us).all()
    assert (targets.target_us <= view.cap_us).all()
    decided = sums(situation, view.fresh) > 0
    assert (sums(situation, targets.target_us) <= view.limit_us)[decided].all()


@both
@EXAMPLES
@given(data=st.data())
def test_a_policy_without_room_for_the_minimum_gives_the_minimum(policy: str, data: st.DataObject) -> None:
    situation = data.draw(situations(policy))
    tiny = situation.with_limit(np.full_like(situation.view.limit_us, 10))
    decided = (sums(tiny, tiny.view.fresh) > 0)[tiny.view.app]
    assert (tiny.decide().target_us[decided] == tiny.view.min_us[decided]).all()


@both
@EXAMPLES
@given(data=st.data())
def test_the_order_of_containers_does_not_matter(policy: str, data: st.DataObject) -> None:
    situation = data.draw(situations(policy))
    order = np.array(data.draw(st.permutations(range(len(situation.rows)))), np.int64)
    expected, shuffled = situation.decide(), situation.select(order).decide()
    assert (shuffled.target_us == expected.target_us[order]).all()
    assert (shuffled.reason == expected.reason[order]).all()


@both
@EXAMPLES
@given(data=st.data())
def test_applications_do_not_influence_each_other(policy: str, data: st.DataObject) -> None:
    situation = data.draw(situations(policy))
    together = situation.decide().target_us
    for app in range(len(situation.view.limit_us)):
        mine = np.flatnonzero(situation.view.app == app)
        assert (situation.select(mine).decide().target_us == together[mine]).all()


@both
@EXAMPLES
@given(data=st.data())
def test_an_application_without_fresh_rows_is_left_alone(policy: str, data: st.DataObject) -> None:
    situation = data.draw(situations(policy))
    situation.view.fresh[situation.view.app == 0] = False
    targets, mine = situation.decide(), situation.view.app == 0
    assert (targets.target_us[mine] == situation.view.ordered_us[mine]).all()
    assert (targets.reason[mine] == Reason.NONE).all()


@both
@EXAMPLES
@given(data=st.data())
def test_a_full_application_gains_nothing(policy: str, data: st.DataObject) -> None:
    situation = data.draw(situations(policy))
    held = sums(situation, situation.view.ordered_us)
    full = situation.with_limit(held)
    assert (sums(full, full.decide().target_us) <= held).all()


@both
@EXAMPLES
@given(data=st.data())
def test_every_change_has_a_reason_with_numbers_and_only_changes_have(policy: str, data: st.DataObject) -> None:
    situation = data.draw(situations(policy))
    targets = situation.decide()
    changed = targets.target_us != situation.view.ordered_us
    assert ((targets.reason != Reason.NONE) == changed).all()
    assert np.isfinite(targets.measured).all()
    assert np.isfinite(targets.threshold).all()
    raised = targets.target_us > situation.view.ordered_us
    assert set(targets.reason[raised]) <= {Reason.THROTTLED, Reason.DEMAND_ROSE}
    lowered = targets.target_us < situation.view.ordered_us
    assert set(targets.reason[lowered]) <= {Reason.UNUSED, Reason.SHARED_SCARCITY, Reason.OVER_LIMIT}


@both
@EXAMPLES
@given(data=st.data())
def test_small_changes_are_not_written(policy: str, data: st.DataObject) -> None:
    """Raises beyond their band always; cuts within the band only where raises lacked room, or over the limit."""
    situation = data.draw(situations(policy))
    view, targets = situation.view, situation.decide()
    change = targets.target_us - view.ordered_us
    bounded = (view.ordered_us >= view.min_us) & (view.ordered_us <= view.cap_us)
    assert (change > view.ordered_us * RAISE_SHARE)[bounded & (change > 0)].all()
    small = (change < 0) & (-change <= view.ordered_us * CUT_SHARE + CUT_US) & bounded
    room_left = view.limit_us - sums(situation, np.maximum(targets.target_us, view.ordered_us))
    assert (room_left < 0)[view.app[small]].all()


def test_escra_never_cuts_a_throttled_container_unless_over_the_limit() -> None:
    @EXAMPLES
    @given(situation=situations("escra"))
    def check(situation: Situation) -> None:
        view, targets = situation.view, situation.decide()
        lowered = view.fresh & view.throttled & (targets.target_us < view.ordered_us)
        assert (targets.reason[lowered] == Reason.OVER_LIMIT).all()
        assert (sums(situation, view.ordered_us) > view.limit_us)[view.app[lowered]].all()

    check()


@both
@EXAMPLES
@given(data=st.data())
def test_what_may_be_in_force_never_exceeds_the_limit(policy: str, data: st.DataObject) -> None:
    """With the commit rule and orders that take a period longer than the next."""
    situation = data.draw(situations(policy, over_limit=False))
    view = situation.view
    plant = CfsPlant(view.app, view.limit_us, view.ordered_us, policy, seed=data.draw(st.integers(0, 1000)))
    assert (np.bincount(view.app, plant.held_us()) <= view.limit_us).all()
    for _ in range(8):
        plant.step(plant.random.integers(0, 4 * PERIOD_US, len(view.app)))
        assert (np.bincount(view.app, plant.held_us()) <= view.limit_us).all()


@both
def test_an_emptied_slot_knows_nothing(policy: str) -> None:
    module, state_type = POLICIES[policy]
    plant = CfsPlant(np.zeros(3, np.int32), np.array([200_000]), np.full(3, 50_000), policy)
    for _ in range(12):
        sample = plant.step(np.array([90_000, 5_000, 60_000]))
    plant.state.forget(np.arange(3))
    plant.state.grow(7)
    assert plant.state.capacity == 7
    view, rows = plant.view(sample), np.arange(3)
    assert (
        decide(module, plant.state, view, rows).target_us == decide(module, state_type(3), view, rows).target_us
    ).all()


@both
def test_joining_containers_do_not_disturb_the_others_memory(policy: str) -> None:
    module, _ = POLICIES[policy]
    plant = CfsPlant(np.zeros(3, np.int32), np.array([400_000]), np.full(3, 50_000), policy)
    for _ in range(12):
        sample = plant.step(np.array([90_000, 5_000, 60_000]))
    grown = plant.state.copy()
    grown.grow(100)
    view, rows = plant.view(sample), np.arange(3)
    assert (decide(module, grown, view, rows).target_us == decide(module, plant.state, view, rows).target_us).all()
