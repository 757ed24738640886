"""What follows from the measured points: containers per core, growth, memory per container. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from schemas.apps import PERIOD_US
from tests.bench.figures import Expectation, Spread
from tests.bench.machine import Machine
from tests.bench.scenario_agent import AgentRun
from tests.bench.scenario_allocator import AllocatorRun

KEPT_UP: Final = 0.97
"""Ticks per period below which a point is not used for anything else; one tick more may fall outside of the window."""
LOOP_US: Final = PERIOD_US / 10_000
"""At most this for agent and allocator together: 10,000 containers per core."""
ALLOCATOR_US: Final = PERIOD_US / 500_000
GROWTH: Final = 1.5
"""At most, of the cost per container from 100 to 1,000 containers a node."""
ENOUGH: Final = 100
"""Containers a node from which on the loop's figure is to hold."""
Activity = Literal["quiet", "busy", "lively"]
CHANGE_SHARES: Final[dict[Activity, float]] = {"quiet": 0.0, "busy": 0.03, "lively": 0.1}
"""Share of the synthetic containers that pick a new demand in a period. *busy*: about a fifth of all limits change in
every period, as on a real node of 100 containers with 30 burners; *lively*: more than every second one."""


@dataclass(frozen=True, slots=True, order=True)
class HostKey:
    """What was measured on real control groups."""

    containers: int
    source: str
    busy: int

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.containers:,} a node, {self.busy or 'none'} busy, {self.source}"


@dataclass(frozen=True, slots=True, order=True)
class FleetKey:
    """What was measured with synthetic agents."""

    containers: int
    containers_per_node: int
    replicas: int
    activity: Activity

    @property
    def text(self) -> str:
        """For people."""
        replicas = "1 replica" if self.replicas == 1 else f"{self.replicas} replicas"
        return f"{self.containers:,}, {self.containers_per_node:,} a node, {replicas}, {self.activity}"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Containers that one core would carry, from CPU time."""

    what: str
    cost_us: Spread
    """Per container and period."""
    measured: str
    """What it is extrapolated from."""

    @property
    def per_core(self) -> Spread:
        """Containers."""
        cost = self.cost_us
        return Spread(PERIOD_US / cost.median, PERIOD_US / cost.most, PERIOD_US / cost.least, cost.count)


@dataclass(slots=True)
class ScaleResults:
    """Everything that was measured."""

    machine: Machine
    hosts: list[AgentRun] = field(default_factory=list)
    fleets: list[AllocatorRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def host_groups(self) -> dict[HostKey, list[AgentRun]]:
        """Repetitions of one point together."""
        groups: defaultdict[HostKey, list[AgentRun]] = defaultdict(list)
        for run in self.hosts:
            groups[HostKey(run.containers, run.source, run.busy)].append(run)
        return dict(sorted(groups.items()))

    def fleet_groups(self) -> dict[FleetKey, list[AllocatorRun]]:
        """Repetitions of one point together."""
        groups: defaultdict[FleetKey, list[AllocatorRun]] = defaultdict(list)
        for run in self.fleets:
            load = run.load
            activity = next(name for name, share in CHANGE_SHARES.items() if share == load.change_share)
            key = FleetKey(load.containers, load.containers_per_node, run.replicas, activity)
            groups[key].append(run)
        return dict(sorted(groups.items()))

    def as_dict(self) -> dict[str, Any]:
        """For the JSON record."""
        return {
            "machine": self.machine.as_dict(),
            "expectations": [row.as_dict() for row in expectations(self)],
            "capacities": [
                {"what": row.what, "measured": row.measured}
                | {"cost_us": asdict(row.cost_us), "containers_per_core": asdict(row.per_core)}
                for row in capacities(self)
            ],
            "growth": [{"what": what, **asdict(spread)} for what, spread in growths(self)],
            "hosts": [asdict(run) for run in self.hosts],
            "fleets": [asdict(run) for run in self.fleets],
            "notes": self.notes,
        }


def kept_up(runs: Sequence[AgentRun] | Sequence[AllocatorRun]) -> bool:
    """Whether no tick was lost to speak of: late ones of one repetition are not made up by another."""
    return bool(runs) and all(run.ticks_per_period * run.periods + 1 >= run.periods * KEPT_UP for run in runs)


def capacities(results: ScaleResults) -> list[Capacity]:
    """Agent and allocator together, of one node and of many; the allocator alone."""
    hosts = {key: runs for key, runs in results.host_groups().items() if kept_up(runs) and key.containers >= ENOUGH}
    fleets = {key: runs for key, runs in results.fleet_groups().items() if kept_up(runs) and key.replicas == 1}
    found = [
        Capacity(
            f"one node: {key.text}",
            Spread.of([run.loop_us for run in runs]),
            f"agent, watchdog and allocator at {_share(key.containers, [run.loop_us for run in runs])}",
        )
        for key, runs in hosts.items()
    ]
    for key, runs in hosts.items():
        fleet_key = _largest_of(fleets, key)
        if fleet_key is not None:
            allocator_us = Spread.of([run.process_us for run in fleets[fleet_key]]).median
            cost = Spread.of([run.process_us + run.companions_us + allocator_us for run in runs])
            measured = f"the agent of that node, and the allocator at {fleet_key.text}"
            found.append(Capacity(f"many nodes: {key.text}", cost, measured))
    return found + [
        Capacity(
            f"allocator alone: {key.text}",
            Spread.of([run.process_us for run in runs]),
            f"the allocator at {_share(key.containers, [run.process_us for run in runs])}",
        )
        for key, runs in fleets.items()
    ]


def _largest_of(fleets: dict[FleetKey, list[AllocatorRun]], host: HostKey) -> FleetKey | None:
    """The largest fleet of nodes like this one, as busy or as quiet."""
    activity = "busy" if host.busy else "quiet"
    same = [key for key in fleets if (key.containers_per_node, key.activity) == (host.containers, activity)]
    return max(same, default=None)


def _share(containers: int, costs_us: Sequence[float]) -> str:
    """Share of a core that was really used."""
    return f"{containers * Spread.of(costs_us).median / PERIOD_US:.1%} of a core"


def growths(results: ScaleResults) -> list[tuple[str, Spread]]:
    """Cost per container with 1,000 containers a node over that with 100: repetitions in pairs."""
    groups = results.host_groups()
    found = []
    for source in dict.fromkeys(key.source for key in groups):
        for busy in (False, True):
            series = [
                runs
                for count in (100, 1_000)
                for key, runs in groups.items()
                if (key.containers, key.source, bool(key.busy)) == (count, source, busy)
            ]
            if len(series) == 2:
                ratios = [after.loop_us / before.loop_us for before, after in zip(*series, strict=False)]
                found.append((f"{'busy' if busy else 'idle'}, {source}", Spread.of(ratios)))
    return found


def bytes_per_container(results: ScaleResults, source: str) -> dict[int, float]:
    """Resident memory of the agent beyond that with the fewest containers, per container, by containers a node."""
    by_count: defaultdict[int, list[int]] = defaultdict(list)
    for run in results.hosts:
        if run.source == source:
            by_count[run.containers].append(run.agent_bytes)
    if not by_count:
        return {}
    least = min(by_count)
    base_bytes = Spread.of(by_count[least]).median
    return {
        count: (Spread.of(values).median - base_bytes) / (count - least)
        for count, values in sorted(by_count.items())
        if count > least
    }


def expectations(results: ScaleResults) -> list[Expectation]:
    """The project's figures beside the measured ones, where they were measured."""
    found = []
    for row in capacities(results):
        alone = row.what.startswith("allocator alone")
        found.append(Expectation(row.what, ALLOCATOR_US if alone else LOOP_US, "us/container/period", row.cost_us))
    return found + [
        Expectation(f"cost at 1,000 a node over 100: {what}", GROWTH, "times", spread)
        for what, spread in growths(results)
    ]
