"""The benchmark of cut local runs: its kinds, its rows, and the page that it writes."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.runs import RunEnd
from services.collector.profiler.cutting import with_cuts
from tests.bench.advisor_cut import (
    BEGIN,
    END,
    EXACT,
    NAMES,
    NO_RATE,
    PAGE,
    SPREAD,
    SPREAD_OVER,
    WHOLE,
    Answered,
    line,
    local_runs,
    ratio_interval,
    replaced,
    table,
)
from tests.support.finished_runs import finished


def answered(kind: str, predicted: list[float], known: list[bool], task: str = "image-cnn") -> Answered:
    """Truth: 10 s each; intervals of a fifth to both sides."""
    median = np.array(predicted)
    ends = np.stack([median * 0.8, median, median * 1.2], axis=1)
    return Answered(task, kind, np.full(len(median), 10.0), ends, np.array(known), 0.9)


def test_the_kinds_are_those_of_the_data_set() -> None:
    runs = {one.run: one for one in with_cuts([finished(300)])}
    found = local_runs(runs, runs["whole"])
    assert [kind for kind, _ in found] == [WHOLE, NAMES[3], NAMES[10], NO_RATE, EXACT, *[SPREAD] * len(SPREAD_OVER)]
    silent = dict(found)[NO_RATE]
    assert silent.end is RunEnd.TIMED_OUT
    assert silent.configuration.attributes == {}
    assert dict(found)[EXACT].configuration.attributes["whole_run_s"] == runs["whole"].duration_s
    assert [run.duration_s for kind, run in found if kind == SPREAD] == pytest.approx(
        [share * runs["whole"].duration_s for share in SPREAD_OVER]
    )
    assert local_runs({}, runs["whole"]) == [(WHOLE, runs["whole"])]


def test_a_row_counts_what_is_answered_and_compares_the_same_tasks() -> None:
    """Whole runs: errors of 10 % and 20 %, so 15 % in the middle; cut: 30 % of the one row that is answered."""
    whole = answered(WHOLE, [11.0, 12.0], [True, True])
    cut = answered(NAMES[3], [13.0, 99.0], [True, False])
    row = line(NAMES[3], [whole, cut], {"image-cnn": whole})
    # 30 % over 15 %; 13 s with a fifth to both sides, 10.4 to 15.6, does not hold 10 s
    assert row.startswith("| a third | 1 of 1 | 1 of 2 | 30.0% | 2.000 |")
    assert "| 0% (told: 90%) |" in row
    assert line(NO_RATE, [answered(NO_RATE, [1.0], [False])], {}).endswith(
        "| 0 of 1 | 0 of 1 | - | - | - | - | - | - |"
    )


def test_jobs_of_minutes_have_a_table_of_their_own() -> None:
    seconds, minutes = answered(WHOLE, [11.0], [True]), answered(WHOLE, [15.0], [True], "image-digits-x20")
    text = table([seconds, minutes], "about")
    assert text.count("| to its end |") == 3
    assert "| to its end | 1 of 1 | 1 of 1 | 50.0% | 1.000 |" in text


def test_applications_on_which_nothing_was_chosen_have_a_table_of_their_own() -> None:
    text = table([answered(WHOLE, [11.0], [True], "image-digits"), answered(WHOLE, [15.0], [True])], "about")
    held_out = text.partition("was not chosen")[2]
    assert "| to its end | 1 of 1 | 1 of 1 | 50.0% | 1.000 |" in held_out
    assert "| to its end | 2 of 2 | 2 of 2 | 30.0% | 1.000 |" in text


def test_the_ratios_interval_is_over_applications() -> None:
    """Three applications whose errors are 1, 2 and 3 times those of whole runs: a draw of one alone ends each side."""
    tasks = ["image-cnn", "image-digits", "text-dnn"]
    whole = {name: answered(WHOLE, [11.0], [True], name) for name in tasks}
    cut = [answered(NAMES[3], [10.0 + times], [True], name) for times, name in enumerate(tasks, 1)]
    assert ratio_interval(cut, whole) == pytest.approx((1.0, 3.0))
    assert "| 20.0% | 2.000 [1.00, 3.00] |" in line(NAMES[3], [*cut, *whole.values()], whole)
    # a job's longer variant is drawn with it: one application has no interval
    longer = answered(NAMES[3], [12.0], [True], "image-cnn-x20")
    assert ratio_interval([cut[0], longer], whole | {"image-cnn-x20": longer}) is None


def test_the_table_is_written_between_its_markers_and_the_page_has_them() -> None:
    page = PAGE.read_text(encoding="utf-8")
    written = replaced(page, "new")
    assert f"{BEGIN}\nnew\n{END}" in written
    assert replaced(written, "newer") == written.replace("\nnew\n", "\nnewer\n")
    with pytest.raises(ValueError, match="no place for the table"):
        replaced("nothing", "new")
