"""Too many faults: the fast path steps back, FRR alone is in charge, and nothing gets worse through it."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.network import RouteKind
from services.fabric.testbed import connectivity
from services.fabric.testbed.lab import Lab
from tests.support.cgroup_lab import wait_until
from tests.support.fast_path_pair import FastPaths
from tests.support.lab_faults import blackhole

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.machine]
HOLD_S = 4.0


def test_a_flap_storm_is_left_to_frr(whole: Lab, tmp_path: Path) -> None:
    """A silent loss again and again, for as long as BFD needs: the fourth within the window is one too many."""
    with FastPaths(whole, tmp_path, flap_damping_window_s=600.0, flap_damping_hold_s=HOLD_S) as fast:
        ours = fast.hosts[0]
        for number in range(1, 5):
            with whole.fault(blackhole(1, 1)):
                wait_until(lambda: ours.state["uplinks"]["p1"][2] != "up", what=f"detection {number}")
            wait_until(lambda: ours.state["uplinks"]["p1"][2] == "up", within_s=60, what=f"recovery {number}")
        fast.wait_told(1, RouteKind.FAST_PATH, "flap_damped")
        assert len(fast.hosts[0].told(RouteKind.FAST_PATH, "flap_damped")) == 1
        assert not ours.overrides(), "nothing is overridden while damped"
        assert ours.state["counts"]["faults"] == 3, "three were answered"
        fast.wait_told(1, RouteKind.FAST_PATH, "flap_damping_ended")
        assert connectivity.wait_until(lambda: connectivity.unreachable_pairs(whole.topology), 60.0) == []
