"""`turnbuckle jobs`: records of training jobs (`list|show|import|export`), and the scheduler's commands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from schemas.codec import to_plain
from schemas.jobs import JobRecord, JobState
from services._jobs.job_records import read_records
from services._runtime.command.connection import ContextOption, ServerOption
from services._runtime.command.errors import CommandError
from services._runtime.command.lazy import LazyGroup
from services._runtime.command.output import print_json, print_note, stdout_console
from services._runtime.command.tool_command import add_tool
from services.cli.advise.view import configuration_name, dollars, seconds
from services.collector.commands import EXPORT, IMPORT
from services.scheduler.commands import COMMANDS

_RECORDS: Final = "Records of ended jobs"
_NO_RECORDS: Final = (
    "no record of an ended job is known: turnbuckle run collector keeps the scheduler's, turnbuckle jobs import takes "
    "others in; turnbuckle jobs queue lists what runs and waits"
)
EXAMPLES: Final = """
Examples:

  turnbuckle jobs submit --workers 2 -- python train.py      (then: turnbuckle jobs queue)

  turnbuckle jobs list --task image-cnn

  turnbuckle jobs list --json | jq 'map(select(.state == "out_of_memory")) | length'

  turnbuckle jobs show multicloud_ibm-7db18a33f4b5208e      (names: turnbuckle jobs list --all)

  turnbuckle jobs import results.csv --mapping mapping.yaml

  turnbuckle jobs export all.parquet
"""


class JobsGroup(LazyGroup):
    """The scheduler's commands are imported when they are used."""

    table = COMMANDS


app = typer.Typer(
    cls=JobsGroup,
    help="Run training jobs on your nodes; and records of jobs: what ran where, what it took and cost.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("list", epilog=EXAMPLES, rich_help_panel=_RECORDS)
def list_command(  # noqa: PLR0913 - a command's options are its parameters
    *,
    task: Annotated[str, typer.Option("--task", help="Only jobs of this task.")] = "",
    dataset: Annotated[str, typer.Option("--dataset", help="Only jobs of this collection.")] = "",
    state: Annotated[JobState | None, typer.Option("--state", help="Only jobs that ended so.")] = None,
    every: Annotated[bool, typer.Option("--all", help="One line per job instead of one per task.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all records as JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """List the records of ended jobs; `turnbuckle jobs queue` lists what runs and waits."""
    found = read_records(server, context)
    chosen = [
        record
        for record in found
        if task in {"", record.task.task} and dataset in {"", record.dataset} and state in {None, record.state}
    ]
    if as_json:
        print_json([to_plain(record) for record in chosen])
        return
    if not chosen:
        print_note(f"no such job ({len(found)} are known)" if found else _NO_RECORDS)
        return
    stdout_console().print(_each(chosen) if every else _by_task(chosen))


@app.command("show", epilog=EXAMPLES, rich_help_panel=_RECORDS)
def show_command(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Show everything that is known of one job."""
    found = read_records(server, context, job) if job else []
    if not found:
        raise CommandError(f"no job {job!r} is known: turnbuckle jobs list --all shows those that are")
    if as_json:
        print_json(to_plain(found[0]))
        return
    fields = _flat(found[0].model_dump(mode="json"))
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        stdout_console().print(f"[dim]{escape(name):{width}}[/]  {escape(value)}")


add_tool(app, IMPORT, "import", _RECORDS)
add_tool(app, EXPORT, "export", _RECORDS)


def _by_task(records: Sequence[JobRecord]) -> Table:
    groups: defaultdict[tuple[str, str], list[JobRecord]] = defaultdict(list)
    for record in records:
        groups[record.dataset, record.task.task].append(record)
    table = Table(box=None, header_style="bold")
    for name, justify in (
        ("dataset", "left"),
        ("task", "left"),
        ("jobs", "right"),
        ("succeeded", "right"),
        ("configurations", "right"),
        ("time", "right"),
        ("cost", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for (dataset, task), mine in sorted(groups.items()):
        ran = [record for record in mine if record.state is JobState.SUCCEEDED]
        times = sorted(record.duration_s for record in ran if record.duration_s is not None)
        costs = sorted(record.cost_usd for record in ran if record.cost_usd is not None)
        kinds = {configuration_name(record.configuration) for record in mine}
        table.add_row(
            escape(dataset),
            escape(task),
            str(len(mine)),
            str(len(ran)),
            str(len(kinds)),
            f"{seconds(times[0])} to {seconds(times[-1])}" if times else "-",
            f"{dollars(costs[0])} to {dollars(costs[-1])}" if costs else "-",
        )
    return table


def _each(records: Sequence[JobRecord]) -> Table:
    table = Table(box=None, header_style="bold")
    for name in ("job", "task", "configuration", "state"):
        table.add_column(name)
    table.add_column("time", justify="right")
    table.add_column("cost", justify="right")
    for record in records:
        table.add_row(
            escape(record.job),
            escape(record.task.task),
            escape(configuration_name(record.configuration)),
            str(record.state),
            "-" if record.duration_s is None else seconds(record.duration_s),
            "-" if record.cost_usd is None else dollars(record.cost_usd),
        )
    return table


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Every field that says something, with its path."""
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{name}.{key}" if name else key)]
    if value in (None, "", [], 0, False):
        return []
    if name.endswith("_ns"):
        return [(name.removesuffix("_ns"), f"{datetime.fromtimestamp(value // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC")]
    if isinstance(value, float):
        return [(name, f"{value:.6g}")]
    return [(name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))]
