"""`turnbuckle jobs queue`: jobs in their order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from schemas.codec import to_plain
from schemas.scheduling import QueueReply, QueueRequest
from schemas.services.scheduler import SCHEDULER_QUEUE
from services._runtime.bus.api import Bus
from services._runtime.command.connection import ContextOption, ServerOption, connected, find_server
from services._runtime.command.errors import UnavailableError
from services._runtime.command.output import full_screen, print_json, stdout_console
from services.scheduler.commands.asking import ask, ask_once, period_option
from services.scheduler.commands.queue_view import render_queue

REFRESH_S: Final = 1.0
EXAMPLES: Final = """
Examples:

  turnbuckle jobs queue

  turnbuckle jobs queue --watch

  turnbuckle jobs queue --json | jq '.jobs[] | select(.phase == "waiting") | {job, why, expected_start_ns}'
"""
EndedOption = Annotated[
    str, typer.Option("--ended", metavar="AGE", help="Also jobs that ended within this: 10m, 24h; 0s: none.")
]


def queue_command(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print it anew each second, until Ctrl-C.")] = False,
    ended: EndedOption = "1h",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """List the jobs in their order: what runs where, what waits, why, and until when.

    Left: run time that a job still needs, from its estimate or from jobs that have ended, with an interval that holds
    nine of ten. Times expected are a simulation from now on, by the same decisions.
    """
    request = QueueRequest(ended_within_s=period_option(ended, "--ended"))
    if watch and not as_json:
        asyncio.run(_redraw((server, context), request))
        return
    reply = ask_once((server, context), SCHEDULER_QUEUE, request, QueueReply)
    if as_json:
        print_json(to_plain(reply))
    else:
        stdout_console().print(render_queue(reply))


async def _redraw(where: tuple[str | None, str | None], request: QueueRequest) -> None:
    async with connected(find_server(*where)) as bus:
        await redraw(bus, request, render_queue)


async def redraw(bus: Bus, request: QueueRequest, render: Callable[[QueueReply], RenderableType]) -> None:
    """Draw until SIGINT or SIGTERM, and how it stands then: in place on a terminal, else anew each second."""
    console = stdout_console()
    with full_screen(console) if console.is_terminal else nullcontext(console.print) as show:
        await each_second(bus, request, lambda reply: show(render(reply)), lambda error: show(Text(error, "yellow")))


async def each_second(
    bus: Bus, request: QueueRequest, show: Callable[[QueueReply], None], complain: Callable[[str], None]
) -> None:
    """Show the queue each second until SIGINT or SIGTERM, and once more then.

    Args:
        bus: of the scheduler.
        request: what to ask.
        show: gets each reply.
        complain: gets why there is none: another scheduler may be taking the lead.

    Raises:
        CommandError: the first time there is none.
    """
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    show(await ask(bus, SCHEDULER_QUEUE, request, QueueReply))
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), REFRESH_S)
        try:
            show(await ask(bus, SCHEDULER_QUEUE, request, QueueReply))
        except UnavailableError as error:
            complain(str(error))
        if stop.is_set():
            return
