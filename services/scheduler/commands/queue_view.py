"""The queue and the nodes for people. The scheduler's reply in, rich renderables or lines of text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from schemas.scheduling import (
    ClusterNode,
    EstimateSource,
    IterationSample,
    JobPhase,
    Preemption,
    QueuedJob,
    QueueReply,
    RunTime,
    SubmitReply,
)
from services._runtime.command.output import format_bytes
from services._runtime.command.period import format_period
from services.scheduler.commands.asking import LIVE
from services.scheduler.commands.traffic_view import iteration_text, iterations_table, links_table

HOW_TO_SUBMIT: Final = (
    "No job: `turnbuckle jobs submit --workers 2 -- python train.py` runs one; docs/examples/jobs has files to try."
)
NO_NODE: Final = "no node yet: `turnbuckle run runner` on each host adds one"
STYLES: Final = {
    JobPhase.RUNNING: "green",
    JobPhase.STOPPING: "yellow",
    JobPhase.WAITING: "cyan",
    JobPhase.ENDED: "dim",
    JobPhase.FAILED: "red",
    JobPhase.CANCELLED: "dim",
}
_NEAR_NS: Final = 600 * 10**9
_NODES_NAMED: Final = 4
_CELLS: Final = 32
_WIDE: Final = 120
"""Columns of a terminal that has room for all of a queue's."""


def clock(time_ns: int, now_ns: int) -> str:
    """Local time: with seconds where it is near, with the date where that is another day."""
    then, now = (datetime.fromtimestamp(each / 1e9).astimezone() for each in (time_ns, now_ns))
    if abs(time_ns - now_ns) < _NEAR_NS:
        return then.strftime("%H:%M:%S")
    return then.strftime("%H:%M" if then.date() == now.date() else "%b %d %H:%M")


def interval(time: RunTime) -> str:
    """``6m00s (5m00s-8m00s)``."""
    return f"{format_period(time.median_s)} ({format_period(time.low_s)}-{format_period(time.high_s)})"


def headline(reply: QueueReply) -> str:
    """Slots, policy, leader, and how many jobs have an estimate."""
    live = [job for job in reply.jobs if job.phase in LIVE]
    known = sum(job.estimate_source is not EstimateSource.NONE for job in live)
    parts = [f"{reply.slots} slots, {reply.taken_slots} taken; policy {reply.policy}; leader {reply.leader}"]
    if live:
        parts.append(f"{known} of {len(live)} jobs have an estimate")
    parts += [f"{node.node} {_node_state(node)}" for node in reply.nodes if _node_state(node) != "ready"]
    return "; ".join(parts if reply.nodes else [*parts, NO_NODE])


@dataclass(frozen=True, slots=True)
class QueueTable:
    """All jobs, in the policy's order; on a narrow terminal with fewer columns, so that these can be read."""

    reply: QueueReply

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Drawn for a width."""
        if not self.reply.jobs:
            yield Text(HOW_TO_SUBMIT, "dim")
            return
        measured = any(job.traffic is not None for job in self.reply.jobs)
        names = ["job", "state", "slots", "on", "ran", "waited", "left (90 %)", "expected"]
        names += ["iteration"] if measured else []
        if options.max_width < _WIDE:
            names = ["job", "state", "on", "ran", "expected"]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in names:
            justify: JustifyMethod = "right" if name in {"slots", "ran", "waited"} else "left"
            table.add_column(name, justify=justify, no_wrap=name != "job", overflow="ellipsis")
        table.add_column("why", overflow="fold")
        for job in self.reply.jobs:
            cells = _cells(job, self.reply)
            table.add_row(*(cells[name] for name in names), escape(job.why))
        yield table


def _cells(job: QueuedJob, reply: QueueReply) -> dict[str, RenderableType]:
    """By column."""
    return {
        "job": escape(job.job),
        "state": Text(job.phase, STYLES[job.phase]),
        "slots": str(job.slots),
        "on": escape(placed(job.nodes) or "-"),
        "ran": format_period(job.ran_s),
        "waited": format_period(job.waited_s),
        "left (90 %)": _left(job),
        "expected": expected(job, reply.time_ns),
        "iteration": iteration_text(job, reply),
    }


def _left(job: QueuedJob) -> str:
    if job.phase not in LIVE:
        return "-"
    return "not known" if job.left is None else interval(job.left)


def expected(job: QueuedJob, now_ns: int) -> str:
    """When it starts and ends, as far as that is known."""
    if job.phase not in LIVE:
        return f"{job.phase} {clock(job.ended_ns, now_ns)}"
    starts = f"starts {clock(job.expected_start_ns, now_ns)}" if job.expected_start_ns else ""
    ends = f"ends {clock(job.expected_end_ns, now_ns)}" if job.expected_end_ns else ""
    return ", ".join(filter(None, (starts if job.phase is JobPhase.WAITING else "", ends))) or "not known"


def placed(nodes: Sequence[str]) -> str:
    """Nodes by rank, each once: ``n1 n3 n4x2``; of many, the first."""
    counts = Counter(nodes)
    names = [name if count == 1 else f"{name}x{count}" for name, count in counts.items()]
    more = len(names) - _NODES_NAMED
    return " ".join(names) if more <= 0 else f"{' '.join(names[:_NODES_NAMED])} and {more} more"


def render_queue(reply: QueueReply) -> RenderableType:
    """The headline, the jobs, and how many are left out."""
    parts: list[RenderableType] = [Text(headline(reply), "bold"), QueueTable(reply)]
    if reply.left_out:
        parts.append(Text(f"and {reply.left_out} more", "dim"))
    return Group(*parts)


def render_top(reply: QueueReply, samples: Mapping[str, IterationSample]) -> RenderableType:
    """Each node's slots, the links that jobs share, their latest iterations, then the queue."""
    held = slots_held(reply.jobs)
    bars = Table(box=None, pad_edge=False, show_header=False)
    for node in reply.nodes:
        mine = held.get(node.node, Counter())
        jobs = ", ".join(f"{job} {slots}" for job, slots in mine.items())
        bars.add_row(escape(node.node), _bar(sum(mine.values()), node), escape(jobs), _state_text(node))
    traffic = [table for table in (links_table(reply), iterations_table(reply, samples)) if table is not None]
    spaced = [each for table in traffic for each in ("", table)]
    return Group(Text(headline(reply), "bold", no_wrap=False, overflow="fold"), bars, *spaced, "", QueueTable(reply))


def _bar(taken: int, node: ClusterNode) -> Text:
    """A cell for each slot, or for so many of them that there is room."""
    cells = min(node.slots, _CELLS)
    filled = round(cells * min(taken, node.slots) / node.slots) if node.slots else 0
    return Text.assemble(("█" * filled, "green"), ("░" * (cells - filled), "dim"))


def slots_held(jobs: Iterable[QueuedJob]) -> dict[str, Counter[str]]:
    """Slots by node and job."""
    held: dict[str, Counter[str]] = {}
    for job in jobs:
        for node in job.nodes:
            held.setdefault(node, Counter())[job.job] += job.slots // max(1, job.workers)
    return held


def node_table(reply: QueueReply) -> RenderableType:
    """All nodes."""
    if not reply.nodes:
        return Text(NO_NODE, "dim")
    held = slots_held(reply.jobs)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("node", "left"), ("state", "left"), ("slots", "right"), ("taken", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name, justify in (("gpus", "right"), ("cores", "right"), ("memory", "right"), ("rack", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("address", no_wrap=True)
    table.add_column("jobs", overflow="fold")
    for node in reply.nodes:
        mine = held.get(node.node, Counter())
        sizes = (str(node.slots), str(sum(mine.values())), str(node.gpus), f"{node.cores:.2f}")
        places = (escape(node.rack or "-"), escape(node.address or "-"))
        jobs = escape(" ".join(mine) or "-")
        table.add_row(escape(node.node), _state_text(node), *sizes, format_bytes(node.memory_bytes), *places, jobs)
    return table


def _node_state(node: ClusterNode) -> str:
    return node.why or ("silent" if node.silent else "drained" if node.drained else "ready")


def _state_text(node: ClusterNode) -> Text:
    state = _node_state(node)
    return Text(state, "green" if state == "ready" else "yellow")


def submitted_lines(reply: SubmitReply) -> list[str]:
    """Place in the queue, expected start and end, and why."""
    job, before = reply.job, reply.waiting_before
    now_ns = max(job.submitted_ns, 1)
    size = f"{job.workers} worker{'s' if job.workers > 1 else ''}, {job.slots} slot{'s' if job.slots > 1 else ''}"
    if job.phase is JobPhase.WAITING:
        place = f"{job.job}: {size}; place {before + 1} in the queue"
    else:
        place = f"{job.job}: {size}; {job.phase} on {placed(job.nodes)}"
    return [place, f"expected: {_expectation(job, now_ns)}", *([job.why] if job.why else [])]


def _expectation(job: QueuedJob, now_ns: int) -> str:
    start, end = job.expected_start_ns, job.expected_end_ns
    if job.phase is JobPhase.WAITING and not start:
        return "when it starts is not known"
    starts = f"starts at {clock(start, now_ns)} ({_distance(start, now_ns)})" if start > now_ns else "starts now"
    ends = f"ends at {clock(end, now_ns)} ({_distance(end, now_ns)})" if end else "its end is not known"
    if job.estimate is None:
        return f"{starts}, {ends}; no estimate" + (", so as jobs took that have ended" if job.left else "")
    return f"{starts}, {ends}; estimate {interval(job.estimate)} by the {source_name(job.estimate_source)}"


def _distance(then_ns: int, now_ns: int) -> str:
    return f"in {format_period(max(0, then_ns - now_ns) / 1e9)}"


def source_name(source: EstimateSource) -> str:
    """Who estimated, in words."""
    return "scheduler" if source is EstimateSource.NONE else source.words


def preemption_text(preemption: Preemption) -> str:
    """What happens to it when another job needs its slots."""
    return {
        Preemption.NEVER: "never preempted",
        Preemption.RESTART: "may be killed, and begins anew",
        Preemption.CHECKPOINT: "saves its state when it is preempted, and goes on later",
    }[preemption]
