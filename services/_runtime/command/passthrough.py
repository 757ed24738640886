"""Commands whose arguments another program parses."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class PassthroughCommand(TyperCommand):
    """A command that passes all arguments through unchanged, ``--`` and ``--help`` included."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments as they are."""
        ctx.args = list(args)
        return []
