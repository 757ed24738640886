"""Situations in which a CPU policy decides: applications that have run for a while under random demand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.allocator.cpu.policy_interface import CpuTargets, CpuView
from tests.support.cfs_plant import POLICIES, CfsPlant, decide


@dataclass(frozen=True)
class Situation:
    """A policy with its state, and the view that it is asked about next."""

    policy: str
    state: Any
    view: CpuView
    rows: NDArray[np.int64]

    def decide(self) -> CpuTargets:
        """Decide on a copy of the state."""
        targets: CpuTargets = decide(POLICIES[self.policy][0], self.state.copy(), self.view, self.rows)
        return targets

    def select(self, index: NDArray[np.int64]) -> Situation:
        """The same situation with only these rows, in this order."""
        columns = {
            name: getattr(self.view, name)[index] for name in CpuView.__slots__ if name not in {"limit_us", "params"}
        }
        return replace(self, view=replace(self.view, **columns), rows=self.rows[index])

    def with_limit(self, limit_us: NDArray[np.int64]) -> Situation:
        """The same with other limits."""
        return replace(self, view=replace(self.view, limit_us=limit_us))


@st.composite
def situations(draw: st.DrawFn, policy: str, *, over_limit: bool = True) -> Situation:
    """1-4 applications of 1-8 containers after 0-25 random periods; now and then the limit was just lowered."""
    seed = draw(st.integers(0, 2**32 - 1))
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    periods = draw(st.integers(0, 25))
    tightness = draw(st.sampled_from([0.3, 0.8, 1.02, 1.5, 4.0]))
    random = np.random.default_rng(seed)
    app = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    random.shuffle(app)
    mean = random.integers(2_000, 200_000, len(app))
    floor = np.bincount(app, minlength=len(sizes)) * 1_000
    limit = np.maximum((np.bincount(app, mean, len(sizes)) * tightness).astype(np.int64), floor)
    share = np.maximum(limit[app] // np.bincount(app)[app], 1_000)
    quota = np.minimum(share, 400_000)
    plant = CfsPlant(app, limit, quota, policy, noise=0.3, silent=draw(st.sampled_from([0.0, 0.3])), seed=seed)
    for _ in range(periods):
        plant.step((mean * random.choice([0.0, 0.2, 1.0, 2.0], len(app))).astype(np.int64))
    sample = plant.run_period((mean * random.choice([0.0, 1.0, 3.0], len(app))).astype(np.int64))
    if over_limit and draw(st.booleans()):
        lower = random.choice([0.4, 1.0], len(sizes))
        plant.limit_us = np.maximum((limit * lower).astype(np.int64), floor)
    return Situation(policy, plant.state, plant.view(sample), np.arange(len(app)))
