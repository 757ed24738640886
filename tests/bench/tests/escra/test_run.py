"""What a run says of itself while it is under way, and how it ends early."""

from __future__ import annotations

import asyncio
import re
import signal
import time

import pytest

from tests.bench.escra.plan import BATCH_CELL_S, BATCH_LOAD, OVERHEAD_S, SETTLE_S, Cell, Plan
from tests.bench.escra.run import Progress, stoppable

_BATCH = Cell("grid-search", BATCH_LOAD, "ample", "escra", 0)
_SERVED = [Cell("shop", "burst", "ample", "escra", repetition) for repetition in range(9)]
_RECORD = {"metrics": {"used_cores": 1.0, "cpu_slack_p50": 0.05, "oom_kills": 0}, "batch": {"completion_s": 29.0}}


def test_a_batch_that_comes_first_does_not_spoil_the_estimate(capsys: pytest.CaptureFixture[str]):
    plan = Plan((), 9, seed=7, window_s=6.0 - SETTLE_S - OVERHEAD_S)
    progress = Progress(plan, [_BATCH, *_SERVED], begin_s=time.monotonic() - BATCH_CELL_S)
    progress.tell(_BATCH, _RECORD)
    said = capsys.readouterr().err
    assert said.startswith("... 1/10 grid-search.batch.ample.escra.0: ")
    left = re.search(r"([0-9.]+) min left$", said.strip())
    assert left is not None
    assert float(left.group(1)) == pytest.approx(9 * 6 / 60, abs=0.06)


def test_sigterm_ends_a_run_that_was_started_in_the_background_and_lets_it_clear_up():
    cleared: list[str] = []

    async def measure() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)  # what clears up may wait
            cleared.append("containers")

    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt), stoppable():
            asyncio.run(measure())
        assert cleared == ["containers"]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is before[1]
    finally:
        signal.signal(signal.SIGINT, before[0])
