"""Records in Parquet: nothing is lost, nothing that is wrong gets in."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.jobs import JobRecord
from schemas.runs import RunProfile
from services._jobs.record_files import JobFileError, is_job_file, read_job_file, struct_type, write_job_file
from tests.support.job_records import job_record, run_profile

_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_ATTRIBUTES = st.dictionaries(_TEXT, st.floats(allow_nan=False, allow_infinity=False) | _TEXT, max_size=4)
_POSITIVE = st.floats(min_value=5e-324, allow_infinity=False, allow_nan=False)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    names=st.lists(_TEXT.filter(bool), min_size=1, max_size=4, unique=True),
    attributes=_ATTRIBUTES,
    duration_s=st.none() | _POSITIVE,
    series=st.lists(st.floats(min_value=0, allow_infinity=False, allow_nan=False), min_size=4, max_size=4),
)
def test_everything_comes_back_as_it_was(
    tmp_path: Path, names: list[str], attributes: dict[str, float | str], duration_s: float | None, series: list[float]
) -> None:
    first = job_record(1)
    records = [
        first.model_copy(
            update={
                "job": name,
                "reason": name,
                "duration_s": duration_s,
                "price": None if number % 2 else first.price,
                "task": first.task.model_copy(update={"attributes": attributes, "layers": tuple(names[:number])}),
            }
        )
        for number, name in enumerate(names)
    ]
    run = run_profile(1)
    values = struct.pack("<4d", *series)
    worker = run.workers[0].model_copy(update={"cpu_cores": values})
    profiles = [run.model_copy(update={"workers": (worker, run.workers[1])})]
    path = tmp_path / "all.parquet"

    assert write_job_file(path, records, profiles) == len(records) + 1
    found = read_job_file(path)

    assert list(found.records) == records
    assert list(found.profiles) == profiles
    assert found.profiles[0].workers[0].cpu_cores == values, "bit by bit"


def test_a_column_of_any_engine(tmp_path: Path) -> None:
    """The structure is the messages': no decoding of ours is needed to look into the data."""
    path = tmp_path / "odd ' name [1].parquet"
    write_job_file(path, [job_record(1), job_record(2)], [run_profile(3)])

    with duckdb.connect() as connection:
        connection.execute("SET VARIABLE file = ?", [str(path).replace("[", "[[]", 1)])
        rows = connection.execute(
            "SELECT job.task.task, job.configuration.workers, job.task.attributes['x'].number, "
            "job.price.as_of::VARCHAR "
            "FROM read_parquet(getvariable('file')) WHERE job IS NOT NULL ORDER BY 2"
        ).fetchall()
    assert rows == [("digits", 1, 0.5, "2026-11-01"), ("digits", 2, 0.5, "2026-11-01")]
    assert read_job_file(path).profiles == (run_profile(3),)


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"

    assert write_job_file(path, []) == 0
    assert read_job_file(path).records == ()


def test_fields_that_are_missing_get_their_defaults_and_unknown_ones_are_left_out(tmp_path: Path) -> None:
    """Files outlive the version that wrote them, in both directions."""
    path = tmp_path / "other.parquet"
    job = (
        "{'job': 'old', 'dataset': 'd', 'task': {'task': 't'}, 'configuration': {'instance_type': 'i', 'workers': 1}, "
        "'state': 'succeeded', 'colour': 'blue'}"
    )
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT {job} AS job, NULL AS run) TO '{path}' "
            "(FORMAT parquet, KV_METADATA {turnbuckle_form: 'turnbuckle.records.v1'})"
        )
    (record,) = read_job_file(path).records
    assert (record.job, record.duration_s, record.task.layers) == ("old", None, ())


def test_what_is_no_file_of_ours_is_said(tmp_path: Path) -> None:
    plain, text = tmp_path / "plain.parquet", tmp_path / "text.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 1 AS job) TO '{plain}' (FORMAT parquet)")
    text.write_text("job,run\n")

    assert not is_job_file(plain)
    with pytest.raises(JobFileError, match=r"does not hold job records in the form turnbuckle\.records\.v1"):
        read_job_file(plain)
    with pytest.raises(JobFileError, match="no Parquet"):
        read_job_file(text)
    with pytest.raises(JobFileError, match="No such file"):
        read_job_file(tmp_path / "none.parquet")


def test_a_torn_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "torn.parquet"
    write_job_file(path, [job_record(number) for number in range(1, 200)])
    data = path.read_bytes()
    for length in (0, 4, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(JobFileError):
            read_job_file(path)


def test_a_record_that_is_not_valid_is_said(tmp_path: Path) -> None:
    path = tmp_path / "wrong.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            "COPY (SELECT {'job': 'a', 'dataset': 'd', 'task': {'task': 't'}, 'state': 'succeeded', 'cost_usd': -1.0, "
            f"'configuration': {{'instance_type': 'i', 'workers': 1}}}} AS job, NULL AS run) TO '{path}' "
            "(FORMAT parquet, KV_METADATA {turnbuckle_form: 'turnbuckle.records.v1'})"
        )
    with pytest.raises(JobFileError, match="a JobRecord is not valid: cost_usd"):
        read_job_file(path)


def test_nothing_is_left_where_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "kept.parquet"
    write_job_file(path, [job_record(1)])
    broken = job_record(2).model_copy(update={"reason": "\ud800"})
    with pytest.raises(JobFileError):
        write_job_file(path, [broken])
    infinite = job_record(2)
    infinite = infinite.model_copy(update={"task": infinite.task.model_copy(update={"attributes": {"x": math.inf}})})
    with pytest.raises(JobFileError, match="finite"):
        write_job_file(path, [infinite])
    with pytest.raises(JobFileError, match="No such file"):
        write_job_file(tmp_path / "no" / "where.parquet", [job_record(1)])

    assert read_job_file(path).records == (job_record(1),)
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept.parquet"]


@pytest.mark.parametrize("model", [JobRecord, RunProfile])
def test_every_field_has_a_column(model: type[JobRecord | RunProfile]) -> None:
    text = struct_type(model)
    for name in model.model_fields:
        assert f'"{name}" ' in text


def test_a_file_where_none_can_be(tmp_path: Path) -> None:
    """Below a directory that is not there, below a file, in place of a directory: one kind of error."""
    (tmp_path / "file").write_text("")

    for path in (tmp_path / "none" / "x.parquet", tmp_path / "file" / "x.parquet", tmp_path):
        with pytest.raises(JobFileError, match="cannot be written"):
            write_job_file(path, [])

    assert [one.name for one in tmp_path.iterdir()] == ["file"]
