"""The bench of local runs elsewhere: which questions it asks, and how it sums the answers up."""

from __future__ import annotations

import pytest

from services.advisor.core.encoder import configuration_key
from tests.bench.advisor_elsewhere import PLACES, AnswerError, measured_elsewhere, questions, summary
from tests.support.gp_tables import World

WORLD = World(tasks=1)


def test_no_question_is_about_the_row_that_stands_for_its_local_run() -> None:
    rows = WORLD.records()
    (reference,) = WORLD.profiles().values()
    found = list(questions(rows, reference))
    assert [place for place, _, _ in found] == ["reference"] + ["elsewhere"] * PLACES
    assert found[0][1:] == (reference, rows)
    for _, local, asked in found[1:]:
        assert len(asked) == len(rows) - 1
        (row,) = [
            one
            for one in rows
            if configuration_key(one.configuration) not in {configuration_key(a.configuration) for a in asked}
        ]
        assert local.duration_s == row.duration_s
        assert (local.configuration.vcpu, local.configuration.provider) == (row.configuration.vcpu, "local")


def test_errors_and_intervals_are_those_of_known_answers() -> None:
    cases = [(-0.5, True, True), (0.1, False, True), (0.2, True, True), (99.0, False, False)]
    answers = [AnswerError("elsewhere", "a", error, inside, known) for error, inside, known in cases]
    (row,) = summary(answers).values()
    assert (row["answers"], row["known_share"], row["median_error"]) == (4, 0.75, 0.2)
    assert row["held_share"] == pytest.approx(2 / 3)


def test_a_local_run_elsewhere_is_finished_and_has_no_series() -> None:
    profile = measured_elsewhere(WORLD.records()[0])
    assert (profile.workers, profile.end.value) == ((), "finished")
