"""`turnbuckle up`: everything on this host with one command."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.table import Table

from schemas.apps import Policy
from services._runtime.command.errors import CommandError
from services._runtime.command.output import format_bytes, format_duration, print_json, print_note, stdout_console
from services._runtime.file_lock import lock_present_file
from services._runtime.install_hint import package_missing

EXAMPLES = """
Examples:

  turnbuckle up

  turnbuckle up --demo

  turnbuckle up --demo --allocators 2

  turnbuckle up --cluster 4x2          (four nodes of two slots on this machine: turnbuckle jobs submit)

  sudo turnbuckle up --cluster 4x2 --racks 2 --uplink 100Mbit          (jobs share the racks' uplinks)

  turnbuckle up --demo --for 30 --json | jq '{throttled_share, static: .static.throttled_share}'
"""


def up_command(  # noqa: PLR0913 - a command's options are its parameters
    *,
    demo: Annotated[
        bool, typer.Option("--demo", help="Run a demo application beside a twin with static limits.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--for", min=1, metavar="SECONDS", help="Stop after so long.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="At the end print one JSON object, and nothing else.")
    ] = False,
    simulate: Annotated[bool, typer.Option("--simulate", help="Simulate the host: touch no real container.")] = False,
    port: Annotated[int, typer.Option("--port", min=1, max=65435, help="Port of NATS; the next free if taken.")] = 4222,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="DIR", help="Keep logs and NATS's data here between runs.")
    ] = None,
    allocators: Annotated[
        int, typer.Option("--allocators", min=1, max=16, help="Replicas that share the applications.")
    ] = 1,
    cluster: Annotated[
        str,
        typer.Option("--cluster", metavar="NODESxSLOTS", help="Also a scheduler for training jobs, and so many nodes."),
    ] = "",
    racks: Annotated[
        int | None,
        typer.Option(
            "--racks", min=2, max=16, help="With --cluster: nodes in so many racks, with --uplink. Needs root."
        ),
    ] = None,
    uplink: Annotated[
        str, typer.Option("--uplink", metavar="RATE", help="Of each rack, shared by its nodes: 100Mbit, 25Gbit.")
    ] = "",
    no_live: Annotated[bool, typer.Option("--no-live", help="No live view.")] = False,
    policy: Annotated[Policy, typer.Option("--policy", help="The demo's CPU policy.")] = "waterfill",
    maker: Annotated[
        Literal["auto", "docker", "processes"], typer.Option("--containers", help="What the demo's containers are.")
    ] = "auto",
    ready_timeout_s: Annotated[
        float | None,
        typer.Option(
            "--ready-timeout", min=1, metavar="SECONDS", help="How long each process may take to start; default: 30."
        ),
    ] = None,
) -> None:
    """Start NATS, allocators and agent, each its own process, and run until Ctrl-C (twice: at once).

    Other commands find it at 127.0.0.1:4222. As root it manages real containers; otherwise it simulates a host and
    says so. Logs are in turnbuckle-run/. With --cluster it runs training jobs, too, on nodes that share this machine's
    cores; they end with it. If a service dies, its log is shown and the exit code is 70; if one of several allocators
    dies, the others take its applications over. One agent manages a host: a second one is refused (78).
    """
    from services._runtime.command.connection import find_server  # noqa: PLC0415 - quick --help
    from services.cli.apps.top import show_live  # noqa: PLC0415 - quick --help
    from services.cli.toolkit.supervisor import READY_TIMEOUT_S  # noqa: PLC0415 - quick --help
    from services.cli.up.cluster import parse_cluster, with_racks  # noqa: PLC0415 - quick --help
    from services.cli.up.up_run import UpOptions, UpRun, run_up  # noqa: PLC0415

    timeout_s = READY_TIMEOUT_S if ready_timeout_s is None else ready_timeout_s
    nodes = with_racks(parse_cluster(cluster) if cluster else None, racks, uplink)
    options = UpOptions(demo, seconds, simulate, port, store, policy, maker, allocators, timeout_s, nodes)
    root = find_server(None, None).root
    watchable = not as_json and not no_live and sys.stdout.isatty()
    with hold_run_directory(store) as directory:
        run = UpRun(options, directory, root)
        asyncio.run(run_up(run, show_live if watchable else None))
        report = _demo_report(run) if demo else run.report()
    if as_json:
        print_json(report)
    elif demo:
        stdout_console().print(_comparison(report))


def _demo_report(run: Any) -> dict[str, Any]:
    """The report, also as a file, with the picture beside it."""
    report: dict[str, Any] = run.report()
    picture = _draw(run, report)
    report["picture"] = None if picture is None else str(picture)
    if picture is not None:
        print_note(f"picture: {picture}")
    (run.directory / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _draw(run: Any, report: dict[str, Any]) -> Path | None:
    """The picture; None: nothing was recorded, or matplotlib is not installed, and a note says so."""
    try:
        from services.cli.up.plot import StaticLimits, draw  # noqa: PLC0415 - matplotlib loads slowly
    except ModuleNotFoundError as error:
        print_note(f"no picture: {package_missing(error.name or 'matplotlib', 'cli')}")
        return None
    recording = run.recording.apps.get(run.plan.specs[0].name)
    if recording is None:
        return None
    host = "simulated host" if report["simulated"] else f"{report['maker']}, {report['machine']['cpus']} CPUs"
    caption = f"{recording.app}: limits follow usage (policy {report['policy']}, {report['seconds']:g} s, {host})"
    static = StaticLimits(run.plan.limits.quota_us, run.plan.limits.memory_bytes)
    return draw(recording, static, caption, run.directory / "demo.png")


def _comparison(report: dict[str, Any]) -> Table:
    """The managed application beside its twin."""
    table = Table(
        title=f"{report['seconds']:g} s, {report['maker']}", box=None, header_style="bold", title_justify="left"
    )
    table.add_column("")
    table.add_column("Turnbuckle", justify="right")
    table.add_column("static limits", justify="right")
    static = report["static"]
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "containers": lambda side: str(side["containers"]),
        "throttled periods": lambda side: f"{side['throttled_share']:.1%}",
        "median CPU slack": lambda side: _cores(side["median_cpu_slack_cores"]),
        "median memory slack": lambda side: _size(side["median_memory_slack_bytes"]),
        "out-of-memory kills": lambda side: str(side["oom_kills"]),
        "memory granted at once": lambda side: _granted(side["memory_events"]),
        "waits at the memory limit": lambda side: _waits(side["memory_events"]),
        "limit changes decided": lambda side: str(side["decisions"]),
        "quota writes": lambda side: _count(side["quota_writes"]),
        "writes of an unchanged value": lambda side: _count(side["no_op_writes"]),
    }
    for label, show in rows.items():
        table.add_row(label, show(report), show(static))
    return table


def _granted(events: dict[str, int]) -> str:
    return f"{format_bytes(events['granted_bytes'])} in {events['grants']}" if events["grants"] else "0"


def _waits(events: dict[str, int]) -> str:
    return (
        f"{events['oom_waits']}, at most {format_duration(events['longest_pause_us'])}" if events["oom_waits"] else "0"
    )


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def _cores(cores: float | None) -> str:
    return "-" if cores is None else f"{cores:.3f} cores"


def _size(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


RUN_DIRECTORY: Final = "turnbuckle-run"
_TRIED: Final = 100
_LOCK: Final = ".lock"


@contextmanager
def hold_run_directory(store: Path | None) -> Iterator[Path]:
    """The directory that the user chose, or ``turnbuckle-run``, or the next free one: ``turnbuckle-run-2``.

    Raises:
        CommandError: it cannot be made, or another `turnbuckle up` uses the one that the user chose.
    """
    default = Path(RUN_DIRECTORY)
    candidates = [default, *(default.with_name(f"{RUN_DIRECTORY}-{number}") for number in range(2, _TRIED))]
    for candidate in candidates if store is None else [store]:
        directory = candidate.absolute()
        if (lock := _hold(directory)) is not None:
            try:
                yield directory
            finally:
                os.close(lock)
            return
    raise CommandError(f"{store or default} is used by another `turnbuckle up`; choose another one with --store DIR")


def _hold(directory: Path) -> int | None:
    """Make it and lock it; None: another process holds it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return lock_present_file(directory / _LOCK)
    except OSError as error:
        raise CommandError(f"{directory} cannot be made or locked: {error.strerror}; use --store DIR") from error
