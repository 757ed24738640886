"""`turnbuckle fabric plan|up|check|down|drain host.yaml`: a host's part of the network, from one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from services._runtime.command.output import print_json, print_note, stderr_console, stdout_console
from services._runtime.exit_code import ExitCode

if TYPE_CHECKING:
    from services._runtime.command.finding import Finding
    from services.fabric.check import Difference
    from services.fabric.model import HostFile
    from services.fabric.plan import Step

EXAMPLES: Final = """
Examples:

  turnbuckle fabric plan host.yaml      (what would be done, with the commands that do the same)

  turnbuckle fabric up host.yaml

  turnbuckle fabric check host.yaml     (is the host as the file says, do FRR's sessions stand?)

  turnbuckle fabric drain host.yaml p1  (move traffic away from an uplink before maintenance; --undo)

  turnbuckle fabric down host.yaml      (undo what `up` did, and no more)
"""

HostFileArgument = Annotated[Path, typer.Argument(help="The host's file.", metavar="HOST.YAML")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]

_COLOURS: Final = {
    "make": "green",
    "change": "yellow",
    "replace": "yellow",
    "keep": "dim",
    "remove": "red",
    "restore": "yellow",
    "leave": "dim",
}

app = typer.Typer(
    help="A host's part of the network: devices, addresses, FRR.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("plan", epilog=EXAMPLES)
def plan_command(
    file: HostFileArgument,
    *,
    every: Annotated[bool, typer.Option("--all", help="Show also what is as it should be.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what `up` would do now, each step with its shell command. Changes nothing."""
    from services.fabric.apply import plan  # noqa: PLC0415
    from services.fabric.environment import fast_path_environment, reconciler_environment  # noqa: PLC0415
    from services.fabric.host_file import load_host_file  # noqa: PLC0415 - pyroute2 takes 0.15 s to import

    host = load_host_file(file)
    steps = plan(host)
    services = {"reconciler": reconciler_environment(host), "fast path": fast_path_environment(host)}
    if as_json:
        print_json({"host": host.name, "steps": [_plain(step) for step in steps], "environment": services})
        return
    console = stdout_console()
    for step in steps:
        if step.writes or every:
            console.print(f"[{_COLOURS[step.action]}]# {step.action} {escape(step.name)}[/]: {escape(step.reason)}")
            for command in step.commands:
                console.print(escape(command))
    for service, variables in services.items():
        if variables:
            console.print(f"\n[bold]# environment of the {service}[/]")
            console.print("\n".join(escape(f"{name}={value}") for name, value in variables.items()))
    print_note(_count(host, steps, "would be taken"))


@app.command("up", epilog=EXAMPLES)
def up_command(file: HostFileArgument, *, as_json: JsonOption = False) -> None:
    """Make the host as its file says. If a step fails, all is as it was before. Again: nothing is left to do."""
    from services.fabric.apply import up  # noqa: PLC0415
    from services.fabric.host_file import load_host_file  # noqa: PLC0415

    host = load_host_file(file)
    steps = up(host, _print_step)
    print_note(_count(host, steps, "taken"))
    if not host.frr.start:
        _print_load_hint(host)
    if as_json:
        print_json({"host": host.name, "steps": [_plain(step) for step in steps]})


@app.command("check", epilog=EXAMPLES)
def check_command(file: HostFileArgument, *, as_json: JsonOption = False) -> None:
    """Compare the host with its file, and FRR's sessions with both. Exit code 1 if anything differs."""
    from services.fabric.check import check  # noqa: PLC0415
    from services.fabric.host_file import load_host_file  # noqa: PLC0415

    host = load_host_file(file)
    differences = check(host)
    if as_json:
        print_json({"host": host.name, "differences": [_plain_difference(found) for found in differences]})
    else:
        for found in differences:
            _print_difference(found)
    if differences:
        print_note(f"{host.name}: {len(differences)} differences")
        raise typer.Exit(ExitCode.FAILED)
    print_note(f"{host.name} is as {file} says, and every session is up")


@app.command("down", epilog=EXAMPLES)
def down_command(file: HostFileArgument, *, as_json: JsonOption = False) -> None:
    """Undo what `up` did on this host, and no more. What was modified externally since is left."""
    from services.fabric.apply import down  # noqa: PLC0415
    from services.fabric.host_file import load_host_file  # noqa: PLC0415

    host = load_host_file(file)
    steps = down(host, _print_step)
    print_note(_count(host, steps, "taken") if steps else f"{host.name}: `fabric up` has done nothing here")
    if as_json:
        print_json({"host": host.name, "steps": [_plain(step) for step in steps]})


@app.command("drain", epilog=EXAMPLES)
def drain_command(
    file: HostFileArgument,
    uplinks: Annotated[
        list[str] | None, typer.Argument(help="Uplinks; none: all of this node.", metavar="[UPLINK]...")
    ] = None,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Let them carry again.")] = False,
    only_status: Annotated[bool, typer.Option("--status", help="Change nothing, only show.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Move traffic away from uplinks in both directions, without loss. Until FRR is restarted, or --undo.

    Takes 2 s for each step. If all are drained, traffic goes on over them: others are told.
    """
    from dataclasses import asdict  # noqa: PLC0415

    from services.fabric.drain import drain, select_uplinks, status, undrain  # noqa: PLC0415
    from services.fabric.host_file import load_host_file  # noqa: PLC0415

    host = load_host_file(file)
    picked = select_uplinks(host, uplinks or [])
    change = undrain if undo else drain
    found = status(host) if only_status else change(host, picked, progress=print_note)
    if as_json:
        print_json({"host": host.name, "uplinks": [asdict(state) for state in found]})
        return
    for state in found:
        said = "[yellow]drained[/]" if state.drained else "[green]in use[/]"
        stdout_console().print(f"{escape(state.uplink)}: {said}, {state.routes} routes forward over it")
    if all(state.drained for state in found):
        print_note("every uplink is drained, so all go on carrying; what other hosts announce too is reached there")


async def check_network_edge(*, requested: bool) -> list[Finding]:
    """The doctor's checks of the network edge, where one is set up or where they are requested; else one line."""
    from services.fabric import doctor  # noqa: PLC0415 - quick --help

    return await doctor.check_network_edge(requested=requested)


def _print_load_hint(host: HostFile) -> None:
    from services.fabric.frr_text import DAEMON_PRIORITIES, FrrPaths  # noqa: PLC0415
    from services.fabric.layout import load_command  # noqa: PLC0415

    command = load_command(host, FrrPaths(), next(iter(DAEMON_PRIORITIES)))
    print_note(f"FRR is not touched. To load its configuration: {command} && vtysh -c 'write memory'")


def _print_step(step: Step) -> None:
    if step.writes or step.action == "leave":
        colour = _COLOURS[step.action]
        line = f"[{colour}]{step.action:>8}[/]  {escape(step.name)}  [dim]{escape(step.reason)}[/]"
        stderr_console().print(line)


def _print_difference(found: Difference) -> None:
    stdout_console().print(
        f"[red]{escape(found.name)}[/]: {escape(found.found)}, should be {escape(found.wanted)}\n"
        f"    [dim]{escape(found.remedy)}[/]"
    )


def _count(host: HostFile, steps: list[Step], verb: str) -> str:
    writing = sum(step.writes for step in steps)
    if not writing:
        return f"{host.name}: nothing to do, {len(steps)} of {len(steps)} steps are done already"
    return f"{host.name}: {writing} of {len(steps)} steps {verb}"


def _plain(step: Step) -> dict[str, Any]:
    return {
        "action": str(step.action),
        "name": step.name,
        "reason": step.reason,
        "commands": list(step.commands),
    }


def _plain_difference(found: Difference) -> dict[str, Any]:
    return {"name": found.name, "found": found.found, "wanted": found.wanted, "remedy": found.remedy}
