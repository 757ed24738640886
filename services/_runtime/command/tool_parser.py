"""The command line of a tool that `turnbuckle` starts: read by argparse, and described for the command's help.

``--describe-options`` prints, as JSON, what ``--help`` would say; the command shows it as that of its own options, and
completes from it.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final, NoReturn

from services._runtime.command.tool_events import emit_error, say
from services._runtime.exit_code import ExitCode

DESCRIBE: Final = "--describe-options"


class ToolParser(argparse.ArgumentParser):
    """argparse that describes its options as JSON, and reports a usage error as text and as an ``error`` event."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's; with `DESCRIBE` alone it prints the description and ends."""
        if list(sys.argv[1:] if args is None else args) == [DESCRIBE]:
            sys.stdout.write(json.dumps(self.described()) + "\n")
            sys.exit(0)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End with 2."""
        text = f"{self.prog}: {message} (--help shows what there is)"
        say(text)
        sys.exit(emit_error(text, ExitCode.USAGE))

    def described(self) -> dict[str, Any]:
        """Description, parameters and, by name, sub-commands in the same form."""
        found: dict[str, Any] = {"about": self.epilog or "", "params": [], "commands": {}}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse has no other way to see them
                found["commands"] = {name: parser.described() for name, parser in action.choices.items()}
            elif not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:  # noqa: SLF001
                found["params"].append(_described(action))
        return found


def _described(action: argparse.Action) -> dict[str, Any]:
    metavar = action.metavar[0] if isinstance(action.metavar, tuple) else action.metavar
    return {
        "flags": list(action.option_strings),
        "name": action.dest,
        "metavar": metavar or action.dest.upper(),
        "help": (action.help or "").replace("%(default)s", str(action.default)),
        "choices": [str(choice) for choice in action.choices or ()],
        "takes_value": action.nargs != 0,
        "required": bool(action.required),
    }
