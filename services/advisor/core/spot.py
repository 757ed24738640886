"""What a job costs on machines that may be taken away (spot, preemptible).

Interruptions of ``n`` machines come as a Poisson process of rate ``L = n x l`` (``l`` per machine and hour), and one
stops the whole job: synchronous training waits for all. Between checkpoints of distance ``c`` the work done is lost.
The expected time to get through ``c`` undisturbed, with ``r`` to get going again after each interruption, is

    E(c) = (1/L + r) (exp(L c) - 1)

(condition on the first interruption: E = c exp(-L c) + integral over t < c of L exp(-L t) (t + r + E) dt). A job of
length ``T`` is ``T/c`` such pieces, so the expected duration is ``T/c x E(c)``; without checkpoints ``c = T``. What is
spent on writing checkpoints is not counted. While machines are missing nothing is billed: ``r`` is the time in which
they are there again and the job is not yet where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from services.advisor.core.arrays import FloatArray, IntArray

_SECONDS_PER_HOUR: Final = 3600.0
_HOPELESS: Final = 20.0
"""Beyond so many expected interruptions of one piece it will not end; exp of it is half a billion."""


@dataclass(frozen=True, slots=True)
class SpotTerms:
    """What is assumed of spot machines."""

    interruptions_per_hour: float = 0.1 / 24.0
    """Of one machine. Google has named 5 to 15 % per day as usual for preemptible ones; not measured by us."""
    restart_s: float = 180.0
    """Until the job is where its last checkpoint was: boot, pull, load."""
    checkpoint_s: float = 0.0
    """Between two checkpoints; 0: none, an interrupted job begins anew."""


def expected_duration_s(time_s: FloatArray, machines: IntArray, terms: SpotTerms) -> FloatArray:
    """Return the expected duration on spot machines, in seconds and in the shape of `time_s`; NaN where hopeless.

    Args:
        time_s: Durations without interruptions.
        machines: Of the same shape, or one that fits it.
        terms: The assumptions.
    """
    rate = np.broadcast_to(machines, time_s.shape) * (terms.interruptions_per_hour / _SECONDS_PER_HOUR)
    piece_s = np.minimum(time_s, terms.checkpoint_s) if terms.checkpoint_s > 0 else time_s
    expected = rate * piece_s
    with np.errstate(all="ignore"):
        through_s = (1.0 / rate + terms.restart_s) * np.expm1(np.minimum(expected, _HOPELESS))
        duration_s = np.where(rate > 0, time_s / piece_s * through_s, time_s)
    return np.where(expected >= _HOPELESS, np.nan, duration_s)
