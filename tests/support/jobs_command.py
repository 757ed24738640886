"""`turnbuckle jobs` as a user types it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.support.up_process import CLI


class JobsCommand:
    """In a directory of its own, which is that of the jobs that it submits, with the bus at an URL."""

    def __init__(self, directory: Path, url: str, env: dict[str, str]) -> None:
        self.directory = directory
        self._env = env | {"NATS_URL": url, "COLUMNS": "300"}

    def __call__(self, *arguments: str) -> str:
        """What it prints."""
        done = self._run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log(self, job: str, *options: str) -> str:
        """What its workers wrote so far: nothing before they are started."""
        done = self._run("logs", job, *options)
        assert done.returncode == 0 or re.search("not started yet|knows no worker|no attempt", done.stderr), done.stderr
        return done.stdout

    def answers(self) -> bool:
        """Whether a scheduler leads."""
        return self._run("queue").returncode == 0

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CLI, "jobs", *arguments],
            cwd=self.directory,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def phase(self, job: str) -> str:
        """Where a job stands."""
        return str(self.explained(job)["job"]["phase"])

    def explained(self, job: str) -> dict[str, Any]:
        """Everything that is known of a job."""
        found: dict[str, Any] = json.loads(self("explain", job, "--json"))
        return found

    def changes(self, job: str) -> list[str]:
        """What happened to it, in order."""
        return [line["what"] for line in self.explained(job)["history"]]
