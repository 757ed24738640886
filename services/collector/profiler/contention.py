"""What other work took from a local run, from counters of the machine and of the workers' threads.

A thread that is ready to run and has no processor waits: second number of ``/proc/PID/task/TID/schedstat``
(Documentation/scheduler/sched-stats.rst; the first one is the time on a processor). The kernel counts the throttling by
a control group's quota as waiting, too: that of the workers' own limit is taken off, that of a group above them is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.runs import CpuContention


class ThreadTime(NamedTuple):
    """Times of one thread since its start, seconds."""

    ran_s: float
    waited_s: float


class MachineTime(NamedTuple):
    """Times of all processors since boot, added up, seconds (proc_stat(5))."""

    busy_s: float
    """user, nice, system, irq, softirq, less the profiler's own; guests are in user."""
    steal_s: float
    """Wanted here, and given to other guests of the hypervisor."""


class ContentionCounters(NamedTuple):
    """Counters at one time; all but `elapsed_s` and `machine` since the start of the run, added up over the workers."""

    elapsed_s: float
    machine: MachineTime
    own_s: float
    """Processor time of the workers' control groups."""
    threads: ThreadTime | None
    """None: the kernel counts no waiting."""
    throttled_s: float
    """By the workers' own limits."""


@dataclass(slots=True)
class ThreadTimes:
    """Times of threads that come and go, added up."""

    ran_s: float = 0.0
    waited_s: float = 0.0
    _last: Mapping[int, ThreadTime] = field(default_factory=dict)

    def add(self, threads: Mapping[int, ThreadTime]) -> None:
        """Take the times of all threads that there are now, by thread id.

        A thread that was not there before, or whose times went back (its id was used again), counts from its start.
        """
        for thread, now in threads.items():
            before = self._last.get(thread)
            if before is None or now.ran_s < before.ran_s or now.waited_s < before.waited_s:
                before = ThreadTime(0.0, 0.0)
            self.ran_s += now.ran_s - before.ran_s
            self.waited_s += now.waited_s - before.waited_s
        self._last = dict(threads)

    @property
    def total(self) -> ThreadTime | None:
        """The sums; None where no thread ever ran: the kernel has no such counters."""
        return ThreadTime(self.ran_s, self.waited_s) if self.ran_s > 0 else None


def contention_between(
    first: ContentionCounters, last: ContentionCounters, cores: int, limit_cores: float | None = None
) -> CpuContention | None:
    """Return what other work took between two times; None if no time has passed.

    Args:
        first: At the earlier time.
        last: At the later one.
        cores: Processors of the machine, at least 1.
        limit_cores: Sum of the workers' limits; None: unlimited.
    """
    elapsed_s = last.elapsed_s - first.elapsed_s
    if elapsed_s <= 0:
        return None
    busy_s = max(0.0, last.machine.busy_s - first.machine.busy_s)
    steal_s = max(0.0, last.machine.steal_s - first.machine.steal_s)
    own_s = max(0.0, last.own_s - first.own_s)
    return CpuContention(
        cores=cores,
        # Ticks of 10 ms: over a short time more may be counted than there was.
        other_cores=min(max(0.0, busy_s - own_s) / elapsed_s, float(cores)),
        own_cores=own_s / elapsed_s,
        limit_cores=min(limit_cores or cores, float(cores)),
        steal_share=steal_s / (busy_s + steal_s) if steal_s > 0 else 0.0,
        wait_share=_wait_share(first, last),
    )


def _wait_share(first: ContentionCounters, last: ContentionCounters) -> float | None:
    """Waiting over waiting and running; None where the kernel counts none."""
    if last.threads is None:
        return None
    before = first.threads or ThreadTime(0.0, 0.0)
    ran_s = last.threads.ran_s - before.ran_s
    throttled_s = last.throttled_s - first.throttled_s
    waited_s = max(0.0, last.threads.waited_s - before.waited_s - throttled_s)
    return waited_s / (ran_s + waited_s) if waited_s > 0 else 0.0
