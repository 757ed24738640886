"""The reports of `turnbuckle lab status` and `turnbuckle lab meter`, as plain values."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from services.fabric.testbed import connectivity, frr_daemons
from services.fabric.testbed.faults import Direction, Fault, FaultKind
from services.fabric.testbed.lab import Lab
from services.fabric.testbed.meter import FaultTarget, Measurement, OutageMeter


def status_of(lab: Lab) -> dict[str, Any]:
    """Paths, daemons and faults."""
    topology = lab.topology
    return {
        "prefix": lab.settings.prefix,
        "hosts": lab.settings.hosts,
        "bfd": "off" if lab.settings.bfd is None else str(lab.settings.bfd),
        "scheduling": "SCHED_RR" if lab.realtime else "normal priority",
        "ready_after_s": lab.ready_after_s,
        "paths": [
            {"from": one.name, "to": other.name, "uplinks": sorted(lab.next_hops(one.number, other.number))}
            for one in topology.hosts
            for other in topology.hosts
            if one is not other
        ],
        "deaf": connectivity.unreachable_pairs(topology),
        "daemons": {netns: sorted(frr_daemons.running(netns)) for netns in topology.routers},
        "companions": lab.sidecars(),
        "faults": [str(fault) for fault in lab.faults],
    }


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
