"""A storm of edge faults against the whole chain: FRR, fast path, reconciler. Counted, not timed.

    python -m tests.bench.thorn_storm [--minutes 10] [--json]

One fault at a time first, at both uplinks of a host in turn, 20 s down and 20 s up as in thesis 3.5.2; then one uplink
that flaps faster than anything can follow; then one more fault, which must be answered as the first was. What a fault
costs is counted at every host: messages of the kernel about routes, rules, FDB and tc, events of the fast path, lost
BGP sessions. Nothing may cost more the longer it goes on, nothing may touch rules, and nothing may be left at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import cycle, islice, repeat
from typing import Final, Self

from schemas.network import NetworkStateReply, NetworkStateRequest, RouteEvent, RouteKind, TcEvent
from schemas.subjects import RECONCILER_STATE, ROUTE_EVENTS, TC_EVENTS
from services._runtime.bus.api import BusError, Delivery
from services._runtime.command.errors import UnavailableError
from services.fabric.testbed import connectivity
from services.fabric.testbed.faults import Fault
from services.fabric.testbed.lab import Lab
from services.fabric.testbed.meter import OutageMeter
from services.fabric.testbed.schedule import FaultSchedule, FaultTiming
from services.fabric.testbed.topology import HostNode, LabSettings
from tests.bench import thorn_storm_report as report
from tests.bench.cluster import Cluster, open_cluster
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record
from tests.bench.thorn import why_not
from tests.bench.thorn_report import frr_version
from tests.bench.thorn_storm_report import Cost, StormResults
from tests.support.bgp_sessions import bgp_drops
from tests.support.fast_path_lab import run
from tests.support.lab_events import LabEvents
from tests.support.lab_faults import blackhole, link_down

REJOIN_WITHIN_S: Final = 30.0
QUIET_WITHIN_S: Final = 90.0
"""The fast path steps back for 30 s after too many faults."""
_STARTED_WITHIN_S: Final = 30.0
SERIES: Final = (blackhole(1, 1), blackhole(1, 2), link_down(1, 1), link_down(1, 2))


@dataclass(frozen=True, slots=True)
class StormPlan:
    """What comes over the lab."""

    faults: int
    """One at a time, in turn as `SERIES`."""
    down_s: float
    up_s: float
    """At least; the next one comes only once all is whole."""
    flaps: int
    flap: FaultTiming = field(default_factory=lambda: FaultTiming(0.3, 0.2, 0.0))

    @classmethod
    def lasting(cls, minutes: float) -> Self:
        """With the thesis' rhythm, and a tenth of the time for flaps."""
        flaps_s = 6 * minutes
        return cls(max(round((60 * minutes - flaps_s) / 40), 1), 20.0, 20.0, max(round(flaps_s / 0.5), 1))


class Told:
    """What our services tell on the bus; filled in the event loop, read in another thread."""

    def __init__(self) -> None:
        self.routes: list[RouteEvent] = []
        self.operations = 0
        """Writes of rules."""

    def note(self, delivery: Delivery) -> None:
        """One message."""
        if isinstance(delivery.message, RouteEvent) and delivery.message.source == "fast_path":
            self.routes.append(delivery.message)
        elif isinstance(delivery.message, TcEvent):
            self.operations += len(delivery.message.operations)

    def of(self, kind: RouteKind, cause: str | None = None) -> list[RouteEvent]:
        """Events of all fast paths."""
        return [event for event in list(self.routes) if event.kind is kind and cause in {None, event.cause}]


class Watch:
    """Counts what every host's kernel and every router says."""

    def __init__(self, lab: Lab, told: Told, stack: ExitStack) -> None:
        self._lab = lab
        self._told = told
        self._events = {host.name: LabEvents(host.netns) for host in lab.topology.hosts}
        for events in self._events.values():
            stack.callback(events.close)
        self._seen = self._totals()

    def _totals(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for kind in (RouteKind.OVERRIDE, RouteKind.OVERRIDE_REMOVED):
            found[str(kind)] = len(self._told.of(kind))
        found["rule writes"] = self._told.operations
        found["lost sessions"] = sum(sum(bgp_drops(netns).values()) for netns in self._lab.topology.routers)
        return found

    def taken(self) -> Counter[str]:
        """Since the last call: of the kernel the host that heard most, of all else the sum."""
        totals = self._totals()
        found = totals - self._seen
        self._seen = totals
        for events in self._events.values():
            found |= events.counted()
        del found["underlay"]
        return found


def standing(lab: Lab) -> list[str]:
    """What a storm that is over must not leave behind; empty: nothing."""
    left = [f"{fault} is in force" for fault in lab.faults]
    left += [f"route {path}" for path in connectivity.incomplete_routes(lab.topology)]
    left += [
        f"deaf {pair}"
        for pair in connectivity.unreachable_pairs(lab.topology) + connectivity.unreachable_switches(lab.topology)
    ]
    left += [f"{name} has ended" for name, lives in lab.sidecars().items() if not lives]
    for host in lab.topology.hosts:
        overrides = run("ip", "-n", host.netns, "route", "show", "table", "all", "proto", "200", check=False)
        left += [f"{host.name}: {line.strip()}" for line in overrides.splitlines()]
        left += [f"{host.name}: {line}" for line in run("ip", "-n", host.netns, "nexthop").splitlines()]
    return left


class Storm:
    """One lab, and what comes over it; in a thread of its own."""

    def __init__(self, lab: Lab, told: Told, say: Callable[[str], None], stack: ExitStack) -> None:
        self.lab = lab
        self.told = told
        self._say = say
        self._meter = stack.enter_context(OutageMeter(lab, rate_hz=100))
        self._watch = Watch(lab, told, stack)

    def one(self, fault: Fault, down_s: float, up_s: float) -> Cost:
        """One fault, until all is whole again."""
        begin_s = self._begin()
        with self.lab.fault(fault):
            time.sleep(down_s)
        rejoin_s = self.lab.wait_for_both_uplinks(REJOIN_WITHIN_S)
        time.sleep(max(0.0, begin_s + down_s + up_s - time.monotonic()))
        return self._cost(str(fault), 1, rejoin_s)

    def flap(self, fault: Fault, times: int, rhythm: FaultTiming) -> Cost:
        """One fault again and again; until the fast path trusts the uplink again."""
        self._begin()
        FaultSchedule(self.lab, repeat(fault), replace(rhythm, times=times)).run()
        rejoin_s = self.lab.wait_for_both_uplinks(REJOIN_WITHIN_S)
        connectivity.wait_until(self._stepped_back, QUIET_WITHIN_S)
        return self._cost(f"{fault} flapping", times, rejoin_s)

    def end(self) -> list[str]:
        """What is left standing once there was time enough for all."""
        return connectivity.wait_until(lambda: standing(self.lab) + self._stepped_back(), QUIET_WITHIN_S)

    def _stepped_back(self) -> list[str]:
        told = {cause: len(self.told.of(RouteKind.FAST_PATH, cause)) for cause in ("flap_damped", "flap_damping_ended")}
        return ["a fast path answers no faults"] if told["flap_damped"] > told["flap_damping_ended"] else []

    def _begin(self) -> float:
        self._meter.reset()
        return time.monotonic()

    def _cost(self, what: str, faults: int, rejoin_s: float) -> Cost:
        gap_ms, paused_ms = (
            round(max(getattr(one, name) for one in self._meter.report()) / 1e6, 1) for name in ("gap_ns", "paused_ns")
        )
        cost = Cost(what, faults, dict(self._watch.taken()), gap_ms, paused_ms, round(rejoin_s, 1))
        self._say(report.line(cost))
        return cost


def over(lab: Lab, plan: StormPlan, told: Told, say: Callable[[str], None]) -> tuple[list[Cost], list[str]]:
    """Let it come over a lab: what each part cost, and what is left standing at the end.

    Raises:
        CommandError: the lab does not become whole again.
    """
    with ExitStack() as stack:
        storm = Storm(lab, told, say, stack)
        costs = [storm.one(fault, plan.down_s, plan.up_s) for fault in islice(cycle(SERIES), plan.faults)]
        costs.append(storm.flap(link_down(1, 1), plan.flaps, plan.flap))
        costs.append(storm.one(SERIES[1], plan.down_s, plan.up_s))
        return costs, storm.end()


async def measure(plan: StormPlan, prefix: str, say: Callable[[str], None]) -> StormResults:
    """A lab with everything that we have, the storm, and what became of it.

    Raises:
        CommandError: the lab cannot be built, or does not become whole again.
    """
    told = Told()
    async with open_cluster() as cluster:
        os.environ["TURNBUCKLE_NATS_URL"] = cluster.server.url  # fast paths and reconcilers take it from here
        for subjects in (ROUTE_EVENTS, TC_EVENTS):
            await cluster.bus.subscribe(subjects.pattern(cluster.bus.root), told.note)
        loop = asyncio.get_running_loop()

        def state(host: HostNode) -> NetworkStateReply | None:
            return asyncio.run_coroutine_threadsafe(_state(cluster, host.netns), loop).result()

        def work() -> StormResults:
            with Lab.up(LabSettings(prefix=prefix, fast_path=True), say) as lab:
                lab.start_reconcilers(say)
                before = _states(lab, state)
                costs, left = over(lab, plan, told, say)
                after = _states(lab, state)
                realtime = lab.realtime
            writes = sum(late.writes - early.writes for early, late in zip(before, after, strict=True))
            passes = sum(
                late.full_reconciles - early.full_reconciles for early, late in zip(before, after, strict=True)
            )
            alarms = sorted({event.cause for event in told.of(RouteKind.FAST_PATH) if event.alarm})
            return StormResults(this_machine(), frr_version(), realtime, costs, left, passes, writes, alarms)

        return await asyncio.to_thread(work)


def _states(lab: Lab, ask: Callable[[HostNode], NetworkStateReply | None]) -> list[NetworkStateReply]:
    """Of every reconciler, once it has made its first pass."""
    found: dict[str, NetworkStateReply] = {}

    def silent() -> list[str]:
        for host in lab.topology.hosts:
            if (state := ask(host)) is not None and state.full_reconciles:
                found[host.name] = state
        return [host.name for host in lab.topology.hosts if host.name not in found]

    if names := connectivity.wait_until(silent, _STARTED_WITHIN_S):
        raise UnavailableError(f"no reconciler answers for {', '.join(names)}")
    return list(found.values())


async def _state(cluster: Cluster, node: str) -> NetworkStateReply | None:
    try:
        subject = RECONCILER_STATE.subject(cluster.bus.root, node=node)
        reply = await cluster.bus.request(subject, NetworkStateRequest(), timeout_s=2.0)
    except BusError:
        return None
    assert isinstance(reply, NetworkStateReply)
    return reply


def main() -> int:
    """Let it storm and report; 69 where this machine does not allow it, 1 where something was amplified or left."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.thorn_storm", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="about how long (default %(default)g)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args()
    if reason := why_not():
        print(f"thorn_storm: {reason}", file=sys.stderr)
        return UNAVAILABLE
    results = asyncio.run(measure(StormPlan.lasting(given.minutes), "tbstorm", say))
    record = report.as_json(results)
    tell(report.table(results), record, [write_record(record, OUTPUT / "thorn_storm.json")], as_json=given.json)
    return 1 if report.wrong(results) else 0


if __name__ == "__main__":
    sys.exit(main())
