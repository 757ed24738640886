"""Expected duration of a job on spot (preemptible) machines.

Interruptions of ``n`` machines come as a Poisson process of rate ``L = n x l`` (``l`` per machine and hour), and one
stops the whole job: synchronous training needs all workers. Work since the last checkpoint (interval ``c``) is lost.
The expected time to complete ``c`` without an interruption, with ``r`` to restart after each one, is

    E(c) = (1/L + r) (exp(L c) - 1)

(condition on the first interruption: E = c exp(-L c) + integral over t < c of L exp(-L t) (t + r + E) dt). A job of
length ``T`` is ``T/c`` such pieces, so the expected duration is ``T/c x E(c)``; without checkpoints ``c = T``. Time
to write checkpoints is not counted. Missing machines are not billed: ``r`` is the billed time until the restarted job
has reached its last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from services.advisor.core.arrays import FloatArray, IntArray

_SECONDS_PER_HOUR: Final = 3600.0
_MAX_INTERRUPTIONS: Final = 20.0
"""Expected interruptions of one piece above which the job is taken never to end; exp of it is half a billion."""


@dataclass(frozen=True, slots=True)
class SpotTerms:
    """Assumptions about spot machines."""

    interruptions_per_hour: float = 0.1 / 24.0
    """Of one machine. Google has named 5 to 15 % per day as usual for preemptible ones; not measured here."""
    restart_s: float = 180.0
    """Until the job has reached its last checkpoint: boot, pull, load."""
    checkpoint_s: float = 0.0
    """Between two checkpoints; 0: none, an interrupted job starts over."""


def expected_duration_s(time_s: FloatArray, machines: IntArray, terms: SpotTerms) -> FloatArray:
    """Return the expected duration on spot machines, in seconds and in the shape of `time_s`; NaN where it never ends.

    Args:
        time_s: Durations without interruptions.
        machines: Of the same shape, or broadcastable to it.
        terms: The assumptions.
    """
    rate = np.broadcast_to(machines, time_s.shape) * (terms.interruptions_per_hour / _SECONDS_PER_HOUR)
    piece_s = np.minimum(time_s, terms.checkpoint_s) if terms.checkpoint_s > 0 else time_s
    expected = rate * piece_s
    with np.errstate(all="ignore"):
        through_s = (1.0 / rate + terms.restart_s) * np.expm1(np.minimum(expected, _MAX_INTERRUPTIONS))
        duration_s = np.where(rate > 0, time_s / piece_s * through_s, time_s)
    return np.where(expected >= _MAX_INTERRUPTIONS, np.nan, duration_s)
