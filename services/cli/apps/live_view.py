"""Renders a `ViewModel` for a terminal. Pure: state in, rich renderables or lines of text out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from schemas.oom import OomEvent
from services._runtime.command.output import format_bytes, format_cores
from services.cli.apps.memory_events import SEVERE_KINDS, container_name, describe_event
from services.cli.apps.view_model import AppView, ContainerView, ViewModel

BAR_CELLS: Final = 18
NARROW_BAR_CELLS: Final = 6
SPARK_CELLS: Final = 24
WIDE_COLUMNS: Final = 120
"""From here on there is room for the reason of the last change."""
NARROW_COLUMNS: Final = 100
"""Below there is only room for a short bar."""
EVENT_LINES: Final = 4
"""Newest memory events below the applications."""
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_BUSY_SHARE: Final = 0.9


def render(state: ViewModel, *, only: str | None = None, columns: int = 160) -> RenderableType:
    """All applications, or one of them, for a terminal of so many columns: narrow ones show less."""
    apps = [app for name, app in sorted(state.apps.items()) if only in {None, name}]
    if not apps:
        return Text(nothing_to_show(state, only), "dim")
    warnings = [Text(warning, "yellow", no_wrap=True, overflow="ellipsis") for warning in state.node_warnings]
    return Group(*(_render_app(app, columns) for app in apps), *warnings, *map(_event_text, _newest(state, only)))


def nothing_to_show(state: ViewModel, only: str | None) -> str:
    """Why there is no application to draw."""
    if only is None:
        return "No application yet. `turnbuckle apply app.yaml` announces one; `turnbuckle doctor` helps."
    return f"there is no application {only!r} (known: {', '.join(sorted(state.apps)) or 'none'})"


def plain_lines(state: ViewModel, *, only: str | None = None) -> list[str]:
    """The same as lines of text, for a pipe or a dumb terminal."""
    lines: list[str] = []
    for name, app in sorted(state.apps.items()):
        if only not in {None, name}:
            continue
        lines.append(f"{name}: {_summary(app)}")
        lines.append(f"  {_guard_summary(app)}")
        lines += [_plain_line(item, app.period_us) for item in app.containers]
    if only is not None and not lines:
        lines.append(nothing_to_show(state, only))
    lines += [f"  {warning}" for warning in state.node_warnings]
    return lines + [f"  {_event_line(event)}" for event in _newest(state, only)]


def _plain_line(item: ContainerView, period_us: int) -> str:
    memory = "; ".join(
        part for part in (item.refusal, item.memory.in_words(), item.last_memory_event, _drift(item)) if part
    )
    return (
        f"  {item.name:24} cpu {format_cores(item.used_us, period_us):>5} of"
        f" {format_cores(item.quota_us, period_us):>9}  throttled {item.throttled_share:4.0%}"
        f"  memory {format_bytes(item.memory_usage_bytes):>9} of {format_bytes(item.memory_limit_bytes):>9}"
        f"  {item.last_reason}{f'  [{memory}]' if memory else ''}"
    )


def sparkline(values: Sequence[int], top: float, cells: int = SPARK_CELLS) -> str:
    """The newest ``cells`` values as block characters, scaled to ``top``."""
    recent = values[-cells:]
    steps = len(_SPARKS) - 1
    return "".join(
        _SPARKS[min(steps, max(0, round(value / top * steps)))] if top > 0 else _SPARKS[0] for value in recent
    )


def usage_bar(used: float, limit: float, cells: int = BAR_CELLS) -> Text:
    """Usage against limit; nothing to fill when there is no limit."""
    if limit <= 0:
        return Text("·" * cells, "dim")
    share = min(1.0, max(0.0, used / limit))
    filled = round(share * cells)
    colour = "red" if share >= _BUSY_SHARE else "green"
    return Text.assemble(("█" * filled, colour), ("░" * (cells - filled), "dim"))


def _summary(app: AppView) -> str:
    period_us = app.period_us
    missed = f", {app.missed_batches} batches missed" if app.missed_batches else ""
    if not app.cpu_limit_us:
        return f"no limits announced, {len(app.containers)} containers{missed}"
    return (
        f"{app.mode} ({app.policy}), CPU {format_cores(app.cpu_allocated_us, period_us)} of"
        f" {format_cores(app.cpu_limit_us, period_us)} cores allocated,"
        f" {format_cores(max(0, app.cpu_limit_us - app.cpu_allocated_us), period_us)} free;"
        f" memory {format_bytes(app.memory_allocated_bytes)} of {format_bytes(app.memory_limit_bytes)},"
        f" {format_bytes(max(0, app.memory_limit_bytes - app.memory_allocated_bytes))} free;"
        f" {app.decisions} decisions{missed}"
    )


def _guard_summary(app: AppView) -> str:
    """The nodes' reserves, what the guard did with them, and who decides."""
    drifts = f"{app.drifts} limits modified externally" if app.drifts else ""
    owner = f"owner {app.owner}, epoch {app.epoch}" if app.owner else "no owner known"
    reserves = f"reserves {format_bytes(app.memory_reserved_bytes)}, {format_bytes(app.reserve_left_bytes)} at hand"
    return "; ".join(part for part in (reserves, app.memory.in_words(), drifts, owner) if part)


def _newest(state: ViewModel, only: str | None) -> list[OomEvent]:
    """The newest memory events, oldest first."""
    return [event for event in state.newest_events if only in {None, event.app}][-EVENT_LINES:]


def _event_line(event: OomEvent) -> str:
    time_text = datetime.fromtimestamp(event.time_ns / 1e9).astimezone().strftime("%H:%M:%S")
    return f"{time_text} {event.app}/{container_name(event.container)} on {event.node}: {describe_event(event)}"


def _event_text(event: OomEvent) -> Text:
    return Text(_event_line(event), "red" if event.kind in SEVERE_KINDS else "dim", no_wrap=True, overflow="ellipsis")


def _drift(container: ContainerView) -> str:
    return f"drifted {container.drifts}x: {container.last_drift}" if container.drifts else ""


def _render_app(app: AppView, columns: int) -> RenderableType:
    table = Table(expand=True, box=None, pad_edge=False, header_style="dim")
    table.add_column("container", ratio=2, min_width=8, no_wrap=True)
    bar_cells = NARROW_BAR_CELLS if columns < NARROW_COLUMNS else BAR_CELLS
    table.add_column("used / limit", width=bar_cells, no_wrap=True)
    table.add_column("cores", width=9, justify="right", no_wrap=True)
    table.add_column("used, limit over time", width=SPARK_CELLS, no_wrap=True)
    table.add_column("thr.", width=4, justify="right", no_wrap=True)
    table.add_column("memory", width=17, justify="right", no_wrap=True)
    if columns >= WIDE_COLUMNS:
        table.add_column("last change", ratio=4, no_wrap=True, overflow="ellipsis")
    for container in app.containers:
        table.add_row(*_cells(container, app.period_us, bar_cells)[: len(table.columns)])
    if not app.containers:
        table.add_row(Text("no containers yet", "dim"))
    head = _pool_line(app), Text(_guard_summary(app), no_wrap=True, overflow="ellipsis")
    return Panel(Group(*head, table), title=Text(app.app, "bold"), title_align="left", border_style="cyan")


def _pool_line(app: AppView) -> Text:
    line = Text.assemble(usage_bar(app.cpu_allocated_us, app.cpu_limit_us, 24), f"  {_summary(app)}")
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _cells(container: ContainerView, period_us: int, bar_cells: int) -> tuple[RenderableType, ...]:
    top = max([1, *container.used_history_us, *container.quota_history_us])
    sparks = Text(sparkline(list(container.used_history_us), top), "green")
    sparks.append("\n" + sparkline([max(0, quota) for quota in container.quota_history_us], top), "yellow")
    throttled = container.throttled_share
    return (
        Text(container.name),
        usage_bar(container.used_us, container.quota_us, bar_cells),
        f"{format_cores(container.used_us, period_us)}/{format_cores(container.quota_us, period_us)}",
        sparks,
        Text(f"{throttled:.0%}", "red" if throttled >= 0.1 else "dim"),
        _memory_cell(container),
        _last_change(container),
    )


def _memory_cell(container: ContainerView) -> Text:
    """Usage and limit; below, how much was granted in how many steps."""
    cell = Text(f"{format_bytes(container.memory_usage_bytes)}/{format_bytes(container.memory_limit_bytes)}")
    tally = container.memory
    if tally.kills or tally.grants:
        granted = f"+{format_bytes(tally.granted_bytes)} in {tally.grants}" if tally.grants else ""
        cell.append("\n").append(f"{tally.kills} killed " if tally.kills else "", "bold red").append(granted, "dim")
    return cell


def _last_change(container: ContainerView) -> Text:
    """Why the limits are what they are; below, what happened near or at the memory limit."""
    kills = f"  {container.oom_kills} OOM kills" if container.oom_kills else ""
    drift = f"  {_drift(container)}" if container.drifts else ""
    refusal = (f"{container.refusal}  ", "red") if container.refusal else ""
    cell = Text.assemble(refusal, (container.last_reason, "dim"), (kills, "bold red"), (drift, "yellow"))
    tally = container.memory
    troubled = tally.grants_denied or tally.oom_killer_enabled or tally.kills or tally.limit_hits
    if words := tally.in_words():
        cell.append("\n").append(f"{words}; ", "red" if troubled else "yellow" if tally.oom_waits else "dim")
        cell.append(container.last_memory_event, "dim")
    return cell
