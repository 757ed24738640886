"""What moves between ranks when their parts of a vector change: each element once, and none that need not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.core.moves import Move, moves
from services.trainer.worker.cuts import cut

SHARES = st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any)


def owners(sizes: tuple[int, ...]) -> list[int]:
    """The rank of each element."""
    return [rank for rank, size in enumerate(sizes) for _ in range(size)]


@given(st.integers(0, 60), SHARES, SHARES)
def test_each_element_has_one_owner_after_and_none_moves_that_need_not(
    elements: int, before: list[int], after: list[int]
) -> None:
    old, new = cut(elements, before), cut(elements, after)
    held = {rank: [-1] * size for rank, size in enumerate(new)}
    first = [sum(old[:rank]) for rank in range(len(old))]

    planned = moves(old, new)
    for move in planned:
        for offset in range(move.elements):
            assert held[move.target][move.target_at + offset] == -1, "written twice"
            held[move.target][move.target_at + offset] = first[move.source] + move.source_at + offset
            assert first[move.source] + move.source_at + offset == move.first + offset

    assert [value for rank in sorted(held) for value in held[rank]] == list(range(elements))
    # exactly the elements whose rank is another one go to another rank
    moved = sum(move.elements for move in planned if move.source != move.target)
    assert moved == sum(a != b for a, b in zip(owners(old), owners(new), strict=True))


def test_what_joins_takes_its_part_from_those_that_have_it() -> None:
    # 12 elements of 2 ranks become 4 each: rank 1 gives its last 4 and takes 2 of rank 0
    assert moves((6, 6, 0), (4, 4, 4)) == (
        Move(0, 0, 0, 4, 0, 0),
        Move(0, 1, 4, 2, 4, 0),
        Move(1, 1, 6, 2, 0, 2),
        Move(1, 2, 8, 4, 2, 0),
    )


@pytest.mark.parametrize(("old", "new"), [((3, 3), (3, 4)), ((3, 3), (6,)), ((-1, 4), (2, 1)), ((), (1,))])
def test_parts_of_different_vectors_are_refused(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="of the same ranks and vector"):
        moves(old, new)
