"""What a decision costs; printed (pytest -rP), not asserted: machines differ. The result is checked."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.support.cfs_plant import POLICIES, CfsPlant, decide


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("containers", [100, 1_000, 10_000])
def test_cost_of_a_decision(policy: str, containers: int) -> None:
    """20 containers per application, demand of +-30 %, a limit of 1.5 times the demand; CPU time of decide."""
    random = np.random.default_rng(1)
    app = (np.arange(containers) // 20).astype(np.int32)
    demand = random.integers(5_000, 200_000, containers)
    limit = (np.bincount(app, demand) * 1.5).astype(np.int64)
    plant = CfsPlant(app, limit, (limit // 20)[app], policy, noise=0.3)
    plant.commit = lambda target_us: target_us  # type: ignore[method-assign]
    spent_ns = []
    for _ in range(12):
        view = plant.view(plant.run_period(demand))
        start = time.thread_time_ns()
        targets = decide(plant.module, plant.state, view, np.arange(containers))
        spent_ns.append(time.thread_time_ns() - start)
        assert (np.bincount(app, targets.target_us) <= limit).all()
        plant.ordered_us = plant.quota_us = targets.target_us
    cost_us = np.median(spent_ns) / 1e3 / containers
    print(f"{policy}, {containers} containers: {cost_us:.3f} us per container")  # noqa: T201 - it is here to be read
