"""Equal devices as stages and replicas: the dynamic programme finds what enumeration finds."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.planner.core import hybrid
from services.planner.core.profile import Infeasible, Latency, LayerTimes, MemoryProfile
from tests.support.examples import examples


@st.composite
def problems(draw: st.DrawFn) -> hybrid.Problem:
    layers = tuple(
        hybrid.Layer(
            LayerTimes(Latency(draw(st.floats(0.5, 8)), draw(st.floats(0, 2))), Latency(draw(st.floats(0.5, 8)))),
            draw(st.integers(1_000_000, 300_000_000)),
            draw(st.integers(0, 20_000_000)),
        )
        for _ in range(draw(st.integers(1, 8)))
    )
    return hybrid.Problem(
        layers=layers,
        memory=MemoryProfile((0.2, 0.4), 0.1),
        batch=draw(st.sampled_from((1, 4, 6))),
        devices=draw(st.integers(1, 4)),
        allowed_gib=draw(st.floats(1, 12)),
        gib_per_s=draw(st.floats(0.1, 10)),
    )


def enumerated(problem: hybrid.Problem) -> float | None:
    """Device milliseconds of the best plan."""
    found, layers = [], len(problem.layers)
    for layout in hybrid.layouts(problem):
        for cuts in combinations(range(1, layers), layout.stages - 1):
            bounds = (0, *cuts, layers)
            costs = [hybrid.stage_cost(problem, layout, first, last) for first, last in pairwise(bounds)]
            if any(cost is None for cost in costs):
                continue
            slowest = max(cost.slowest_ms for cost in costs if cost)
            most = max(cost.most_parameters for cost in costs if cost)
            step = hybrid.step_ms(problem, layout, hybrid.Division(slowest, most, bounds[1:]))
            found.append(step * layout.stages * layout.replicas)
    return min(found, default=None)


@given(problems())
@settings(max_examples=examples(500))
def test_no_division_is_cheaper(problem: hybrid.Problem) -> None:
    best, plan = enumerated(problem), hybrid.plan(problem)

    if best is None:
        assert isinstance(plan, Infeasible)
    else:
        assert isinstance(plan, hybrid.Plan)
        assert plan.step_ms * plan.devices == pytest.approx(best, rel=1e-12)
        assert plan.last_layers[-1] == len(problem.layers)
        assert len(plan.last_layers) == plan.layout.stages


def test_by_hand() -> None:
    """Two layers of 1 ms forward and 2 ms backward, each with 0.5 GiB of state, on devices with 0.9 GiB."""
    times = LayerTimes(Latency(1.0), Latency(2.0))
    layers = (hybrid.Layer(times, 1 << 25, 0), hybrid.Layer(times, 1 << 25, 0))
    problem = hybrid.Problem(layers, MemoryProfile((0.1, 0.1), 0.1), 4, 2, 0.9, 1.0)

    plan = hybrid.plan(problem)

    # One device has no room: 0.2 + 2 * 2^25 * 16 / 2^30 = 1.2 GiB. Two stages, micro-batches of 1 sample: each takes
    # 2 * 1 + 2 = 4 ms; 4 + 2 - 1 = 5 of them. Larger ones: (2 + 1) * 8 = 24 ms, (1 + 1) * 16 = 32 ms.
    assert plan == hybrid.Plan(hybrid.Layout(1, 2, 1), (1, 2), 20.0)
