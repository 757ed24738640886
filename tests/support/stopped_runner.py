"""A runner that is killed or stopped just after it has paused a job: ``... stopped_runner SIGNAL DIRECTORY ORDER``.

The order is a file of JSON: to run a job whose rank 0 is here. After some iterations the job has to wait for half a
period.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from statistics import median

from schemas.scheduling import WorkOrder
from services.runner.worker import Worker
from tests.support.deadline import until
from tests.support.paced_lab import PacedLab

_pause = Worker.pause


async def main(number: signal.Signals, lab: PacedLab, asked: WorkOrder) -> None:
    """Run until the signal comes."""

    def pause_and_stop(self: Worker, until_s: float) -> bool:
        done = _pause(self, until_s)
        os.kill(os.getpid(), number)
        return done

    await lab.listen()
    async with lab.runner():
        assert (await lab.ask(asked)).obeyed
        await until(lambda: len(lab.samples) >= 4, what="four iterations")
        Worker.pause = pause_and_stop  # type: ignore[method-assign]
        period_us = int(median(each.period_us for each in lab.samples))
        await lab.wait_half_a_period(asked, period_us, lambda: False)


if __name__ == "__main__":
    _, name, directory, file = sys.argv
    order = WorkOrder.model_validate_json(Path(file).read_text(encoding="utf-8"))
    asyncio.run(main(signal.Signals[name], PacedLab(Path(directory)), order))
