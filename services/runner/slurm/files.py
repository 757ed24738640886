"""The directory that the adapter and all nodes share: scripts, what workers left, what was ordered.

``JOB/job.json``: the last order obeyed and what Slurm's job was submitted with; ``JOB/ATTEMPT/attempt.json`` and the
files of that attempt (services/runner/slurm/core/scripts.py writes of them). Blocks: called in a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from schemas.scheduling import MAX_LOG_BYTES, Preemption, WorkerLogReply, WorkerLogRequest, WorkOrder
from services._runtime.atomic_file import write_atomically
from services.runner.slurm.core.attempt import Attempt, Trace
from services.runner.slurm.core.scripts import (
    Cluster,
    JobPaths,
    allocation,
    batch_script,
    hostfile,
    launch_script,
    worker_script,
)
from services.runner.slurm.core.steps import NO_LINEAGE, Lineage

_TAIL_BYTES: Final = 4_096
_TAIL_CHARACTERS: Final = 480
_OWN_DIRECTORY: Final = 0o700


class UnreadableStateError(Exception):
    """A file in the shared directory is not what the adapter wrote; the text names it."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is remembered of a job beyond Slurm."""

    sequence: int = 0
    """Of the last order obeyed."""
    attempt: int = 0
    """Ordered last; 0: none, or it is forgotten."""
    run: str = ""
    """Digest of the order to run it."""
    lineage: Lineage = NO_LINEAGE


class SharedFiles:
    """Files below one directory."""

    def __init__(self, directory: Path, ready_within_s: float = 0.0) -> None:
        self._directory = directory
        self._ready_within_s = ready_within_s

    def paths(self, job: str, attempt: int) -> JobPaths:
        """Where an attempt's files stand."""
        return JobPaths(str(self._directory / job), str(self._directory / job / str(attempt)))

    def log(self, job: str, attempt: int, rank: int) -> Path:
        """A worker's output."""
        return self._directory / job / str(attempt) / f"{rank}.log"

    def make_root(self) -> None:
        """Make the directory itself, for its owner only.

        Raises:
            OSError: it cannot be made.
        """
        _make(self._directory)

    # -- what the adapter remembers --------------------------------------------------------------------------------

    def jobs(self) -> set[str]:
        """Names of all jobs that are remembered."""
        return {path.parent.name for path in self._directory.glob("*/job.json")}

    def record(self, job: str) -> JobRecord:
        """What is remembered of a job.

        Raises:
            UnreadableStateError: it is spoiled.
        """
        content = _read_json(self._directory / job / "job.json")
        if content is None:
            return JobRecord()
        try:
            name, spec, shape = content["lineage"]
            lineage = Lineage(str(name), str(spec), tuple(int(count) for count in shape))
            return JobRecord(int(content["sequence"]), int(content["attempt"]), str(content["run"]), lineage)
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableStateError(f"{self._directory / job / 'job.json'} is spoiled: {error}") from error

    def remember(self, job: str, record: JobRecord) -> None:
        """Write it.

        Raises:
            OSError: it cannot be written.
        """
        _make(self._directory / job)
        lineage = [record.lineage.name, record.lineage.spec, list(record.lineage.shape)]
        content = {"sequence": record.sequence, "attempt": record.attempt, "run": record.run, "lineage": lineage}
        _write(self._directory / job / "job.json", json.dumps(content))

    def prepare(self, order: WorkOrder, cluster: Cluster, exported: tuple[str, ...]) -> None:
        """Write an attempt's scripts; what an earlier job of this name left there is removed.

        Raises:
            OSError: they cannot be written.
        """
        assert order.spec is not None
        paths = self.paths(order.job, order.attempt)
        directory = Path(paths.attempt)
        if directory.exists():
            shutil.rmtree(directory)
        _make(directory.parent)
        _make(directory)
        content = {
            "nodes": list(order.nodes),
            "preemption": order.spec.preemption.value,
            "grace_s": order.spec.grace_s,
        }
        _write(directory / "attempt.json", json.dumps(content))
        _write(directory / "hostfile", hostfile(order))
        _write(directory / "allocation", allocation(order, cluster))
        _write(directory / "worker", worker_script(order, paths))
        if order.plan:
            _write(Path(paths.plan), order.plan)
        _write(Path(paths.launch), launch_script(order, cluster, paths, exported))
        _write(Path(paths.batch), batch_script(paths))

    def ask_stop(self, job: str, attempt: int, now_s: float) -> None:
        """Note that an attempt has to stop; the first time counts.

        Raises:
            OSError: it cannot be noted.
        """
        path = self._directory / job / str(attempt) / "stop"
        if not path.exists():
            _write(path, f"{now_s:.3f}\n")

    def ask_kill(self, job: str, attempt: int) -> None:
        """Note that an attempt has to be killed.

        Raises:
            OSError: it cannot be noted.
        """
        _write(self._directory / job / str(attempt) / "kill", "")

    def note_refusal(self, job: str, attempt: int, reason: str) -> None:
        """Note that Slurm did not take an attempt.

        Raises:
            OSError: it cannot be noted.
        """
        _write(self._directory / job / str(attempt) / "refused", reason)

    def forget(self, job: str, attempt: int) -> None:
        """Remove an attempt's files, except logs.

        Raises:
            OSError: one of them cannot be removed.
        """
        directory = self._directory / job / str(attempt)
        for path in directory.iterdir() if directory.exists() else ():
            if path.is_dir():
                path.rmdir()
            elif path.suffix != ".log":
                path.unlink(missing_ok=True)

    def age_s(self, job: str) -> float:
        """Since what is remembered of a job was changed; 0: nothing is."""
        changed = _modified(self._directory / job / "job.json")
        return time.time() - changed if changed else 0.0

    def remove_old(self, older_than_s: float, kept: frozenset[str]) -> None:
        """Remove logs of attempts that were forgotten, and jobs without any, after this time without a change.

        Args:
            older_than_s: this time.
            kept: jobs that Slurm still has.
        """
        before = time.time() - older_than_s
        for directory in self._directory.glob("*/[0-9]*"):
            with contextlib.suppress(OSError):
                newest = max((path.stat().st_mtime for path in directory.iterdir()), default=0.0)
                if newest < before and not (directory / "attempt.json").exists():
                    shutil.rmtree(directory)
        for path in self._directory.glob("*/job.json"):
            with contextlib.suppress(OSError):
                others = any(each.is_dir() for each in path.parent.iterdir())
                if not others and path.parent.name not in kept and path.stat().st_mtime < before:
                    shutil.rmtree(path.parent)

    # -- what workers left -----------------------------------------------------------------------------------------

    def attempt(self, job: str, attempt: int) -> Attempt | None:
        """What is known of an attempt; None: nothing.

        Raises:
            UnreadableStateError: its record is spoiled.
        """
        directory = self._directory / job / str(attempt)
        content = _read_json(directory / "attempt.json")
        if content is None:
            return None
        try:
            nodes = tuple(str(node) for node in content["nodes"])
            read = Attempt(job, attempt, nodes, Preemption(content["preemption"]), float(content["grace_s"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableStateError(f"{directory / 'attempt.json'} is spoiled: {error}") from error
        names = {path.name for path in directory.iterdir()}
        stop = _numbers(directory / "stop", 1)
        return replace(
            read,
            begun="begun" in names,
            again="again" in names,
            stop_asked_s=stop[0] if stop else (0.0 if "stop" in names else None),
            stop_noted_s=_modified(directory / "stop"),
            killed="kill" in names,
            refused=(directory / "refused").read_text(encoding="utf-8") if "refused" in names else "",
            workers=tuple(self._trace(directory, names, rank) for rank in range(len(nodes))),
        )

    def _trace(self, directory: Path, names: set[str], rank: int) -> Trace:
        started, stopping, ended = (
            _numbers(directory / f"{rank}.{kind}", 2) if f"{rank}.{kind}" in names else None
            for kind in ("started", "stopping", "exit")
        )
        begun_s = _modified(directory / f"{rank}.started") if started else 0.0
        since_start_s = max(0.0, time.time() - begun_s) if started else 0.0
        ready_after_s = None
        if started and f"{rank}.ready" in names:
            ready_after_s = max(0.0, _modified(directory / f"{rank}.ready") - begun_s)
        return Trace(
            started_s=started[0] if started else None,
            since_start_s=since_start_s,
            ready_after_s=ready_after_s,
            waits_for_ready=ready_after_s is None and since_start_s < self._ready_within_s,
            stopping_s=stopping[0] if stopping else None,
            ended_s=ended[0] if ended else None,
            exit_code=_exit_code(int(ended[1])) if ended else None,
            ended_order=_modified(directory / f"{rank}.exit") if ended else 0.0,
        )

    def last_words(self, job: str, attempt: int, rank: int) -> str:
        """The end of what a worker wrote; where it wrote nothing, of what Slurm says."""
        for path in (self.log(job, attempt, rank), Path(self.paths(job, attempt).batch_log)):
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                if text := file.read().decode(errors="replace").strip():
                    return text[-_TAIL_CHARACTERS:]
        return ""

    def read_log(self, request: WorkerLogRequest) -> WorkerLogReply | None:
        """A part of a worker's log; None: there is none.

        Raises:
            OSError: it cannot be read.
        """
        attempt = request.attempt or self._latest(request.job)
        path = self.log(request.job, attempt, request.rank)
        over = path.with_suffix(".exit").exists() or not path.with_name("attempt.json").exists()
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begin = max(0, size - MAX_LOG_BYTES) if request.offset < 0 else min(request.offset, size)
                file.seek(begin)
                content = file.read(MAX_LOG_BYTES)
        except FileNotFoundError:
            return None
        end = begin + len(content)
        if request.offset < 0:
            content = b"".join(content.splitlines(keepends=True)[-request.lines :]) if request.lines else b""
        text = content.decode(errors="replace")
        return WorkerLogReply(attempt=attempt, text=text, next_offset=end, over=over and end >= size)

    def _latest(self, job: str) -> int:
        numbers = [int(path.name) for path in (self._directory / job).glob("[0-9]*") if path.name.isdecimal()]
        return max(numbers, default=0)


def _make(directory: Path) -> None:
    directory.mkdir(mode=_OWN_DIRECTORY, parents=True, exist_ok=True)


def _write(path: Path, text: str) -> None:
    write_atomically(path, text, to_disk=True)


def _read_json(path: Path) -> Any:
    """Its content; None: there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UnreadableStateError(f"{path} is spoiled: {error}") from error


def _numbers(path: Path, count: int) -> list[float] | None:
    """The numbers of a note; None: it is not there, or not as it was written."""
    try:
        found = [float(word) for word in path.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return None
    return found if len(found) == count else None


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _exit_code(code: int) -> int:
    """A shell's exit code: 128 and the signal's number where one ended the command."""
    return 128 - code if 128 < code <= 128 + 64 else code
