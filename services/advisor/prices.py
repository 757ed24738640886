"""The price catalogue as a tool: ``python -m services.advisor.prices list`` and ``... refresh``.

Prints one JSON object a line on standard output (``event`` is row, result or error), text for people on standard
error. Exit codes: 0; 2 usage; 65 bad data; 66 no such file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from services._runtime.command.tool_events import emit, emit_error, say
from services._runtime.command.tool_parser import ToolParser
from services._runtime.exit_code import ExitCode
from services._runtime.stdout import discard_stdout
from services.advisor.core.catalogue import BadCatalogueError, Snapshot, parse_snapshot, times_factor
from services.advisor.core.skypilot_catalogue import parse_skypilot
from services.advisor.price_files import directories, parse_day, read_snapshots, read_text, write_snapshot


def number_within(least: float, most: float) -> Callable[[str], float]:
    """A type for `add_argument`: a number from `least` to `most`."""

    def number(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least:g} to {most:g}")
        return value

    return number


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = ToolParser(prog="turnbuckle prices", description="Dated prices of machines; old snapshots stay.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="snapshots, or with --source the machines of the newest one")
    refresh = commands.add_parser("refresh", help="take a new snapshot in")
    for each in (listing, refresh):
        each.add_argument("--directory", default="", metavar="DIR", help="where refreshed snapshots are kept")
        each.add_argument("--as-of", default="", metavar="DAY", help="the day, such as 2026-11-21")
        each.add_argument("--source", default="", metavar="NAME", help="the catalogue's name, such as gcp-vertex")
    what = refresh.add_mutually_exclusive_group(required=True)
    what.add_argument("--file", type=Path, metavar="FILE.JSON", help="a snapshot in the shipped files' format")
    what.add_argument("--skypilot", type=Path, metavar="VMS.CSV", help="a vms.csv of SkyPilot's catalogue")
    refresh.add_argument("--region", default="us-central1", help="of SkyPilot's catalogue (default: %(default)s)")
    refresh.add_argument("--provider", default="gcp", help="whose machines these are (default: %(default)s)")
    refresh.add_argument(
        "--times",
        type=number_within(0.01, 100.0),
        default=1.0,
        metavar="FACTOR",
        help="SkyPilot's prices times this, such as 1.15 with --source gcp-vertex",
    )
    return parser.parse_args(argv)


def _list(options: argparse.Namespace) -> None:
    snapshots, problems = read_snapshots(directories(options.directory))
    for problem in problems:
        say(problem)
    last = parse_day(options.as_of) if options.as_of else None
    wanted = [
        one
        for one in sorted(snapshots, key=lambda each: (each.source, each.as_of, each.made))
        if (not options.source or one.source == options.source) and (last is None or one.as_of <= last)
    ]
    if not wanted:
        known = ", ".join(sorted({one.source for one in snapshots})) or "none"
        raise BadCatalogueError(f"no such snapshot (sources known: {known})")
    if options.source:
        newest = wanted[-1]
        for machine in newest.machines:
            fields = {name: getattr(machine, name) for name in machine.__dataclass_fields__}
            emit("row", source=newest.source, as_of=newest.as_of.isoformat(), **fields)
        emit("result", **_summary(newest))
        return
    for one in wanted:
        emit("row", **_summary(one))
    emit("result", snapshots=len(wanted), problems=problems)


def _summary(one: Snapshot) -> dict[str, Any]:
    return {
        "source": one.source,
        "provider": one.provider,
        "region": one.region,
        "as_of": one.as_of.isoformat(),
        "machines": len(one.machines),
        "digest": one.digest,
        "note": one.note,
        "with_accelerators": sum(machine.accelerators > 0 for machine in one.machines),
        "spot": sum(machine.spot_usd_per_hour is not None for machine in one.machines),
    }


def _refresh(options: argparse.Namespace) -> None:
    now = datetime.now(UTC)
    made = now.isoformat(timespec="microseconds")
    if options.skypilot is not None:
        day = parse_day(options.as_of) if options.as_of else now.date()
        source = options.source or f"{options.provider}-skypilot"
        note = f"Read from SkyPilot's catalogue ({options.skypilot.name}), region {options.region}, lowest zone."
        empty = Snapshot(source, options.provider, day, options.region, note, (), made)
        snapshot = parse_skypilot(read_text(options.skypilot), empty, str(options.skypilot))
        snapshot = times_factor(snapshot, options.times)
    else:
        snapshot = parse_snapshot(read_text(options.file), str(options.file))
        if options.as_of or options.source or options.times != 1.0:
            raise BadCatalogueError("day, source and prices stand in the file itself: no --as-of, --source and --times")
    for sentence in snapshot.left_out:
        say(sentence)
    path, new = write_snapshot(snapshot, directories(options.directory)[1])
    emit("result", file=str(path), new=new, left_out=snapshot.left_out, **_summary(snapshot))


def main(argv: Sequence[str]) -> int:
    """Run the tool; returns the exit code."""
    options = _arguments(argv)
    try:
        {"list": _list, "refresh": _refresh}[options.command](options)
    except BadCatalogueError as error:
        say(str(error))
        return emit_error(
            str(error), ExitCode.NO_INPUT if isinstance(error.__cause__, FileNotFoundError) else ExitCode.BAD_DATA
        )
    except BrokenPipeError:
        discard_stdout()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
