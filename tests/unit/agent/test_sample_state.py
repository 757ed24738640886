"""What is remembered of containers while others come and go."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.agent.containers.sample_state import NEVER, SampleState


@given(st.lists(st.sets(st.sampled_from("abcdef")), max_size=6))
def test_each_keeps_its_own_and_newcomers_begin_anew(memberships: list[set[str]]) -> None:
    rows, expected = SampleState(), {}
    for number, members in enumerate(memberships, start=1):
        keys = sorted(members)
        rows.reorder(keys)
        expected = {key: expected.get(key, NEVER) for key in keys}
        assert rows.read_ns.tolist() == list(expected.values())
        assert rows.counters[:, 0].tolist() == [max(value, 0) for value in expected.values()]
        rows.read_ns[:], rows.counters[:, 0] = number, number
        expected = dict.fromkeys(keys, number)


def test_a_container_under_a_known_key_is_another_one() -> None:
    rows = SampleState()
    rows.reorder(["a", "b"])
    rows.idle[:], rows.boundary_ns[:] = True, 7
    rows.reset("a")
    assert (rows.is_idle("a"), rows.boundary_of("a"), rows.is_idle("b"), rows.boundary_of("b")) == (False, 0, True, 7)
    rows.reorder(["a", "b"][:])
    assert (rows.idle.tolist(), rows.boundary_ns.tolist()) == ([False, True], [0, 7])
    assert not np.isin(NEVER, rows.counters)
