"""`turnbuckle train --elastic` as a user types it, and the events that it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

BIN = Path(sys.executable).parent
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "trainer"
DEADLINE_S = 240
HASTE = ("--policy", "deadline", "--deadline-s", "0.001")
"""No number of workers is fast enough: as many as there may be."""


class ElasticCommand:
    """One that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self._events: Iterator[dict[str, Any]] = map(json.loads, process.stdout)
        self.seen: list[dict[str, Any]] = []

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next event that is wanted."""
        for event in self._events:
            self.seen.append(event)
            if wanted(event):
                return event
        assert self.process.stderr is not None
        raise AssertionError(f"it has ended before: {self.process.stderr.read()[-2_000:]} {self.seen[-5:]}")

    def until_workers(self, count: int) -> dict[str, Any]:
        """Progress of so many."""
        return self.until(lambda event: event["event"] == "progress" and event["workers"] == count)

    def end(self) -> tuple[int, str]:
        """Its exit code and standard error, once it has ended; what it has printed is in `seen`."""
        self.seen += self._events
        _, said = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, said


PATIENT: Final = """
import sys
from services._runtime.service.entry import main
from services.trainer.commands import registration

registration.CONNECTED_WITHIN_S = registration.WRITE_WITHIN_S = 60.0
sys.argv[0] = "turnbuckle"
main()
"""
"""The command on a machine that is busy for seconds: a bus that does not answer in time is no bus that is away."""


@contextmanager
def elastic_command(directory: Path, *options: str, is_patient: bool = False) -> Iterator[ElasticCommand]:
    """The example's training, which has no end of its own, with one to two workers; killed at the end of the block."""
    program = [sys.executable, "-P", "-c", PATIENT] if is_patient else [str(BIN / "turnbuckle")]
    given = ["--data", f"{EXAMPLE}/data.py:batches", "--steps", "1000000", "--checkpoint", "saved", "--device", "cpu"]
    line = [*program, "train", EXAMPLE / "plan.json", f"{EXAMPLE}/model.py:build", *given, "--elastic", "1:2"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*line, *options, "--json"], cwd=directory, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield ElasticCommand(process)
        finally:
            process.kill()
