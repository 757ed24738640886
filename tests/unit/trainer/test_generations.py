"""What the members of a generation can go on with: what those before hold, if all of it is there and whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.trainer.core.generations import Held, Layout, common, even_layout

TWO = Held(even_layout(("a", "b")), step=7, samples=70, saved_step=6, is_whole=True)


def test_what_joins_brings_nothing_and_what_stays_has_all() -> None:
    assert common([TWO, TWO, None], ("a", "b", "c")) == TWO
    assert TWO.layout.among(("a", "b", "c")) == (0.5, 0.5, 0.0)


def test_one_without_a_part_is_not_missed() -> None:
    held = replace(TWO, layout=Layout(("a", "b"), (1.0, 0.0)))

    assert common([held], ("a",)) == held
    assert common([replace(held, step=6), held], ("b", "a")) is None, "the first has to be one that is whole"


@pytest.mark.parametrize(
    ("held", "members"),
    [
        ([TWO], ("a",)),
        ([TWO, None], ("a", "c")),
        ([TWO, replace(TWO, step=8)], ("a", "b")),
        ([TWO, replace(TWO, is_whole=False)], ("a", "b")),
        ([replace(TWO, is_whole=False)] * 2, ("a", "b")),
        ([TWO, TWO], ("b", "a")),
        ([None], ("a",)),
    ],
    ids=["gone", "replaced", "another step", "one not whole", "none whole", "another order", "all new"],
)
def test_otherwise_they_go_back_to_the_checkpoint(held: list[Held | None], members: tuple[str, ...]) -> None:
    assert common(held, members) is None
