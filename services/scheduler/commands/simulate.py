"""`turnbuckle jobs simulate`: a trace of jobs under several policies, by the decisions of the scheduler itself."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from services._runtime.command.connection import ContextOption, ServerOption
from services._runtime.command.errors import BadFileError, CommandError, MissingFileError
from services._runtime.command.output import print_json, print_note, stdout_console

if TYPE_CHECKING:
    from services.scheduler.comparison import Figures
    from services.scheduler.core.jobs import Job, Node
    from services.scheduler.core.simulation import Run
    from services.scheduler.trace import Elasticity

EXAMPLES: Final = """
Examples:

  turnbuckle jobs simulate trace.csv --slots 60

  turnbuckle jobs simulate trace.csv --cluster 15x4 --policy index,las,srsf --preemption-cost 60

  turnbuckle jobs simulate --history 30d --slots 60                          (the jobs that the bus has records of)

  turnbuckle jobs simulate trace.csv --slots 60 --estimate-error 0.25 --plot jobs.png --json

  turnbuckle jobs simulate trace.csv --slots 60 --policy index --elastic 1:4     (with and without elastic jobs)

A trace is a CSV file with a row for each job: job, slots, submitted_s and duration_s (or job_id, num_gpu, submit_time
and duration, as Tiresias and Gavel have them). Times are in seconds. A job with min_workers or max_workers is elastic;
slots and duration are then those of the number of workers that it asks for. docs/scheduler.md has the other columns.
"""
_CLUSTER: Final = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,3})")
_PERIOD: Final = re.compile(r"([1-9][0-9]{0,4})([dh])")
_WORKERS: Final = re.compile(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3})")
_PERIOD_S: Final = {"d": 86_400.0, "h": 3_600.0}
_MOST_SLOTS: Final = 1_000_000
_ELASTIC: Final = " elastic"
"""Behind the name of a policy, in the table."""


def simulate_command(  # noqa: PLR0913 - a command's options are its parameters
    trace: Annotated[Path | None, typer.Argument(help="The jobs: a CSV file.", show_default=False)] = None,
    *,
    history: Annotated[
        str, typer.Option("--history", help="Instead of a file: your own jobs of so long, such as 30d or 12h.")
    ] = "",
    slots: Annotated[int, typer.Option("--slots", min=0, max=_MOST_SLOTS, help="Of one large node.")] = 0,
    cluster: Annotated[str, typer.Option("--cluster", help="Nodes and slots of each, such as 15x4.")] = "",
    policy: Annotated[str, typer.Option("--policy", help="Names, or all.")] = "all",
    cost_s: Annotated[
        float,
        typer.Option("--preemption-cost", min=0, max=86_400, help="Seconds to load a checkpoint after a preemption."),
    ] = 60.0,
    error: Annotated[
        float, typer.Option("--estimate-error", min=0.01, max=3, help="Of estimates, as a logarithm: 0.25 is 25 %.")
    ] = 0.25,
    estimated: Annotated[
        float, typer.Option("--estimated", min=0, max=1, help="Share of the jobs that have an estimate.")
    ] = 1.0,
    wait_days: Annotated[
        float, typer.Option("--wait-at-most", min=0, help="Days in all after which a job goes first (index); 0: never.")
    ] = 0.0,
    elastic: Annotated[
        str,
        typer.Option(
            "--elastic",
            metavar="LEAST:MOST",
            help="Numbers of workers that each job may have besides its own, such as 1:4: run with and without.",
        ),
    ] = "",
    pause_s: Annotated[
        float,
        typer.Option(
            "--resize-pause", min=0, max=86_400, help="Seconds without progress at a change of the number of workers."
        ),
    ] = 10.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the estimates' errors.")] = 2026,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a picture (PNG) as well.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Simulate a trace of jobs under several policies, deciding as the scheduler does.

    Stretch is a job's time from submission to end (JCT) over its duration, or over 10 minutes where that is shorter.
    Where jobs are elastic each policy runs twice: with as many workers as each job asks for, and with what may change.
    """
    from services.scheduler.comparison import INDEX_ESTIMATED, POLICIES, figures, with_estimates  # noqa: PLC0415 - numpy
    from services.scheduler.core.policies import LargestIndex  # noqa: PLC0415 - as above
    from services.scheduler.core.simulation import simulate  # noqa: PLC0415 - as above

    names = list(POLICIES) if policy == "all" else _names(policy)
    if unknown := [name for name in names if name not in POLICIES]:
        raise typer.BadParameter(f"no policy {unknown[0]!r}: there are {', '.join(POLICIES)}", param_hint="--policy")
    if (trace is None) == (not history):
        raise typer.BadParameter("either a file or --history says which jobs", param_hint="TRACE")
    nodes = _nodes(slots, cluster)
    elasticity = _elasticity(elastic, pause_s)
    jobs = _own_jobs(history, elasticity, server, context) if trace is None else _trace(trace, elasticity)
    runs: dict[str, Run] = {}
    for name in names:
        print_note(f"{name}: {POLICIES[name][0]}")
        known = with_estimates(jobs, error, estimated, seed) if name == INDEX_ESTIMATED else jobs
        chosen = POLICIES[name][1](known)
        if isinstance(chosen, LargestIndex) and wait_days:
            chosen = replace(chosen, wait_at_most_s=wait_days * _PERIOD_S["d"])
        for suffix, variant in _variants(known, nodes).items():
            runs[f"{name}{suffix}"] = simulate(variant, nodes, chosen, cost_s)
    found = [figures(name, run) for name, run in runs.items() if run.ended]
    if not found:
        raise CommandError(f"none of {len(jobs)} jobs fits into {sum(node.slots for node in nodes)} slots")
    left_out = next(iter(runs.values())).too_large
    if as_json:
        print_json([_as_dict(each) | {"too_large": len(left_out)} for each in found])
    else:
        stdout_console().print(_table(found))
        if left_out:
            print_note(f"{len(left_out)} of {len(jobs)} jobs need more slots than there are, and were left out")
    if plot is not None:
        _draw(runs, _caption(jobs, nodes, cost_s), plot)


def _as_dict(figures: Figures) -> dict[str, Any]:
    """For JSON: the policy's name alone; ``elastic`` is a field."""
    return figures.as_dict() | {"policy": figures.policy.removesuffix(_ELASTIC)}


def _elasticity(workers: str, pause_s: float) -> Elasticity:
    from schemas.scheduling import MAX_WORKERS  # noqa: PLC0415 - quick --help
    from services.scheduler.trace import Elasticity  # noqa: PLC0415 - as above

    if not workers:
        return Elasticity(pause_s=pause_s)
    match = _WORKERS.fullmatch(workers)
    least, most = (int(match[1]), int(match[2])) if match else (1, 0)
    if not least <= most <= MAX_WORKERS:
        raise typer.BadParameter(
            f"{workers!r} is not LEAST:MOST, such as 1:4, with at most {MAX_WORKERS} workers", param_hint="--elastic"
        )
    return Elasticity(least, most, pause_s)


def _variants(jobs: list[Job], nodes: list[Node]) -> dict[str, list[Job]]:
    """The jobs by what is added to a policy's name: where some are elastic all without that, too.

    Those are left out of both that are too large as they ask for: else the rows would be of different jobs.
    """
    from services.scheduler.core.placement import Room  # noqa: PLC0415 - quick --help

    if not any(job.elastic for job in jobs):
        return {"": jobs}
    empty = Room(nodes)
    rigid = [replace(job, elastic=None) for job in jobs]
    too_large = {job.name for job in rigid if empty.find(job) is None}
    return {"": rigid, _ELASTIC: [job for job in jobs if job.name not in too_large]}


def _names(policies: str) -> list[str]:
    """Policies of a list with commas; those with Tiresias' names under the names here."""
    from services.scheduler.core.live_policies import SYNONYMS  # noqa: PLC0415 - quick --help

    return [SYNONYMS.get(name, name) for name in policies.replace(" ", "").split(",")]


def _trace(file: Path, elasticity: Elasticity) -> list[Job]:
    from services.scheduler.trace import TraceError, read_trace  # noqa: PLC0415 - quick --help

    try:
        return read_trace(file, elasticity)
    except TraceError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise MissingFileError(f"{file} cannot be read: {error.__cause__.strerror}") from error
        raise BadFileError(str(error)) from error


def _own_jobs(history: str, elasticity: Elasticity, server: str | None, context: str | None) -> list[Job]:
    from services._jobs.job_records import read_records  # noqa: PLC0415 - quick --help
    from services.scheduler.trace import trace_of  # noqa: PLC0415 - as above

    match = _PERIOD.fullmatch(history)
    if match is None:
        raise typer.BadParameter(f"{history!r} is not a number of days or hours, such as 30d", param_hint="--history")
    since_s = time.time() - int(match[1]) * _PERIOD_S[match[2]]
    jobs, untold = trace_of(read_records(server, context), since_s, elasticity)
    if untold:
        print_note(f"{untold} records tell no start or duration, and are left out")
    if not jobs:
        raise CommandError(
            f"no job began within {history}: `turnbuckle jobs list` shows those that are known. `turnbuckle run "
            "collector` keeps a record of each job that ends while it runs, and none of those before"
        )
    return jobs


def _nodes(slots: int, cluster: str) -> list[Node]:
    if bool(slots) == bool(cluster):
        raise typer.BadParameter("either --slots or --cluster says how large the cluster is", param_hint="--slots")
    from services.scheduler.core.jobs import Node  # noqa: PLC0415 - quick --help

    if slots:
        return [Node("all", slots)]
    match = _CLUSTER.fullmatch(cluster)
    if match is None:
        raise typer.BadParameter(f"{cluster!r} is not NODESxSLOTS, such as 15x4", param_hint="--cluster")
    count, each = int(match[1]), int(match[2])
    width = len(str(count))
    return [Node(f"n{number:0{width}}", each) for number in range(1, count + 1)]


def _caption(jobs: list[Job], nodes: list[Node], cost_s: float) -> str:
    return f"{len(jobs)} jobs on {sum(node.slots for node in nodes)} slots; a preemption costs {cost_s:g} s"


def _draw(runs: dict[str, Run], caption: str, file: Path) -> None:
    from services.scheduler.pictures import draw  # noqa: PLC0415 - it loads matplotlib

    try:
        draw(runs, caption, file)
    except OSError as error:
        raise BadFileError(f"{file}: {error.strerror}") from error
    print_note(f"drawn: {file}")


def _table(found: Sequence[Figures]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("policy")
    for name in ("mean JCT", "median", "p95", "p99 stretch", "waited", "makespan", "preemptions a job", "lost"):
        table.add_column(name, justify="right")
    with_sizes = any(each.elastic for each in found)
    if with_sizes:
        table.add_column("changes of size a job", justify="right")
    for each in found:
        table.add_row(
            each.policy,
            *(_seconds(value) for value in (each.mean_jct_s, each.median_jct_s, each.p95_jct_s)),
            f"{each.p99_stretch:.1f}",
            *(_seconds(value) for value in (each.mean_wait_s, each.makespan_s)),
            f"{each.preemptions_per_job:.2f}",
            f"{100 * each.lost_share:.1f} %",
            *([f"{each.resizes_per_job:.2f}"] if with_sizes else []),
        )
    return table


def _seconds(value: float) -> str:
    return f"{value:,.0f} s"
