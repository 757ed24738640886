"""The benchmark of pipelines over a slow link: its extents, and what its report says of runs that are made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.machine import this_machine
from tests.bench.pipelines.cases import FSDP2, FULL, LOOPED, MACHINES, OURS, QUICK, RANKS, WAYS, Extent
from tests.bench.pipelines.picture import draw
from tests.bench.pipelines.report import (
    DifferentTrainingError,
    Result,
    Run,
    check_same,
    rates_line,
    record,
    rows,
    table,
)

STEP_S = {OURS: 2.0, "ministage-1": 2.5, FSDP2: 5.0, "1f1b": 4.0, LOOPED: 1.6}


def result() -> Result:
    """Three turns and the first, which does not count; turn 2 is slower by half for all."""
    slower = {0: 9.0, 1: 1.0, 2: 1.5, 3: 1.0}
    runs = [
        Run(turn, way, factor * step_s, 1.0 + turn, 3_000_000)
        for turn, factor in slower.items()
        for way, step_s in STEP_S.items()
    ]
    return Result(FULL, 700e6, 20e6, runs)


def test_ratios_are_turn_by_turn_and_the_first_turn_does_not_count() -> None:
    """16 samples in 2, 3 and 2 s; 5 s of FSDP2 to 2 s of ours in each turn."""
    found = {row[0]: row[1:] for row in rows(result())}

    assert found[WAYS[OURS]] == ["8.00 (5.33-8.00)", "3.0 MB", "-"]
    assert found[WAYS[FSDP2]] == ["3.20 (2.13-3.20)", "3.0 MB", "2.50 (2.50-2.50)"]
    assert found[WAYS[LOOPED]][-1] == "0.80 (0.80-0.80)"


def test_the_table_has_every_run_and_what_was_asked() -> None:
    text = table(this_machine(), result())

    assert text.count("\nturn ") == 3 * len(WAYS)
    assert "asked: ministage >= 1.5 x fsdp2; median 2.50" in text
    assert "asked: ministage >= 0.9 x looped-bfs; median 0.80" in text
    assert "700 MB/s inside a machine, 20.0 MB/s between them (1/35, asked: 1/35)" in text


def test_record_and_picture(tmp_path: Path) -> None:
    made = record(this_machine(), result())

    assert made["tables"]["ways"]["rows"] == rows(result())
    assert len(made["runs"]) == 4 * len(WAYS)
    assert made["asked"][FSDP2] == {"at_least": 1.5, "median": 2.5}
    assert rates_line(result()) in made["tables"]["ways"]["machine"]
    assert draw(this_machine(), result(), tmp_path / "pipelines.png").stat().st_size > 1_000


def test_ways_that_do_not_train_the_same_are_no_comparison() -> None:
    runs = list(result().runs)
    check_same(runs)

    with pytest.raises(DifferentTrainingError, match=r"turn 3: the loss of looped-bfs is 4\.02, and 4 of ministage"):
        check_same([*runs[:-1], replace(runs[-1], loss=4.02)])


@pytest.mark.parametrize("extent", [FULL, QUICK])
def test_every_way_divides_evenly(extent: Extent) -> None:
    """Blocks among four stages, samples among all ranks, micro-batches among those of a machine."""
    assert extent.blocks % RANKS == extent.samples % RANKS == 0
    assert extent.samples // extent.microbatch % len(MACHINES[0]) == 0
    assert Extent.from_json(extent.as_json()) == extent
