"""How many examples a property test tries, by hypothesis profile."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

DEEP: Final = 100
"""Of a test that names no number, in the deep profile."""


MOST_SHARE: Final = 10
"""Of the deep profile's examples, percent, in all others: a test that names a number needs many, and takes seconds."""


def examples(deep: int) -> int:
    """All of `deep` in the deep profile; in another a tenth, but at least what a test without a number tries."""
    usual = settings().max_examples
    return deep if usual >= DEEP else min(deep, max(usual, deep * min(usual, MOST_SHARE) // DEEP))
