"""The `turnbuckle` command. One file per command; each is thin over functions that tests call directly."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer

from services._runtime.command.errors import CommandError
from services._runtime.command.lazy import LazyGroup
from services._runtime.command.output import print_error, stdout_console
from services._runtime.stdout import discard_stdout
from services.cli.command_table import COMMANDS


class TurnbuckleGroup(LazyGroup):
    """Turns errors that a person is meant to read into a sentence and an exit code, for every command alike."""

    table = COMMANDS

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except CommandError as error:
            print_error(str(error))
            raise typer.Exit(error.exit_code) from error
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
