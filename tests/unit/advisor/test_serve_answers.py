"""From a question to an answer: figures, filters, order, front, and every question that cannot be answered."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.jobs import Configuration, Price, TaskFeatures
from schemas.predictions import AdviceExplainRequest, ModelName, Objective, PredictRequest, RankRequest
from schemas.runs import RunEnd
from services.advisor.core.answers import ModelContext, best_first, explain, pareto_front, predict, rank
from services.advisor.core.catalogue import Listing, Machine
from services.advisor.core.encoder import Encoder
from services.advisor.core.questions import BadQuestionError, MeasuredMachine, MeasuredTasks, complete, question_table
from services.advisor.core.spot import SpotTerms, expected_duration_s
from services.advisor.core.table import build
from tests.support.fake_model import FakeModel
from tests.support.training_jobs import configuration, features, profile, records

DAY = date(2026, 11, 20)
STRANGE = TaskFeatures(task="a", attributes={"loss": math.nan})
MODEL = ModelName(model="fake", version="fake-1", data_hash="h", records=9, tasks=3, trained_ns=1)


def listing(**spot: float) -> Listing:
    """Two-core machines for a dollar per hour, four-core ones for 1.50, and one that is too small."""
    machines = {"two": (2.0, 8.0, 1.0), "four": (4.0, 16.0, 1.5), "tiny": (2.0, 2.0, 0.1)}
    return Listing(
        {
            ("gcp", name): (
                Machine(name, vcpu, memory, usd, spot.get(name)),
                Price(usd_per_hour=usd, spot_usd_per_hour=spot.get(name), as_of=DAY, source="test"),
            )
            for name, (vcpu, memory, usd) in machines.items()
        }
    )


def advice(prices: Listing | None = None, measured: MeasuredTasks | None = None) -> ModelContext:
    return ModelContext(FakeModel(), MODEL, prices or listing(), measured or MeasuredTasks())


def asked(**changes: Any) -> RankRequest:
    return RankRequest(**({"task": features("a"), "workers": (1, 2)} | changes))


def names(found: Any) -> list[str]:
    return [f"{one.configuration.workers} x {one.configuration.instance_type}" for one in found]


def test_time_and_cost_by_hand() -> None:
    """Two four-core machines share 3,600 s of work: 450 s; 2 x 1.50 x 450/3600 dollars; half and twice around it."""
    reply = predict(PredictRequest(task=features("a"), configurations=(where("four", 2), where("two", 1))), advice())

    first, second = reply.predictions
    # 3600 / (4 x 2) = 450 s; 450/3600 h x 2 machines x $1.50 = $0.375
    assert (first.time_s.low, first.time_s.median, first.time_s.high) == (225.0, 450.0, 900.0)
    assert first.cost_usd is not None
    assert (first.cost_usd.low, first.cost_usd.median, first.cost_usd.high) == (0.1875, 0.375, 0.75)
    # 3600 / 2 = 1800 s; half an hour of a dollar
    assert second.cost_usd is not None
    assert (second.time_s.median, second.cost_usd.median) == (1800.0, 0.5)
    assert reply.prices_as_of == DAY
    assert first.reasons == ("workers 2: 0.50 x the time",)
    assert first.configuration.provider == "gcp"


def where(name: str, workers: int, **fields: Any) -> Configuration:
    return Configuration(instance_type=name, workers=workers, **fields)


def test_rank_by_cost_then_by_time() -> None:
    """Cheapest first, or fastest first; what will not fit is left out and counted."""
    by_cost = rank(asked(), advice())
    by_time = rank(asked(objective=Objective.TIME), advice())

    # four: $0.375 for any number; two: $0.50 for any number (perfect scaling)
    assert names(by_cost.ranked)[:2] == ["1 x four", "2 x four"]
    assert names(by_time.ranked) == ["2 x four", "1 x four", "2 x two", "1 x two"]
    assert by_cost.rejected == {"will not fit": 2}
    assert by_cost.considered == 6
    assert [one.task for one in by_cost.neighbours] == ["like-it"]


def test_the_front_is_fastest_first() -> None:
    """At equal cost only the faster one stays."""
    reply = rank(asked(), advice())

    assert names(reply.pareto) == ["2 x four"]
    assert all(one.pareto for one in reply.pareto)


@pytest.mark.parametrize(
    ("changes", "left", "rejected"),
    [
        ({"budget_usd": 0.4}, ["1 x four", "2 x four"], {"will not fit": 2, "over budget": 2}),
        ({"deadline_s": 500.0}, ["2 x four"], {"will not fit": 2, "too late": 3}),
        ({"budget_usd": 0.4, "deadline_s": 100.0}, [], {"will not fit": 2, "over budget": 2, "too late": 2}),
        ({"workers": (4, 16)}, ["4 x four", "4 x two"], {"will not fit": 2, "not known": 2}),
    ],
)
def test_limits(changes: dict[str, Any], left: list[str], rejected: dict[str, int]) -> None:
    """Each configuration is counted under the first reason against it."""
    reply = rank(asked(**changes), advice())

    assert sorted(names(reply.ranked)) == sorted(left)
    assert reply.rejected == rejected


def test_a_limit_that_may_break_is_told() -> None:
    """The middle keeps the budget, the interval's end does not."""
    reply = rank(asked(budget_usd=0.4, deadline_s=1000.0), advice())

    assert "the first choice may cost up to $0.75, more than the budget" in reply.warnings
    assert any("longer than the deadline" in warning for warning in reply.warnings)


def test_what_is_asked_twice_is_ranked_once() -> None:
    """`predict` answers in the order given, twice too; a ranking holds each configuration once."""
    twice = (where("two", 1), where("four", 1), where("two", 1))

    ranked = rank(asked(configurations=twice), advice())
    predicted = predict(PredictRequest(task=features("a"), configurations=twice), advice())

    assert names(ranked.ranked) == ["1 x four", "1 x two"]
    assert ranked.considered == 2
    assert names(predicted.predictions) == ["1 x two", "1 x four", "1 x two"]


def test_nothing_known_is_said() -> None:
    """All outside of what was measured: nothing is ranked, a warning says why, and runs are named without figures."""
    reply = rank(asked(workers=(16, 32)), advice())

    assert reply.ranked == ()
    assert "not known: more workers than anybody has tried" in reply.warnings
    assert reply.proposals == ()
    assert len(reply.worth_measuring) == 3


def test_predictions_that_are_not_known() -> None:
    """They are answered with their interval, marked, with what is outside."""
    (one,) = predict(PredictRequest(task=features("a"), configurations=(where("two", 16),)), advice()).predictions

    assert (one.known, one.why_unknown) == (False, "more workers than anybody has tried")
    assert one.extrapolated == ("workers 16 (measured: 1 to 8)",)


def test_spot_prices_count_with_restarts() -> None:
    """Spot is ranked by spot cost, dearer than price x time because of the restarts; without a spot price: left out."""
    reply = rank(asked(spot=True), advice(listing(two=0.2)))

    assert names(reply.ranked) == ["1 x two", "2 x two"]
    assert reply.rejected == {"will not fit": 2, "no price": 2}
    cost = reply.ranked[0].spot_cost_usd
    assert cost is not None
    assert 0.1 < cost.median < 0.102  # 1800 s of $0.20/h is $0.10


def test_spot_that_never_ends_is_told_from_spot_without_a_price() -> None:
    """Interrupted all the time: no machine, whatever it costs. Without a price: not offered, however fast."""
    often = ModelContext(
        FakeModel(), MODEL, listing(two=0.2), MeasuredTasks(), SpotTerms(interruptions_per_hour=1_000.0)
    )

    hopeless = rank(asked(spot=True), often)
    unpriced = rank(asked(spot=True, objective=Objective.TIME), advice(listing(two=0.2)))

    assert hopeless.rejected == {"will not fit": 2, "interrupted too often": 4}
    assert names(unpriced.ranked) == ["2 x two", "1 x two"]
    assert unpriced.rejected == {"will not fit": 2, "no price": 2}


def test_expected_restarts_by_hand() -> None:
    """Equation of `spot`: L = 2 x 0.5 per hour, T = 1 h, r = 180 s: (1 + 0.05) (e - 1) hours."""
    terms = SpotTerms(interruptions_per_hour=0.5, restart_s=180.0)

    found = expected_duration_s(np.array([3600.0]), np.array([2]), terms)

    assert found[0] == pytest.approx(3600 * 1.05 * (math.e - 1))


def test_checkpoints_help_and_hopeless_is_nan() -> None:
    """Six checkpoints an hour cost six times the loss of ten minutes; 100 expected interruptions never end."""
    often = SpotTerms(interruptions_per_hour=0.5, restart_s=0.0, checkpoint_s=600.0)
    never = SpotTerms(interruptions_per_hour=0.0)

    found = expected_duration_s(np.array([3600.0]), np.array([2]), often)

    # 6 pieces x 1/L (exp(L/6) - 1), L = 1 per hour
    assert found[0] == pytest.approx(6 * 3600 * math.expm1(1 / 6))
    assert expected_duration_s(np.array([3600.0]), np.array([2]), never)[0] == 3600.0
    assert math.isnan(expected_duration_s(np.array([3600.0 * 100]), np.array([2]), SpotTerms(0.5))[0])


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12))
def test_the_front_by_definition(points: list[tuple[int, int]]) -> None:
    """On the front is exactly what no other point beats."""
    time_s, cost = (np.array([float(point[axis]) for point in points]) for axis in (0, 1))

    def beaten(one: tuple[int, int]) -> bool:
        return any(a <= one[0] and b <= one[1] and (a, b) != one for a, b in points)

    assert pareto_front(time_s, cost).tolist() == [not beaten(point) for point in points]


def test_nan_is_never_on_the_front() -> None:
    """Neither in time nor in cost."""
    nan = float("nan")

    assert pareto_front(np.array([1.0, nan, 2.0]), np.array([nan, 1.0, 2.0])).tolist() == [False, False, True]


def test_explain() -> None:
    """One configuration, with contributions, neighbours and a sentence."""
    reply = explain(AdviceExplainRequest(task=features("a"), configurations=(where("four", 2),)), advice())

    assert reply.summary.startswith("450 s (225 to 900 s with 90%), $0.375 ($0.1875 to $0.75)")
    assert "nearest known task: like-it" in reply.summary
    assert reply.contributions[0].factor == 0.5


def test_explain_wants_exactly_one() -> None:
    """Not none and not two."""
    for chosen in ((), (where("four", 1), where("four", 2))):
        with pytest.raises(BadQuestionError, match="exactly one"):
            explain(AdviceExplainRequest(task=features("a"), configurations=chosen), advice())


def test_best_first() -> None:
    """A told prediction keeps the cheapest that are known and fit."""
    question = PredictRequest(
        task=features("a"), configurations=(where("two", 1), where("tiny", 1), where("four", 1), where("two", 16))
    )

    kept = best_first(predict(question, advice()), 2)

    assert names(kept) == ["1 x four", "1 x two"]


# -- questions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"task": TaskFeatures(task="new")}, r"nothing is known of the task 'new'"),
        ({"configurations": (where("fuor", 1),)}, r"'fuor' is not in the price catalogue; did you mean 'four'\?"),
        ({"configurations": (where("x", 1, provider="aws"),)}, "'x' of aws is not in the price catalogue"),
        ({"task": STRANGE}, "loss is nan: it must be a finite number"),
        ({"configurations": (where("two", 1, attributes={"x": math.inf}),)}, "x is inf"),
        (
            {"profile": profile("a", samples=3).model_copy(update={"end": RunEnd.TIMED_OUT})},
            r"lasted 3 s: at least 5 s are needed",
        ),
        ({"profile": profile("a").model_copy(update={"end": RunEnd.FAILED})}, "failed"),
        ({"profile": profile("a").model_copy(update={"workers": (), "end": RunEnd.TIMED_OUT})}, "holds no samples"),
        ({"run": "run-b"}, r"no local run 'run-b' is known"),
        ({"workers": (0,)}, "workers must be at least 1"),
        ({"workers": (100_001,)}, "at most 100,000"),
        ({"workers": (1,) * 50_000, "batch_sizes": (1,) * 50_000}, "7500000000 configurations are too many"),
        ({"profile": profile("a").model_copy(update={"task": STRANGE})}, "loss is nan: it must be a finite number"),
        ({"workers": tuple(range(1, 1002))}, "too many: at most 2000"),
    ],
)
def test_questions_that_cannot_be_answered(question: dict[str, Any], words: str) -> None:
    """A sentence says what is wrong and what to do."""
    with pytest.raises(BadQuestionError, match=words):
        complete(asked(**question), listing(), MeasuredTasks())


def test_a_short_local_run_that_is_finished_is_the_whole_training() -> None:
    """The shipped data set has one of 4.5 s."""
    short = profile("a", samples=3)

    assert complete(asked(profile=short), listing(), MeasuredTasks()).profile == short


def test_a_machine_of_several_providers_wants_one_named() -> None:
    """It is in the catalogue, more than once: nothing is to be corrected in its name."""
    machines = Listing({**listing().machines, ("emulated", "two"): listing().machines["gcp", "two"]})

    with pytest.raises(BadQuestionError, match="'two' is listed for 'gcp', 'emulated': name its provider"):
        complete(asked(configurations=(where("two", 1),)), machines, MeasuredTasks())
    found = complete(asked(configurations=(where("two", 1, provider="emulated"),)), machines, MeasuredTasks())

    assert found.configurations[0].vcpu == 2.0


def test_an_unknown_machine_that_is_described_is_answered_without_cost() -> None:
    """Its cores and memory are given: time can be told, cost cannot."""
    mine = where("mine", 2, vcpu=4.0, memory_gb=16.0)

    (one,) = predict(PredictRequest(task=features("a"), configurations=(mine,)), advice()).predictions

    assert (one.time_s.median, one.cost_usd) == (450.0, None)


def test_of_too_many_machines_those_far_from_all_measured_ones_are_left_out() -> None:
    """A region's list has hundreds of types; with four numbers of workers they are more than one answer has."""
    day = Price(usd_per_hour=1.0, as_of=DAY, source="test")
    sizes = {f"vm-{vcpu}-{kind}": float(vcpu) for vcpu in (1, 2, 4, 8, 64) for kind in range(120)}
    gpus = {"one-gpu": 1, "eight-gpus": 8}
    machines = {("gcp", name): (Machine(name, vcpu, 4.0 * vcpu, 1.0), day) for name, vcpu in sizes.items()}
    machines |= {
        ("gcp", name): (Machine(name, 8.0, 32.0, 1.0, accelerator="T4", accelerators=count), day)
        for name, count in gpus.items()
    }
    one = Configuration(instance_type="vm-2-0", provider="gcp", workers=1, vcpu=2.0, memory_gb=8.0)
    known = MeasuredTasks(providers=frozenset({"gcp"}), machines={("gcp", "vm-2-0"): MeasuredMachine(one, {}, ({},))})
    found = complete(asked(workers=(1, 2, 4, 8)), Listing(machines), known)
    assert {one.instance_type for one in found.configurations} == {
        name for name, vcpu in sizes.items() if vcpu <= 4.0
    } | {"one-gpu"}
    (warning,) = [text for text in found.warnings if "left out" in text]
    assert warning.startswith("241 of 602 listed machines")
    with pytest.raises(BadQuestionError, match="2408 configurations are too many"):
        complete(asked(workers=(1, 2, 4, 8)), Listing(machines), MeasuredTasks(providers=frozenset({"gcp"})))


def test_a_known_task_brings_its_features_and_its_local_run_along() -> None:
    """What the question tells comes first; a slip in a run's name gets a hint."""
    known = MeasuredTasks(
        tasks={"a": features("a")},
        runs={"run-a": profile("a")},
        local_run={"a": "run-a"},
        reference_runs=frozenset({"run-a"}),
    )
    mine = TaskFeatures(task="a", epochs=50)

    found = complete(asked(task=mine), listing(), known)

    assert (found.task.epochs, found.task.parameter_count) == (50, features("a").parameter_count)
    assert found.profile is not None
    assert found.warnings == ()
    with pytest.raises(BadQuestionError, match="did you mean 'run-a'"):
        complete(asked(run="run-aa"), listing(), known)


def test_prices_that_nobody_has_checked_are_told() -> None:
    """In every answer that uses them, and in no other."""
    doubtful = Listing(listing().machines, frozenset({"test"}))

    with_them = complete(asked(), doubtful, MeasuredTasks())
    without = complete(asked(configurations=(where("x", 1, vcpu=1.0, memory_gb=4.0),)), doubtful, MeasuredTasks())

    words = "the prices of test (2026-11-20) were not checked against the provider's list (turnbuckle prices refresh)"
    assert words in with_them.warnings
    assert words not in without.warnings


def test_machines_of_providers_that_were_measured_come_first() -> None:
    """Without configurations: those of measured providers, with the task's measured batch sizes."""
    machines = {**listing().machines, ("emulated", "em"): listing().machines["gcp", "two"]}
    known = MeasuredTasks(providers=frozenset({"emulated"}), batch_sizes={"a": (16, 64)})

    found = complete(asked(workers=(1,)), Listing(machines), known)

    assert {(one.provider, one.batch_size) for one in found.configurations} == {("emulated", 16), ("emulated", 64)}


def test_a_finished_local_run_of_unknown_epochs_is_taken_for_the_whole_job_and_that_is_said() -> None:
    """The task's own epochs are told with a local run that tells them, and with a job that does not."""
    silent = profile("a").model_copy(update={"task": features("a").model_copy(update={"epochs": 0})})
    job = features("a").model_copy(update={"epochs": 50})

    def warned(run: Any, task: TaskFeatures) -> bool:
        found = complete(asked(task=task, profile=run), listing(), MeasuredTasks()).warnings
        return any("does not say how many epochs" in one for one in found)

    assert warned(silent, job)
    assert not warned(profile("a"), job)
    assert not warned(silent, job.model_copy(update={"epochs": 0}))


def test_emulated_machines_are_no_part_of_a_list_of_real_ones() -> None:
    """Nobody can rent both. Where only emulated ones were measured they are listed, and so said; named: as asked."""
    machines = Listing({**listing().machines, ("emulated", "em"): listing().machines["gcp", "two"]})

    def providers(measured: frozenset[str], *named: str) -> tuple[set[str], str]:
        found = complete(asked(providers=named), machines, MeasuredTasks(providers=measured))
        return {one.provider for one in found.configurations}, " ".join(found.warnings)

    both, nothing = frozenset({"gcp", "emulated"}), frozenset[str]()
    assert providers(both)[0] == providers(nothing)[0] == {"gcp"}
    assert "--provider emulated" in providers(both)[1]
    assert providers(frozenset({"emulated"}))[0] == {"emulated"}
    assert "rank no real cloud" in providers(frozenset({"emulated"}))[1]
    assert providers(both, "gcp", "emulated")[0] == {"gcp", "emulated"}
    assert providers(frozenset({"gcp"}))[1].count("emulated") == 0
    with pytest.raises(BadQuestionError, match="no machine of gpc is listed; did you mean 'gcp'"):
        providers(both, "gpc")


@pytest.mark.parametrize(
    ("limits", "nearest"),
    [
        ({"budget_usd": 0.1}, "1 x four"),  # $0.375 of 0.1, the same for two of them
        ({"deadline_s": 100.0}, "2 x four"),  # 450 s of 100
        ({"budget_usd": 0.3, "deadline_s": 440.0}, "2 x four"),  # 1.25 and 1.02 times; one alone: 1.25 and 2.05
    ],
)
def test_where_nothing_keeps_the_limits_the_nearest_is_offered(limits: dict[str, float], nearest: str) -> None:
    reply = rank(asked(**limits), advice())

    assert reply.ranked == ()
    assert reply.nearest is not None
    assert names([reply.nearest]) == [nearest]
    assert rank(asked(budget_usd=0.4), advice()).nearest is None


def test_the_fast_table_is_the_plain_one() -> None:
    """Encoding what rows have in common once changes nothing."""
    found = records(("a", "b"))
    runs = {f"run-{task}": profile(task) for task in ("a", "b")}
    _, encoder = build(found, runs)
    wanted = tuple(configuration(name, workers, 64) for name in ("small", "fat") for workers in (1, 4))
    question = complete(
        RankRequest(task=features("a"), profile=runs["run-a"], configurations=wanted),
        Listing({}),
        MeasuredTasks(runs=runs, reference_runs=frozenset(runs)),
    )

    fast = question_table(question, encoder)
    plain, _ = build(
        [found[0].model_copy(update={"configuration": one, "price": None}) for one in wanted], runs, encoder=encoder
    )

    np.testing.assert_array_equal(fast.features, plain.features)
    assert fast.configuration_key.tolist() == plain.configuration_key.tolist()
    assert fast.workers.tolist() == plain.workers.tolist()
    assert np.isnan(fast.time_s).all()
    assert isinstance(encoder, Encoder)
