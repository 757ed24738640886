"""Every command of `turnbuckle`, out of its table, by what is typed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from services._runtime.command.lazy import LazyGroup
from services._runtime.command.tool_shell import Tool
from services._runtime.service.interpreter import installed_services
from services.advisor import commands as advisor_tools
from services.cli.main import app
from services.collector import commands as collector_tools

ROOT: Any = typer.main.get_command(app)
TOOLS = {
    " ".join((tool.name, *tool.first)): tool
    for tool in (vars(collector_tools) | vars(advisor_tools)).values()
    if isinstance(tool, Tool) and tool.summary
}


def _commands(command: Any = ROOT, path: str = "") -> Iterator[tuple[str, Any]]:
    """All of them, groups too."""
    for name in getattr(command, "commands", {}):
        inner = command.load(name) if isinstance(command, LazyGroup) else command.commands[name]
        typed = f"{path} {name}".strip()
        yield typed, inner
        yield from _commands(inner, typed)


ALL = dict(_commands())
SERVICES = {f"run {name}" for name in installed_services()}
"""They take this process' place: what they print is their own."""
OURS = {typed: command for typed, command in ALL.items() if typed not in TOOLS and typed not in SERVICES}
LEAVES = [typed for typed, command in ALL.items() if typed not in SERVICES and not hasattr(command, "commands")]
"""What does something; the others are groups."""
