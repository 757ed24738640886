"""Follows one job until its end, and says what happens to it."""

from __future__ import annotations

import asyncio
from typing import Final

from schemas.scheduling import JobExplainReply, JobExplainRequest, JobHistoryLine, QueuedJob
from schemas.services.scheduler import SCHEDULER_EXPLAIN
from services._runtime.bus.api import BusUnavailableError
from services._runtime.bus.nats import NatsBus
from services._runtime.command.connection import connected, find_server
from services._runtime.command.errors import UnavailableError
from services._runtime.command.output import print_note
from services.scheduler.commands.asking import LIVE, ask
from services.scheduler.commands.explain_view import history_text

EVERY_S: Final = 1.0
SILENT_S: Final = 60.0
"""So long no scheduler may answer: one that takes the lead needs 8 s."""


async def follow_to_the_end(job: str, where: tuple[str | None, str | None]) -> QueuedJob:
    """Print each change of a job until it has ended; returns how.

    Raises:
        UnavailableError: no scheduler has answered for `SILENT_S`.
        CommandError: there is no such job.
    """
    printed: set[tuple[int, str]] = set()
    async with connected(find_server(*where)) as bus:
        while True:
            reply = await ask_patiently(bus, job)
            for line in reply.history:
                if (key := (line.sequence, line.what)) not in printed:
                    printed.add(key)
                    _print(line)
            if reply.job.phase not in LIVE:
                return reply.job
            await asyncio.sleep(EVERY_S)


async def ask_patiently(bus: NatsBus, job: str) -> JobExplainReply:
    """What is known of a job, although the lead may just pass from one scheduler to another.

    Raises:
        UnavailableError: no scheduler has answered for `SILENT_S`.
        CommandError: there is no such job.
    """
    deadline = asyncio.get_running_loop().time() + SILENT_S
    while True:
        try:
            return await ask(bus, SCHEDULER_EXPLAIN, JobExplainRequest(job=job), JobExplainReply)
        except (UnavailableError, BusUnavailableError):
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(EVERY_S)


def _print(line: JobHistoryLine) -> None:
    print_note(history_text(line))
