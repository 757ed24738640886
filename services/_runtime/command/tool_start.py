"""A tool as a process: ``python -m services._runtime.command.tool_start MODULE ARGUMENTS...`` runs it as a program.

A package that the tool needs and that is not installed is said in a sentence (exit code 69), not by a traceback.
"""

from __future__ import annotations

import runpy
import sys

from services._runtime.command.tool_events import emit_error, say
from services._runtime.exit_code import ExitCode
from services._runtime.install_hint import package_missing


def main() -> int | None:
    """Run it; returns only where it cannot be run."""
    _, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        text = package_missing(error.name or module, module.split(".")[1])
        say(f"error: {text}")
        return emit_error(text, ExitCode.UNAVAILABLE)
    return None


if __name__ == "__main__":
    sys.exit(main())
