"""The outage meter: how long traffic stood still, in send times, so that a late receiver does not count.

with OutageMeter(lab) as meter:
    measured = meter.measure(fault_maker(FaultKind.BLACKHOLE), FaultTarget.OUT)
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from services._host.netns import inside
from services._runtime.child_process import AnsweringChild
from services._runtime.command.errors import CommandError, UnavailableError
from services._runtime.service.interpreter import isolated_command
from services.fabric.testbed.faults import Direction, Fault, FaultKind
from services.fabric.testbed.lab import Lab
from services.fabric.testbed.streams import DirectionReport, StreamPlan, StreamsPlan
from services.fabric.testbed.topology import SWITCHES, HostNode

DOWN_S: Final = 2.0
SETTLE_S: Final = 1.5
_LEAD_S: Final = 0.3
"""Measured before each fault, for the floor."""
_POLL_S: Final = 0.3
_POLLS: Final = 100
_REPLY_TIMEOUT_S: Final = 60.0
_NS_PER_MS: Final = 1e6


class FaultTarget(StrEnum):
    """Which direction's uplink is broken, as seen from the first host."""

    OUT = "out"
    IN = "in"


@dataclass(frozen=True, slots=True)
class Outage:
    """What one fault did to one direction."""

    direction: str
    hit: bool
    """Its packets went over what broke."""
    outage_ms: float
    over: bool
    """False: it had not come back when the fault was lifted."""
    lost: int
    last_before_ns: int
    first_after_ns: int
    floor_ms: float
    paused_ms: float
    """Longest pause of the sender itself meanwhile."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One fault and its end."""

    fault: str
    injected_ns: int
    restored_ns: int
    outages: tuple[Outage, ...]
    restore_gap_ms: float
    """Longest gap of either direction from the lifting of the fault until both uplinks carry again."""
    restore_lost: int
    rejoin_s: float
    """From the lifting until every host has both uplinks to every other again."""

    @property
    def hits(self) -> tuple[Outage, ...]:
        """Directions that went over what broke."""
        return tuple(outage for outage in self.outages if outage.hit)


class OutageMeter:
    """Streams between two hosts' applications. Use as a context manager; one at a time in a lab."""

    def __init__(self, lab: Lab, pair: tuple[int, int] = (1, 2), *, flows: int = 6, rate_hz: int = 500) -> None:
        """Between two hosts, by their numbers.

        Raises:
            ValueError: the lab has no such host.
        """
        self.lab = lab
        self._here, there = (lab.topology.host(number) for number in pair)
        self._out, self._in = f"{self._here.name}->{there.name}", f"{there.name}->{self._here.name}"
        cpu = max(os.sched_getaffinity(0))
        directions = (_stream(self._out, self._here, there), _stream(self._in, there, self._here))
        self._plan = StreamsPlan(directions, flows, rate_hz, cpu)
        self._child: AnsweringChild | None = None
        self.realtime = False
        """Whether the streams run under SCHED_RR."""

    def __enter__(self) -> Self:
        self._child = AnsweringChild(isolated_command("services.fabric.testbed.streams", self._plan.write()))
        self.realtime = bool(self._ask()["realtime"])
        return self

    def __exit__(self, *_: object) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close(0)

    @property
    def directions(self) -> tuple[str, str]:
        """Their names, `FaultTarget.OUT` first, such as ``h1->h2``."""
        return self._out, self._in

    def reset(self) -> None:
        """Forget what was measured."""
        self._ask("reset")

    def report(self, since_ns: int = 0) -> tuple[DirectionReport, ...]:
        """Both directions since the last reset; gaps that ended before `since_ns` (CLOCK_MONOTONIC) are the floor."""
        return tuple(DirectionReport(**plain) for plain in self._ask(f"report {since_ns}"))

    def loaded_uplinks(self) -> dict[str, int]:
        """Direction -> number of the uplink of the first host that carries it now.

        Raises:
            UnavailableError: a direction has no traffic.
        """
        least = _POLL_S * self._plan.rate_hz * self._plan.flows / 4
        for _ in range(_POLLS):
            before = self._counters()
            time.sleep(_POLL_S)
            after = self._counters()
            packets = {
                direction: {switch: after[f"p{switch}"][column] - before[f"p{switch}"][column] for switch in SWITCHES}
                for direction, column in ((self._out, 1), (self._in, 0))
            }
            if all(max(counted.values()) >= least for counted in packets.values()):
                return {direction: max(counted, key=counted.__getitem__) for direction, counted in packets.items()}
        raise UnavailableError(f"no traffic to break: packets by direction and uplink in {_POLL_S:g} s: {packets}")

    def measure(
        self,
        fault_at: Callable[[int], Fault],
        target: FaultTarget,
        *,
        down_s: float = DOWN_S,
        over_within_s: float = 0.0,
        settle_s: float = SETTLE_S,
    ) -> Measurement:
        """Break what carries the traffic, at the switch that `fault_at` is given; lift it after `down_s`.

        Args:
            fault_at: the fault at a switch.
            target: the direction whose uplink is broken.
            down_s: least time that the fault lasts.
            over_within_s: time beyond that which the fault lasts while traffic has not come back.
            settle_s: measured after the lifting, once both uplinks carry again.

        Raises:
            CommandError: the lab does not become whole again.
        """
        self.lab.wait_for_both_uplinks()
        loaded = self.loaded_uplinks()
        switch = loaded[self._out if target is FaultTarget.OUT else self._in]
        fault = fault_at(switch)
        lost = {self._out: fault.stops_sending, self._in: fault.stops_receiving}
        self.reset()
        time.sleep(_LEAD_S)
        with self.lab.fault(fault) as injected_ns:
            time.sleep(down_s)
            until_s = time.monotonic() + over_within_s
            reports = self.report(injected_ns)
            while time.monotonic() < until_s and not all(report.over for report in reports):
                time.sleep(_POLL_S)
                reports = self.report(injected_ns)
            self.reset()
            restored_ns = time.monotonic_ns()
        rejoin_s = self.lab.wait_for_both_uplinks()
        time.sleep(settle_s)
        restored = self.report()
        return Measurement(
            str(fault),
            injected_ns,
            restored_ns,
            tuple(_outage(report, hit=loaded[report.name] == switch and lost[report.name]) for report in reports),
            max(report.gap_ns for report in restored) / _NS_PER_MS,
            sum(report.sent - report.received for report in restored),
            rejoin_s,
        )

    def _counters(self) -> dict[str, tuple[int, int]]:
        """Device -> packets received and sent."""
        with inside(self._here.netns):
            lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()[2:]
        fields = {line.partition(":")[0].strip(): line.partition(":")[2].split() for line in lines}
        return {name: (int(values[1]), int(values[9])) for name, values in fields.items()}

    def _ask(self, command: str | None = None) -> Any:
        if self._child is None:
            raise CommandError("the meter does not run: use it as a context manager")
        try:
            return self._child.ask(command, _REPLY_TIMEOUT_S)
        except (TimeoutError, EOFError) as error:
            raise UnavailableError(f"the meter's process {error}") from error


def _stream(name: str, sender: HostNode, receiver: HostNode) -> StreamPlan:
    return StreamPlan(
        name,
        sender.application_netns,
        sender.application_address,
        receiver.application_netns,
        receiver.application_address,
    )


def _outage(report: DirectionReport, *, hit: bool) -> Outage:
    return Outage(
        report.name,
        hit,
        report.gap_ns / _NS_PER_MS,
        report.over,
        report.sent - report.received,
        report.gap_from_ns,
        report.gap_to_ns,
        report.floor_ns / _NS_PER_MS,
        report.paused_ns / _NS_PER_MS,
    )


def measure_floor(meter: OutageMeter, seconds: float) -> dict[str, dict[str, float]]:
    """What the meter shows without a fault, by direction: longest gap in ms, packets sent and lost."""
    meter.reset()
    time.sleep(seconds)
    return {
        report.name: {"gap_ms": report.gap_ns / 1e6, "sent": report.sent, "lost": report.sent - report.received}
        for report in meter.report()
    }


def fault_maker(kind: FaultKind, direction: Direction = Direction.BOTH, host: int = 1) -> Callable[[int], Fault]:
    """From the number of a switch to the fault there."""
    return lambda switch: Fault(kind=kind, host=host, switch=switch, direction=direction)


def measure_faults(  # noqa: PLR0913, PLR0917 - what the command was given
    meter: OutageMeter,
    kind: FaultKind,
    direction: Direction,
    count: int,
    down_s: float,
    report: Callable[[str], None],
) -> list[Measurement]:
    """So many faults, at the uplink that carries out and in, in turn; a one-way blackhole where it swallows."""
    found = []
    for number in range(count):
        target = FaultTarget.OUT if number % 2 == 0 else FaultTarget.IN
        if kind is FaultKind.BLACKHOLE and direction is not Direction.BOTH:
            target = FaultTarget.OUT if direction is Direction.FROM_HOST else FaultTarget.IN
        measured = meter.measure(fault_maker(kind, direction), target, down_s=down_s)
        hits = ", ".join(f"{one.direction} {one.outage_ms:.1f} ms, {one.lost} lost" for one in measured.hits)
        report(f"{number + 1} of {count}: {measured.fault}: {hits}; back after {measured.rejoin_s:.1f} s")
        found.append(measured)
    return found


def plain(
    meter: OutageMeter, floor: dict[str, dict[str, float]], measurements: Sequence[Measurement]
) -> dict[str, Any]:
    """Everything as JSON types, with a summary in words."""
    lines = [
        f"floor {name}: {one['gap_ms']:.1f} ms, {one['lost']} of {one['sent']} lost" for name, one in floor.items()
    ]
    for name in meter.directions:
        values = [hit.outage_ms for measured in measurements for hit in measured.hits if hit.direction == name]
        if values:
            lines.append(
                f"outage {name}: {statistics.median(values):.1f} ms"
                f" ({min(values):.1f}-{max(values):.1f}), n = {len(values)}"
            )
    if measurements:
        gaps = [measured.restore_gap_ms for measured in measurements]
        lines.append(f"gap at restore: {statistics.median(gaps):.1f} ms ({min(gaps):.1f}-{max(gaps):.1f})")
    return {
        "realtime": meter.realtime,
        "floor": floor,
        "measurements": [asdict(measured) for measured in measurements],
        "summary": lines,
    }
