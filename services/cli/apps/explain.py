"""`turnbuckle explain APP`: why an application's limits are what they are, and what happened to its memory."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple

import typer
from rich.markup import escape

from schemas.codec import to_plain
from schemas.containers import NodeInfo
from schemas.queries import ExplainReply, ExplainRequest, Explanation
from schemas.streams import CONTAINER_STREAM, OOM_STREAM
from schemas.subjects import CONTAINER_EVENTS, OOM_EVENTS
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.command.connection import ContextOption, ServerOption, connected, find_server
from services._runtime.command.errors import CommandError
from services._runtime.command.nodes import read_nodes
from services._runtime.command.output import format_bytes, format_cores, print_json, print_note, stdout_console
from services._runtime.command.period import parse_period
from services.cli.apps.allocators import allocator_explain
from services.cli.apps.capacity import node_warnings, plain_node
from services.cli.apps.event_history import EventHistory

EXAMPLES = """
Examples:

  turnbuckle explain shop

  turnbuckle explain shop --container web --last 20

  turnbuckle explain shop --since 7d --json | jq '.memory.events[] | select(.kind == "kill") | .sentence'
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known."""

    reply: ExplainReply | None
    """None: no allocator has answered; `unavailable_reason` says why."""
    history: EventHistory
    unavailable_reason: str = ""
    nodes: tuple[NodeInfo, ...] = ()
    """That are registered."""


class Line(NamedTuple):
    """A line of what is shown, in the terminal and in the console."""

    kind: Literal["heading", "decision", "note", "warning", "event", "severe"]
    text: str
    time_ns: int = 0
    """0: it has none."""


def explain_command(  # noqa: PLR0913 - a command's options are its parameters
    app: Annotated[str, typer.Argument(help="Name of the application.")],
    *,
    container: Annotated[str | None, typer.Option("--container", "-c", help="Only this container.")] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=1, max=1000, help="Decisions and events per container.")] = 5,
    since: Annotated[
        str, typer.Option("--since", metavar="AGE", help="Memory events not older than this: 90s, 30m, 24h, 7d.")
    ] = "24h",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Explain why APP's limits are what they are, and why a container was granted memory, denied it, or killed.

    The allocator tells what it decided: what it measured, against which threshold, and when. Memory events and limits
    that other hands changed come from their streams, which keep a week and need no allocator.
    """
    since_s = time.time() - parse_age(since)
    request = ExplainRequest(app=app, container=container, last=last)
    answer = asyncio.run(_connect_and_ask(request, since_s, find_server(server, context)))
    if answer.unavailable_reason:
        print_note(answer.unavailable_reason)
    if as_json:
        known = {"app": app, "summary": "", "decisions": []} if answer.reply is None else to_plain(answer.reply)
        nodes = [plain_node(node) for node in answer.nodes]
        print_json(known | {"since": since, "memory": answer.history.plain(), "nodes": nodes})
        return
    _print(answer, since)


def parse_age(text: str) -> float:
    """Seconds from ``90s``, ``30m``, ``24h`` or ``7d``.

    Raises:
        typer.BadParameter: it is none of these.
    """
    try:
        return parse_period(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


async def _connect_and_ask(request: ExplainRequest, since_s: float, options: Any) -> Answer:
    async with connected(options) as bus:
        return await ask(bus, request, since_s)


async def ask(bus: NatsBus, request: ExplainRequest, since_s: float) -> Answer:
    """What the allocator and the streams know; events since a Unix time.

    Raises:
        BusError: not connected, not permitted, or the server stops answering.
        CommandError: the application is not announced, or has no owner at present, and no event is stored.
    """
    history = EventHistory(request.container, request.last)
    await _read_history(bus, request.app, since_s, history)
    nodes = tuple(await read_nodes(bus))
    try:
        return Answer(await allocator_explain(bus, request), history, nodes=nodes)
    except CommandError as error:
        # Afterwards, the application may be gone, or no allocator may own it: what is stored answers all the same.
        if not history.events:
            raise
        return Answer(None, history, str(error), nodes)


async def _read_history(bus: NatsBus, app: str, since_s: float, history: EventHistory) -> None:
    def take(delivery: Delivery) -> None:
        history.take(delivery.message)

    for stream, template in ((OOM_STREAM, OOM_EVENTS), (CONTAINER_STREAM, CONTAINER_EVENTS)):
        await read_stored(bus, stream, template.pattern(bus.root, app=app), since_s, take)


def explained_lines(answer: Answer, since: str) -> list[Line]:
    """What is known, line by line. Pure. ``since``: the age that memory events were asked for, as text."""
    lines = [] if answer.reply is None else [Line("heading", answer.reply.summary)]
    if answer.reply is not None:
        lines += [Line("decision", _decision(one), one.time_ns) for one in answer.reply.decisions]
        lines += [] if answer.reply.decisions else [Line("note", "No limit was changed yet.")]
    lines += [Line("warning", warning) for node in answer.nodes for warning in node_warnings(node)]
    lines.append(Line("heading", answer.history.summary(since)))
    for event in answer.history.events:
        lines.append(Line("severe" if event.severe else "event", event.line(), event.time_ns))
    return lines


_STYLES: Final = {"heading": "bold", "note": "dim", "warning": "yellow", "severe": "red"}


def _print(answer: Answer, since: str) -> None:
    console = stdout_console()
    for line in explained_lines(answer, since):
        console.print(_time(line) + escape(line.text), style=_STYLES.get(line.kind, "none"))


def _time(line: Line) -> str:
    """Events have a date, too: they may be days old."""
    if not line.time_ns:
        return ""
    time = datetime.fromtimestamp(line.time_ns / 1e9).astimezone()
    if line.kind == "decision":
        return f"[dim]{time.strftime('%H:%M:%S.%f')[:-3]}[/]  "
    return f"{time.strftime('%b %d %H:%M:%S.%f')[:-3]}  "


def _decision(decision: Explanation) -> str:
    show = format_cores if decision.resource == "cpu" else format_bytes
    unit = " cores" if decision.resource == "cpu" else ""
    change = f"{show(decision.before)} → {show(decision.after)}{unit}"
    return f"{decision.container}  {decision.resource} {change}: {decision.sentence}"
