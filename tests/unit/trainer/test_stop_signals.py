"""SIGINT and SIGTERM of an elastic training, from its beginning to its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from services._runtime.exit_code import ExitCode
from services.trainer.commands.elastic import StopSignals
from services.trainer.commands.outcome import TrainingFailedError

BEFORE = "stopped before there was a worker"
CLOSING = """
import asyncio, os, signal, threading
from services.trainer.commands.elastic import StopSignals

left = threading.Event()

def remove():
    left.wait(60)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)

async def train():
    with StopSignals():
        asyncio.get_running_loop().run_in_executor(None, remove)
    left.set()
    return "the result"

print(asyncio.run(train()))
"""


async def taken(number: signal.Signals) -> None:
    """Send it to this process, and let the loop take it."""
    heard = asyncio.Event()
    os.kill(os.getpid(), number)
    asyncio.get_running_loop().call_later(0.05, heard.set)
    await heard.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_one_that_comes_before_there_are_workers_ends_the_command(number: signal.Signals) -> None:
    with pytest.raises(TrainingFailedError, match=BEFORE) as error, StopSignals():
        await taken(number)

    assert error.value.exit_code == ExitCode.INTERRUPTED
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling(), "what follows may wait"


async def test_one_whose_cancellation_is_lost_needs_no_second_one() -> None:
    """`asyncio.wait_for` of Python 3.11 may swallow it, which libraries use."""
    begun: list[str] = []

    async def train() -> None:
        with StopSignals() as signals:
            with suppress(asyncio.CancelledError):
                await taken(signal.SIGTERM)
            with signals.to(lambda: None):
                begun.append("all the same")

    with pytest.raises(TrainingFailedError, match=BEFORE):
        await train()
    assert begun == []


async def test_while_there_are_workers_each_goes_to_their_coordinator_and_later_none_does() -> None:
    heard: list[str] = []
    with StopSignals() as signals:
        with signals.to(lambda: heard.append("one")):
            await taken(signal.SIGTERM)
            await taken(signal.SIGINT)
        await taken(signal.SIGTERM)

    assert heard == ["one", "one"]


def test_those_that_come_while_the_loop_is_closed_do_not_end_the_command_before_it_has_told_its_result() -> None:
    """`asyncio.run` waits for threads then, in which sandboxes are removed: a second SIGTERM would kill it before."""
    done = subprocess.run(
        [sys.executable, "-c", CLOSING],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )

    assert (done.returncode, done.stdout) == (0, "the result\n"), done.stderr


async def test_an_error_of_the_training_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="wrong"), StopSignals():
        raise ValueError("wrong")


async def test_a_cancellation_by_another_stays_one() -> None:
    async def work() -> None:
        with StopSignals():
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
