"""`turnbuckle jobs top`: who holds which slots, what jobs send in each iteration, and how they share links."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Final

import typer

from schemas.codec import to_plain
from schemas.scheduling import IterationSample, QueueReply, QueueRequest
from schemas.services.scheduler import SCHEDULER_QUEUE
from schemas.subjects import ITERATIONS
from services._runtime.bus.api import Bus, Delivery
from services._runtime.command.connection import ContextOption, ServerOption, connected, find_server
from services._runtime.command.output import print_json, print_warning, stdout_console
from services.scheduler.commands.asking import ask, period_option
from services.scheduler.commands.queue import EndedOption, each_second, redraw
from services.scheduler.commands.queue_view import render_top

EXAMPLES: Final = """
Examples:

  turnbuckle jobs top

  turnbuckle jobs top --once

  turnbuckle jobs top --json | jq -c '.iterations[] | {job, period_us, phase_error_us}'
"""
FORGOTTEN: Final = 1_000
"""Jobs, of which the latest iterations are kept in mind."""


class Samples:
    """The latest iteration of each job, seen at its first worker that reports any."""

    def __init__(self) -> None:
        self.latest: dict[str, IterationSample] = {}

    async def listen(self, bus: Bus) -> None:
        """Receive from now on."""
        await bus.subscribe(ITERATIONS.pattern(bus.root), self._on_sample)

    def of_running(self, reply: QueueReply) -> dict[str, IterationSample]:
        """Those of the attempts that run now."""
        running = {job.job: job.attempt for job in reply.jobs if job.nodes}
        return {job: sample for job, sample in self.latest.items() if running.get(job) == sample.attempt}

    def _on_sample(self, delivery: Delivery) -> None:
        sample = delivery.message
        if not isinstance(sample, IterationSample):
            return
        known = self.latest.get(sample.job)
        if known is None or known.attempt < sample.attempt or known.rank >= sample.rank:
            self.latest.pop(sample.job, None)
            self.latest[sample.job] = sample
            while len(self.latest) > FORGOTTEN:
                del self.latest[next(iter(self.latest))]


def top_command(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print it once and exit.")] = False,
    ended: EndedOption = "2m",
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON each second.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Show nodes, shared links, jobs and their iterations, live, until Ctrl-C.

    Iterations are those that it hears of meanwhile; before that, and with --once, what the scheduler has learned. A
    link's score is 1 where its jobs never send more together than it carries. Without a terminal it prints the same
    each second.
    """
    request = QueueRequest(ended_within_s=period_option(ended, "--ended"))
    asyncio.run(_show((server, context), request, once=once, as_json=as_json))


async def _show(where: tuple[str | None, str | None], request: QueueRequest, *, once: bool, as_json: bool) -> None:
    samples = Samples()
    async with connected(find_server(*where)) as bus:
        await samples.listen(bus)
        print_reply = partial(_print_json if as_json else _print, samples)
        if once:
            print_reply(await ask(bus, SCHEDULER_QUEUE, request, QueueReply))
        elif as_json:
            await each_second(bus, request, print_reply, print_warning)
        else:
            await redraw(bus, request, lambda reply: render_top(reply, samples.of_running(reply)))


def _print(samples: Samples, reply: QueueReply) -> None:
    stdout_console().print(render_top(reply, samples.of_running(reply)))


def _print_json(samples: Samples, reply: QueueReply) -> None:
    iterations = {job: to_plain(sample) for job, sample in samples.of_running(reply).items()}
    print_json(to_plain(reply) | {"iterations": iterations}, indent=None)
