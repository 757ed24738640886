"""`turnbuckle explain APP`: why an application's limits are what they are."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape

from schemas.codec import to_plain
from schemas.queries import ExplainReply, ExplainRequest, Explanation
from schemas.registry import ALLOCATOR_EXPLAIN
from services.cli.connection import ContextOption, ServerOption, connected, find_server, query
from services.cli.output import format_bytes, format_cores, print_json, stdout_console

EXAMPLES = """
Examples:

  turnbuckle explain shop

  turnbuckle explain shop --container web --last 20
"""


def explain_command(  # noqa: PLR0913 - a command's options are its parameters
    app: Annotated[str, typer.Argument(help="Name of the application.")],
    *,
    container: Annotated[str | None, typer.Option("--container", "-c", help="Only this container.")] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=1, max=1000, help="Decisions per container.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Say in sentences what the allocator decided for APP: what it measured, against which threshold, and when."""
    request = ExplainRequest(app=app, container=container, last=last)
    reply = asyncio.run(_ask(request, find_server(server, context)))
    if as_json:
        print_json(to_plain(reply))
        return
    console = stdout_console()
    console.print(escape(reply.summary), style="bold")
    for decision in reply.decisions:
        console.print(_line(decision))
    if not reply.decisions:
        console.print("No limit was changed yet.", style="dim")


async def _ask(request: ExplainRequest, options: Any) -> ExplainReply:
    async with connected(options) as bus:
        return await query(bus, ALLOCATOR_EXPLAIN, request, ExplainReply)


def _line(decision: Explanation) -> str:
    show = format_cores if decision.resource == "cpu" else format_bytes
    unit = " cores" if decision.resource == "cpu" else ""
    moment = datetime.fromtimestamp(decision.time_ns / 1e9, tz=UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
    change = f"{show(decision.before)} → {show(decision.after)}{unit}"
    return f"[dim]{moment}[/]  {escape(decision.container)}  {decision.resource} {change}: {escape(decision.sentence)}"
