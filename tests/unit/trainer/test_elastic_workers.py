"""A worker's process, to its end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from services.trainer.commands import elastic_workers
from services.trainer.commands.elastic_workers import Worker
from services.trainer.commands.starters import RunningProcess
from tests.support.deadline import until


def runs(pid: int) -> bool:
    """Not if it waits for its parent to take its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_what_a_worker_has_started_ends_with_it_and_hides_its_end_from_nobody() -> None:
    """Its process holds the worker's output open, as those that load data do."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", "sleep 1000 & echo $!; kill -9 $$"), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    lines: list[str] = []

    async with asyncio.timeout(60):
        ended = await Worker("worker-1", RunningProcess(process, 0)).ended(lines.append, lines.append)

    assert ended.code == -9
    assert 0 < ended.time_ns <= time.monotonic_ns()
    await until(lambda: not runs(int(lines[0])), what="the end of what it has started")


async def test_a_process_that_left_the_workers_session_and_holds_its_output_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It outlives the worker, as with torchrun; what the worker wrote before its end is passed on."""
    monkeypatch.setattr(elastic_workers, "OUTPUT_WITHIN_S", 0.2)
    pipe = asyncio.subprocess.PIPE
    program = 'setsid sh -c "echo \\$\\$; exec sleep 1000" & read it; echo last; echo wrong >&2; exit 3'
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", program), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    lines: list[str] = []
    errors: list[str] = []
    worker = Worker("worker-1", RunningProcess(process, 0))

    def on_line(line: str) -> None:
        lines.append(line)
        worker.program.stdin.write(b"go on\n")

    try:
        async with asyncio.timeout(60):
            ended = await worker.ended(on_line, errors.append)
        assert ended.code == 3
        assert lines[1:] == ["last"]
        assert errors == ["wrong"]
        assert runs(int(lines[0]))
    finally:
        os.kill(int(lines[0]), signal.SIGKILL)
