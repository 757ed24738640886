"""`turnbuckle advise`: job.yaml, the question it makes, and every form of the answer."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from schemas.codec import to_plain
from schemas.jobs import Configuration
from schemas.predictions import (
    ConfigurationPrediction,
    Estimate,
    ModelName,
    Neighbour,
    Objective,
    Proposal,
    RankReply,
)
from services._runtime.command.errors import BadFileError, CommandError
from services.cli.advise.example import related_tasks
from services.cli.advise.job_yaml import load_job
from services.cli.advise.plot import draw_front
from services.cli.advise.query import Answer, Measurements, QueryOptions, request_for
from services.cli.advise.skypilot import task_yaml
from services.cli.advise.view import (
    comparison,
    configuration_name,
    cost_span,
    dollars,
    plot,
    print_answer,
    seconds,
    time_span,
)
from services.cli.main import app
from tests.support.training_jobs import features, profile

EXAMPLE = Path("docs/examples/job.yaml")
MODEL = ModelName(model="ours", version="ours-1", data_hash="h", records=90, tasks=7, trained_ns=1)


def predicted(name: str, workers: int, time_s: float, usd: float | None, **fields: Any) -> ConfigurationPrediction:
    """A prediction with an interval of 0.9 to 1.2 around the middle."""

    def around(value: float) -> Estimate:
        return Estimate(median=value, low=0.9 * value, high=1.2 * value)

    made = {"configuration": Configuration(instance_type=name, provider="gcp", workers=workers, batch_size=64)}
    cost = None if usd is None else around(usd)
    return ConfigurationPrediction(**(made | {"time_s": around(time_s), "cost_usd": cost} | fields))


def reply(*ranked: ConfigurationPrediction, **fields: Any) -> RankReply:
    front = tuple(one for one in ranked if one.pareto)
    made = {
        "model": MODEL,
        "prices_as_of": date(2026, 11, 21),
        "level": 0.9,
        "objective": Objective.COST,
        "considered": 24,
        "ranked": ranked,
        "pareto": front,
    }
    return RankReply(**(made | fields))


ANSWER = reply(
    predicted("n1-standard-8", 4, 5_400.0, 12.5, pareto=True, reasons=("workers 4: 0.31 x the time",)),
    predicted("e2-highmem-8", 2, 10_800.0, 13.0, feasible=0.8, extrapolated=("memory_gb 64 (measured: 1 to 32)",)),
    predicted("n1-highcpu-32", 8, 900.0, 20.0, pareto=True),
    neighbours=(Neighbour(task="cnn", distance=0.31, records=60, alike=("most alike: layers",)),),
    proposals=(
        Proposal(
            configuration=Configuration(instance_type="n1-standard-8", workers=2, batch_size=64),
            time_s=Estimate(median=9_000.0, low=8_000.0, high=10_000.0),
            reason="it may be the cheapest",
        ),
    ),
    rejected={"will not fit": 3, "not known": 2},
    warnings=("no local run of my-cnn is known",),
)


def printed(answer: Answer) -> str:
    console = Console(width=160, no_color=True, highlight=False, soft_wrap=True)
    with console.capture() as captured:
        print_answer(console, answer)
    return captured.get()


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path


# -- job.yaml ------------------------------------------------------------------------------------------------------


def test_the_example() -> None:
    """The file in docs/examples makes a whole question."""
    request = request_for(load_job(EXAMPLE), QueryOptions(), EXAMPLE.parent)

    assert (request.task.task, request.job) == ("my-cnn", "my-cnn")
    assert (request.workers, request.batch_sizes) == ((1, 2, 4, 8), (32, 128))
    assert (request.budget_usd, request.deadline_s) == (20.0, 12 * 3600.0)
    assert request.task.layers[0] == "Conv2d"


def test_options_go_before_the_file() -> None:
    """What is typed holds."""
    query_options = QueryOptions(
        profile="run-7", budget_usd=5.0, deadline_hours=1.5, spot=True, objective=Objective.TIME, top=3
    )

    request = request_for(load_job(EXAMPLE), query_options, EXAMPLE.parent)

    assert (request.run, request.profile) == ("run-7", None)
    assert (request.budget_usd, request.deadline_s, request.spot) == (5.0, 5400.0, True)
    assert (request.objective, request.top) == (Objective.TIME, 3)


def test_a_task_alone(tmp_path: Path) -> None:
    """A name that the advisor knows is enough."""
    assert load_job(write(tmp_path, "task: text-dnn\n")).task.task == "text-dnn"


@pytest.mark.parametrize("as_event", [True, False])
def test_features_of_the_tool(tmp_path: Path, as_event: bool) -> None:
    """As `turnbuckle features --json` writes them, or alone; the task's own fields go before them."""
    found = features("a").model_dump(mode="json")
    content = {"event": "result", "features": found, "batch_size": 32} if as_event else found
    (tmp_path / "features.json").write_text(json.dumps(content))

    job = load_job(write(tmp_path, "task: {task: mine, epochs: 99}\nfeatures: features.json\n"))

    assert (job.task.task, job.task.epochs) == ("mine", 99)
    assert job.task.parameter_count == features("a").parameter_count


def test_a_local_runs_file(tmp_path: Path) -> None:
    """As `turnbuckle profile` writes it; its place is looked for beside job.yaml."""
    (tmp_path / "run.json").write_text(json.dumps(to_plain(profile("a"))))
    job = load_job(write(tmp_path, "task: a\nprofile: run.json\n"))

    request = request_for(job, QueryOptions(), tmp_path)

    assert request.profile == profile("a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "expected fields such as 'task:'"),
        ("workers: [1]\n", "'task' is missing"),
        ("task: a\nworker: [1]\n", r"job.yaml:2: unknown field 'worker': did you mean 'workers'\?"),
        ("task: {task: a, parameters: 5}\n", r"unknown field 'task.parameters': did you mean 'parameter_count'\?"),
        ("task: {task: a, parameter_count: -5}\n", "greater than or equal to 0"),
        ("task: a\nworkers: [0]\n", "greater than or equal to 1"),
        ("task: a\nbudget_usd: -1\n", "greater than 0"),
        ("task: a\nbudget_usd: .nan\n", "finite number|greater than 0"),
        ("task: a\ndeadline_hours: soon\n", "should be a number, not 'soon'"),
        ("task: a\nobjective: fame\n", "objective"),
        ("task: a\nfeatures: nothing.json\n", "cannot be read"),
        ("task: a\nconfigurations: [{instance_type: x}]\n", r"'configurations\[0\].workers' is missing"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, words: str) -> None:
    """Each is told with its place and a remedy."""
    with pytest.raises(BadFileError, match=words):
        load_job(write(tmp_path, text))


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"run": "x"}'])
def test_files_that_are_no_local_runs(tmp_path: Path, content: str) -> None:
    """A sentence, not a traceback."""
    (tmp_path / "run.json").write_text(content)
    job = load_job(write(tmp_path, "task: a\nprofile: run.json\n"))

    with pytest.raises(BadFileError, match="no local run of `turnbuckle profile`"):
        request_for(job, QueryOptions(), tmp_path)


def test_a_missing_file_is_not_taken_for_a_name(tmp_path: Path) -> None:
    """What ends in .json is a file."""
    with pytest.raises(BadFileError, match="cannot be read"):
        request_for(load_job(write(tmp_path, "task: a\n")), QueryOptions(profile="gone.json"), tmp_path)


# -- the answer ----------------------------------------------------------------------------------------------------


def test_everything_is_said() -> None:
    """Ranking with intervals, what was left out, front, reasons, neighbours, proposals, notes."""
    text = printed(Answer(ANSWER))

    for words in (
        "24 configurations, smallest cost first; model ours-1 (90 records of 7 tasks); prices of 2026-11-21",
        "4 x n1-standard-8, batch 64",
        "90 min (81-108)",
        "$12.50 (11.25-15.00)",
        "80%",
        "outside: memory_gb 64 (measured: 1 to 32)",
        "left out: 3 will not fit, 2 not known",
        "workers 4: 0.31 x the time",
        "cnn, distance 0.31, 60 records (most alike: layers)",
        "2 x n1-standard-8, batch 64, 2.5 h: it may be the cheapest",
        "note: no local run of my-cnn is known",
    ):
        assert words.replace("2.5 h", "2.5 h") in text.replace("150 min", "2.5 h"), words


def test_nothing_is_known() -> None:
    """It says so first, with the reason."""
    text = printed(
        Answer(reply(warnings=("not known: the interval spans a factor of 80",), rejected={"not known": 24}))
    )

    assert "not known: nothing can be recommended (the interval spans a factor of 80)" in text
    assert "left out: 24 not known" in text
    assert text.count("spans a factor") == 1


def test_nothing_is_left_under_the_limits() -> None:
    """That is not the same as knowing nothing."""
    text = printed(Answer(reply(rejected={"over budget": 20, "not known": 4})))

    assert "nothing can be recommended: no configuration is left" in text
    assert "not known:" not in text
    assert "left out: 20 over budget, 4 not known" in text


def test_machines_without_a_spot_price() -> None:
    text = printed(Answer(reply(rejected={"no price": 24}), spot=True))

    assert "left out: 24 no spot price" in text


def test_spot_costs_are_what_counts_on_spot() -> None:
    """The column appears, and the front is drawn with it."""
    cheap = predicted(
        "n1-standard-8", 4, 5_400.0, 12.5, pareto=True, spot_cost_usd=Estimate(median=3.0, low=2.5, high=4.0)
    )

    text = printed(Answer(reply(cheap), spot=True))

    assert "$3.00 (2.50-4.00)" in text
    assert "time without restarts" in text
    assert "fast or cheap, on spot machines" in text


def test_the_terminals_plot() -> None:
    """Fast and dear stands top left, slow and cheap bottom right; one point alone stands in the corner."""
    lines = plot([(10.0, 100.0, "a"), (1000.0, 1.0, "b")], [(100.0, 10.0, "c")])

    rows = [line.partition("│")[2] for line in lines if "│" in line]
    assert rows[0].index("●") == 0
    assert rows[-1].index("●") == 59
    assert sum(row.count("·") for row in rows) == 1
    assert "$100" in lines[0]
    assert plot([], []) == []
    assert "●" in "".join(plot([(5.0, 5.0, "a")], []))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5 s"), (45.21, "45.2 s"), (119.0, "119 s"), (600.0, "10 min"), (10_800.0, "3 h"), (864_000.0, "10 d")],
)
def test_seconds_for_people(value: float, text: str) -> None:
    assert seconds(value) == text


def test_figures_for_people() -> None:
    """In one unit, and cents only where there are dollars."""
    assert time_span(Estimate(median=200.0, low=100.0, high=400.0)) == "3.33 min (1.67-6.67)"
    assert cost_span(Estimate(median=0.0051, low=0.004, high=1.5)) == "$0.0051 (0.004-1.50)"
    assert cost_span(None) == "-"
    assert dollars(1234.5) == "$1,234.50"
    assert (dollars(8.97e-5), dollars(0.0)) == ("$0.0000897", "$0")


def test_large_numbers_stay_legible() -> None:
    """Days become years, and what has more than nine digits its power of ten: an answer once had 300 digits."""
    assert seconds(1.1e9) == "34.9 years"
    assert seconds(1.1e105) == "3.5e+97 years"
    assert dollars(9.79e299) == "$9.8e+299"
    assert len(time_span(Estimate(median=1e300, low=1e290, high=1e308))) < 50


def test_beside_what_was_measured() -> None:
    """The first choice and the best of the first five, against the best of all that ran."""
    measured = Measurements(
        "my-cnn",
        Objective.COST,
        time_s={"4 x n1-standard-8, batch 64": 5_000.0, "8 x n1-highcpu-32, batch 64": 1_000.0},
        cost_usd={"4 x n1-standard-8, batch 64": 12.0, "8 x n1-highcpu-32, batch 64": 10.0},
    )

    # first choice $12, best $10
    assert comparison(ANSWER, measured) == (
        "measured: the first choice has 1.20 x the smallest cost of 2 configurations that ran; "
        "the best of the first 2: 1.00 x"
    )
    assert "1.39 h, $12.00" in printed(Answer(ANSWER, measured=measured)).replace("83.3 min", "1.39 h")


def test_the_picture(tmp_path: Path) -> None:
    """A PNG; without any price there is nothing to draw."""
    path = tmp_path / "deep" / "front.png"

    assert draw_front(Answer(ANSWER), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not draw_front(Answer(reply(predicted("x", 1, 5.0, None))), tmp_path / "none.png")


def test_skypilots_task() -> None:
    """The first choice, with the command of job.yaml, and what was predicted as a comment."""
    text = task_yaml(Answer(ANSWER), load_job(EXAMPLE))

    task = yaml.safe_load(text)
    assert task["num_nodes"] == 4
    assert task["resources"] == {"infra": "gcp", "instance_type": "n1-standard-8", "use_spot": False}
    assert task["envs"] == {"BATCH_SIZE": "64"}
    assert task["run"] == "python train.py --batch-size $BATCH_SIZE"
    assert "set_time_estimator(lambda _: 5400)" in text


def test_skypilot_cannot_rent_emulated_machines() -> None:
    """Said, instead of a file that nothing can be done with."""
    where = Configuration(instance_type="em", provider="emulated", workers=1)
    only = reply(predicted("em", 1, 5.0, 1.0, configuration=where))

    with pytest.raises(CommandError, match="cannot rent machines of emulated"):
        task_yaml(Answer(only), None)


def test_the_example_leaves_out_what_is_the_same_job_with_more_epochs() -> None:
    known = ("image-cnn", "image-cnn-x20", "image-digits", "text-dnn-x20")
    assert related_tasks("image-cnn", known) == related_tasks("image-cnn-x20", known) == ("image-cnn", "image-cnn-x20")
    assert related_tasks("image-digits", known) == ("image-digits",)


# -- what a newcomer meets -------------------------------------------------------------------------------------------


def test_the_heading_tells_the_measured_coverage_or_none() -> None:
    """Never the nominal one."""
    assert "intervals held 86% on left-out tasks" in printed(Answer(reply(*ANSWER.ranked, coverage=0.861)))
    assert "intervals" not in printed(Answer(ANSWER)).splitlines()[0]


def test_what_is_outside_of_the_local_run_is_no_remark_of_each_configuration() -> None:
    """It is the same for all, and stands in a note."""
    outside = ("local run's memory_gb 24 (measured: 1 to 1)",)
    here = printed(Answer(reply(predicted("n1-standard-8", 1, 60.0, 1.0, extrapolated=outside))))
    there = printed(Answer(reply(predicted("n1-standard-8", 64, 60.0, 1.0, extrapolated=("workers 64", *outside)))))

    assert "outside" not in here
    assert "outside: workers 64" in there


def test_an_answer_over_budget_offers_what_is_nearest() -> None:
    """Beside the sentence that nothing is left."""
    nearest = predicted("n1-standard-8", 1, 7_200.0, 31.0)
    shown = printed(Answer(reply(nearest=nearest, rejected={"over budget": 24})))

    assert "nearest to it: 1 x n1-standard-8, batch 64, 2 h" in shown.replace("120 min", "2 h")
    assert "$31.00" in shown


def test_a_picture_of_no_known_format_is_refused_before_anybody_works(tmp_path: Path) -> None:
    """No server is asked: there is none at that address."""
    path = write(tmp_path, "task: text-dnn\n")
    arguments = ["advise", str(path), "--plot", str(tmp_path / "front.xyz"), "--server", "nats://127.0.0.1:1"]

    done = CliRunner().invoke(app, arguments)

    assert done.exit_code == 78
    assert "front.xyz cannot be drawn: xyz is none of" in done.stderr


def test_options_for_the_shipped_data_and_for_providers_reach_the_question(tmp_path: Path) -> None:
    """A provider that is typed goes before those of the file."""
    path = write(tmp_path, "task: a\nproviders: [gcp]\n")

    typed = request_for(load_job(path), QueryOptions(providers=("emulated",), shipped_data=True), tmp_path)
    of_gpus = request_for(load_job(path), QueryOptions(accelerator_data=True), tmp_path)
    plain = request_for(load_job(path), QueryOptions(), tmp_path)

    assert (typed.providers, typed.shipped_data) == (("emulated",), True)
    assert (plain.providers, plain.shipped_data, plain.accelerator_data) == (("gcp",), False, False)
    assert (of_gpus.shipped_data, of_gpus.accelerator_data) == (False, True)


def test_the_readmes_job_asks_about_train_py(tmp_path: Path) -> None:
    """With the features where the README has them written."""
    job = load_job_with_features(tmp_path)
    assert (job.task.task, job.task.epochs, job.task.samples_per_epoch) == ("digits", 1000, 1797)
    assert job.task.parameter_count == features("a").parameter_count


def load_job_with_features(tmp_path: Path) -> Any:
    """docs/examples/digits.yaml in a tree of its own, as `turnbuckle features` is called from the top."""
    directory = tmp_path / "docs/examples"
    directory.mkdir(parents=True)
    (directory / "digits.yaml").write_text(Path("docs/examples/digits.yaml").read_text())
    (tmp_path / "features.json").write_text(json.dumps({"event": "result", "features": features("a").model_dump()}))
    return load_job(directory / "digits.yaml")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"accelerator": "T4", "accelerators": 2}, "4 x n1-standard-8 with 2 x T4, batch 64"),
        ({"accelerator": "T4"}, "4 x n1-standard-8 with 1 x T4, batch 64"),
        ({"instance_type": "n1-standard-8+1xT4", "accelerator": "T4"}, "4 x n1-standard-8+1xT4, batch 64"),
        ({}, "4 x n1-standard-8, batch 64"),
    ],
)
def test_accelerators_that_the_machine_s_name_has_not_are_shown(fields: dict[str, Any], name: str) -> None:
    where = Configuration(**{"instance_type": "n1-standard-8", "workers": 4, "batch_size": 64} | fields)
    assert configuration_name(where) == name
