"""All that happened to one job, for people. The scheduler's reply in, lines of text out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from schemas.scheduling import JobExplainReply, JobHistoryLine, JobPhase, JobReason, JobSpec, QueuedJob
from services._runtime.command.output import format_bytes
from services._runtime.command.period import format_period
from services.scheduler.commands.asking import LIVE
from services.scheduler.commands.queue_view import expected, interval, placed, preemption_text, source_name
from services.scheduler.commands.traffic_view import traffic_lines

_CONTINUED: Final = "\n" + " " * 17
"""Before the next line of what a worker wrote."""
_UNCHANGED: Final = ("runs on", "waits on")
_SHELL: Final = ("/bin/sh", "-c")


def explained_lines(reply: JobExplainReply, now_ns: int) -> Iterator[tuple[str, str]]:
    """Style and text of each line."""
    job = reply.job
    yield "bold", f"{job.job}: {_state(job, now_ns)}"
    if job.why:
        yield "", job.why.replace("\n", _CONTINUED)
    yield "dim", _what_runs(reply.spec)
    yield "dim", f"{_size(reply.spec)}; {preemption_text(job.preemption)}"
    yield "", _times(job)
    yield "", _estimate_and_truth(job)
    yield from (("", line) for line in traffic_lines(job))
    if job.ahead:
        yield "", f"before it: {', '.join(job.ahead)}"
    yield "bold", "What happened"
    for line, times, since_ns in _collapsed(reply.history):
        again = f" ({times} times since {_clock(since_ns)})" if times > 1 else ""
        yield _style(line), history_text(line) + again


def history_text(line: JobHistoryLine) -> str:
    """``Nov 26 14:02:11  #42 preempted: for try; turn 3, 2 slots free, index 0.41, held 12 slot-minutes``.

    What the scheduler heard of late has the time when it happened, by its node's clock; of a worker that was found gone
    it is only known that it had ended by then.
    """
    why = [line.why] if line.why else []
    if line.reason is not None:
        why += _numbers(line.reason, already=line.why)
    if line.happened_ns:
        why.append(f"by its node's clock; in the log since {_clock(line.time_ns)}, as no scheduler led before")
    said = f": {'; '.join(why)}".replace("\n", _CONTINUED) if why else ""
    return f"{_clock(line.happened_ns or line.time_ns)}  #{line.sequence} {line.what}{said}"


def _clock(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().strftime("%b %d %H:%M:%S")


def _collapsed(history: Sequence[JobHistoryLine]) -> Iterator[tuple[JobHistoryLine, int, int]]:
    """The latest of lines that only say that nothing has changed; how many they are, and the time of the first."""
    first_ns, times = 0, 0
    for place, line in enumerate(history):
        first_ns, times = (first_ns, times + 1) if times else (line.time_ns, 1)
        following = history[place + 1].what if place + 1 < len(history) else ""
        if line.what not in _UNCHANGED or following != line.what:
            yield line, times, first_ns
            times = 0


def _numbers(reason: JobReason, already: str) -> list[str]:
    found = [f"turn {reason.turn + 1} of the order", f"{reason.free_slots} slots free then"]
    if reason.index:
        found.append(f"index {reason.index:.3g} per slot-hour")
    if reason.service_slot_s:
        found.append(f"had {format_period(reason.service_slot_s)} of one slot")
    if reason.held:
        found.append("held")
    return [*([reason.why] if reason.why not in already else []), *found]


def _style(line: JobHistoryLine) -> str:
    return "red" if line.what.startswith(("failed", "lost", "unsaved")) else ""


def _state(job: QueuedJob, now_ns: int) -> str:
    where = f" on {placed(job.nodes)}" if job.nodes else ""
    state = f"{job.phase}{where}" + (f", attempt {job.attempt}" if job.attempt else "")
    return f"{state}; {expected(job, now_ns)}" if job.phase in LIVE else state


def _what_runs(spec: JobSpec) -> str:
    command = spec.command[2] if spec.command[:2] == _SHELL and len(spec.command) == 3 else shlex.join(spec.command)
    names = f" with {', '.join(sorted(spec.environment))}" if spec.environment else ""
    return f"{command}{names} in {spec.directory}"


def _size(spec: JobSpec) -> str:
    each = f"{spec.workers} worker{'s' if spec.workers > 1 else ''} of {spec.slots} slot{'s' if spec.slots > 1 else ''}"
    if spec.cpu_cores is not None:
        each += f", {spec.cpu_cores:g} cores"
    return each if spec.memory_bytes is None else f"{each}, {format_bytes(spec.memory_bytes)}"


def _times(job: QueuedJob) -> str:
    parts = [f"ran {format_period(job.ran_s)}", f"waited {format_period(job.waited_s)}"]
    parts += [f"{job.preemptions} preemption{'s' if job.preemptions > 1 else ''}"] if job.preemptions else []
    parts += [f"{format_period(job.restoring_s)} loading its state"] if job.restoring_s else []
    parts += [f"{format_period(job.lost_s)} lost"] if job.lost_s else []
    return ", ".join(parts)


def _estimate_and_truth(job: QueuedJob) -> str:
    """What was estimated of its run time beside what it took, or has taken so far."""
    if job.estimate is None:
        return "estimated: not known" + (f"; left, as others had: {interval(job.left)}" if job.left else "")
    estimated = f"estimated {interval(job.estimate)} by the {source_name(job.estimate_source)}"
    if job.phase is JobPhase.ENDED:
        return f"{estimated}; took {format_period(job.ran_s)}: {_beside(job)} the interval"
    left = f", {interval(job.left)} left" if job.left and job.phase in LIVE else ""
    return f"{estimated}; {format_period(job.ran_s)} so far{left}"


def _beside(job: QueuedJob) -> str:
    assert job.estimate is not None
    if job.ran_s < job.estimate.low_s:
        return "below"
    return "above" if job.ran_s > job.estimate.high_s else "inside of"
