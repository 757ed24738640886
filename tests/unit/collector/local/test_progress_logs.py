"""Logs of real runs of tools, with the time of each line (thinned bars): `fixtures/`, each with the tool's version."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from services.collector.profiler.progress.choice import Known
from services.collector.profiler.progress.reader import ProgressReader

FIXTURES = Path(__file__).parent / "fixtures"
RESOLUTION_S = 0.5

KNOWN = {
    "pl_tqdm": Known(epochs=5),
    "hf_log500": Known(steps=480),
    "xgboost": Known(steps=60),
    "lightgbm": Known(steps=150),
}
"""What the tool does not print."""


def log(name: str) -> tuple[float, list[tuple[float, str]]]:
    """When the run ended, and its lines, read each half second."""
    first, *lines = (FIXTURES / f"{name}.log").read_text(encoding="utf-8").split("\n")
    ended = re.search(r"ended after ([\d.]+) s", first)
    assert ended is not None
    timed = [line.partition("\t") for line in lines if line]
    return float(ended[1]), [(math.ceil(float(at) / RESOLUTION_S) * RESOLUTION_S, text) for at, _, text in timed]


@pytest.mark.parametrize("part", [0.2, 0.35, 0.5, 1.0])
@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("*.log")))
def test_a_real_log_is_read_right_or_not_at_all(name: str, part: float) -> None:
    end_s, lines = log(name)
    first_s = lines[0][0]
    reader = ProgressReader(RESOLUTION_S, KNOWN.get(name, Known()))
    for at_s, text in lines:
        if at_s <= first_s + part * (end_s - first_s) or part == 1.0:
            reader.take(text, at_s)
    pace = reader.pace()
    if part == 1.0:
        assert pace is not None
        assert pace.total
    if pace is not None and pace.total:
        whole_s = pace.last_s + (pace.total - pace.seen) / pace.per_s
        # The interpreter's end and what follows the last line are not in it: up to 2.5 s here.
        assert abs(whole_s - end_s) < max(0.25 * end_s, 1.96 * pace.relative_error * whole_s), (whole_s, end_s)
