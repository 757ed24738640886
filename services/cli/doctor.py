"""`turnbuckle doctor`: what this host supports, what is missing, and the command that mends it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from services.cli.connection import CONNECT_WITHIN_S, ContextOption, ServerOption, find_server, quiet_logs
from services.cli.doctor_checks import run_checks
from services.cli.doctor_finding import Finding, Level
from services.cli.failure import ExitCode
from services.cli.output import print_json, stdout_console

EXAMPLES = """
Examples:

  turnbuckle doctor

  turnbuckle doctor --json | jq '.[] | select(.level != "ok")'
"""
_MARKS: Final = {Level.OK: "[green]ok[/]", Level.NOTE: "[cyan]note[/]", Level.MISSING: "[yellow]missing[/]",
                 Level.FAILED: "[bold red]failed[/]"}  # fmt: skip


def doctor_command(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Examine this host and the bus: what is supported, how memory is guarded, who decides, what was left behind.

    Exit code 1 if something that is required is missing, or a container hangs at its memory limit and nobody looks
    after it; the rest is said and worked around.
    """
    quiet_logs()
    options = dataclasses.replace(find_server(server, context), connect_deadline_s=CONNECT_WITHIN_S)
    findings = asyncio.run(run_checks(options, _check_docker))
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        stdout_console().print(_table(findings))
    if any(finding.level is Level.FAILED for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


def _check_docker() -> Finding:
    from services.cli.docker_deployment import check_docker  # noqa: PLC0415 - the SDK loads slowly

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
