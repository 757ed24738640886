"""Commands whose modules are imported when they are used: `turnbuckle --help` lists them all and needs none of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """What a list of commands shows, and where the command is."""

    name: str
    summary: str
    """The first paragraph of its help, as a list shows it."""
    panel: str
    """The heading under which it stands."""
    module: str
    attribute: str
    """Of the module: a function, a `typer.Typer` for a group, or a click command."""
    examples: str = "EXAMPLES"
    """Of the module: the end of a function's help."""

    def load(self) -> Any:
        """Import it and make the click command. Takes as long as what it imports."""
        module = import_module(self.module)
        found = getattr(module, self.attribute)
        if isinstance(found, typer.Typer):
            loaded: Any = typer.main.get_group(found)
        elif isinstance(found, TyperCommand):
            loaded = found
        else:
            single = typer.Typer(add_completion=False, rich_markup_mode="rich")
            settings = getattr(module, "CONTEXT_SETTINGS", None)
            own_class = getattr(module, "COMMAND_CLASS", None)
            epilog = getattr(module, self.examples)
            single.command(self.name, cls=own_class, epilog=epilog, context_settings=settings)(found)
            loaded = typer.main.get_command(single)
        loaded.name = self.name
        _join_lines(loaded)
        return loaded


def _join_lines(command: Any) -> None:
    """Paragraphs of help as one line each, for rich keeps the line breaks of the source."""
    paragraphs = re.split(r"\n\s*\n", command.help or "")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for inner in getattr(command, "commands", {}).values():
        _join_lines(inner)


class LazyGroup(TyperGroup):
    """A group of `LazyCommand`s: listed and completed from its table, imported when one is run or shows its help.

    Commands that are not in the table are what they are.
    """

    table: Sequence[LazyCommand] = ()
    """Set by the class that is used."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._by_name = {entry.name: entry for entry in self.table}
        self._loaded: dict[str, Any] = {}
        listed = {
            entry.name: TyperCommand(entry.name, help=entry.summary, rich_help_panel=entry.panel)
            for entry in self.table
        }
        self.commands = {**listed, **self.commands}

    def load(self, name: str) -> Any:
        """The command itself."""
        if name not in self._by_name:
            return self.commands[name]
        if name not in self._loaded:
            self._loaded[name] = self._by_name[name].load()
        return self._loaded[name]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """As click's, with the command itself in place of what the list shows."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else self.load(name), rest
