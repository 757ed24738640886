"""How many examples a property test tries, by hypothesis profile."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

DEEP: Final = 100
"""Of a test that names no number, in the deep profile."""
LEAST: Final = 20


def examples(deep: int) -> int:
    """All of `deep` in the deep profile; in the fast one a fifth, but at least `LEAST` unless there are fewer."""
    return min(deep, max(LEAST, deep * settings().max_examples // DEEP))
