"""What commands ask the leading scheduler, and what completes a job's or a node's name in a shell."""

from __future__ import annotations

import asyncio
import dataclasses
import getpass
import re
import socket
from contextlib import suppress
from typing import Any, Final, TypeVar

import typer

from schemas.message import Message
from schemas.scheduling import JOB_NAME_PATTERN, JobPhase, QueueReply, QueueRequest
from schemas.service import Endpoint
from schemas.services.scheduler import SCHEDULER_QUEUE
from services._runtime.bus.api import Bus
from services._runtime.command.connection import QUERY_TIMEOUT_S, await_reply, connected, find_server
from services._runtime.command.errors import CommandError
from services._runtime.command.period import parse_period

STARTS: Final = (
    "`turnbuckle run scheduler` starts one, `turnbuckle up --cluster 4x2` one with four nodes on this machine; "
    "where one has just died, another takes the lead within 8 s"
)
LIVE: Final = frozenset({JobPhase.WAITING, JobPhase.RUNNING, JobPhase.STOPPING})
"""Phases of jobs that have not ended."""
_COMPLETION_S: Final = 1.0

ReplyT = TypeVar("ReplyT", bound=Message)


async def ask(
    bus: Bus, endpoint: Endpoint, request: Message, reply_type: type[ReplyT], within_s: float = QUERY_TIMEOUT_S
) -> ReplyT:
    """The leading scheduler's reply.

    Raises:
        UnavailableError: none answers, or not in time.
        CommandError: it refuses the request; the message is its own.
        BusError: not connected, or not permitted.
    """
    pending = bus.request(endpoint.template.subject(bus.root), request, timeout_s=within_s)
    return await await_reply("scheduler", pending, reply_type, starts=STARTS, within_s=within_s)


def ask_once(
    where: tuple[str | None, str | None],
    endpoint: Endpoint,
    request: Message,
    reply_type: type[ReplyT],
    within_s: float = QUERY_TIMEOUT_S,
) -> ReplyT:
    """As `ask`, by a connection for this question alone; ``where``: server and context of the command line.

    Raises:
        CommandError: as `ask`, and where no server answers.
    """

    async def connect_and_ask() -> ReplyT:
        async with connected(find_server(*where)) as bus:
            return await ask(bus, endpoint, request, reply_type, within_s)

    return asyncio.run(connect_and_ask())


def requester() -> str:
    """Who runs the command, for display: ``ann@gpu-01``."""
    host = socket.gethostname()
    with suppress(KeyError, OSError):  # a user id without a name
        return f"{getpass.getuser()}@{host}"
    return host


def job_argument(text: str) -> str:
    """A job's name.

    Raises:
        typer.BadParameter: no job has such a name.
    """
    if not re.fullmatch(JOB_NAME_PATTERN, text):
        raise typer.BadParameter(f"{text!r} is no job's name: small letters, digits and '-'", param_hint="JOB")
    return text


def period_option(text: str, option: str) -> float:
    """Seconds of an option's value.

    Raises:
        typer.BadParameter: it is no period.
    """
    try:
        return parse_period(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs that begin so, those that have not ended first."""
    reply = _known(ctx)
    jobs = [] if reply is None else sorted(reply.jobs, key=lambda job: job.phase not in LIVE)
    return [job.job for job in jobs if job.job.startswith(incomplete)]


def complete_live_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """As `complete_jobs`, without those that have ended."""
    reply = _known(ctx)
    jobs = () if reply is None else reply.jobs
    return [job.job for job in jobs if job.phase in LIVE and job.job.startswith(incomplete)]


def complete_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of nodes that begin so."""
    reply = _known(ctx)
    return [] if reply is None else [node.node for node in reply.nodes if node.node.startswith(incomplete)]


def _known(ctx: typer.Context) -> QueueReply | None:
    """Jobs and nodes for a shell that waits; None: no scheduler answers in time, and nothing is said."""
    try:
        return asyncio.run(_ask_quickly(ctx.params.get("server"), ctx.params.get("context")))
    except CommandError:
        return None


async def _ask_quickly(server: Any, context: Any) -> QueueReply:
    only_asks = dataclasses.replace(find_server(server, context), streams=(), buckets=(), object_stores=())
    async with connected(only_asks, within_s=_COMPLETION_S) as bus:
        return await ask(bus, SCHEDULER_QUEUE, QueueRequest(), QueueReply, _COMPLETION_S)
