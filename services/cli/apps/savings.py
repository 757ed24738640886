"""`turnbuckle savings`: what limits saved of each application and day, or would have saved in mode `observe`."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from schemas.streams import SAVINGS_STREAM
from schemas.subjects import SAVINGS
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import ContextOption, ServerOption, connected, find_server
from services._runtime.command.errors import CommandError, UsageError
from services._runtime.command.output import print_json, print_note, print_warning, stdout_console
from services.cli.apps.savings_report import Key, Prices, SavingsReport, Tally, covered_share

EXAMPLES = """
Examples:

  turnbuckle savings

  turnbuckle savings --app shop --days 30

  turnbuckle savings --core-hour-price 0.03 --gib-hour-price 0.004 --currency EUR

  turnbuckle savings --json | jq '.rows[] | {day, app, saved: .cpu.saved_core_h}'
"""


def savings_command(  # noqa: PLR0913 - a command's options are its parameters
    *,
    app: Annotated[str | None, typer.Option("--app", "-a", help="Only this application.")] = None,
    days: Annotated[int, typer.Option("--days", "-d", min=1, max=400, help="Days (UTC), today among them.")] = 7,
    core_hour_price: Annotated[
        float | None, typer.Option("--core-hour-price", min=0, help="Price of a core for an hour, in --currency.")
    ] = None,
    gib_hour_price: Annotated[
        float | None, typer.Option("--gib-hour-price", min=0, help="Price of a GiB of memory for an hour.")
    ] = None,
    currency: Annotated[
        str | None, typer.Option("--currency", metavar="CODE", help="Of both prices, such as EUR.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Show what limits saved of each application and day: core-hours, GiB-hours, money, and what was throttled.

    In mode `observe`: what they would have saved, and would have throttled. Saved is the baseline minus what was held.
    The baseline is the sum of the limits that the containers came with (configured), or the application's limit where
    one came without. Prices are those given, else those of the allocator's settings.
    """
    now_s = time.time()
    prices = _prices(core_hour_price, gib_hour_price, currency)
    report = asyncio.run(_read(find_server(server, context), app, first_day(now_s, days), prices))
    if report.left_out:
        print_warning(f"{report.left_out} stored events were left out: they are not what their subject says")
    if not report.rows():
        _refuse_or_note(app, "today" if days == 1 else f"in the last {days} days")
    if as_json:
        print_json(_plain(report, now_s))
    elif report.rows():
        _print(report, now_s)


def first_day(now_s: float, days: int) -> date:
    """The first of so many days (UTC), today among them; Unix time."""
    return datetime.fromtimestamp(now_s, UTC).date() - timedelta(days=days - 1)


def _refuse_or_note(app: str | None, span: str) -> None:
    """There is nothing to show.

    Raises:
        CommandError: an application was named.
    """
    if app is not None:
        raise CommandError(f"nothing is recorded of application {app!r} {span} (UTC)")
    print_note(f"Nothing is recorded {span} (UTC): an allocator records while it decides for containers.")


def _prices(core_hour: float | None, gib_hour: float | None, currency: str | None) -> Prices | None:
    """All three or none.

    Raises:
        UsageError: only some are given.
    """
    if core_hour is None and gib_hour is None and currency is None:
        return None
    if core_hour is None or gib_hour is None or not currency or not math.isfinite(core_hour + gib_hour):
        raise UsageError("prices are --core-hour-price, --gib-hour-price (numbers) and --currency: all three, or none")
    return Prices(core_hour, gib_hour, currency)


async def _read(options: BusOptions, app: str | None, since: date, prices: Prices | None) -> SavingsReport:
    async with connected(options) as bus:
        return await read_savings(bus, app, since, prices)


async def read_savings(bus: NatsBus, app: str | None, since: date, prices: Prices | None = None) -> SavingsReport:
    """What is stored from a day (UTC) on, of one application or of all.

    Raises:
        BusError: not connected, not permitted, or the server stops answering.
    """
    report = SavingsReport(bus.root, since, prices)

    def take(delivery: Delivery) -> None:
        report.take(delivery.subject, delivery.message)

    since_s = datetime(since.year, since.month, since.day, tzinfo=UTC).timestamp()
    pattern = SAVINGS.pattern(bus.root) if app is None else SAVINGS.pattern(bus.root, app=app)
    await read_stored(bus, SAVINGS_STREAM, pattern, since_s, take)
    report.left_out += bus.counters.get("undecodable_subject_mismatch", 0)
    return report


def _plain(report: SavingsReport, now_s: float) -> dict[str, Any]:
    def row(key: Key, tally: Tally) -> dict[str, Any]:
        share = covered_share(tally.sums["covered_s"], key.day, now_s)
        return {"day": key.day.isoformat(), "app": key.app, "mode": key.mode, "covered_share": share} | tally.plain()

    return {
        "rows": [row(key, tally) for key, tally in report.rows()],
        "totals": [{"mode": mode} | tally.plain() for mode, tally in report.totals()],
    }


def _print(report: SavingsReport, now_s: float) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = ("DAY", "APP", "MODE", "COVERED", "CORE-H", "SAVED", "GIB-H", "SAVED", "MONEY", "THROTTLED", "BASELINE")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="right" if 2 < position < 9 else "left", no_wrap=True)
    for key, tally in report.rows():
        share = f"{100 * covered_share(tally.sums['covered_s'], key.day, now_s):.0f} %"
        table.add_row(key.day.isoformat(), escape(key.app), key.mode, share, *_cells(tally, key.mode))
    for mode, tally in report.totals():
        table.add_row("total", "", mode, "", *_cells(tally, mode), style="bold")
    stdout_console().print(table)


def _cells(tally: Tally, mode: str) -> tuple[str, ...]:
    """Of both resources the baseline and what is saved of it, then money, throttling and kinds of baseline."""
    sums = tally.sums
    return (
        f"{sums['cpu_baseline_core_s'] / 3_600:.2f}",
        f"{tally.saved_core_h:.2f}",
        f"{sums['memory_baseline_gib_s'] / 3_600:.2f}",
        f"{tally.saved_gib_h:.2f}",
        _money(tally.known_money),
        _throttled(tally, mode),
        _baseline(tally),
    )


def _money(known: dict[str, float] | None) -> str:
    if known is None:
        return "not known"
    return " + ".join(f"{amount:.2f} {escape(currency)}" for currency, amount in sorted(known.items()))


def _throttled(tally: Tally, mode: str) -> str:
    """In mode `observe` what would have been, else what was."""
    sums = tally.sums
    if not sums["periods"]:
        return "-"
    if mode == "observe":
        share = 100 * sums["excess_periods"] / sums["periods"]
        return f"would be: {share:.1f} % of periods, {sums['excess_core_s']:.3g} core-s"
    return f"{100 * sums['throttled_periods'] / sums['periods']:.1f} % of periods"


def _baseline(tally: Tally) -> str:
    names = [" and ".join(sorted(kinds)) for kinds in (tally.cpu_baselines, tally.memory_baselines)]
    cpu, memory = (text.replace("_", " ") for text in names)
    return cpu if cpu == memory else f"{cpu}; memory: {memory}"
