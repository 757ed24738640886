"""The Gittins index of a job from what is known of its service: of all orders it has the smallest mean completion time.

Gittins (1979), "Bandit processes and dynamic allocation indices"; for jobs of unknown size on one machine: Aalto,
Ayesta and Righter (2009), "On the Gittins index in the M/G/1 queue". Tiresias (NSDI 2019) uses a discretised form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

ESTIMATE_QUANTILES: Final = 32
LEAST_SIGMA: Final = 0.02
"""Of an estimate at least: none is exact to less than two percent."""
INTERVAL_SIGMAS: Final = 2 * NormalDist().inv_cdf(0.95)
"""Width of an interval that holds nine of ten, in standard deviations: 3.29."""
_NORMAL: Final = np.array([NormalDist().inv_cdf((k + 0.5) / ESTIMATE_QUANTILES) for k in range(ESTIMATE_QUANTILES)])

OBSERVED_QUANTILES: Final = 128
OBSERVED_MOST: Final = 1_000
"""Ended jobs, the latest, that are known."""
PRIOR_S: Final = (60.0, 30 * 86_400.0)
"""Before any job has ended: anything from a minute to a month, evenly on a logarithmic scale."""
PRIOR_WEIGHT: Final = 16
"""Jobs that this counts as."""
_PRIOR: Final = np.geomspace(*PRIOR_S, PRIOR_WEIGHT)
_AT: Final = (np.arange(OBSERVED_QUANTILES) + 0.5) / OBSERVED_QUANTILES
RENEWED_EVERY: Final = 16
"""Ended jobs."""
FEW: Final = 64
RENEWED_EVERY_OF_FEW: Final = 4
_STEPS_PER_DOUBLING: Final = 8
"""The index of the observed sample is looked up by attained service in steps of 9 %."""


def indices(quantiles: Floats, attained: Floats) -> Floats:
    """The index of each job, per second of service: the largest probability of ending per unit of service spent on it.

        G(a) = max over D of P(S - a <= D | S > a) / E[min(S - a, D) | S > a]

    Args:
        quantiles: of the whole service S, ascending and equally likely, shape (N, K).
        attained: service a that each job has had, shape (N,).

    Returns:
        Shape (N,); 0 where every quantile has passed.
    """
    left = quantiles - attained[:, None]
    ahead = left > 0
    left = np.where(ahead, left, 0.0)
    ended = np.cumsum(ahead, axis=1)
    whole = ended[:, -1:]
    # Of n quantiles ahead the first k have ended after D: P = k / n, E = (sum of the first k + (n - k) D) / n.
    spent = np.cumsum(left, axis=1) + (whole - ended) * left
    found: Floats = np.max(np.divide(ended, spent, out=np.zeros_like(left), where=ahead), axis=1, initial=0.0)
    return found


def estimated(median: Floats, sigma: Floats) -> Floats:
    """Quantiles of lognormal services, shape (N, K), from medians and logarithmic standard deviations, shape (N,)."""
    quantiles: Floats = median[:, None] * np.exp(_NORMAL * sigma[:, None])
    return quantiles


def sigma_of(low: float, high: float) -> float:
    """The logarithmic standard deviation of a lognormal whose middle nine tenths are between low and high."""
    return max(LEAST_SIGMA, math.log(high / low) / INTERVAL_SIGMAS)


@dataclass(frozen=True, slots=True)
class Observed:
    """Service of the jobs that have ended, slot-seconds: what is known of a job of which nothing else is."""

    services: tuple[float, ...] = ()
    """Of the latest `OBSERVED_MOST`."""
    unread: int = 0
    """Of them, how many have not changed the quantiles yet."""
    quantiles: tuple[float, ...] = field(default=tuple(np.geomspace(*PRIOR_S, OBSERVED_QUANTILES).tolist()))

    def ended(self, *services: float) -> Observed:
        """With some more, as if one after another: the quantiles are those of the latest renewal."""
        known, unread, renewed = [*self.services, *services], self.unread, 0
        for count in range(len(self.services) + 1, len(known) + 1):
            unread += 1
            if unread >= (RENEWED_EVERY_OF_FEW if count < FEW else RENEWED_EVERY):
                unread, renewed = 0, count
        kept = tuple(known[-OBSERVED_MOST:])
        if not renewed:
            return replace(self, services=kept, unread=unread)
        sample = np.concatenate([np.array(known[max(0, renewed - OBSERVED_MOST) : renewed]), _PRIOR])
        return Observed(kept, unread, tuple(np.quantile(sample, _AT).tolist()))

    def indices(self, attained: Sequence[float]) -> list[float]:
        """The index of jobs by attained service, the same within 9 % of it."""
        steps = [int(_STEPS_PER_DOUBLING * math.log2(service + 1)) for service in attained]
        distinct = sorted(set(steps))
        services = np.array([2 ** (step / _STEPS_PER_DOUBLING) - 1 for step in distinct])
        table = indices(np.broadcast_to(np.array(self.quantiles), (len(distinct), OBSERVED_QUANTILES)), services)
        values = dict(zip(distinct, table.tolist(), strict=True))
        return [values[step] for step in steps]


NOTHING_OBSERVED: Final = Observed()
