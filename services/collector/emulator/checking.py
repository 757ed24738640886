"""Live check: unmeasured configurations are predicted first, then run, then compared.

The file of predictions is JSON: a list of ``{"task": name, "prediction": ConfigurationPrediction}`` as the advisor
answers it; of the prediction, the configuration's machine type, workers and batch size are used, and the estimates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from schemas.jobs import JobRecord, JobState
from schemas.predictions import ConfigurationPrediction
from services.collector.emulator.figures import configuration_of
from services.collector.emulator.grid import Grid, Row, is_contended
from services.collector.emulator.instance_types import InstanceType
from services.collector.tool import BadDataError

MAX_PREDICTIONS = 500


class Predicted(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task: str
    prediction: ConfigurationPrediction


@dataclass(frozen=True, slots=True)
class Comparison:
    """Predicted beside measured."""

    row: Row
    predicted: ConfigurationPrediction
    measured: JobRecord

    @property
    def ratio(self) -> float | None:
        """Measured by predicted time; None where it did not end."""
        if self.measured.state is not JobState.SUCCEEDED or not self.predicted.time_s.median:
            return None
        return (self.measured.duration_s or 0.0) / self.predicted.time_s.median

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the measured time; where it timed out, whether it may."""
        duration_s, interval = self.measured.duration_s, self.predicted.time_s
        if duration_s is None:
            return None
        if self.measured.state is JobState.TIMED_OUT:
            return interval.high >= duration_s
        return interval.low <= duration_s <= interval.high

    def fields(self) -> dict[str, object]:
        """For the event."""
        return {
            "task": self.row.task,
            "configuration": self.measured.configuration.model_dump(mode="json"),
            "predicted_time_s": self.predicted.time_s.model_dump(mode="json"),
            "predicted_cost_usd": self.predicted.cost_usd and self.predicted.cost_usd.model_dump(mode="json"),
            "feasible": self.predicted.feasible,
            "known": self.predicted.known,
            "state": str(self.measured.state),
            "measured_time_s": self.measured.duration_s,
            "measured_cost_usd": self.measured.cost_usd,
            "ratio": self.ratio,
            "inside": self.inside,
        }


def read_predictions(path: Path, grid: Grid, cores: int) -> list[tuple[Row, ConfigurationPrediction]]:
    """The file's entries, each with the run that it is about.

    Raises:
        BadDataError: it cannot be read, is of another form, or asks for what the grid does not have.
    """
    try:
        entries = TypeAdapter(list[Predicted]).validate_python(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadDataError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadDataError(f"{path}: {place}: {first['msg']}") from error
    except ValueError as error:
        raise BadDataError(f"{path} is no JSON: {error}") from error
    if not 0 < len(entries) <= MAX_PREDICTIONS:
        raise BadDataError(f"{path} holds {len(entries)} predictions: 1 to {MAX_PREDICTIONS} can be checked")
    kinds = {kind.name: kind for kind in grid.instance_types}
    return [(_row(path, entry, grid, kinds, cores), entry.prediction) for entry in entries]


def _row(path: Path, entry: Predicted, grid: Grid, kinds: dict[str, InstanceType], cores: int) -> Row:
    asked = entry.prediction.configuration
    if entry.task not in grid.tasks:
        raise BadDataError(f"{path}: the grid has no task {entry.task!r}")
    kind = kinds.get(asked.instance_type)
    if kind is None:
        raise BadDataError(f"{path}: the grid has no machine type {asked.instance_type!r}")
    if asked.batch_size < 1:
        raise BadDataError(f"{path}: {entry.task} on {asked.instance_type}: no batch size")
    return Row(entry.task, kind, asked.workers, asked.batch_size, 0, is_contended(kind, asked.workers, cores))


def never_measured(rows: Iterable[Row], records: Iterable[JobRecord]) -> list[bool]:
    """Of each row, whether no record has its configuration, be it as another repeat."""
    known = {configuration_of(record) for record in records}
    return [(row.task, row.instance.name, row.workers, row.batch_size) not in known for row in rows]


def compare(
    predictions: Sequence[tuple[Row, ConfigurationPrediction]], make: Callable[[Row], JobRecord]
) -> Iterator[Comparison]:
    """Run each and set it beside its prediction."""
    for row, predicted in predictions:
        yield Comparison(row, predicted, make(row))


def table(comparisons: Sequence[Comparison]) -> str:
    """For people, and for the documentation (Markdown)."""
    lines = [
        "| task | machines | batch | predicted s (interval) | measured s | measured/predicted | inside |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in comparisons:
        time_s, row = each.predicted.time_s, each.row
        measured = "-" if each.measured.duration_s is None else f"{each.measured.duration_s:.2f}"
        if each.measured.state is not JobState.SUCCEEDED:
            measured = f"{each.measured.state} {measured}"
        ratio = "-" if each.ratio is None else f"{each.ratio:.2f}"
        inside = {None: "-", True: "yes", False: "no"}[each.inside]
        lines.append(
            f"| {row.task} | {row.workers} x {row.instance.name} | {row.batch_size} "
            f"| {time_s.median:.2f} ({time_s.low:.2f} - {time_s.high:.2f}) | {measured} | {ratio} | {inside} |"
        )
    return "\n".join(lines)
