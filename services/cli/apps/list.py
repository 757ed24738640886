"""`turnbuckle apps`: every application with its limits and what is left of them."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import typer
from rich.table import Table

from schemas.apps import AppSpec
from schemas.queries import AppState, StateReply
from schemas.streams import APPS
from services._runtime.command.connection import ContextOption, ServerOption, connected, find_server
from services._runtime.command.errors import UnavailableError
from services._runtime.command.output import (
    format_bytes,
    format_cores,
    format_duration,
    print_json,
    print_note,
    stdout_console,
)
from services.cli.apps.allocators import allocator_state

EXAMPLES = """
Examples:

  turnbuckle apps

  turnbuckle apps --json | jq '.apps[] | {app, owner, cpu_free_us, memory_reserved_bytes}'
"""


def apps_command(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """List the applications: limits, containers, what is held and free, mode, policy, and who decides.

    What is held includes what is reserved: memory that agents may grant at once. Limits come from the store; the rest
    comes from the allocator, and is left out while none answers.
    """
    specs, reply, unavailable_reason = asyncio.run(_gather(find_server(server, context)))
    state = {app.spec.name: app for app in reply.apps} if reply else {}
    rows = [_row(spec, state.get(name)) for name, spec in sorted(specs.items())]
    members = _members(reply) if reply else None
    if unavailable_reason:
        print_note(unavailable_reason)
    if as_json:
        print_json({"apps": rows, "allocator": not unavailable_reason, "members": members})
    elif rows:
        stdout_console().print(_table(rows))
        if members and members["replicas"]:
            names = ", ".join(members["replicas"])
            since = f"epoch {members['epoch']}, unchanged for {format_duration(members['age_s'] * 1e6)}"
            stdout_console().print(f"shared by {names} ({since})", style="dim", soft_wrap=True)
    else:
        print_note("No application yet: `turnbuckle apply app.yaml` announces one.")


def _members(reply: StateReply) -> dict[str, Any]:
    """The replicas that share the applications, and for how long they have."""
    age_s = max(0.0, (time.time_ns() - reply.members_since_ns) / 1e9)
    return {"replicas": list(reply.members), "epoch": reply.members_epoch, "age_s": round(age_s, 1)}


async def _gather(options: Any) -> tuple[dict[str, AppSpec], StateReply | None, str]:
    async with connected(options) as bus:
        entries = await bus.bucket(APPS).entries()
        specs = {key: entry.message for key, entry in entries.items() if isinstance(entry.message, AppSpec)}
        broken = sorted(key for key, entry in entries.items() if not isinstance(entry.message, AppSpec))
        unavailable_reason = f"unreadable entries in the store: {', '.join(broken)}" if broken else ""
        try:
            reply = await allocator_state(bus)
        except UnavailableError as error:
            return specs, None, str(error)
        return specs, reply, unavailable_reason


def _row(spec: AppSpec, state: AppState | None) -> dict[str, Any]:
    return {
        "app": spec.name,
        "mode": spec.mode,
        "policy": spec.policy,
        "cpu_limit_us": spec.cpu_limit_us,
        "memory_limit_bytes": int(spec.memory_limit),
        "containers": None if state is None else len(state.containers),
        "cpu_held_us": None if state is None else state.cpu_committed_us,
        "cpu_free_us": None if state is None else state.cpu_free_us,
        "memory_held_bytes": None if state is None else state.memory_committed_bytes,
        "memory_free_bytes": None if state is None else state.memory_free_bytes,
        "memory_reserved_bytes": None if state is None else state.memory_reserved_bytes,
        "owner": None if state is None else state.owner,
        "epoch": None if state is None else state.epoch,
        "refused": [] if state is None else [item.container for item in state.containers if item.rejection],
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = ("APP", "N", "CORES", "HELD", "FREE", "MEMORY", "HELD", "RESERVED", "FREE", "MODE", "POLICY", "OWNER")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="right" if 0 < position < 9 else "left", no_wrap=True)
    for row in rows:
        cores = [row["cpu_limit_us"], row["cpu_held_us"], row["cpu_free_us"]]
        sizes = [
            row["memory_limit_bytes"],
            row["memory_held_bytes"],
            row["memory_reserved_bytes"],
            row["memory_free_bytes"],
        ]
        table.add_row(
            row["app"],
            "-" if row["containers"] is None else str(row["containers"]),
            *("-" if value is None else format_cores(value) for value in cores),
            *("-" if value is None else format_bytes(value) for value in sizes),
            row["mode"],
            row["policy"],
            "-" if row["owner"] is None else row["owner"] or "nobody",
        )
    return table
