"""How `apply` and `delete` show their steps."""

from __future__ import annotations

from typing import Any, Final

from rich.markup import escape

from services._runtime.command.output import stderr_console
from services.cli.apps.deployer import Action, Step

_COLOURS: Final = {
    Action.CREATE: "green",
    Action.REPLACE: "yellow",
    Action.START: "green",
    Action.KEEP: "dim",
    Action.REMOVE: "red",
    Action.LEAVE: "dim",
}


def print_step(step: Step) -> None:
    """One line on stderr."""
    colour = _COLOURS[step.action]
    stderr_console().print(f"[{colour}]{step.action:>8}[/]  {escape(step.name)}  [dim]{escape(step.reason)}[/]")


def plain_step(step: Step, container_id: str | None) -> dict[str, Any]:
    """The step as plain JSON types."""
    return {"name": step.name, "action": str(step.action), "reason": step.reason, "id": container_id}
