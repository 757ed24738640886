"""An advisor's answer on the terminal: the ranking, the time-cost front, and its caveats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from schemas.jobs import Configuration
from schemas.predictions import ConfigurationPrediction, Estimate, RankReply

if TYPE_CHECKING:
    from services.cli.advise.query import Answer, Measurements

PLOT_COLUMNS: Final = 60
PLOT_ROWS: Final = 14
Place = tuple[float, float, str]
"""Seconds, dollars, and the configuration's name."""
_FRONT, _OTHER = "●", "·"
_REASONS_OF: Final = 3
_HIGH_CONFIDENCE: Final = 0.95
_OLD_DAYS: Final = 60
_OF_LOCAL_RUN: Final = "local run's "
"""What is the same for all configurations stands in a note."""
_LEGIBLE: Final = 1e9
"""From here on numbers are shown by their power of ten: their digits would fill the terminal."""
_NOT_KNOWN: Final = "not known: "
"""How the advisor's warning begins, where it knows nothing."""
_LIMITS: Final = frozenset({"over budget", "too late", "no price"})
"""The asker's own, among the reasons to leave a configuration out."""


def print_answer(console: Console, answer: Answer) -> None:
    """Everything, best first."""
    reply = answer.reply
    console.print(escape(heading(reply)), style="bold")
    if reply.ranked:
        console.print(ranking(answer))
    else:
        console.print(f"[bold red]{escape(refusal(reply))}[/]")
        if reply.nearest is not None:
            console.print(escape(nearest_alternative(reply.nearest, answer)))
    if reply.rejected:
        left = ", ".join(f"{count} {reason}" for reason, count in reply.rejected.items())
        left = left.replace("no price", "no spot price") if answer.spot else left
        console.print(f"left out: {left}", style="dim")
    if answer.measured is not None:
        console.print(escape(comparison(reply, answer.measured)), style="bold green")
    _print_front(console, answer)
    _print_reasons(console, reply)
    days = (datetime.now(UTC).date() - reply.prices_as_of).days if reply.prices_as_of is not None else 0
    if days > _OLD_DAYS:
        console.print(f"[yellow]note:[/] the prices are {days} days old (turnbuckle prices refresh)")
    for warning in reply.warnings:
        if reply.ranked or not warning.startswith(_NOT_KNOWN):  # else it stands at the top
            console.print(f"[yellow]note:[/] {escape(warning)}")


def refusal(reply: RankReply) -> str:
    """Why nothing is ranked."""
    if "not known" not in reply.rejected or set(reply.rejected) & _LIMITS:
        return "nothing can be recommended: no configuration is left"
    why = next((warning.removeprefix(_NOT_KNOWN) for warning in reply.warnings if warning.startswith(_NOT_KNOWN)), "")
    return "not known: nothing can be recommended" + (f" ({why})" if why else "")


def nearest_alternative(one: ConfigurationPrediction, answer: Answer) -> str:
    """The configuration nearest to the budget and the deadline."""
    price = price_of(one, answer)
    costs = f", {cost_span(price)}" if price is not None else ""
    return f"nearest to it: {configuration_name(one.configuration)}, {time_span(one.time_s)}{costs}"


def heading(reply: RankReply) -> str:
    """The query, the model and the prices of an answer."""
    model, prices = reply.model, reply.prices_as_of
    sources = f" ({', '.join(reply.price_sources)})" if reply.price_sources else ""
    day = f"prices of {prices}{sources}" if prices is not None else "no prices"
    ranked_values = (
        f"{reply.considered} configurations, smallest {reply.objective} first; model {model.version} "
        f"({model.records} records of {model.tasks} tasks); {day}"
    )
    return "; ".join(filter(None, [ranked_values, interval_coverage(reply)]))


def interval_coverage(reply: RankReply) -> str:
    """Measured coverage of such intervals; empty where it was not measured."""
    return "" if reply.coverage is None else f"intervals held {reply.coverage:.0%} on left-out tasks"


def configuration_name(where: Configuration) -> str:
    """``4 x n1-standard-8 with 1 x T4, batch 64``; without accelerators that its machine's name has already."""
    batch = f", batch {where.batch_size}" if where.batch_size else ""
    named = not where.accelerator or where.accelerator.lower() in where.instance_type.lower()
    devices = "" if named else f" with {max(where.accelerators, 1)} x {where.accelerator}"
    return f"{where.workers} x {where.instance_type}{devices}{batch}"


def price_of(one: ConfigurationPrediction, answer: Answer) -> Estimate | None:
    """What it costs, as it was asked for: on spot machines, or on those that are kept."""
    return one.spot_cost_usd if answer.spot else one.cost_usd


def ranking(answer: Answer) -> Table:
    """The best configurations."""
    reply, measured = answer.reply, answer.measured
    spot = any(one.spot_cost_usd is not None for one in reply.ranked)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("configuration", no_wrap=True)
    table.add_column("time without restarts" if answer.spot else "time", justify="right", no_wrap=True)
    table.add_column("cost", justify="right", no_wrap=True)
    if spot:
        table.add_column("on spot", justify="right", no_wrap=True)
    table.add_column("will run", justify="right")
    if measured is not None:
        table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("")
    for place, one in enumerate(reply.ranked, 1):
        row = [
            str(place),
            escape(configuration_name(one.configuration)),
            time_span(one.time_s),
            cost_span(one.cost_usd),
        ]
        if spot:
            row.append(cost_span(one.spot_cost_usd) if answer.spot else _middle(one.spot_cost_usd))
        row.append("yes" if one.feasible >= _HIGH_CONFIDENCE else f"[yellow]{one.feasible:.0%}[/]")
        row += [_measured(one, measured)] if measured is not None else []
        table.add_row(*row, escape(_remark(one)))
    return table


def _measured(one: ConfigurationPrediction, measured: Measurements) -> str:
    name = configuration_name(one.configuration)
    if name not in measured.time_s:
        return "-"
    cost = measured.cost_usd.get(name)
    return seconds(measured.time_s[name]) + (f", {dollars(cost)}" if cost is not None else "")


def _remark(one: ConfigurationPrediction) -> str:
    parts = [] if one.known else ["not known: " + one.why_unknown]
    parts += ["on the front"] if one.pareto else []
    chosen = [outside for outside in one.extrapolated if not outside.startswith(_OF_LOCAL_RUN)]
    parts += [f"outside: {chosen[0]}"] if chosen else []
    return "; ".join(parts)


def comparison(reply: RankReply, measured: Measurements) -> str:
    """Quality of the choices by the measured values."""
    values = measured.values
    ranked_values = [values[name] for one in reply.ranked if (name := configuration_name(one.configuration)) in values]
    if not ranked_values or not values:
        return f"nothing of {measured.task} was measured where the advisor would run it"
    best = min(values.values())
    return (
        f"measured: the first choice has {ranked_values[0] / best:.2f} x the smallest {measured.objective} of "
        f"{len(values)} configurations that ran; the best of the first {len(ranked_values[:5])}: "
        f"{min(ranked_values[:5]) / best:.2f} x"
    )


def _print_front(console: Console, answer: Answer) -> None:
    reply = answer.reply
    front = _plot_cells(reply.pareto, answer)
    if not front:
        return
    on_spot = ", on spot machines" if answer.spot else ""
    console.print(f"\n[bold]fast or cheap{on_spot}: what nothing else beats in both[/]")
    for line in plot(front, _plot_cells([one for one in reply.ranked if not one.pareto], answer)):
        console.print(escape(line), highlight=False)
    shown = front if len(front) <= PLOT_ROWS else [*front[: PLOT_ROWS - 1], front[-1]]
    for time_s, cost, name in shown:
        console.print(f"  {seconds(time_s):>8}  {dollars(cost):>9}  {escape(name)}")
    if len(shown) < len(front):
        console.print(f"  ... {len(front) - len(shown)} more (--json shows all)", style="dim")


def _plot_cells(found: Sequence[ConfigurationPrediction], answer: Answer) -> list[Place]:
    return [
        (one.time_s.median, cost.median, configuration_name(one.configuration))
        for one in found
        if (cost := price_of(one, answer)) is not None and cost.median > 0 and one.time_s.median > 0
    ]


def plot(front: Sequence[Place], others: Sequence[Place]) -> list[str]:
    """Time (across) against cost (up), both on logarithmic scales; the front's points are filled."""
    points = [(time_s, cost, mark) for group, mark in ((others, _OTHER), (front, _FRONT)) for time_s, cost, _ in group]
    if not points:
        return []
    times, costs = [point[0] for point in points], [point[1] for point in points]
    grid = [[" "] * PLOT_COLUMNS for _ in range(PLOT_ROWS)]
    for time_s, cost, mark in points:
        column = _plot_cell(time_s, min(times), max(times), PLOT_COLUMNS)
        grid[PLOT_ROWS - 1 - _plot_cell(cost, min(costs), max(costs), PLOT_ROWS)][column] = mark
    top, bottom = dollars(max(costs)), dollars(min(costs))
    width = max(len(top), len(bottom))
    labels = [top, *[""] * (PLOT_ROWS - 2), bottom]
    lines = [f"  {label:>{width}} │{''.join(row).rstrip()}" for label, row in zip(labels, grid, strict=True)]
    left, right = seconds(min(times)), seconds(max(times))
    axis = f"  {'':>{width}} └{'─' * PLOT_COLUMNS}"
    return [*lines, axis, f"  {'':>{width}}  {left}{right:>{PLOT_COLUMNS - len(left)}}"]


def _plot_cell(value: float, least: float, most: float, cells: int) -> int:
    if most <= least:
        return 0
    return round((math.log(value) - math.log(least)) / (math.log(most) - math.log(least)) * (cells - 1))


def _print_reasons(console: Console, reply: RankReply) -> None:
    if reply.ranked and reply.ranked[0].reasons:
        console.print("\n[bold]why the first choice takes what it takes[/]")
        for reason in reply.ranked[0].reasons[:_REASONS_OF]:
            console.print(f"  {escape(reason)}")
    if reply.neighbours:
        console.print("\n[bold]nearest known tasks[/]")
        for near in reply.neighbours:
            alike = f" ({'; '.join(near.alike)})" if near.alike else ""
            console.print(f"  {escape(near.task)}, distance {near.distance:.2f}, {near.records} records{escape(alike)}")
    if reply.proposals or reply.worth_measuring:
        console.print("\n[bold]next runs worth making[/]")
        for one in reply.proposals:
            costs = f" for {dollars(one.cost_usd.median)}" if one.cost_usd is not None else ""
            what = f"{configuration_name(one.configuration)}, {seconds(one.time_s.median)}{costs}"
            console.print(f"  {escape(what)}: {escape(one.reason)}")
        for where in reply.worth_measuring:
            console.print(f"  {escape(configuration_name(where))}: not known, and a run there makes it known")


def time_span(estimate: Estimate) -> str:
    """``3.41 min (3.18-3.67)``: all in the middle one's unit."""
    size, unit = _unit(estimate.median)
    low, high = _digits(estimate.low / size), _digits(estimate.high / size)
    return f"{_digits(estimate.median / size)} {unit} ({low}-{high})"


def cost_span(estimate: Estimate | None) -> str:
    """``$5.69 (5.30-6.11)``."""
    if estimate is None:
        return "-"
    low, high = (dollars(each).removeprefix("$") for each in (estimate.low, estimate.high))
    return f"{dollars(estimate.median)} ({low}-{high})"


def _middle(estimate: Estimate | None) -> str:
    return "-" if estimate is None else dollars(estimate.median)


def seconds(value: float) -> str:
    """Seconds for people: ``45.2 s``, ``12.1 min``, ``3.4 h``, ``12 d``."""
    size, unit = _unit(value)
    return f"{_digits(value / size)} {unit}"


def _unit(value: float) -> tuple[float, str]:
    day = 86_400.0
    for limit, size, unit in (
        (120.0, 1.0, "s"),
        (7_200.0, 60.0, "min"),
        (2 * day, 3_600.0, "h"),
        (730 * day, day, "d"),
    ):
        if value < limit:
            return size, unit
    return 365.25 * day, "years"


def _digits(value: float) -> str:
    if value >= _LEGIBLE:
        return f"{value:.1e}"
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def dollars(value: float) -> str:
    """Dollars for people, with three digits where they are few: ``$0.0000897``, never ``8.97e-05``."""
    if value >= _LEGIBLE:
        return f"${value:.1e}"
    return f"${value:,.2f}" if value >= 1 else f"${Decimal(f'{value:.3g}'):f}"
