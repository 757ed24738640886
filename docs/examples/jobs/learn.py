"""A training job that needs no package: logistic regression, whose state survives a preemption.

Alone: ``python3 docs/examples/jobs/learn.py --steps 100``. As a job:
``turnbuckle jobs submit docs/examples/jobs/long.yaml``. Each step takes at least 50 ms, so that several workers share
one processor.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path

STEP_S = 0.05


def first_state() -> dict[str, list[float] | int]:
    """Before the first step."""
    return {"step": 0, "weights": [0.0, 0.0, 0.0]}


def train_one_step(state: dict[str, list[float] | int], rank: int) -> float:
    """A step of gradient descent on 100 points of the plane, above or below a line; returns the mean loss."""
    draw = random.Random(1000 * rank + state["step"])  # noqa: S311 - samples, no secrets
    weights, gradient, loss = state["weights"], [0.0, 0.0, 0.0], 0.0
    for _ in range(100):
        x, y = draw.uniform(-1, 1), draw.uniform(-1, 1)
        target = 1.0 if y > 0.5 * x + 0.2 else 0.0
        score = weights[0] * x + weights[1] * y + weights[2]
        error = 1 / (1 + math.exp(-score)) - target
        loss += math.log1p(math.exp(-score if target else score)) / 100
        gradient = [old + error * value / 100 for old, value in zip(gradient, (x, y, 1.0), strict=True)]
    state["weights"] = [old - 2.0 * slope for old, slope in zip(weights, gradient, strict=True)]
    state["step"] += 1
    return loss


def main() -> None:
    """Train; at SIGTERM save the state and exit, and go on from there at the next start."""
    parser = argparse.ArgumentParser(description="Learn a line.")
    parser.add_argument("--steps", type=int, default=1000)
    steps, rank = parser.parse_args().steps, int(os.environ.get("RANK", "0"))

    checkpoint = Path(os.environ.get("TURNBUCKLE_CHECKPOINT_DIR", "."), f"worker-{rank}.json")
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_stop.append(number))
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else first_state()
    if ready := os.environ.get("TURNBUCKLE_READY_FILE"):
        Path(ready).touch()  # loaded: what follows is progress
    print(f"worker {rank} begins at step {state['step']} of {steps}", flush=True)
    while state["step"] < steps:
        began_s = time.monotonic()
        loss = train_one_step(state, rank)
        if state["step"] % 20 == 0:
            print(f"step {state['step']}: loss {loss:.4f}", flush=True)
        if asked_to_stop:
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.with_suffix(".new").write_text(json.dumps(state))
            checkpoint.with_suffix(".new").replace(checkpoint)
            print(f"saved at step {state['step']}", flush=True)
            sys.exit(0)
        time.sleep(max(0.0, began_s + STEP_S - time.monotonic()))
    checkpoint.unlink(missing_ok=True)
    print(f"worker {rank} has learned the line", flush=True)


if __name__ == "__main__":
    main()
