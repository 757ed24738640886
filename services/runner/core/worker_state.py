"""What to do next about one worker, from its records, its processes and an order. Pure.

A worker is started at most once per attempt. Its records are written before what they announce: the *intent* by the
runner, then a *claim* by the shim that starts it, at last its *end*. So after a crash at any moment it is known what
may have happened: without a claim nothing was started, and with one no other shim starts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from schemas.scheduling import OrderAction, Preemption, WorkerChange

SAVED_CODES: Final = (0, 143, -15)
"""Exit codes after SIGTERM that say that the state is saved: 0, 128 + SIGTERM, ended by SIGTERM."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one worker."""

    intended: bool = False
    """It was ordered here: its directory has an intent."""
    same_boot: bool = True
    """The host has not been booted since."""
    shim_lives: bool = False
    """Its shim holds the lock, or was just started by this runner."""
    claimed: bool = False
    over: bool = False
    """Its end is recorded."""
    stop_asked: bool = False
    kill_asked: bool = False


class Step(StrEnum):
    """What is to be done about one worker."""

    NOTHING = "nothing"
    START = "start"
    """Record the intent, unless it is there, and start a shim."""
    ASK_STOP = "ask_stop"
    """Record the request and wake its shim: SIGTERM, and SIGKILL after the grace period."""
    ASK_KILL = "ask_kill"
    DECLARE_STOPPED = "declare_stopped"
    """It was never started and must not be any more: record its end, with the lock held."""
    DECLARE_LOST = "declare_lost"
    """Kill what is left of it, and record its end, with the lock held."""
    PACE = "pace"
    """It runs, and may be paused."""
    FORGET = "forget"


def next_step(facts: Facts, order: OrderAction | None) -> Step:
    """The step that follows; without an order, what has to be done anyway.

    An unclaimed intent is not followed without an order: the runner may have been away for so long that
    the job runs elsewhere.
    """
    if facts.over:
        return Step.FORGET if order is OrderAction.FORGET else Step.NOTHING
    if facts.intended and not facts.same_boot:
        return Step.DECLARE_LOST
    if facts.shim_lives:
        return _living(facts, order)
    if facts.claimed:
        return Step.DECLARE_LOST
    return Step.NOTHING if order is None else _UNCLAIMED[order]


def _living(facts: Facts, order: OrderAction | None) -> Step:
    if order is OrderAction.STOP and not facts.stop_asked:
        return Step.ASK_STOP
    if order is OrderAction.KILL and not facts.kill_asked:
        return Step.ASK_KILL
    if order is OrderAction.PACE and facts.claimed and not facts.stop_asked:
        return Step.PACE
    return Step.NOTHING


_UNCLAIMED: Final = {
    OrderAction.RUN: Step.START,
    OrderAction.CHECK: Step.DECLARE_LOST,
    OrderAction.STOP: Step.DECLARE_STOPPED,
    OrderAction.KILL: Step.DECLARE_STOPPED,
    OrderAction.PACE: Step.NOTHING,
    OrderAction.FORGET: Step.NOTHING,
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker ended."""

    preemption: Preemption
    exit_code: int | None = None
    """Negative: that signal; None: it was not started."""
    asked: bool = False
    """It had been asked to stop."""
    killed: bool = False
    """By SIGKILL, as it had to stop."""
    error: str = ""
    lost: bool = False


def ending_change(ending: Ending) -> WorkerChange:
    """What its end means for the job."""
    if ending.lost:
        return WorkerChange.LOST
    if ending.error:
        return WorkerChange.FAILED
    if not ending.asked:
        return WorkerChange.ENDED if ending.exit_code == 0 else WorkerChange.FAILED
    if ending.exit_code is None:
        return WorkerChange.STOPPED  # before it was started: nothing is lost
    if ending.exit_code == 0:
        return WorkerChange.STOPPED
    saves = ending.preemption is Preemption.CHECKPOINT and not ending.killed
    return WorkerChange.STOPPED if saves and ending.exit_code in SAVED_CODES else WorkerChange.UNSAVED
