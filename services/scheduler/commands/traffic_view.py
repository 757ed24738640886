"""Iterations of jobs, and the links that they share, for people. The scheduler's reply and samples in, text out."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import JustifyMethod, RenderableType
from rich.markup import escape
from rich.table import Table

from schemas.rates import rate_text
from schemas.scheduling import IterationSample, LinkScore, QueuedJob, QueueReply
from services._runtime.command.output import format_bytes, format_duration


def iteration_text(job: QueuedJob, reply: QueueReply) -> str:
    """``1.24 s 0.98``: its iteration, and the lowest score of the links that it shares, if there are any."""
    if job.traffic is None:
        return "-"
    scores = [link.score for link in reply.links if job.job in link.jobs and _has_score(link, reply)]
    return " ".join([format_duration(1_000 * job.traffic.period_ms), *([f"{min(scores):.2f}"] if scores else [])])


def _has_score(link: LinkScore, reply: QueueReply) -> bool:
    """Whether its score says something: without shifts only if the traffic of all its jobs is known."""
    return not (link.why and any(job.job in link.jobs and job.traffic is None for job in reply.jobs))


def traffic_lines(job: QueuedJob) -> list[str]:
    """What one job sends, and when; empty: it is not known."""
    traffic, shift = job.traffic, job.shift
    if traffic is None:
        return []
    by = f" by {traffic.congestion_control}" if traffic.congestion_control else ""
    turn = f"shifted by {shift.shift_ms} of {shift.period_ms} ms" if shift is not None else "not shifted"
    takes = f"an iteration takes {format_duration(1_000 * traffic.period_ms)}"
    sends = f"sends {format_bytes(traffic.sent_bytes)}{by} in {format_duration(1_000 * traffic.sending_ms)} of it"
    return [f"{takes} and {sends}; {turn}"]


def iterations_table(reply: QueueReply, samples: Mapping[str, IterationSample]) -> RenderableType | None:
    """The latest iteration of each job that was received, else what is known of it; None: nothing of any job.

    Args:
        reply: the scheduler's.
        samples: by job, of the attempts that run.
    """
    jobs = [job for job in reply.jobs if job.nodes and (job.traffic is not None or job.job in samples)]
    if not jobs:
        return None
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("job", overflow="ellipsis")  # the only one that becomes narrower where there is no room
    for name in ("iteration", "sends", "bytes", "shift", "late", "paused"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("by", no_wrap=True)
    for job in jobs:
        sample = samples.get(job.job)
        table.add_row(escape(job.job), *_measured(job, sample), *_turn(job, sample), escape(_control(job, sample)))
    return table


def _measured(job: QueuedJob, sample: IterationSample | None) -> tuple[str, str, str]:
    """Iteration, sending time and bytes."""
    if sample is not None:
        return format_duration(sample.period_us), format_duration(sample.sending_us), format_bytes(sample.sent_bytes)
    if job.traffic is None:
        return "-", "-", "-"
    return (
        format_duration(1_000 * job.traffic.period_ms),
        format_duration(1_000 * job.traffic.sending_ms),
        format_bytes(job.traffic.sent_bytes),
    )


def _turn(job: QueuedJob, sample: IterationSample | None) -> tuple[str, str, str]:
    """Shift, how late it was, and for how long it was paused; below 0: early."""
    if job.shift is None:
        return "-", "-", "-"
    shift = f"{job.shift.shift_ms}/{job.shift.period_ms} ms"
    if sample is None:
        return shift, "-", "-"
    sign = "-" if sample.phase_error_us < 0 else ""
    return shift, f"{sign}{format_duration(abs(sample.phase_error_us))}", format_duration(sample.frozen_us)


def _control(job: QueuedJob, sample: IterationSample | None) -> str:
    return (sample.congestion_control if sample is not None else job.congestion_control) or "-"


def links_table(reply: QueueReply) -> RenderableType | None:
    """The links that jobs share, and how well these fit beside each other; None: they share none."""
    if not reply.links:
        return None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("link", "rate", "together", "shifted", "jobs"):
        justify: JustifyMethod = "left" if name in {"link", "jobs"} else "right"
        table.add_column(name, justify=justify, no_wrap=name != "jobs", overflow="fold")
    table.add_column("why not shifted", overflow="fold")
    for link in reply.links:
        together = f"{link.unshifted:.2f}" if _has_score(link, reply) else "-"
        shifted = "-" if link.why else f"{link.score:.2f}"
        names = escape(" ".join(link.jobs))
        row = (rate_text(link.bits_per_s), together, shifted, names, escape(link.why))
        table.add_row(escape(link.link), *row)
    return table
