"""Peers decide for many containers at once as they would for each alone, with phases that differ."""

import numpy as np
import pytest

from tests.bench.escra.peers.rules import CpuRule, rules_for
from tests.bench.escra.policies import POLICIES
from tests.bench.escra.profile import ContainerProfile
from tests.support.peer_views import cpu_view, memory_sample

PEERS = [name for name, spec in POLICIES.items() if spec.needs_profile]
COUNT, PERIODS, MIB = 5, 150, 1 << 20
RANDOM = np.random.default_rng(20261121)
DEMAND_US = RANDOM.choice([6_000, 30_000, 90_000, 150_000], (PERIODS, COUNT), p=[0.4, 0.3, 0.2, 0.1])
FRESH = RANDOM.uniform(size=(PERIODS, COUNT)) < 0.8
USAGE_BYTES = RANDOM.integers(300 * MIB, 500 * MIB, (PERIODS, COUNT))
PROFILES = [ContainerProfile((10_000 * (n + 1), 40_000) * 40, (400 * MIB,) * 80) for n in range(COUNT)]


def quotas(rule: CpuRule, columns: list[int]) -> np.ndarray:
    """Every period's targets of some of the containers, whose quotas follow at once; shape (PERIODS, len(columns))."""
    rule.state.grow(COUNT)
    rule.start(np.array(columns), [PROFILES[column] for column in columns])
    quota_us, seen = np.full(len(columns), 50_000), []
    for period in range(PERIODS):
        demand_us = DEMAND_US[period, columns]
        used_us = np.minimum(demand_us, quota_us)
        view = cpu_view(used_us, quota_us, demand_us > quota_us, fresh=FRESH[period, columns])
        quota_us = rule.decide(view, np.array(columns)).target_us
        seen.append(quota_us)
    return np.array(seen)


@pytest.mark.parametrize("name", PEERS)
def test_together_as_each_alone(name) -> None:
    together = quotas(rules_for(POLICIES[name])[0], list(range(COUNT)))
    for column in range(COUNT):
        alone = quotas(rules_for(POLICIES[name])[0], [column])
        assert np.array_equal(together[:, column], alone[:, 0]), column


@pytest.mark.parametrize("name", PEERS)
def test_memory_together_in_any_order(name) -> None:
    """The same slots in another order of rows: the same limits."""
    limits = []
    for order in (np.arange(COUNT), np.array([3, 0, 4, 1, 2])):
        rule = rules_for(POLICIES[name])[1]
        rule.state.grow(COUNT)
        rule.start(order, [PROFILES[slot] for slot in order])
        ordered, seen = np.full(COUNT, 600 * MIB), []
        for usage in USAGE_BYTES:
            ordered[order] = rule.decide(memory_sample(usage[order], ordered[order]), order).target_bytes
            seen.append(ordered.copy())
        limits.append(seen)
    assert np.array_equal(*limits)
