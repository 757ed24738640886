"""`turnbuckle doctor`: what this host supports, what is missing, and the command that mends it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from services._runtime.command.connection import CONNECT_TIMEOUT_S, ContextOption, ServerOption, find_server, quiet_logs
from services._runtime.command.finding import Finding, Level
from services._runtime.command.output import print_json, stdout_console
from services._runtime.exit_code import ExitCode
from services.cli.doctor.bus import BUS
from services.cli.doctor.checks import run_checks

EXAMPLES = """
Examples:

  turnbuckle doctor

  turnbuckle doctor --network       (before a fabric is set up: could this host have one?)

  turnbuckle doctor --json | jq '.[] | select(.level != "ok")'
"""
_MARKS: Final = {
    Level.OK: "[green]ok[/]",
    Level.NOTE: "[cyan]note[/]",
    Level.MISSING: "[yellow]missing[/]",
    Level.FAILED: "[bold red]failed[/]",
}


def doctor_command(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    network: Annotated[
        bool, typer.Option("--network", help="Examine the network edge also where none is set up.")
    ] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Examine this host and the bus: what is supported, how memory is guarded, who decides, what was left behind.

    Exit code 1 if something that is required is missing, or a container hangs at its memory limit and nobody looks
    after it; 69 if no NATS server answers; the rest is said and worked around. The network edge is examined where a
    fabric, FRR, a reconciler or a fast path is set up.
    """
    quiet_logs()
    options = dataclasses.replace(find_server(server, context), connect_deadline_s=CONNECT_TIMEOUT_S)
    findings = asyncio.run(run_checks(options, _check_docker, network=network))
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        stdout_console().print(_table(findings))
    if code := exit_code(findings):
        raise typer.Exit(code)


def exit_code(findings: list[Finding]) -> int:
    """0, 1 where something failed, 69 where the bus is missing; other things that are missing are optional."""
    if any(finding.level is Level.FAILED for finding in findings):
        return ExitCode.FAILED
    if any(finding.level is Level.MISSING and finding.name == BUS for finding in findings):
        return ExitCode.UNAVAILABLE
    return 0


def _check_docker() -> Finding:
    from services.cli.apps.docker_deployment import check_docker  # noqa: PLC0415 - the SDK loads slowly

    return check_docker()


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mend = f"\n[dim]→ {escape(finding.mend)}[/]" if finding.mend else ""
        table.add_row(_MARKS[finding.level], finding.name, f"{escape(finding.found)}{mend}")
    return table
