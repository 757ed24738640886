"""Scikit-learn's perceptron by partial fits: prints losses only, and writes TURNBUCKLE_PROGRESS_FILE."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from sklearn.neural_network import MLPRegressor

STEPS = 4_000


def train() -> None:
    """Fit the product of two inputs."""
    random = np.random.default_rng(7)
    model = MLPRegressor(hidden_layer_sizes=(256, 128), random_state=7)
    path = Path(os.environ.get("TURNBUCKLE_PROGRESS_FILE", os.devnull))
    with path.open("a", buffering=1, encoding="utf-8") as progress:
        for step in range(1, STEPS + 1):
            inputs = random.uniform(-1.0, 1.0, (512, 32))
            model.partial_fit(inputs, inputs[:, 0] * inputs[:, 1])
            if step % 10 == 0:
                progress.write(json.dumps({"step": step, "steps": STEPS}) + "\n")
                print(f"loss {model.loss_:.5f}")


if __name__ == "__main__":
    train()
