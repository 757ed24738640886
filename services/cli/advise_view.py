"""An advisor's answer on the terminal: the ranking, the time-cost front, and everything that puts it in doubt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from schemas.jobs import Configuration
from schemas.predictions import ConfigurationPrediction, Estimate, RankReply

if TYPE_CHECKING:
    from services.cli.advise import Answer, Measurements

PLOT_COLUMNS: Final = 60
PLOT_ROWS: Final = 14
_FRONT, _OTHER = "●", "·"
_REASONS_OF: Final = 3
_SURE: Final = 0.95


def print_answer(console: Console, answer: Answer) -> None:
    """Everything, best first."""
    reply = answer.reply
    console.print(escape(heading(reply)), style="bold")
    if reply.ranked:
        console.print(ranking(reply, answer.measured))
    else:
        console.print("[bold red]not known[/]: nothing can be recommended")
    if reply.rejected:
        left = ", ".join(f"{count} {reason}" for reason, count in reply.rejected.items())
        console.print(f"left out: {left}", style="dim")
    if answer.measured is not None:
        console.print(escape(comparison(reply, answer.measured)), style="bold green")
    _print_front(console, reply)
    _print_reasons(console, reply)
    for warning in reply.warnings:
        console.print(f"[yellow]note:[/] {escape(warning)}")


def heading(reply: RankReply) -> str:
    """What was asked of whom, with which prices."""
    model, prices = reply.model, reply.prices_as_of
    day = f"prices of {prices}" if prices is not None else "no prices"
    return (
        f"{reply.considered} configurations, smallest {reply.objective} first; model {model.version} "
        f"({model.records} records of {model.tasks} tasks); {day}; intervals hold {reply.level:.0%}"
    )


def configuration_name(where: Configuration) -> str:
    """``4 x n1-standard-8, batch 64``."""
    batch = f", batch {where.batch_size}" if where.batch_size else ""
    return f"{where.workers} x {where.instance_type}{batch}"


def ranking(reply: RankReply, measured: Measurements | None = None) -> Table:
    """The best configurations."""
    spot = any(one.spot_cost_usd is not None for one in reply.ranked)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("configuration")
    table.add_column("time", justify="right")
    table.add_column("cost", justify="right")
    if spot:
        table.add_column("on spot", justify="right")
    table.add_column("runs", justify="right")
    if measured is not None:
        table.add_column("measured", justify="right")
    table.add_column("")
    for place, one in enumerate(reply.ranked, 1):
        row = [str(place), escape(configuration_name(one.configuration)), span(one.time_s, seconds),
               span(one.cost_usd, dollars)]  # fmt: skip
        row += [span(one.spot_cost_usd, dollars)] if spot else []
        row.append("yes" if one.feasible >= _SURE else f"[yellow]{one.feasible:.0%}[/]")
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
    parts += [f"outside: {one.extrapolated[0]}"] if one.extrapolated else []
    return "; ".join(parts)


def comparison(reply: RankReply, measured: Measurements) -> str:
    """How good the choices were, by what was really measured."""
    values = measured.values
    told = [values[name] for one in reply.ranked if (name := configuration_name(one.configuration)) in values]
    if not told or not values:
        return f"nothing of {measured.task} was measured where the advisor would run it"
    best = min(values.values())
    return (
        f"measured: the first choice has {told[0] / best:.2f} x the smallest {measured.objective} of "
        f"{len(values)} configurations that ran; the best of the first {len(told[:5])}: {min(told[:5]) / best:.2f} x"
    )


def _print_front(console: Console, reply: RankReply) -> None:
    front = [one for one in reply.pareto if one.cost_usd is not None]
    if not front:
        return
    console.print("\n[bold]fast or cheap: what nothing else beats in both[/]")
    for line in plot(front, [one for one in reply.ranked if one.cost_usd is not None and not one.pareto]):
        console.print(escape(line), highlight=False)
    shown = front if len(front) <= PLOT_ROWS else [*front[: PLOT_ROWS - 1], front[-1]]
    for one in shown:
        assert one.cost_usd is not None
        where = configuration_name(one.configuration)
        console.print(f"  {seconds(one.time_s.median):>8}  {dollars(one.cost_usd.median):>9}  {escape(where)}")
    if len(shown) < len(front):
        console.print(f"  ... {len(front) - len(shown)} more (--json shows all)", style="dim")


def plot(front: Sequence[ConfigurationPrediction], others: Sequence[ConfigurationPrediction]) -> list[str]:
    """Time (across) against cost (up), both on logarithmic scales; the front's points are filled."""
    points = [(one.time_s.median, one.cost_usd.median, mark) for group, mark in ((others, _OTHER), (front, _FRONT))
              for one in group if one.cost_usd is not None]  # fmt: skip
    points = [point for point in points if point[0] > 0 and point[1] > 0]
    if not points:
        return []
    times, costs = [point[0] for point in points], [point[1] for point in points]
    grid = [[" "] * PLOT_COLUMNS for _ in range(PLOT_ROWS)]
    for time_s, cost, mark in points:
        column = _place(time_s, min(times), max(times), PLOT_COLUMNS)
        grid[PLOT_ROWS - 1 - _place(cost, min(costs), max(costs), PLOT_ROWS)][column] = mark
    top, bottom = dollars(max(costs)), dollars(min(costs))
    width = max(len(top), len(bottom))
    labels = [top, *[""] * (PLOT_ROWS - 2), bottom]
    lines = [f"  {label:>{width}} │{''.join(row).rstrip()}" for label, row in zip(labels, grid, strict=True)]
    left, right = seconds(min(times)), seconds(max(times))
    axis = f"  {'':>{width}} └{'─' * PLOT_COLUMNS}"
    return [*lines, axis, f"  {'':>{width}}  {left}{right:>{PLOT_COLUMNS - len(left)}}"]


def _place(value: float, least: float, most: float, cells: int) -> int:
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
    if reply.proposals:
        console.print("\n[bold]next runs worth making[/]")
        for one in reply.proposals:
            costs = f" for {dollars(one.cost_usd.median)}" if one.cost_usd is not None else ""
            what = f"{configuration_name(one.configuration)}, {seconds(one.time_s.median)}{costs}"
            console.print(f"  {escape(what)}: {escape(one.reason)}")


def span(estimate: Estimate | None, show: Callable[[float], str]) -> str:
    """``1.2 h (0.9 h to 1.6 h)``."""
    if estimate is None:
        return "-"
    return f"{show(estimate.median)} ({show(estimate.low)} to {show(estimate.high)})"


def seconds(value: float) -> str:
    """Seconds for people: ``45.2 s``, ``12.1 min``, ``3.4 h``, ``12 d``."""
    for limit, unit, size in ((120.0, "s", 1.0), (7_200.0, "min", 60.0), (172_800.0, "h", 3_600.0)):
        if value < limit:
            return f"{value / size:.3g} {unit}"
    return f"{value / 86_400.0:.3g} d"


def dollars(value: float) -> str:
    """Dollars for people, with three digits where they are few."""
    return f"${value:,.2f}" if value >= 1 else f"${value:.3g}"
