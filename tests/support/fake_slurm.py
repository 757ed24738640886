"""Slurm in memory: its commands as the engine calls them, and workers that leave the notes of the worker's script."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.runner.slurm.commands import SlurmError, SlurmUnavailableError

_NODE: Final = (
    "NodeName={name} CPUTot=2 Gres=(null) NodeAddr=10.0.0.{number} RealMemory=1000 State={state} Partitions=all"
)
_FINISHED: Final = ("COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL")


@dataclass(slots=True)
class FakeJob:
    """A job in its queue."""

    name: str
    comment: str
    state: str = "PENDING"
    held: bool = False
    reason: str = "Resources"

    @property
    def attempt(self) -> str:
        """Of the training job, by the comment."""
        return self.comment.split(":")[2]


@dataclass(slots=True)
class FakeSlurm:
    """A cluster over the engine's shared directory."""

    directory: Path
    nodes: dict[str, str] = field(default_factory=lambda: dict.fromkeys(("n1", "n2"), "IDLE"))
    """States by names."""
    jobs: dict[int, FakeJob] = field(default_factory=dict)
    begins: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """How often workers were started, by job, attempt and lineage."""
    down: bool = False
    loses_answers: bool = False
    """What it is told is done, and not answered."""
    refuses: str = ""
    """Why it takes no job."""
    uptime_s: float = 100.0

    async def __call__(
        self, command: tuple[str, ...], descriptors: tuple[int, ...] = (), extra: dict[str, str] | None = None
    ) -> str:
        """As `services.runner.slurm.engine.Shell`."""
        if self.down:
            raise SlurmUnavailableError("Unable to contact slurm controller (connect failure)")
        answer = self._answer(command)
        if self.loses_answers and command[0] != "squeue":
            raise SlurmUnavailableError(f"{command[0]} did not answer within 5 s")
        return answer

    def _answer(self, command: tuple[str, ...]) -> str:
        if command[0] == "squeue":
            rows = (
                f"{number}|{job.state}|{0 if job.held else 7}|{job.reason}|{job.comment}\n"
                for number, job in self.jobs.items()
            )
            return "".join(rows)
        if command[0] == "sbatch":
            return self._submit(command)
        if command[:3] == ("scontrol", "show", "nodes"):
            rows = (
                _NODE.format(name=name, number=number, state=state) + "\n"
                for number, (name, state) in enumerate(self.nodes.items(), 1)
            )
            return "".join(rows)
        self._change(command)
        return ""

    def _submit(self, command: tuple[str, ...]) -> str:
        if self.refuses:
            raise SlurmError(f"sbatch: {self.refuses}")
        options = dict(word.removeprefix("--").split("=", 1) for word in command if "=" in word)
        number = len(self.jobs) + 1
        self.jobs[number] = FakeJob(options["job-name"], options["comment"])
        return f"{number}\n"

    def _change(self, command: tuple[str, ...]) -> None:
        options = dict(word.split("=", 1) for word in command if "=" in word)
        job = self.jobs[int(options.get("jobid") or command[-1])]
        if command[:2] == ("scontrol", "update"):
            job.comment = options["comment"]
        elif command[:2] == ("scontrol", "release"):
            job.held, job.reason = False, "Resources"
        elif command[:2] == ("scontrol", "hold"):
            job.held = True
        elif command[:2] == ("scontrol", "requeuehold"):
            job.state, job.held, job.reason = "PENDING", True, "job requeued in held state"
        elif command[:2] == ("scancel", "--signal=TERM"):
            self.worked(job, 143, stopping=True)
        elif command[0] == "scancel" and job.state in _FINISHED:
            raise SlurmError("scancel: Job/step already completing or completed")
        else:
            assert command[0] == "scancel", command
            job.state = "CANCELLED"

    # -- what happens on its nodes -----------------------------------------------------------------------------------

    def start_waiting(self) -> None:
        """Start all that wait, as the launch script does: once per attempt."""
        for job in self.jobs.values():
            if (job.state, job.held) != ("PENDING", False):
                continue
            attempt = self._attempt(job)
            try:
                (attempt / "begun").mkdir()
            except FileExistsError:
                (attempt / "again").touch()
                job.state = "FAILED"
                continue
            job.state = "RUNNING"
            self.begins[job.name, job.attempt, job.comment] += 1
            for rank in range(self._workers(attempt)):
                self._note(attempt, rank, "started", 0)

    def end(self, code: int) -> None:
        """Let all running workers end."""
        for job in self.jobs.values():
            if job.state == "RUNNING":
                self.worked(job, code)

    def worked(self, job: FakeJob, code: int, *, stopping: bool = False) -> None:
        """A job's workers end, and so does the job."""
        attempt = self._attempt(job)
        self.uptime_s += 5.0
        for rank in range(self._workers(attempt)):
            if stopping:
                self._note(attempt, rank, "stopping", 0)
            self._note(attempt, rank, "exit", code)
        if (attempt / "stop").exists():
            job.state, job.held = "PENDING", True
        else:
            job.state = "FAILED" if code else "COMPLETED"

    def _attempt(self, job: FakeJob) -> Path:
        return self.directory / job.name / job.attempt

    @staticmethod
    def _workers(attempt: Path) -> int:
        path = attempt / "attempt.json"
        return len(json.loads(path.read_text())["nodes"]) if path.exists() else 0

    def _note(self, attempt: Path, rank: int, kind: str, code: int) -> None:
        (attempt / f"{rank}.{kind}").write_text(f"{self.uptime_s} {code}\n")
