"""Product reviews without a shop: seeded texts whose words lean towards praise or blame, with noise.

`python3 reviews.py HOST COUNT` writes them into the Redis server of that name, as JSON under the key `reviews`.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import redis

_WORDS = 3000
_LEANING_WORDS = 400
_REVIEW_WORDS = (30, 120)
_MISJUDGED = 0.08
"""Share of reviews whose label says the opposite: no classifier is perfect on them."""


def reviews(count: int) -> tuple[list[str], list[int]]:
    """Texts and labels (1: praise), the same at every call."""
    rng = np.random.default_rng(8)
    frequency = 1.0 / np.arange(1, _WORDS + 1)  # Zipf, as words have
    leaning = rng.choice(_WORDS, _LEANING_WORDS, replace=False)
    favour = np.ones((2, _WORDS))
    favour[0, leaning[: _LEANING_WORDS // 2]] = favour[1, leaning[_LEANING_WORDS // 2 :]] = 2.2
    chances = favour * frequency
    chances /= chances.sum(axis=1, keepdims=True)
    texts, labels = [], []
    for _ in range(count):
        label = int(rng.integers(2))
        words = rng.choice(_WORDS, rng.integers(*_REVIEW_WORDS), p=chances[label])
        texts.append(" ".join(f"word{each}" for each in words))
        labels.append(1 - label if rng.random() < _MISJUDGED else label)
    return texts, labels


def main() -> None:
    """Write them."""
    redis.Redis(host=sys.argv[1]).set("reviews", json.dumps(reviews(int(sys.argv[2]))))


if __name__ == "__main__":
    main()
