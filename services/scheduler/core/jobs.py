"""Jobs, nodes and estimates as the scheduler knows them; times in seconds of one clock, service in slot-seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

_T = TypeVar("_T")
_new, _set = object.__new__, object.__setattr__


class Phase(StrEnum):
    """What a job does now."""

    WAITING = "waiting"
    """It holds no slots: it was submitted, or preempted and has stopped."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Preempted: it saves its state and still holds its slots."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Run time without interruptions, seconds: the median and an interval that holds nine of ten jobs."""

    low_s: float
    median_s: float
    high_s: float
    source: str = ""
    """Whose it is, in words."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that jobs can be placed on."""

    name: str
    slots: int
    rack: str = ""
    available: bool = True
    """False: drained, silent or without a path. Running jobs stay, none is started there."""
    device: str = ""
    """What one of its slots has: nodes with the same are alike to a job."""
    equal_workers: bool = False
    """All nodes of a job have as many workers, as Slurm asks for where GPUs are its slots."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """Between which numbers of workers a job may change while it runs, and what that does to it."""

    least_workers: int
    most_workers: int
    speedups: tuple[float, ...]
    """With 1, 2, ... `most_workers`: how many times as fast as with one."""
    pause_s: float = 0.0
    """So long no worker makes progress at a change of their number."""
    hold_s: float = 0.0
    """So long its number of workers is kept after its start, and after a change, unless it would be preempted."""
    deadline_s: float | None = None
    """By the clock of the jobs' times: it gets the cheapest number of workers that meets it."""
    budget_slot_s: float | None = None
    """Slot-seconds in all: it gets the fastest number of workers that stays below."""


@dataclass(frozen=True)  # no slots: see `changed`
class Job:
    """One training job. All its workers are started together or not at all.

    Counters are as of `counted_s`; `services.scheduler.core.attained` gives them for now. Those of the window restart
    when a policy promotes the job.
    """

    name: str
    slots: int
    """Of all workers together; of an elastic job as many as it asks for, for which its durations are known."""
    submitted_s: float
    number: int = 0
    """Jobs are numbered in the order of their arrival."""
    slots_per_worker: int = 1
    preemptible: bool = True
    estimate: Estimate | None = None
    duration_s: float | None = None
    """Run time without interruptions: known to simulations only. No policy but the oracles reads it."""
    elastic: Elastic | None = None
    """None: it has as many workers as it asks for."""

    phase: Phase = Phase.WAITING
    nodes: tuple[str, ...] = ()
    """Where each worker is, by rank; empty while it holds no slots."""
    counted_s: float = 0.0
    productive_from_s: float = 0.0
    """While it runs: when it has loaded its checkpoint. What it does before is no progress."""
    held_until_s: float = 0.0
    """It is not preempted before."""
    yields_to_s: float = 0.0
    """Until its next start it goes behind jobs that wait since before then: a person has preempted it."""
    first_start_s: float | None = None
    started_s: float = 0.0
    """When it got the slots that it has, or had last."""
    executed_s: float = 0.0
    """Run time that was progress; of an elastic job the time that this takes with as many workers as it asks for."""
    restoring_s: float = 0.0
    """Run time spent on loading a checkpoint."""
    waited_s: float = 0.0
    window_s: float = 0.0
    """Run time of the window that was progress, whatever the number of workers was."""
    window_waited_s: float = 0.0
    """Waited since it first ran in the window."""

    level: int | None = None
    """Queue of a policy that has several; None: not in one yet."""
    position: int = 0
    """Place within that queue: the smallest goes first."""
    rank: float = 0.0
    """By which a policy orders a queue: the largest goes first."""
    starts: int = 0
    preemptions: int = 0
    promotions: int = 0

    served_slot_s: float = 0.0
    """Of an elastic job: slot-seconds that it had while it made progress, whatever its number of workers was."""
    window_slot_s: float = 0.0
    """Like `served_slot_s`, of the window."""
    size_held_until_s: float = 0.0
    """Of an elastic job while it runs: see `Elastic.hold_s`."""
    resizes: int = 0

    @property
    def least_slots(self) -> int:
        """Of all workers together, with as few as it may have."""
        return self.slots if self.elastic is None else self.elastic.least_workers * self.slots_per_worker

    @property
    def held_slots(self) -> int:
        """Of all workers together, as it has them now."""
        return len(self.nodes) * self.slots_per_worker


def changed(value: _T, **fields: object) -> _T:
    """A copy of a frozen dataclass without slots, with other values of some fields.

    As `dataclasses.replace` in a tenth of its time, of which a replay of the log does hundreds of thousands.

    Raises:
        TypeError: there is no such field.
    """
    known = value.__dict__
    values = known | fields
    if len(values) != len(known):
        raise TypeError(f"{type(value).__name__} has no {' '.join(sorted(fields.keys() - known.keys()))}")
    copy = _new(type(value))
    _set(copy, "__dict__", values)  # the class refuses: it is frozen
    return copy
