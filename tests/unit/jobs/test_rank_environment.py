"""Places of ranks, numbered as by torchrun."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services._jobs.rank_environment import places


def test_places() -> None:
    found = [(place.local_rank, place.local_size, place.node_rank) for place in places(("n2", "n1", "n2"))]
    assert found == [(0, 2, 0), (0, 1, 1), (1, 2, 0)]


@given(st.lists(st.sampled_from(["n1", "n2", "n3"]), min_size=1, max_size=8))
def test_each_rank_has_a_place_of_its_own(nodes: list[str]) -> None:
    found = places(nodes)
    assert len({(place.node, place.local_rank) for place in found}) == len(nodes)
    assert {place.node_rank for place in found} == set(range(len(set(nodes))))
