"""The search for Autopilot's weights: replays worked out by hand, and that it takes the better of two."""

import numpy as np
import pytest

from tests.bench.escra.peers.autopilot import Autopilot, Weights
from tests.bench.escra.peers.tune_autopilot import (
    Outcome,
    draws,
    merit,
    replay_cpu,
    replay_memory,
    search,
    trial_of,
)
from tests.bench.escra.profile import ContainerProfile, Profile

GRID_10_MS = 1_000 * 1.06**40
"""The least limit of the grid that holds 10 ms."""
LEAN, CALM = Weights(0.4, 0.0, 0.0, 0.3), Weights(0.001, 0.001, 0.001, 0.1)


def one(used_us: tuple[int, ...], memory_bytes: tuple[int, ...] | None = None) -> Profile:
    return Profile({"web": ContainerProfile(used_us, memory_bytes or (100 << 20,) * len(used_us))})


def test_a_constant_demand_waits_for_nothing() -> None:
    """Limit 10,285.7, used 10,000: slack 0.0286 of what is used; static 1.5x has 0.5."""
    outcome = replay_cpu(trial_of(one((10_000,) * 100), memory=False), Autopilot(LEAN, 10))
    assert outcome.delay == 0
    assert (outcome.slack, outcome.static_slack) == pytest.approx((GRID_10_MS / 10_000 - 1, 0.5))


def test_work_that_does_not_fit_waits_and_is_served_later() -> None:
    """Learnt at 10 ms. Then one period asks for 20: 9,714.3 wait, that is 0.944 periods, and the next is idle.

    10 periods: the 99.9th percentile lies 0.009 below the largest of them. Served 10,285.7 + 9,714.3 + 8 x 10,000.
    """
    profile = one((10_000,) * 10 + (20_000, 0) + (10_000,) * 8)
    outcome = replay_cpu(trial_of(profile, memory=False), Autopilot(LEAN, 10))
    delay = (20_000 - GRID_10_MS) / GRID_10_MS
    assert outcome.delay == pytest.approx(0.991 * delay, rel=1e-6)
    assert outcome.slack == pytest.approx((10 * GRID_10_MS - 100_000) / 100_000)


def test_memory_above_the_limit_is_a_kill() -> None:
    """100 MiB learnt, the limit is 102.9 MiB; 2 of 10 periods use 110."""
    memory = (100 << 20,) * 10 + (110 << 20,) * 2 + (100 << 20,) * 8
    outcome = replay_memory(trial_of(one((0,) * 20, memory), memory=True), Autopilot(LEAN, 10))
    assert outcome.delay == pytest.approx(0.2)


def test_containers_that_did_not_live_through_it_are_left_out() -> None:
    profile = Profile(one((1,) * 20).containers | {"job": ContainerProfile((5,) * 8, (1,) * 8, 4)})
    trial = trial_of(profile, memory=False)
    assert (len(trial.learnt), trial.replayed.shape) == (1, (10, 1))


def test_less_delay_wins_then_less_slack_and_more_slack_than_static_loses() -> None:
    best, slacker, slower = Outcome(0, 0.2, 0.5), Outcome(0, 0.3, 0.5), Outcome(0.1, 0, 0.5)
    wasteful = Outcome(0, 0.6, 0.5)
    assert merit([best]) < merit([slacker]) < merit([slower]) < merit([wasteful])
    assert merit([wasteful, best]) < merit([wasteful]), "what counts is the slack over all profiles: 0.4 of 0.5"


def test_one_profile_that_goes_wrong_does_not_decide() -> None:
    """log(1 + 200) + log(1 + 0) = 5.303 against log(1 + 190) + log(1 + 1) = 5.945, though 200 > 191."""
    assert merit([Outcome(200, 0, 1), Outcome(0, 0, 1)]) < merit([Outcome(190, 0, 1), Outcome(1, 0, 1)])


def test_the_search_takes_the_weights_that_wait_less() -> None:
    """14 ms in one period of ten, else 10: lean weights leave it above the limit, calm ones hold it at 14.6 ms.

    That is a slack of 0.40 of what is used; static 1.5x of the largest second has 0.5, so it is allowed.
    """
    trial = trial_of(one(((10_000,) * 9 + (14_000,)) * 40), memory=False)
    lean, calm = (replay_cpu(trial, Autopilot(weights, 10)) for weights in (LEAN, CALM))
    assert lean.delay > calm.delay == 0
    assert calm.slack == pytest.approx(0.40, abs=0.005)
    assert search([trial], replay_cpu, 10, [LEAN, CALM]) == CALM


def test_draws_are_the_same_for_the_same_seed() -> None:
    assert draws(5, 1) == draws(5, 1) != draws(5, 2)
    assert all(0 < weights.underrun <= 0.5 for weights in draws(50, 3))
    assert len(np.unique([weights.cost_decay for weights in draws(50, 3)])) == 50
