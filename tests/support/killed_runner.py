"""A runner that is killed at a given point: ``python -m tests.support.killed_runner POINT DIRECTORY ORDER...``.

Orders are files of JSON; the last one reaches the point. It has the process killed by SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.scheduling import WorkOrder
from services.runner.worker import Worker
from services.runner.worker_files import Intent, StopRequest, WorkerFiles
from tests.support.deadline import until
from tests.support.runner_lab import RunnerLab

_write, _start_shim = WorkerFiles.write, Worker.start_shim


def die() -> None:
    """As by ``kill -9``."""
    os.kill(os.getpid(), signal.SIGKILL)


def _at(kind: type[Any], *, after: bool) -> Callable[..., None]:
    def write(self: WorkerFiles, record: Any) -> None:
        if isinstance(record, kind) and not after:
            die()
        _write(self, record)
        if isinstance(record, kind):
            die()

    return write


def _spawned(self: Worker) -> None:
    _start_shim(self)
    die()


POINTS: dict[str, tuple[type[Any], str, Callable[..., None]]] = {
    "before the intent": (WorkerFiles, "write", _at(Intent, after=False)),
    "after the intent": (WorkerFiles, "write", _at(Intent, after=True)),
    "after the spawn": (Worker, "start_shim", _spawned),
    "before the request": (WorkerFiles, "write", _at(StopRequest, after=False)),
    "after the request": (WorkerFiles, "write", _at(StopRequest, after=True)),
}


async def main(point: str, lab: RunnerLab, orders: list[WorkOrder]) -> None:
    """Give all orders, the last one with the point in place."""
    async with lab.runner():
        for asked in orders:
            if asked is orders[-1]:
                owner, name, replacement = POINTS[point]
                setattr(owner, name, replacement)
            await lab.ask(asked)
            files = lab.files()
            await until((files.directory / "started.json").exists, what="the start")


if __name__ == "__main__":
    _, where, directory, *files = sys.argv
    given = [WorkOrder.model_validate_json(Path(path).read_text(encoding="utf-8")) for path in files]
    asyncio.run(main(where, RunnerLab(Path(directory)), given))
