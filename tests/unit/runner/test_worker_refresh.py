"""Records of a worker are read when its directory has changed, and none is missed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from schemas.scheduling import WorkerChange
from services.runner.worker import Origin, Worker, WorkerKey
from services.runner.worker_files import IllegibleRecordError, Started, WorkerFiles

HOUR_NS = 3_600 * 10**9


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(WorkerKey("try", 1, 0), tmp_path, Origin("n1", 1))


def set_time(worker: Worker, time_ns: int) -> None:
    """Of the directory's last change."""
    os.utime(worker.files.directory, ns=(time_ns, time_ns))


def test_an_unchanged_directory_is_not_read_again(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[type[Any]] = []
    monkeypatch.setattr(WorkerFiles, "read", lambda _, kind: read.append(kind))
    set_time(worker, time.time_ns() - HOUR_NS)
    worker.refresh()
    assert read
    read.clear()
    worker.refresh()
    assert read == []


def test_a_record_that_comes_later_is_read(worker: Worker) -> None:
    set_time(worker, time.time_ns() - HOUR_NS)
    worker.refresh()
    worker.files.write(Started(1, 2, 3))
    worker.refresh()

    assert [event.change for event in worker.events] == [WorkerChange.STARTED]


@pytest.mark.parametrize("ahead_ns", [0, HOUR_NS], ids=["now", "the clock was set back"])
def test_a_record_that_comes_within_the_same_tick_of_the_file_system_is_read(worker: Worker, ahead_ns: int) -> None:
    tick_ns = time.time_ns() + ahead_ns
    set_time(worker, tick_ns)
    worker.refresh()
    worker.files.write(Started(1, 2, 3))
    set_time(worker, tick_ns)
    worker.refresh()

    assert [event.change for event in worker.events] == [WorkerChange.STARTED]


def test_a_damaged_record_is_told_each_time(worker: Worker) -> None:
    (worker.files.directory / "stop.json").write_bytes(b"no record")
    set_time(worker, time.time_ns() - HOUR_NS)
    for _ in range(2):
        with pytest.raises(IllegibleRecordError):
            worker.refresh()
