"""One setup of the dual-ToR lab under one kind of fault after another, and what the fast path says of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.network import RouteEvent, RouteKind
from services._runtime.command.errors import CommandError
from services.fabric.model import Bfd
from services.fabric.testbed.faults import Direction, Fault
from services.fabric.testbed.lab import Lab
from services.fabric.testbed.meter import FaultTarget, Measurement, Outage, OutageMeter
from services.fabric.testbed.topology import LabSettings
from tests.support.lab_faults import blackhole, link_down

PAUSE_MS: Final = 10.0
PACE_S: Final = 4.0
"""At least so long from fault to fault: a fast path that acts more than three times in 10 s is damped."""
SEEN_DOWN_S: Final = 3.0
"""How long a fault lasts that everybody sees."""
_NS_PER_MS: Final = 1e6
_SLACK_NS: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Setup:
    """What watches over the paths."""

    name: str
    bfd: Bfd | None
    fast_path: bool
    down_s: float
    """How long a fault lasts: longer than anything takes to find it."""

    def settings(self, prefix: str) -> LabSettings:
        """For the lab."""
        return LabSettings(prefix=prefix, bfd=self.bfd, fast_path=self.fast_path)


SETUPS: Final = (
    Setup("BGP timers only (3 s, 9 s)", None, fast_path=False, down_s=13.0),
    Setup("BFD 50x3", Bfd.parse("50x3"), fast_path=False, down_s=1.5),
    Setup("BFD 10x3", Bfd.parse("10x3"), fast_path=False, down_s=1.5),
    Setup("BFD 50x3 + fast path", Bfd.parse("50x3"), fast_path=True, down_s=1.5),
    Setup("BFD 10x3 + fast path", Bfd.parse("10x3"), fast_path=True, down_s=1.5),
)
NAMES: Final = {"bgp": 0, "50x3": 1, "10x3": 2, "50x3-fast": 3, "10x3-fast": 4}
"""On the command line."""


@dataclass(frozen=True, slots=True)
class FaultCase:
    """A kind of fault, and where to make it: (fault at a switch, the direction that it is aimed at), in turn."""

    name: str
    turns: tuple[tuple[Callable[[int], Fault], FaultTarget], ...]
    silent: bool = True
    """Nobody sees a carrier change: found by timers only."""


FAULTS: Final = {
    "blackhole": FaultCase(
        "blackhole both ways",
        (
            (lambda switch: blackhole(1, switch), FaultTarget.OUT),
            (lambda switch: blackhole(1, switch), FaultTarget.IN),
        ),
    ),
    "one-way": FaultCase(
        "blackhole one way",
        (
            (lambda switch: blackhole(1, switch, Direction.FROM_HOST), FaultTarget.OUT),
            (lambda switch: blackhole(1, switch, Direction.TO_HOST), FaultTarget.IN),
        ),
    ),
    "carrier": FaultCase(
        "carrier loss",
        (
            (lambda switch: link_down(1, switch), FaultTarget.OUT),
            (lambda switch: link_down(1, switch), FaultTarget.IN),
        ),
        silent=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Hit:
    """What one fault did to a direction that went over it."""

    direction: str
    outage_ms: float
    over: bool
    lost: int
    floor_ms: float
    trigger_ms: float | None
    """Last packet that got through -> the fast path noticed."""
    write_ms: float | None
    """Noticed -> the kernel had acknowledged the override."""
    first_ms: float | None
    """Noticed -> sending of the first packet that got through."""


@dataclass(frozen=True, slots=True)
class FaultRun:
    """One fault."""

    setup: str
    case: str
    fault: str
    hits: tuple[Hit, ...]
    bystander_ms: float
    """Longest gap of a direction that did not go over it; 0: there was none."""
    restore_gap_ms: float
    restore_lost: int
    rejoin_s: float
    disturbed: bool = False
    """The sender itself stood still, as on a busy machine: left out of the figures."""
    alarms: tuple[str, ...] = ()
    """What the fast paths raised alarm for meanwhile, such as ``damped``: it would not act."""


@dataclass(slots=True)
class SetupRuns:
    """All faults of one visit to a setup."""

    runs: list[FaultRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ready_s: float = 0.0
    realtime: bool = False


def measure_setup(
    setup: Setup, cases: Sequence[FaultCase], hits: int, events: list[RouteEvent], tell: Callable[[str], None]
) -> SetupRuns:
    """Build the lab, and make faults until each direction was hit so often by each kind.

    `events` grows meanwhile, in another thread.

    Raises:
        CommandError: the lab cannot be built.
    """
    found = SetupRuns()
    with Lab.up(setup.settings("tbbench")) as lab, OutageMeter(lab) as meter:
        found.ready_s, found.realtime = lab.ready_after_s, lab.realtime and meter.realtime
        for case in cases:
            counted = dict.fromkeys(meter.directions, 0)
            for turn in range(3 * hits):
                if min(counted.values()) >= hits:
                    break
                began_s = time.monotonic()
                try:
                    run = _measure(meter, setup, case, turn, events)
                except CommandError as error:
                    found.notes.append(f"{setup.name}, {case.name}: {error}")
                    tell(f"  {error}")
                    lab.restore()
                    continue
                found.runs.append(run)
                for hit in run.hits if not run.disturbed else ():
                    counted[hit.direction] += 1
                tell(f"  {setup.name}, {case.name}: {_words(run)}")
                time.sleep(max(0.0, PACE_S - (time.monotonic() - began_s)))
            if min(counted.values()) < hits:
                found.notes.append(f"{setup.name}, {case.name}: hit only {counted} times in {3 * hits} faults")
    return found


def _measure(meter: OutageMeter, setup: Setup, case: FaultCase, turn: int, events: list[RouteEvent]) -> FaultRun:
    fault_at, aim = case.turns[turn % len(case.turns)]
    settle_s = 2.5 if setup.bfd is None else 0.8
    down_s = setup.down_s if case.silent else min(setup.down_s, SEEN_DOWN_S)
    measured = meter.measure(fault_at, aim, down_s=down_s, settle_s=settle_s)
    told = _told(events, measured) if setup.fast_path else []
    bystanders = [outage.outage_ms for outage in measured.outages if not outage.hit]
    return FaultRun(
        setup.name,
        case.name,
        measured.fault,
        tuple(_hit(outage, told) for outage in measured.hits),
        max(bystanders, default=0.0),
        measured.restore_gap_ms,
        measured.restore_lost,
        measured.rejoin_s,
        disturbed=any(_is_disturbed(outage) for outage in measured.hits),
        alarms=tuple(sorted({event.cause for event in told if event.kind is RouteKind.FAST_PATH and event.alarm})),
    )


def _is_disturbed(outage: Outage) -> bool:
    """The sender stood still itself: the machine was busy, and nothing can be said."""
    return outage.paused_ms > PAUSE_MS and outage.paused_ms > outage.outage_ms / 4


def _told(events: list[RouteEvent], measured: Measurement) -> list[RouteEvent]:
    """The fast paths' events while the fault was in force."""
    # One clock for packets (monotonic), another for events (wall): the difference of this moment holds for seconds.
    shift_ns = time.time_ns() - time.monotonic_ns()
    begin_ns, end_ns = measured.injected_ns + shift_ns, measured.restored_ns + shift_ns
    return [event for event in list(events) if begin_ns <= event.time_ns <= end_ns and event.source == "fast_path"]


def _hit(outage: Outage, told: list[RouteEvent]) -> Hit:
    overrides = [event for event in told if event.kind is RouteKind.OVERRIDE]
    trigger = min(overrides, key=lambda event: event.time_ns, default=None)
    trigger_ms = write_ms = first_ms = None
    if trigger is not None and outage.over:
        noticed_ns = trigger.time_ns - (time.time_ns() - time.monotonic_ns())
        write_ms = trigger.latency_us / 1e3
        # Without loss the longest gap is the floor's, at any time: it has nothing to do with the trigger.
        if outage.last_before_ns - _SLACK_NS <= noticed_ns <= outage.first_after_ns + _SLACK_NS:
            trigger_ms = (noticed_ns - outage.last_before_ns) / _NS_PER_MS
            first_ms = (outage.first_after_ns - noticed_ns) / _NS_PER_MS
    return Hit(
        outage.direction,
        outage.outage_ms,
        outage.over,
        outage.lost,
        outage.floor_ms,
        trigger_ms,
        write_ms,
        first_ms,
    )


def _words(run: FaultRun) -> str:
    parts = [
        f"{hit.direction} {hit.outage_ms:.1f} ms"
        + ("" if hit.over else " (not over)")
        + ("" if hit.first_ms is None else f", first packet {hit.first_ms:+.1f} ms after the trigger")
        for hit in run.hits
    ]
    rest = [*(f"alarm {cause}" for cause in run.alarms), *(["disturbed, not counted"] if run.disturbed else [])]
    return "; ".join([f"{run.fault}: {'; '.join(parts) or 'nobody hit'}", f"whole after {run.rejoin_s:.1f} s", *rest])
