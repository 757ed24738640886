"""A user's loss that waits in some of worker 1's steps until a file is there: what is ordered meanwhile comes next."""

from __future__ import annotations

import os
import time
from pathlib import Path

from torch import Tensor

from tests.support.trainer_job import small_model
from tests.support.trainer_job.small_model import build, build_single, optimizer

__all__ = ["build", "build_single", "loss", "optimizer"]

GATES = (5, 12, 20)
DEADLINE_S = 240
_calls = 0


def loss(output: Tensor, target: Tensor) -> Tensor:
    """As the small model's."""
    global _calls  # noqa: PLW0603 - a user's module
    _calls += 1
    if os.environ["RANK"] == "1" and _calls in GATES:
        Path(f"at-{_calls}").touch()
        until_s = time.monotonic() + DEADLINE_S
        while not Path(f"gate-{_calls}").exists():
            if time.monotonic() > until_s:
                raise TimeoutError(f"gate {_calls} was not opened")
            time.sleep(0.002)
    return small_model.loss(output, target)
