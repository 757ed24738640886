"""Commands whose words are another program's."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class PassOn(TyperCommand):
    """A command that hands everything on as typed, ``--`` and ``--help`` included."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments as they are."""
        ctx.args = list(args)
        return []
