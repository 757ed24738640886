"""Messages of the fork server: run requests and outcomes, one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from schemas.jobs import JobState
from schemas.runs import WorkerSeries
from services.collector.emulator.instance_types import InstanceType

SETUP_TIMEOUT_S: Final = 60.0
"""From the fork of the workers to their release; limits of processor time do not hold yet."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run to make: a task on some machines of a type."""

    task: str
    instance: InstanceType
    workers: int
    batch_size: int
    seed: int
    timeout_s: float
    """From the release of the workers."""
    interval_s: float | None = None
    """Sampling interval; None: no samples."""

    def to_line(self) -> str:
        """Encode for the pipe."""
        return json.dumps({"run": asdict(self)})

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """The inverse of `to_line`, without the envelope."""
        return cls(**{**plain, "instance": InstanceType(**plain["instance"])})


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Result of a run."""

    state: JobState
    duration_s: float | None
    """From the release of all workers to the end of the last; the limit if it timed out, None if it failed."""
    started_ns: int
    """Wall clock at the release; at the fork if it was not released."""
    load_average: float
    """Of the last minute, before the start."""
    wall_s: float
    """Total, including creating and removing the sandboxes."""
    reason: str = ""
    exit_codes: tuple[int, ...] = ()
    memory_bytes: int = 0
    """Memory of the largest worker at the last sample."""
    cpu_s: float = 0.0
    """Processor time of all workers together, setting up included."""
    loss: float | None = None
    """Of the master's last batch."""
    series: tuple[WorkerSeries, ...] = ()
    """The master's first; empty without samples."""

    def to_line(self) -> str:
        """Encode for the pipe."""
        plain = asdict(replace(self, series=()))
        plain["series"] = [worker.model_dump(mode="json") for worker in self.series]
        return json.dumps({"outcome": plain})

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """The inverse of `to_line`, without the envelope."""
        series = tuple(WorkerSeries.model_validate(worker) for worker in plain["series"])
        codes = tuple(plain["exit_codes"])
        return cls(**{**plain, "state": JobState(plain["state"]), "series": series, "exit_codes": codes})
