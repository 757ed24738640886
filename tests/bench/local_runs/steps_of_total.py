"""Softmax regression in numpy: a line each two hundred steps, with their total."""

from __future__ import annotations

import numpy as np

STEPS, BATCH, EVERY = 160_000, 256, 200


def train() -> None:
    """Fit classes of a random linear teacher by stochastic gradient descent."""
    random = np.random.default_rng(2)
    inputs = random.standard_normal((20_000, 200)).astype(np.float32)
    labels = (inputs @ random.standard_normal((200, 20))).argmax(1)
    weights = np.zeros((200, 20), np.float32)
    for step in range(1, STEPS + 1):
        batch = random.integers(0, len(inputs), BATCH)
        scores = inputs[batch] @ weights
        chances = np.exp(scores - scores.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        loss = -np.log(chances[np.arange(BATCH), labels[batch]]).mean()
        chances[np.arange(BATCH), labels[batch]] -= 1.0
        weights -= 0.1 / BATCH * inputs[batch].T @ chances
        if step % EVERY == 0:
            print(f"step {step}/{STEPS} loss {loss:.4f}")


if __name__ == "__main__":
    train()
