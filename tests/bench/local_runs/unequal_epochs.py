"""Logistic regression in plain Python, on data that come in portions: epochs of unequal length."""

from __future__ import annotations

import math
import random

EPOCHS, FEATURES = 24, 40


def train() -> None:
    """Fit a random linear teacher, each epoch on a portion of between half and one and a half times the mean."""
    chance = random.Random(5)
    teacher = [chance.gauss(0.0, 1.0) for _ in range(FEATURES)]
    weights = [0.0] * FEATURES
    for epoch in range(1, EPOCHS + 1):
        wrong, samples = 0, chance.randint(50_000, 150_000)
        for _ in range(samples):
            inputs = [chance.random() - 0.5 for _ in range(FEATURES)]
            label = sum(map(float.__mul__, teacher, inputs)) > 0
            guess = 1.0 / (1.0 + math.exp(-sum(map(float.__mul__, weights, inputs))))
            wrong += (guess > 0.5) != label
            change = 0.1 * (label - guess)
            weights = [weight + change * value for weight, value in zip(weights, inputs, strict=True)]
        print(f"epoch {epoch}/{EPOCHS}: {samples} samples, error {wrong / samples:.4f}")


if __name__ == "__main__":
    train()
