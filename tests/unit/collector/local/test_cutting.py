"""Local runs that are cut at a part of what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.runs import SERIES, RunEnd
from services.collector.profiler.cutting import cut_short, cuts_of, with_cuts
from tests.support.finished_runs import finished


@given(samples=st.integers(60, 600), divisor=st.integers(2, 10))
def test_a_cut_run_is_the_beginning_of_the_whole_and_knows_no_more(samples: int, divisor: int) -> None:
    whole = finished(samples)
    cut = cut_short(whole, divisor)
    if cut is None:
        assert samples // divisor < 10
        return
    assert (cut.run, cut.end, cut.exit_codes) == (f"whole-cut-{divisor}", RunEnd.TIMED_OUT, ())
    assert cut.duration_s == pytest.approx(whole.duration_s / divisor)
    for one, other in zip(cut.workers, whole.workers, strict=True):
        for name in SERIES:
            assert one.column(name).tolist() == other.column(name)[: samples // divisor].tolist()


@given(samples=st.integers(100, 600))
def test_a_steady_run_tells_its_whole_duration_from_a_third_of_it(samples: int) -> None:
    whole = finished(samples)
    cut = cut_short(whole, 3)
    assert cut is not None
    told = cut.configuration.attributes
    # the number of steps is whole, the duration is not
    assert told["whole_run_s"] == pytest.approx(whole.duration_s, rel=0.05)
    assert told["rate_error"] == pytest.approx(0.05)  # of bytes: nothing else varies here


def test_only_finished_runs_are_cut_and_each_name_stays_once() -> None:
    whole = finished(300)
    stopped = whole.model_copy(update={"end": RunEnd.TIMED_OUT})
    assert cuts_of(stopped) == ()
    with pytest.raises(ValueError, match="had not got to its end"):
        cut_short(stopped, 3)
    names = ["whole", "whole-cut-3", "whole-cut-10"]
    assert [one.run for one in with_cuts([whole])] == names
    assert [one.run for one in with_cuts(with_cuts([whole]))] == names
