"""What is wrong with a storm of edge faults: every bound can be broken, and what is left is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.machine import Machine
from tests.bench.thorn_storm import StormPlan
from tests.bench.thorn_storm_report import BOUNDS, Cost, StormResults, table, wrong

MACHINE = Machine("a processor", 2, 8.0, "6.1", "no control groups", "3.11", (0.0, 0.0, 0.0))
ANSWERED = {"override": 2, "override_removed": 2, "route": 6, "lost sessions": 2}
CALM = StormResults(
    MACHINE,
    "8.4.4",
    realtime=True,
    costs=[
        Cost("blackhole h1-s1", 1, ANSWERED, 120.0, 2.0, 1.5),
        Cost(
            "link-down h1-s1 flapping", 10, {"override": 6, "override_removed": 6, "lost sessions": 2}, 80.0, 2.0, 4.0
        ),
        Cost("blackhole h1-s2", 1, ANSWERED, 120.0, 2.0, 1.5),
    ],
    left=[],
    passes=12,
    writes=0,
    alarms=["flap_damped"],
)


def test_nothing_is_wrong_with_a_bounded_storm() -> None:
    assert wrong(CALM) == []
    assert table(CALM).endswith("nothing amplified, nothing left standing")


@pytest.mark.parametrize("name", BOUNDS)
def test_one_more_than_the_bound_per_fault_is_told(name: str) -> None:
    # Ten flaps may cost ten times the bound, and not one more.
    for count, told in ((10 * BOUNDS[name], False), (10 * BOUNDS[name] + 1, True)):
        flaps = replace(CALM.costs[1], counts={"override": 1, name: count})
        found = wrong(replace(CALM, costs=[CALM.costs[0], flaps, CALM.costs[2]]))
        assert [name in line for line in found] == [True] * told


def test_rules_written_silence_and_leftovers_are_told() -> None:
    silent = replace(CALM.costs[0], counts={})

    assert wrong(replace(CALM, writes=1)) == ["reconcilers wrote 1 rules"]
    assert wrong(replace(CALM, left=["a1->a2"])) == ["left standing: a1->a2"]
    assert wrong(replace(CALM, costs=[*CALM.costs[:2], silent])) == [
        "the fast path did not answer the fault after the storm"
    ]
    assert "the fast path answered no fault" in wrong(replace(CALM, costs=[silent, silent, CALM.costs[2]]))


def test_ten_minutes_are_faults_of_forty_seconds_and_a_minute_of_flaps() -> None:
    plan = StormPlan.lasting(10.0)

    # 540 s / 40 s, and 60 s / 0.5 s.
    assert (plan.faults, plan.flaps) == (14, 120)
