"""The benchmark itself: readers of public sets, parts, tables and pictures, on little data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.jobs import JobState
from schemas.predictions import Objective
from services._jobs.record_files import write_job_file
from tests.bench import advisor, advisor_data, advisor_figures, advisor_report
from tests.bench.advisor_data import SETS, DataSet, MissingDataError, multicloud_ibm, trimtuner, trimtuner_sizes
from tests.bench.advisor_runs import LEFT_OUT, PROTOCOLS, RANDOM, SEARCH, SPEED, Plan, measured, planned
from tests.support.advisor_records import grid, profile, record

QUICK = frozenset({"mean ranking", "linear", "cheapest $/h", "bayesian", "ernest", "random"})
PLAN = Plan(tuple(Objective), PROTOCOLS, QUICK, 2, 2, 3, 2, 1, 2)
TASKS = ("a", "bb", "ccc", "dddd")

IBM_HEAD = (
    ",provider,A_family,A_vcpu,B_family,B_vcpu,C_family,C_type,C_vcpu,nodes,workload,target_cost,target_runtime,status"
)
IBM_ROWS = """\
0,A,0,1,,,,,,2,buzz-kmeans,0.02,360.0,ok
1,A,0,1,,,,,,2,buzz-kmeans,0.03,540.0,ok
2,B,,,1,0,,,,4,buzz-kmeans,0.04,36.0,ok
3,C,,,,,1,2,0,3,buzz-kmeans,0.09,598.9,Timed out.
4,A,0,1,,,,,,2,santander-xgboost,0.01,180.0,ok
5,B,,,1,0,,,,4,santander-xgboost,0.10,90.0,Input contains NaN
"""
TRIM_HEAD = "_id/$oid,n_workers,learning_rate,batch_size,synchronism,training_time,n_ps,vm_flavor,training_set_size"
TRIM_ROWS = """\
{0}1,8,0.001,16,async,360.0,1,t2.small,1000
{0}2,8,0.0001,16,async,90.0,1,t2.small,1000
{0}3,2,0.001,256,sync,603.2,1,t2.2xlarge,1000
{0}4,2,0.001,256,sync,36.0,1,t2.2xlarge,6000
"""


@pytest.fixture(scope="module")
def data() -> DataSet:
    return DataSet("made", "made up", tuple(grid(TASKS)), {f"run-{task}": profile(task) for task in TASKS})


@pytest.fixture(scope="module")
def parts(data: DataSet) -> list[dict[str, object]]:
    jobs = planned(data, PLAN)
    return json.loads(json.dumps([measured(job, PLAN, lambda _: None) for job in jobs], allow_nan=False))


def test_ibm_rows_become_records_without_the_row_number(tmp_path: Path) -> None:
    """Prices: 0.02 $ over 2 nodes x 0.1 h = 0.1 $/h; the reference is the only machine of A with 2 nodes."""
    folder = tmp_path / "multicloud_ibm"
    folder.mkdir()
    (folder / "multi-cloud-configuration.csv").write_text(f"{IBM_HEAD}\n{IBM_ROWS}", encoding="utf-8")
    found = multicloud_ibm(tmp_path)
    assert [one.state for one in found.records] == [
        JobState.SUCCEEDED,
        JobState.SUCCEEDED,
        JobState.SUCCEEDED,
        JobState.TIMED_OUT,
        JobState.SUCCEEDED,
        JobState.FAILED,
    ]
    assert found.records[0].price is not None
    assert found.records[0].price.usd_per_hour == pytest.approx(0.1)
    assert [one.repeat for one in found.records] == [0, 1, 0, 0, 0, 0]
    assert len({one.job for one in found.records}) == 6
    table = found.table()
    assert len(table) == 5
    assert table.is_reference.tolist() == [True, False, False, True, False]
    # the reference's two repeats: sqrt(360 x 540)
    assert table.reference_time_s[1] == pytest.approx((360 * 540) ** 0.5)
    assert not any("Unnamed" in name or "row" in name for name in table.feature_names)


def test_trimtuner_leaves_a_network_out_with_all_its_sizes(tmp_path: Path) -> None:
    folder = tmp_path / "trimtuner"
    folder.mkdir()
    for network in ("cnn", "rnn"):
        (folder / f"{network}.csv").write_text(f"{TRIM_HEAD}\n{TRIM_ROWS.format(network)}", encoding="utf-8-sig")
    found = trimtuner(tmp_path)
    # 8 workers and 1 parameter server for 0.1 h at 0.023 $/h
    assert found.records[0].cost_usd == pytest.approx(9 * 0.1 * 0.023)
    assert found.records[2].state is JobState.TIMED_OUT
    table = found.table()
    # the two learning rates of the first configuration are repeats: sqrt(360 x 90) = 180
    assert table.time_s[0] == pytest.approx(180.0)
    assert set(found.groups(table)) == {"cnn", "rnn"}
    assert set(trimtuner_sizes(tmp_path).groups(table)) == {"cnn-1000", "cnn-6000", "rnn-1000", "rnn-6000"}


@pytest.mark.parametrize("name", [one for one in SETS if one != "emulated"])
def test_a_set_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"\.csv is not there"):
        SETS[name](tmp_path)


def test_the_shipped_set_is_read_without_contended_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisor_data, "SHIPPED", tmp_path)
    with pytest.raises(MissingDataError, match="holds no Parquet file"):
        SETS["emulated"](tmp_path)
    records = grid(("a", "bb"))
    contended = record("a", "small", 2, job="contended", contended=True)
    write_job_file(tmp_path / "jobs.parquet", [*records, contended], [profile("a")])
    found = SETS["emulated"](tmp_path)
    assert {one.job for one in found.records} == {one.job for one in records}
    table = found.table()
    assert np.isfinite(table.feature("local.observed_s")).tolist() == (table.task == "a").tolist()


def test_every_planned_part_is_measured_once(data: DataSet, parts: list[dict[str, object]]) -> None:
    names = [(one["protocol"], one["objective"], one["model"]) for one in parts]
    assert len(set(names)) == len(names) == len(planned(data, PLAN))
    assert {protocol for protocol, _, _ in names} == {RANDOM, LEFT_OUT, SEARCH, SPEED}
    assert len({job.path for job in planned(data, PLAN)}) == len(names)
    assert ("left-out", "time", "ernest") not in names


def test_parts_hold_one_answer_per_task_or_seed(parts: list[dict[str, object]]) -> None:
    by_name = {(one["protocol"], one["objective"], one["model"]): one for one in parts}
    assert [one["task"] for one in by_name["left-out", "time", "mean ranking"]["answers"]] == list(TASKS)  # type: ignore[attr-defined]
    assert len(by_name["left-out", "time", "random"]["answers"]) == 2 * len(TASKS)  # type: ignore[arg-type]
    assert [one["seed"] for one in by_name["random", "cost", "linear"]["answers"]] == [0, 1]  # type: ignore[attr-defined]
    for one in by_name["search", "cost", "bayesian"]["searches"]:  # type: ignore[attr-defined]
        assert len(one["regrets"]) == 3
        assert min(one["regrets"]) >= 1


def test_tables_show_every_model_and_compare_with_mean_ranking(parts: list[dict[str, object]]) -> None:
    text = advisor_report.tables(parts, {"made": "made up"}, "a machine")
    assert text.count("left-out applications: choosing") == 2
    lines = [line for line in text.splitlines() if line.startswith("  linear")]
    assert len(lines) == 2 * 4
    assert any("[" in line and "]" in line for line in lines)
    assert "nan" not in text


def test_a_paired_difference_is_over_the_tasks_of_both() -> None:
    found = advisor_report.paired({"a": 1.0, "b": 2.0, "c": 9.0}, {"a": 2.0, "b": 3.0, "d": 0.0})
    assert (found.mean, found.pairs) == (-1.0, 2)
    assert advisor_report.difference_text(found) == "-1.000 [-1.000, -1.000]*"


def test_pictures_are_drawn_of_what_is_there(parts: list[dict[str, object]], tmp_path: Path) -> None:
    written = advisor_figures.draw(parts, "a machine", tmp_path)
    kinds = {path.stem.removeprefix("advisor_made_") for path in written}
    assert kinds == {
        f"{objective.value}_{kind}"
        for objective in Objective
        for kind in ("confusion", "error_cdf", "roc", "regret", "search")
    }
    assert all(path.stat().st_size > 5_000 for path in written)


def test_losses_and_importance_are_drawn_where_they_were_told(tmp_path: Path) -> None:
    part = {"curves": {"training loss": [2.0, 1.0, None]}, "importance": {"config.workers": 0.5, "config.vcpu": 0.1}}
    for draw in (advisor_figures.loss_curves, advisor_figures.importance_bars):
        path = tmp_path / f"{draw.__name__}.png"
        assert draw({"thesis": part}, "", "caption", path) == path
        assert draw({"thesis": {}}, "", "caption", path) is None


def test_a_loss_below_zero_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The Poisson loss of ten hours that are predicted well is 10 - 10 log 10 = -13: no place on a logarithmic axis."""
    drawn: list[Any] = []
    monkeypatch.setattr(advisor_figures, "save", lambda figure, _caption, path: drawn.append(figure) or path)
    curves = {"training loss": [1.0, -13.0], "validation loss": [2.0, -12.0], "training R2": [-3.0, 0.9]}
    advisor_figures.loss_curves({"thesis": {"curves": curves}}, "", "caption", tmp_path / "loss.png")
    axes = drawn[0].axes
    assert [axis.get_title() for axis in axes] == ["thesis: loss", "thesis: R2"]
    assert [axis.get_yscale() for axis in axes] == ["linear", "linear"]
    assert axes[0].get_ylim()[0] < -13.0
    assert [line.get_label() for line in axes[0].lines] == ["training", "validation"]


def test_a_part_of_other_data_is_not_used(tmp_path: Path, data: DataSet) -> None:
    path = tmp_path / "part.json"
    assert advisor.stored(path, data.digest) is None
    path.write_text(json.dumps({"digest": data.digest}), encoding="utf-8")
    assert advisor.stored(path, data.digest) == {"digest": data.digest}
    assert advisor.stored(path, "another") is None


def test_an_option_that_names_what_there_is_not_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        advisor.parse(["--models", "boosting,crystal ball"])
    assert stopped.value.code == 2
    assert "there is no crystal ball" in capsys.readouterr().err


def test_the_summary_keeps_figures_and_leaves_single_values_out(parts: list[dict[str, object]]) -> None:
    text = json.dumps(advisor.summary(parts))
    assert '"regret"' in text
    assert '"predicted"' not in text
    assert len(text) < len(json.dumps(parts)) / 2
