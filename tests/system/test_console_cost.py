"""What a console that stays open all day may cost: a tenth of a core, its page included."""

from __future__ import annotations

import pytest

from tests.bench.console import CONTAINERS, JOBS, measure
from tests.support.chromium import find_chromium

MOST_CORES = 0.1
WINDOW_S = 30.0
"""Of each view. `make bench-console` takes a minute."""


@pytest.mark.slow
@pytest.mark.machine
@pytest.mark.timeout(360)
async def test_page_and_server_take_at_most_a_tenth_of_a_core_for_500_containers_and_jobs_and_trainings() -> None:
    find_chromium()
    assert CONTAINERS == JOBS == 500
    for cost in await measure(CONTAINERS, WINDOW_S, ["applications", "containers", "jobs", "trainings"]):
        assert cost.browser > 0.001, "no process of the browser was counted"
        # Jobs are asked for every two seconds, and drawn where they show something else: hours, minutes, five seconds.
        assert cost.draws_per_s > (0.09 if cost.view == "jobs" else 0.8)
        assert cost.together <= MOST_CORES, f"{cost.view}: console {cost.console:.3f}, browser {cost.browser:.3f} cores"
