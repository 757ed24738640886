"""The `turnbuckle` command. One file per command; each is thin over functions that tests call directly."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from services._runtime.command.errors import CommandError
from services._runtime.command.lazy import LazyGroup
from services._runtime.command.output import color_system, errors_as_json, print_error, stdout_console
from services._runtime.exit_code import ExitCode, typed_json
from services._runtime.install_hint import distribution_of, package_missing
from services._runtime.stdout import discard_stdout
from services.cli.command_table import COMMANDS


class TurnbuckleGroup(LazyGroup):
    """Turns errors that a person is meant to read into a sentence and an exit code, for every command alike."""

    table = COMMANDS

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command line. With ``--json`` the errors of the command line itself are JSON, too."""
        words = sys.argv[1:] if args is None else list(args)
        if color_system() is None:
            from typer import rich_utils  # noqa: PLC0415 - only help and errors of the command line need it

            rich_utils.COLOR_SYSTEM = None
        if not typed_json(words):
            return super().main(args, *rest, **extra)
        with errors_as_json(wanted=True):
            sys.exit(self._end_in_json(words, extra.get("prog_name")))

    def _end_in_json(self, words: list[str], name: str | None) -> int:
        """Run it; returns the exit code."""
        try:
            return super().main(words, name, standalone_mode=False) or 0
        except TyperException as error:
            print_error(error.format_message(), error.exit_code)
            return error.exit_code
        except typer.Abort:
            print_error("aborted", ExitCode.FAILED)
            return ExitCode.FAILED

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except CommandError as error:
            print_error(str(error), error.exit_code)
            raise typer.Exit(error.exit_code) from error
        except ModuleNotFoundError as error:
            if error.name is None or distribution_of(error.name) is None:
                raise
            print_error(package_missing(error.name, "cli"), ExitCode.UNAVAILABLE)
            raise typer.Exit(ExitCode.UNAVAILABLE) from error
        except BrokenPipeError as error:
            # The reader (head, less) has seen enough.
            discard_stdout()
            raise typer.Exit(0) from error


app = typer.Typer(
    name="turnbuckle",
    cls=TurnbuckleGroup,
    help="Limits that follow usage: CPU and memory of containers, every 100 ms, inside one limit per application.",
    epilog="Start here: turnbuckle doctor, then turnbuckle up --demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        stdout_console().print(version("turnbuckle"))
        raise typer.Exit


def _say_version(value: bool) -> None:
    _print_version(wanted=value)


@app.callback()
def turnbuckle(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Limits that follow usage."""


def main() -> None:
    """Entry point of the installed command."""
    app()
