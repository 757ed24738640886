"""job.yaml of `turnbuckle jobs submit`: what it may say, and where each mistake is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from schemas.scheduling import JOB_NAME_PATTERN, JobSpec, Preemption
from services._runtime.command.errors import BadFileError, MissingFileError
from services.cli.main import app
from services.scheduler.commands.job_file import JobFile, default_name, job_of_options, load_job_file
from tests.support.job_records import run_profile

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "jobs"
WHOLE = """\
name: resnet
workers: 4
slots: 2
cpu: 1.5
memory: 2GiB
run: cd src && python train.py
directory: /srv/jobs
environment: {EPOCHS: 10, FAST: true}
preemption: checkpoint
checkpoint: {grace_s: 45, directory: ckpt}
retries: 2
task: resnet
model: model.py:build
batch: 64
profile: my-run
estimate: 1h30m
"""


def loaded(tmp_path: Path, text: str, **options: Any) -> JobFile:
    file = tmp_path / "train.yaml"
    file.write_text(text)
    return load_job_file(file, options)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(BadFileError) as caught:
        loaded(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_every_field_reaches_the_scheduler(tmp_path: Path) -> None:
    spec = loaded(tmp_path, WHOLE).spec("not-used")

    assert spec == JobSpec(
        job="resnet",
        workers=4,
        slots=2,
        cpu_cores=1.5,
        memory_bytes=2 << 30,
        command=("/bin/sh", "-c", "cd src && python train.py"),
        directory="/srv/jobs",
        environment={"EPOCHS": "10", "FAST": "true"},
        preemption=Preemption.CHECKPOINT,
        grace_s=45,
        checkpoint_directory="ckpt",
        retries=2,
        task=spec.task,
        run="my-run",
        estimate_s=5_400,
        model="model.py:build",
        batch=64,
    )
    assert spec.task is not None
    assert spec.task.task == "resnet"


def test_a_short_file_has_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = loaded(tmp_path, "command: [python, train.py, 3]").spec("train-abcd")

    assert spec == JobSpec(job="train-abcd", command=("python", "train.py", "3"), directory=str(tmp_path))
    assert spec.preemption is Preemption.NEVER


def test_a_relative_directory_is_below_the_present_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert loaded(tmp_path, "run: x\ndirectory: src").spec("a").directory == str(tmp_path / "src")


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [("min_workers: 1", 1, 4), ("max_workers: 8", 4, 8), ("min_workers: 2\nmax_workers: 6", 2, 6), ("", 0, 0)],
)
def test_numbers_of_workers_reach_the_scheduler(tmp_path: Path, fields: str, least: int, most: int) -> None:
    spec = loaded(tmp_path, f"run: x\nworkers: 4\n{fields}\n").spec("a")

    assert (spec.min_workers, spec.max_workers, spec.is_elastic) == (least, most, bool(fields))


def test_a_deadline_or_a_budget_reaches_the_scheduler(tmp_path: Path) -> None:
    assert loaded(tmp_path, "run: x\nmax_workers: 8\ndeadline: 6h\n").spec("a").deadline_s == 21_600
    assert loaded(tmp_path, "run: x\nmax_workers: 8\nbudget_slot_hours: 2.5\n").spec("a").budget_slot_hours == 2.5


def test_options_go_before_the_file_and_variables_are_joined(tmp_path: Path) -> None:
    job = loaded(tmp_path, WHOLE, workers=8, name="other", environment={"EPOCHS": "3", "KEY": "k"})

    assert (job.workers, job.name) == (8, "other")
    assert job.environment == {"EPOCHS": "3", "FAST": "true", "KEY": "k"}


def test_features_and_a_local_run_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "features.json").write_text(json.dumps({"features": {"task": "a", "parameter_count": 7}}))
    profile = run_profile()
    (tmp_path / "run.json").write_text(profile.model_dump_json())
    text = f"run: x\ntask: mine\nfeatures: features.json\nprofile: {tmp_path / 'run.json'}\n"
    spec = loaded(tmp_path, text).spec("a")

    assert spec.task is not None
    assert (spec.task.task, spec.task.parameter_count) == ("mine", 7)
    assert spec.run == profile.run


@pytest.mark.parametrize(
    ("section", "interleave", "congestion_control"),
    [
        ("", True, "auto"),
        ("network: {}", True, "auto"),
        ("network: {interleave: false, congestion_control: cubic}", False, "cubic"),
        ("network: {congestion_control: off}", True, ""),
        ("network: {congestion_control: 'off'}", True, ""),
    ],
)
def test_how_it_shares_links(tmp_path: Path, section: str, interleave: bool, congestion_control: str) -> None:
    spec = loaded(tmp_path, f"run: x\n{section}\n").spec("a")
    assert (spec.interleave, spec.congestion_control) == (interleave, congestion_control)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run: x\nworkes: 2\n", "train.yaml:2: unknown field 'workes': did you mean 'workers'?"),
        ("run: x\nworkers: two\n", "train.yaml:2: workers: should be a whole number, not 'two'"),
        ("run: x\nworkers: 0\n", "train.yaml:2: workers: "),
        ("run: x\nslots: 1.5\n", "train.yaml:2: slots: should be a whole number"),
        ("run: x\nname: My_Job\n", "train.yaml:2: name: 'My_Job' should be small letters, digits and '-'"),
        ("run: x\nmemory: 2 GB of it\n", "train.yaml:2: memory: "),
        ("run: x\nmemory: 1k\n", "train.yaml:2: memory: "),
        ("run: x\nestimate: soon\n", "train.yaml:2: estimate: 'soon' is no period: write such as 90s"),
        ("run: x\nestimate: 0\n", "train.yaml:2: estimate: "),
        (
            "run: x\npreemption: nevver\n",
            "train.yaml:2: preemption: 'nevver' must be one of never, restart, checkpoint: did you mean never?",
        ),
        ("run: x\nretries: -1\nworkers: 0\n", "than or equal to 0, not -1\n"),
        ("run: x\ncheckpoint: {grace: 3}\n", "train.yaml:2: unknown field 'checkpoint.grace': did you mean 'grace_s'?"),
        ("run: x\ncheckpoint: {grace_s: 0}\n", "train.yaml:2: checkpoint.grace_s: "),
        ("run: x\nenvironment: {'A=B': 1}\n", "train.yaml:2: environment: 'A=B' is no name of a variable"),
        ("run: x\nenvironment: [A]\n", "train.yaml:2: environment: 'A' should be NAME=VALUE"),
        ("run: x\nretries: -1\n", "train.yaml:2: retries: "),
        ("run: x\ntask: {name: a}\n", "train.yaml:2: "),
        ("run: x\nimage: pytorch\n", "train.yaml:2: 'image' is not possible yet: workers run as processes"),
        ("run: x\nnetwork: {interleave: maybe}\n", "train.yaml:2: network.interleave: "),
        (
            "run: x\nnetwork: {congestion_control: ML-TCP}\n",
            "train.yaml:2: network.congestion_control: 'ML-TCP' is no congestion control: auto, off, or a name",
        ),
        ("run: x\nnetwork: {shift: 3}\n", "train.yaml:2: unknown field 'network.shift'"),
        ("workers: 2\n", "what should it run? Give `run: python train.py`, or `command: [python, train.py]`"),
        ("run: x\ncommand: [x]\n", "`run` and `command` are both there: keep one"),
        ("run: x\nbatch: 64\n", "`model` and `batch` belong together: a plan divides so many samples of a step"),
        ("run: x\nmin_workers: 0\n", "train.yaml:2: min_workers: "),
        ("run: x\nmax_workers: 5000\n", "train.yaml:2: max_workers: "),
        (
            "run: x\nworkers: 4\nmin_workers: 5\n",
            "`workers`, 4, is not between `min_workers`, 5, and `max_workers`, 4",
        ),
        ("run: x\nworkers: 4\nmax_workers: 2\n", "`workers`, 4, is not between `min_workers`, 4, and `max_workers`, 2"),
        (
            "run: x\nmax_workers: 2\ndeadline: 6h\nbudget_slot_hours: 3\n",
            "`deadline` and `budget_slot_hours` are both there: keep one",
        ),
        ("run: x\ndeadline: 6h\n", "choose among numbers of workers: give `min_workers` or `max_workers`"),
        ("run: x\nmax_workers: 2\ndeadline: soon\n", "train.yaml:3: deadline: 'soon' is no period"),
        ("run: x\nmax_workers: 2\nbudget_slot_hours: 0\n", "train.yaml:3: budget_slot_hours: "),
        (
            "run: x\nmax_workers: 2\nmodel: a\nbatch: 8\n",
            "`model`: a plan is for one number of workers. Leave out `min_workers` and `max_workers`",
        ),
        ("command: []\n", "train.yaml:1: command: "),
        ("run: x\nrun: y\n", "train.yaml:2: 'run' stands here a second time"),
        ("- run\n", "train.yaml: expected fields such as 'workers: 4' and 'run: python train.py'"),
        ("", "train.yaml: expected fields"),
        ("run: [\n", "not valid YAML"),
    ],
)
def test_each_mistake_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"none\.yaml cannot be read"):
        load_job_file(tmp_path / "none.yaml", {})


def test_of_options_alone_the_command_line_is_named() -> None:
    with pytest.raises(BadFileError, match=r"^the command line: name: 'No' should be small letters"):
        job_of_options({"name": "No", "command": ["x"]})


def test_values_that_no_message_may_hold_are_told() -> None:
    job = job_of_options({"command": ["x"]}).model_copy(update={"environment": {"A": "a" * 5_000}})
    with pytest.raises(BadFileError, match=r"^environment\.A: "):
        job.spec("a")


def test_an_elastic_job_is_not_submitted_as_if_it_were_none(tmp_path: Path) -> None:
    """No server is asked: an older scheduler would ignore the fields."""
    file = tmp_path / "train.yaml"
    file.write_text("run: x\npreemption: checkpoint\nmin_workers: 1\nworkers: 2\n")
    done = CliRunner().invoke(app, ["jobs", "submit", str(file)])

    assert done.exit_code == 78
    assert "elastic jobs are simulated only, by `turnbuckle jobs simulate`" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "begin"),
    [
        (["train.yaml"], "train"),
        (["python", "src/Fine_Tune.py", "--lr", "1"], "fine-tune"),
        (["./train.sh"], "train"),
        (["/bin/true"], "true"),
        (["..."], "job"),
        (["x" * 100], "x" * 58),
    ],
)
def test_a_job_without_a_name_is_named_after_its_script(words: list[str], begin: str) -> None:
    name = default_name(words)

    assert re.fullmatch(rf"{begin}-[a-z]{{4}}", name)
    assert re.fullmatch(JOB_NAME_PATTERN, name)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_the_examples_are_jobs(file: Path) -> None:
    job = load_job_file(file, {})

    assert f"turnbuckle jobs submit docs/examples/jobs/{file.name}" in file.read_text()
    assert job.spec(default_name([file.name])).command
    assert yaml.safe_load(file.read_text())["preemption"] in {"restart", "checkpoint"}
