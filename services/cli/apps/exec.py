"""`turnbuckle exec`: a plain process as a container of an application, without Docker."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from services._runtime.command.connection import ContextOption, ServerOption
from services._runtime.command.output import print_json, print_note
from services.agent.commands import MANAGED_ROOT_VARIABLE

CONTEXT_SETTINGS = {"allow_interspersed_args": False}
EXAMPLES = """
Examples:

  turnbuckle exec --app shop --name web -- python -m http.server 8000

  turnbuckle exec --app shop --name batch --cpus 0.5 --memory 256MiB -- make -j4

  turnbuckle exec --app shop --name batch --json -- make -j4 2>&1 >make.log | tail -n 1 | jq .exit_code
"""


def exec_command(  # noqa: PLR0913 - a command's options are its parameters
    command: Annotated[list[str], typer.Argument(metavar="CMD...", help="The command, after --.")],
    *,
    app: Annotated[str, typer.Option("--app", help="Application whose limits it shares.")],
    name: Annotated[str, typer.Option("--name", help="Name of this container.")],
    cpus: Annotated[float | None, typer.Option("--cpus", min=0.01, help="Cores to start with.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory to start with, such as 256MiB.")] = None,
    managed_root: Annotated[
        str | None,
        typer.Option("--managed-root", envvar=MANAGED_ROOT_VARIABLE, help="As the agent of this host has."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="At the end print the outcome as one line of JSON on stderr.")
    ] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Run CMD in a control group of its own as container NAME of application APP.

    The agent of this host finds it within a second and the allocator adapts its limits. Signals are passed on and the
    exit code is the command's (128 + n if signal n ended it). What it leaves running is ended with it. Where APP is not
    announced, a note says so at once: the command runs all the same, unmanaged until `turnbuckle apply`.
    """
    from services._host.cgroupfs import MANAGED_ROOT  # noqa: PLC0415 - quick --help
    from services._runtime.command.connection import find_server, quiet_logs  # noqa: PLC0415
    from services.cli.apps import managed_process  # noqa: PLC0415 - as above
    from services.cli.apps.announced import unmanaged_note  # noqa: PLC0415 - as above

    root = managed_root or MANAGED_ROOT
    managed = managed_process.ManagedCommand(app, name, tuple(command), cpus, parse_memory(memory), root)
    layout = managed_process.usable_layout()
    quiet_logs()
    notes = [note] if (note := unmanaged_note(app, find_server(server, context))) else []
    if notes and not as_json:
        print_note(notes[0])
    ended = managed_process.run_in_group(layout, managed)
    if ended.oom_kills:
        notes.append(killed := managed_process.killed_sentence(app, ended.oom_kills))
        if not as_json:
            print_note(killed)
    if as_json:  # stdout is the command's
        outcome = {"app": app, "name": name, "exit_code": ended.exit_code, "oom_kills": ended.oom_kills}
        print_json(outcome | {"notes": notes}, indent=None, file=sys.stderr)
    raise typer.Exit(ended.exit_code)


def parse_memory(text: str | None) -> int | None:
    """Bytes from ``256MiB`` and the like.

    Raises:
        typer.BadParameter: it is no size, or too little for any container.
    """
    from schemas.apps import MIN_MEMORY_BYTES  # noqa: PLC0415 - quick --help
    from schemas.sizes import parse_size  # noqa: PLC0415 - as above

    if text is None:
        return None
    try:
        size = parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if size < MIN_MEMORY_BYTES:
        least = MIN_MEMORY_BYTES >> 20
        raise typer.BadParameter(
            f"{text} is {size} bytes: a container has at least {least} MiB, below that nothing starts"
        )
    return size
