"""The `turnbuckle` command. One file per command; each is thin over functions that tests call directly."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from services.cli import (
    advise,
    apply,
    apps,
    delete,
    doctor,
    exec,  # noqa: A004 - the command's name
    explain,
    fabric_command,
    jobs,
    nats_command,
    network,
    run_command,
    tap,
    top,
    up,
)
from services.cli.collector_commands import add_tools
from services.cli.console.command import EXAMPLES as CONSOLE_EXAMPLES
from services.cli.console.command import console_command
from services.cli.failure import CommandError
from services.cli.lab.command import lab_app
from services.cli.output import discard_stdout, print_error, stdout_console


class TurnbuckleGroup(TyperGroup):
    """Turns errors that a person is meant to read into a sentence and an exit code, for every command alike."""

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


app.command("up", epilog=up.EXAMPLES)(up.up_command)
app.add_typer(run_command.app, name="run")
app.command("apply", epilog=apply.EXAMPLES)(apply.apply_command)
app.command("delete", epilog=delete.EXAMPLES)(delete.delete_command)
app.command("exec", epilog=exec.EXAMPLES, context_settings={"allow_interspersed_args": False})(exec.exec_command)
app.command("apps", epilog=apps.EXAMPLES)(apps.apps_command)
app.command("top", epilog=top.EXAMPLES)(top.top_command)
app.command("console", epilog=CONSOLE_EXAMPLES)(console_command)
app.command("explain", epilog=explain.EXAMPLES)(explain.explain_command)
app.command("rules", epilog=network.RULES_EXAMPLES)(network.rules_command)
app.command("paths", epilog=network.PATHS_EXAMPLES)(network.paths_command)
app.command("tap", epilog=tap.EXAMPLES)(tap.tap_command)
app.add_typer(fabric_command.app, name="fabric")
app.add_typer(lab_app, name="lab")
app.command("advise", epilog=advise.EXAMPLES)(advise.advise_command)
app.add_typer(jobs.app, name="jobs")
add_tools(app)
app.add_typer(nats_command.app, name="nats")
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor_command)


def main() -> None:
    """Entry point of the installed command."""
    app()
