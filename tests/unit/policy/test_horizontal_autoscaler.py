"""A HorizontalPodAutoscaler beside us: usage divided by requests, as it would be without limits (docs/autoscalers.md).

Its algorithm: https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/, with the default
tolerance of a tenth. Usage is what containers use in a plant whose quotas the allocator's policy sets.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from tests.support.cfs_plant import PERIOD_US, POLICIES, CfsPlant

REPLICAS = 4
REQUEST_US = 25_000
"""Of CPU time per period: 250 millicores."""
TARGET = 0.5
"""averageUtilization of 50 %."""
WINDOW = 150
"""Periods: 15 s, after which metrics-server measures anew."""


def replicas_wanted(used_us: float) -> int:
    """From the mean use of one replica per period."""
    ratio = used_us / REQUEST_US / TARGET
    return REPLICAS if abs(ratio - 1) <= 0.1 else ceil(REPLICAS * ratio)


def used_under_limits(policy: str, demand_us: int, limit_us: int) -> float:
    """Mean use of one replica per period, after a minute under the policy's quotas."""
    equal = np.full(REPLICAS, min(limit_us // REPLICAS, PERIOD_US))
    plant = CfsPlant(np.zeros(REPLICAS, np.int32), np.array([limit_us]), equal, policy, noise=0.1)
    demand = np.full(REPLICAS, demand_us)
    for _ in range(4 * WINDOW):
        plant.step(demand)
    return float(np.mean([plant.step(demand).used_us for _ in range(WINDOW)]))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(
    ("demand_us", "wanted"),
    [
        (5_000, 2),  # 20 % of the request: 4 * 0.4 = 1.6
        (12_500, 4),  # 50 %: as it is
        (20_000, 7),  # 80 %: 4 * 1.6 = 6.4
        (40_000, 13),  # 160 %: 4 * 3.2 = 12.8
    ],
)
def test_inside_the_applications_limit_it_wants_as_many_replicas_as_without_limits(
    policy: str, demand_us: int, wanted: int
) -> None:
    limit_us = 2 * REPLICAS * demand_us
    assert replicas_wanted(demand_us) == wanted
    assert replicas_wanted(used_under_limits(policy, demand_us, limit_us)) == wanted


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("demand_us", [20_000, 80_000])
def test_where_the_limit_is_no_more_than_target_times_requests_it_never_wants_more(policy: str, demand_us: int) -> None:
    """4 replicas that request 250 millicores, target 50 %: 500 millicores together are 50 % of what they request."""
    limit_us = int(REPLICAS * REQUEST_US * TARGET)
    assert replicas_wanted(demand_us) > REPLICAS
    assert replicas_wanted(used_under_limits(policy, demand_us, limit_us)) == REPLICAS
