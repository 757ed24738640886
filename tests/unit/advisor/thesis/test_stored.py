"""Networks as bytes."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch

from schemas.predictions import Objective
from services.advisor.core.advising import Algorithm
from services.advisor.core.plain import Plain
from services.advisor.core.table import Table
from services.advisor.core.thesis.model import (
    FittedClassifier,
    FittedRegressor,
    ThesisClassifier,
    ThesisRegressor,
    Unit,
)
from services.advisor.core.thesis.stored import UnreadableNetworkError, from_bytes, to_bytes
from services.advisor.model_file import Header, libraries, pack, unpack
from tests.support.thesis_jobs import jobs, local_run, table_of


@pytest.fixture(scope="module")
def table() -> Table:
    return table_of(("a", "b"), each=10)


@pytest.fixture(scope="module")
def regressor(table: Table) -> FittedRegressor:
    return ThesisRegressor(Objective.COST, unit=Unit.MATCHED, epochs=1).fit_watching(table, table, seed=0)


def test_a_regressor_says_the_same_after_reading(table: Table, regressor: FittedRegressor) -> None:
    read = from_bytes(to_bytes(regressor))
    assert isinstance(read, FittedRegressor)
    np.testing.assert_array_equal(read.predict(table), regressor.predict(table))
    assert read.architecture == regressor.architecture
    assert read.unit == regressor.unit
    assert list(read.curves) == list(regressor.curves)
    for name, values in regressor.curves.items():
        np.testing.assert_array_equal(read.curves[name], values)


def test_a_classifier_says_the_same_after_reading(table: Table) -> None:
    fitted = ThesisClassifier(Objective.COST, epochs=1).fit(table, seed=0)
    read = from_bytes(to_bytes(fitted))
    assert isinstance(read, FittedClassifier)
    np.testing.assert_array_equal(read.score(table), fitted.score(table))


def test_the_same_network_is_the_same_bytes(regressor: FittedRegressor) -> None:
    assert to_bytes(from_bytes(to_bytes(regressor))) == to_bytes(regressor)


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("this must never run",))


def test_reading_runs_no_code(capsys: pytest.CaptureFixture[str]) -> None:
    file = io.BytesIO()
    torch.save({"format": _Evil()}, file)
    for data in (file.getvalue(), pickle.dumps(_Evil())):
        with pytest.raises(UnreadableNetworkError):
            from_bytes(data)
    assert capsys.readouterr().out == ""


def test_what_is_no_network_is_refused(regressor: FittedRegressor) -> None:
    data = to_bytes(regressor)
    other = io.BytesIO()
    torch.save({"format": "another"}, other)
    for wrong in (b"", b"nothing", data[: len(data) // 2], other.getvalue()):
        with pytest.raises(UnreadableNetworkError):
            from_bytes(wrong)


def test_the_service_can_keep_one_in_its_model_file(table: Table) -> None:
    """Its allow-list knows nothing of torch: fitted networks are plain arrays."""
    algorithm: Algorithm = Plain(ThesisRegressor(Objective.TIME, epochs=1))
    runs = {f"run-{task}": local_run(task) for task in ("a", "b")}
    adviser = algorithm.fit(jobs(("a", "b"), each=10), runs, seed=0)
    header = Header("thesis_bilstm", "v", "d", 20, 2, 0, 0, libraries())
    _, read = unpack(pack(header, adviser))
    np.testing.assert_array_equal(read.outlook(table).time_s, adviser.outlook(table).time_s)
