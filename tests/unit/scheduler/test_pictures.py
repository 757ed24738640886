"""What is drawn of simulations."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.jobs import Job, Node
from services.scheduler.core.policies import LargestIndex
from services.scheduler.core.simulation import simulate
from services.scheduler.pictures import draw_beside, mean_slots_in_use, timeline_rows


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 4), st.integers(1, 900)), min_size=1, max_size=8))
def test_the_slots_in_use_add_up_to_the_service_of_all_jobs(rows: list[tuple[int, int, int]]) -> None:
    jobs = [Job(f"j{n}", slots, at_s, duration_s=length) for n, (at_s, slots, length) in enumerate(rows)]
    run = simulate(jobs, [Node("a", 4)], LargestIndex())
    hours, slots = mean_slots_in_use(run)
    width_s = 3_600 * 2 * hours[0]

    assert slots.max() <= 4 + 1e-9
    assert (slots * width_s).sum() == pytest.approx(sum(count * length for _, count, length in rows))


def test_a_job_has_the_same_row_in_all_runs(tmp_path: Path) -> None:
    jobs = [Job("long", 1, 0, duration_s=50), Job("short", 1, 10, duration_s=5)]
    first, second = (simulate(jobs, [Node("a", slots)], LargestIndex()) for slots in (1, 2))
    runs = {"live": first, "simulated": second}

    assert timeline_rows(runs) == {"long": 2, "short": 1}
    draw_beside(runs, "two jobs", tmp_path / "beside.png")
    assert (tmp_path / "beside.png").read_bytes().startswith(b"\x89PNG")
