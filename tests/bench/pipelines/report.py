"""What steps of each way took: samples per second, ratios by turn, a table, the record. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.bench.figures import Spread
from tests.bench.machine import Machine
from tests.bench.pipelines.cases import BANDWIDTH_RATIO, FSDP2, LOOPED, OURS, WAYS, Extent

ASKED: Final = {FSDP2: 1.5, LOOPED: 0.9}
"""Samples per second of ours, as a multiple of each way's."""
COLUMNS: Final = ("way", "samples/s", "over the link, a step", f"{OURS} / it")
LOSSES_AGREE_WITHIN: Final = 1e-3
"""Of one turn, as a share: float32, summed in other orders."""


class DifferentTrainingError(Exception):
    """Two ways have not computed the same; the message says which."""


@dataclass(frozen=True, slots=True)
class Run:
    """One step of one way."""

    turn: int
    """0 does not count."""
    way: str
    step_s: float
    loss: float
    """Of the global batch, before the step."""
    link_bytes: int
    """Sent by both machines."""


@dataclass(frozen=True, slots=True)
class Result:
    """All runs, and the rates that were measured beside them."""

    extent: Extent
    inside_bytes_per_s: float
    between_bytes_per_s: float
    runs: Sequence[Run]

    def of(self, way: str) -> list[Run]:
        """That count, by turn."""
        return sorted((run for run in self.runs if run.way == way and run.turn), key=lambda run: run.turn)

    def samples_per_s(self, way: str) -> Spread:
        """Median and range over turns."""
        return Spread.of([self.extent.samples / run.step_s for run in self.of(way)])

    def ratio(self, way: str) -> Spread:
        """Samples per second of ours by the way's, turn by turn."""
        pairs = zip(self.of(OURS), self.of(way), strict=True)
        return Spread.of([other.step_s / ours.step_s for ours, other in pairs])


def check_same(runs: Sequence[Run]) -> None:
    """All ways have to train the same model on the same samples.

    Raises:
        DifferentTrainingError: the losses of a turn differ.
    """
    for turn in {run.turn for run in runs}:
        first, *others = [run for run in runs if run.turn == turn]
        for other in others:
            if abs(other.loss - first.loss) > LOSSES_AGREE_WITHIN * abs(first.loss):
                raise DifferentTrainingError(
                    f"turn {turn}: the loss of {other.way} is {other.loss:.6g}, and {first.loss:.6g} of {first.way}"
                )


def rows(result: Result) -> list[list[str]]:
    """A row per way."""
    return [
        [
            text,
            result.samples_per_s(way).text(2),
            f"{Spread.of([run.link_bytes / 1e6 for run in result.of(way)]).median:.1f} MB",
            "-" if way == OURS else result.ratio(way).text(2),
        ]
        for way, text in WAYS.items()
    ]


def rates_line(result: Result) -> str:
    """The two rates."""
    inside, between = result.inside_bytes_per_s / 1e6, result.between_bytes_per_s / 1e6
    share = f"1/{inside / between:.0f}, asked: 1/{BANDWIDTH_RATIO}"
    return f"a connection: {inside:.0f} MB/s inside a machine, {between:.1f} MB/s between them ({share})"


def table(machine: Machine, result: Result) -> str:
    """For people."""
    found = [list(COLUMNS), *rows(result)]
    widths = [max(len(row[column]) for row in found) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in found]
    extent = result.extent
    what = f"{extent.blocks} blocks of width {extent.width}, {extent.samples} samples of {extent.positions} positions"
    runs = [
        f"turn {run.turn}  {run.way:12} {run.step_s:7.3f} s  loss {run.loss:.6f}" for run in result.runs if run.turn
    ]
    asked = [f"asked: {OURS} >= {least} x {way}; median {result.ratio(way).median:.2f}" for way, least in ASKED.items()]
    return "\n".join([machine.line, rates_line(result), what, "", *lines, "", *runs, "", *asked])


def record(machine: Machine, result: Result) -> dict[str, Any]:
    """Everything, and the table that pages show."""
    where = f"{machine.line}; {rates_line(result)}"
    return {
        "machine": machine.as_dict(),
        "tables": {"ways": {"machine": where, "columns": COLUMNS, "rows": rows(result)}},
        "extent": asdict(result.extent),
        "inside_bytes_per_s": result.inside_bytes_per_s,
        "between_bytes_per_s": result.between_bytes_per_s,
        "asked": {way: {"at_least": least, "median": result.ratio(way).median} for way, least in ASKED.items()},
        "runs": [asdict(run) for run in result.runs],
    }
