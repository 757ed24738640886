"""What the warm parent is told to do, and what it answers: a JSON object a line each way."""

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
class Order:
    """One run: a task on some machines of a type."""

    task: str
    instance: InstanceType
    workers: int
    batch_size: int
    seed: int
    timeout_s: float
    """From the release of the workers."""
    interval_s: float | None = None
    """Take samples that often; None: none."""

    def to_line(self) -> str:
        """For the pipe."""
        return json.dumps({"run": asdict(self)})

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """The inverse of `to_line`, without the envelope."""
        return cls(**{**plain, "instance": InstanceType(**plain["instance"])})


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run went."""

    state: JobState
    duration_s: float | None
    """From the release of all workers to the end of the last; the limit where it timed out, None where it failed."""
    started_ns: int
    """Wall clock at the release; at the fork where it did not come to that."""
    load_average: float
    """Of the last minute, before the start."""
    wall_s: float
    """All of it, with making and removing the cells."""
    reason: str = ""
    exit_codes: tuple[int, ...] = ()
    memory_bytes: int = 0
    """What the largest worker held when it was last looked at."""
    cpu_s: float = 0.0
    """Processor time of all workers together, setting up included."""
    loss: float | None = None
    """Of the master's last batch: shows that it trained."""
    series: tuple[WorkerSeries, ...] = ()
    """The master's first; where samples were asked for."""

    def to_line(self) -> str:
        """For the pipe."""
        plain = asdict(replace(self, series=()))
        plain["series"] = [worker.model_dump(mode="json") for worker in self.series]
        return json.dumps({"outcome": plain})

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """The inverse of `to_line`, without the envelope."""
        series = tuple(WorkerSeries.model_validate(worker) for worker in plain["series"])
        codes = tuple(plain["exit_codes"])
        return cls(**{**plain, "state": JobState(plain["state"]), "series": series, "exit_codes": codes})
