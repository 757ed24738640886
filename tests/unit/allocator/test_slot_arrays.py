"""Estimates by slot: what a decision takes out, and what it puts back."""

import numpy as np
import pytest
from hypothesis import given

from services.allocator.memory.policy import MemoryState
from tests.support.cfs_plant import POLICIES
from tests.support.policy_situations import Situation, situations


@pytest.mark.parametrize("slots", [[0, 1, 2], [2, 0, 1]])
def test_a_column_of_the_new_state_may_be_another_one_of_the_old_state(slots: list[int]) -> None:
    """The peak before the last reclaim is the peak of the old state, which the new peak overwrites."""
    state, index = MemoryState(3), np.array(slots)
    state.peak_bytes[:] = [1, 2, 3]
    before = state.take(index)

    state.put(index, before.replace(peak_bytes=np.zeros(3, np.int64), peak_before_bytes=before.peak_bytes))

    assert state.peak_bytes.tolist() == [0, 0, 0]
    assert state.peak_before_bytes.tolist() == [1, 2, 3]


@given(situations("waterfill") | situations("escra"))
def test_a_policy_changes_nothing_that_it_is_given(situation: Situation) -> None:
    given_state = situation.state.copy()

    targets, after = POLICIES[situation.policy][0].step(given_state.take(situation.rows), situation.view)

    for name in given_state._columns:
        assert (getattr(given_state, name) == getattr(situation.state, name)).all()
    given_state.put(situation.rows, after)
    assert targets.target_us.tolist() == situation.decide().target_us.tolist()
