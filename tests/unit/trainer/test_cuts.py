"""Parts of vectors by shares, and of batches by samples."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.trainer.worker.cuts import cut, sample_range

SHARES = st.lists(st.floats(min_value=0, max_value=1e6, allow_subnormal=False), min_size=1, max_size=9)


def test_by_hand() -> None:
    # ends at 5, 7, 10 of 10
    assert cut(10, [50, 20, 30]) == (5, 2, 3)
    # ends at round(7 / 3) = 2, round(14 / 3) = 5, 7
    assert cut(7, [1, 1, 1]) == (2, 3, 2)
    assert cut(5, [0, 100]) == (0, 5)
    assert cut(5, [100, 0]) == (5, 0)
    assert cut(0, [1, 1]) == (0, 0)


@given(st.integers(min_value=0, max_value=10**9), SHARES)
def test_parts_add_up_follow_shares_and_are_none_where_the_share_is(elements: int, shares: list[float]) -> None:
    assume(sum(shares) > 0)

    sizes = cut(elements, shares)

    assert sum(sizes) == elements
    assert min(sizes) >= 0
    whole = sum(map(Fraction, shares))
    for size, share in zip(sizes, shares, strict=True):
        # both of a part's ends are rounded by half an element at most; floats add less than one in 10^9
        assert abs(size - elements * Fraction(share) / whole) <= 2
        assert share > 0 or size == 0


@pytest.mark.parametrize("shares", [[0, 0], [1, -1, 1], [float("nan"), 1], [float("inf"), 1]])
def test_shares_that_divide_nothing(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="finite, none negative, not all 0"):
        cut(3, shares)


@given(st.lists(st.integers(min_value=0, max_value=50), min_size=1, max_size=9))
def test_ranks_take_all_samples_of_a_batch_in_order(samples: list[int]) -> None:
    ranges = [sample_range(samples, rank) for rank in range(len(samples))]

    assert [position for own in ranges for position in own] == list(range(sum(samples)))
    assert [len(own) for own in ranges] == samples
