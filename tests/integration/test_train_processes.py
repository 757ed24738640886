"""Processes of `turnbuckle train` at signals, with a launcher that starts two ranks as torchrun does, without torch."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from services.trainer.commands.torchrun import Torchrun

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
DEADLINE_S = 60.0
LAUNCHER = """
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], start_new_session=True) for _ in range(2)]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""
RANK = """
import signal, sys, time
from services._runtime.child_process import die_with_parent
from services.trainer.worker.stop_request import StopRequest
def write(line):
    sys.stdout.write(line + "\\n")  # at once, unlike print: both ranks write to one pipe
    sys.stdout.flush()
def wait_until(is_true):
    end_s = time.monotonic() + 60
    while not is_true():
        if time.monotonic() > end_s:
            sys.exit(3)
        time.sleep(0.01)
"""
STOPPED_EARLY = f"""{RANK}
write("begun")
wait_until(lambda: signal.SIGTERM in signal.sigpending())
stop = StopRequest()
wait_until(lambda: stop.is_made)
write("stopped")
"""
HANGING = f"""{RANK}
stop = StopRequest()
write("begun")
wait_until(lambda: False)
"""
ORPHANED = f"""{RANK}
import os
from pathlib import Path
stop, directory = StopRequest(), Path(sys.argv[1])
die_with_parent()
(directory / f"begun-{{os.getpid()}}").touch()
wait_until(lambda: stop.is_made)
(directory / f"stopped-{{os.getpid()}}").touch()
"""
COMMAND = """
import asyncio, os, sys
from services.trainer.commands.torchrun import Torchrun
async def run():
    torchrun = await Torchrun.start(sys.argv[1:], os.environ)
    await torchrun.ended(print, print)
asyncio.run(run())
"""


def launched(rank: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", LAUNCHER, rank, *arguments]


async def run_with_signals(rank: str, signals: int) -> tuple[int, list[str], bool]:
    """Exit code, lines and whether it was killed, with so many signals once both ranks have begun."""
    torchrun, lines = await Torchrun.start(launched(rank), ENVIRONMENT), []

    def on_line(line: str) -> None:
        lines.append(line)
        if line == "begun" and lines.count("begun") == 2:
            for _ in range(signals):
                torchrun.on_signal()

    code = await asyncio.wait_for(torchrun.ended(on_line, lines.append), DEADLINE_S)
    return code, lines, torchrun.is_killed


async def test_a_request_that_comes_before_ranks_can_take_it_is_not_lost() -> None:
    assert await run_with_signals(STOPPED_EARLY, signals=1) == (0, ["begun"] * 2 + ["stopped"] * 2, False)


async def test_a_second_request_kills_ranks_that_hang() -> None:
    assert await run_with_signals(HANGING, signals=2) == (-signal.SIGKILL, ["begun"] * 2, True)


async def test_long_lines_and_a_last_one_without_end_come_whole() -> None:
    rank = "import sys; sys.stdout.write('x' * 300_000 + '\\n' + 'rest')"
    torchrun, lines = await Torchrun.start([sys.executable, "-c", rank], ENVIRONMENT), []

    assert await asyncio.wait_for(torchrun.ended(lines.append, lines.append), DEADLINE_S) == 0
    assert [len(line) for line in lines] == [300_000, 4]


def test_ranks_of_a_command_that_was_killed_save_and_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMMAND, *launched(ORPHANED, str(tmp_path))]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        finally:
            process.kill()
    wait_until(lambda: len(list(tmp_path.glob("stopped-*"))) == 2)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
