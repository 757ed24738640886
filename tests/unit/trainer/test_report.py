"""Reports of steps: columns, to a file of several ranks or to a socket whose reader may be gone."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from services.trainer.worker.report import StepReports, open_sink
from services.trainer.worker.step_clock import StepTimes

TIMES = StepTimes(step_us=50, compute_us=30, gather_us=12, scatter_us=8)


def test_ranks_append_columns_to_one_file(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    reports = [StepReports(rank, open_sink(str(file))) for rank in (0, 1)]
    for step in (7, 8):
        for report in reports:
            report.add(step, TIMES, samples=4, memory_bytes=1 << 30, loss=0.5)
    for report in reports:
        report.close()

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["rank"] for line in lines} == {0, 1}
    for rank in (0, 1):
        rows = [line for line in lines if line["rank"] == rank]
        assert [step for row in rows for step in row["step"]] == [7, 8]
        assert [time for row in rows for time in row["gather_us"]] == [12, 12]


def test_a_reader_that_is_gone_holds_nothing_up_and_is_told_what_it_missed(tmp_path: Path) -> None:
    place = tmp_path / "reports"
    report = StepReports(0, open_sink(f"unix:{place}"))
    for step in (0, 1):
        report.add(step, TIMES, samples=4, memory_bytes=0, loss=None)
        report.flush()
    assert report.lost_lines == 2

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reader:
        reader.bind(str(place))
        reader.settimeout(60)
        report.add(2, TIMES, samples=4, memory_bytes=0, loss=None)
        report.close()
        line = json.loads(reader.recv(65_536))

    assert (line["lost_lines"], line["step"], line["step_us"]) == (2, [2], [50])
    assert report.lost_lines == 0


def test_a_reader_that_is_slow_holds_nothing_up(tmp_path: Path) -> None:
    place = tmp_path / "reports"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reader:
        reader.bind(str(place))
        report = StepReports(0, open_sink(f"unix:{place}"))
        # far more than the queue of a socket that nothing reads; the last write returns all the same
        for step in range(10_000):
            report.add(step, TIMES, samples=4, memory_bytes=0, loss=None)
            report.flush()
        report.close()

    assert report.lost_lines > 5_000
