"""`turnbuckle top`: limits against usage, live."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import Annotated, Any, Final

import typer

from schemas.containers import NodeInfo
from schemas.streams import APPS, LEASES, NODES
from services._runtime.bus.api import Entry
from services._runtime.command.connection import ContextOption, ServerOption, connected, find_server
from services._runtime.command.errors import CommandError
from services._runtime.command.output import full_screen, print_json, stdout_console
from services.cli.apps.allocators import allocator_state
from services.cli.apps.live_view import nothing_to_show, plain_lines, render
from services.cli.apps.subscriptions import announcement_watcher, members_watcher, subscribe_sinks
from services.cli.apps.view_model import ViewModel

REFRESH_S: Final = 0.25
PLAIN_REFRESH_S: Final = 1.0
SNAPSHOT_WINDOW_S: Final = 1.0
"""How long one snapshot watches: ten periods."""
EXAMPLES = """
Examples:

  turnbuckle top

  turnbuckle top shop

  turnbuckle top --once --json | jq '.apps[].containers[] | {container, throttled_share, memory}'
"""


def top_command(
    app: Annotated[str | None, typer.Argument(help="Only this application.")] = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Watch for a second, print one snapshot, exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One snapshot as JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Show each container's usage against its limit, over time, with the pools and reserves of its application.

    The upper sparkline is CPU used, the lower one the limit. Below a container's memory: what was granted before it
    hit its limit; beside its last change: waits at the limit, refusals, kills, and hits after which calls can have
    failed. Below: nodes that are full, that promise more cores than they have, or are under pressure. What is counted
    begins when top does: `turnbuckle explain APP` knows what happened before. Without a terminal it prints plain lines
    each second.
    """
    state = ViewModel()
    asyncio.run(_watch(state, find_server(server, context), app, once=once or as_json))
    if (once or as_json) and app is not None and app not in state.apps:
        raise CommandError(nothing_to_show(state, app))
    if as_json:
        snapshot = state.snapshot()
        shown = {
            key: [item for item in snapshot[key] if app in {None, item["app"]}] for key in ("apps", "memory_events")
        }
        print_json(snapshot | shown)
    elif once:
        console = stdout_console()
        console.print(render(state, only=app, columns=console.width))


async def _watch(state: ViewModel, options: Any, app: str | None, *, once: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with connected(options) as bus:
        await subscribe_sinks(bus, lambda: (state,), app)
        with suppress(CommandError):  # no allocator: the pools become known with its first decision
            reply = await allocator_state(bus, app)
            for item in reply.apps:
                state.seed(item)

        def registered(key: str, entry: Entry | None) -> None:
            node = entry.message if entry is not None else None
            state.register(key, node if isinstance(node, NodeInfo) else None)

        members, nodes = bus.bucket(LEASES).watch(members_watcher(state)), bus.bucket(NODES).watch(registered)
        async with bus.bucket(APPS).watch(announcement_watcher(state)), members, nodes:
            if once:
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), SNAPSHOT_WINDOW_S)
            else:
                await show_live(state, stop, only=app)


async def show_live(state: ViewModel, stop: asyncio.Event, *, only: str | None = None) -> None:
    """Draw until ``stop`` is set: in place on a terminal, else as plain lines."""
    console = stdout_console()
    if not console.is_terminal:
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), PLAIN_REFRESH_S)
            for line in plain_lines(state, only=only):
                typer.echo(line)
        return
    with full_screen(console) as show:
        while not stop.is_set():
            show(render(state, only=only, columns=console.width))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), REFRESH_S)
        show(render(state, only=only, columns=console.width))
