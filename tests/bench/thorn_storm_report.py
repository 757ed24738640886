"""What a storm of edge faults cost, and what each fault may cost at the most. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.bench.machine import Machine

BOUNDS: Final = {
    "route": 12,
    "override": 4,
    "override_removed": 4,
    "lost sessions": 4,
    "rule": 0,
    "fdb": 0,
    "neigh": 0,
    "tc and nexthop": 0,
    "rule writes": 0,
}
"""Per fault: twice what one costs. Messages of the kernel about routes, rules of routing, FDB, the overlay's neighbours
and tc at the host that heard most; overrides, their releases and writes of tc rules at all hosts; BGP sessions lost at
both ends of a link."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one fault, or of many that came too fast to be told apart."""

    what: str
    faults: int
    counts: dict[str, int]
    gap_ms: float
    """Longest that traffic stood still, either way."""
    paused_ms: float
    """Longest that its sender itself stood still, as on a busy machine."""
    rejoin_s: float
    """From the end of the fault until all paths had both uplinks again."""

    @property
    def beyond(self) -> dict[str, float]:
        """What was more than the bound, per fault."""
        each = {name: count / self.faults for name, count in self.counts.items()}
        return {name: count for name, count in each.items() if count > BOUNDS[name]}


@dataclass(frozen=True, slots=True)
class StormResults:
    """All of it."""

    machine: Machine
    frr: str
    realtime: bool
    costs: list[Cost]
    left: list[str]
    """What stood at the end that should not."""
    passes: int
    """Of the reconcilers, all together."""
    writes: int
    """Of the reconcilers: rules."""
    alarms: list[str]
    """What fast paths raised alarm for."""


def wrong(results: StormResults) -> list[str]:
    """Everything that is not as it should be, in sentences."""
    found = [
        f"{cost.what}: {count:g} {name} per fault, at most {BOUNDS[name]} expected"
        for cost in results.costs
        for name, count in cost.beyond.items()
    ]
    if results.writes:
        found.append(f"reconcilers wrote {results.writes} rules")
    if not any(cost.counts.get("override") for cost in results.costs[:-1]):
        found.append("the fast path answered no fault")
    if not results.costs[-1].counts.get("override"):
        found.append("the fast path did not answer the fault after the storm")
    return found + [f"left standing: {what}" for what in results.left]


def line(cost: Cost) -> str:
    """One part in words."""
    counts = ", ".join(f"{name} {count}" for name, count in sorted(cost.counts.items()) if count)
    gap = f"gap {cost.gap_ms:g} ms (sender {cost.paused_ms:g})"
    return f"{cost.what} x{cost.faults}: {gap}, whole after {cost.rejoin_s:g} s; {counts}"


def table(results: StormResults) -> str:
    """Everything as text."""
    scheduling = "SCHED_RR" if results.realtime else "NOT under SCHED_RR"
    lines = [results.machine.line, f"FRR {results.frr}, {scheduling}", ""]
    lines.append("per fault; messages of the kernel about routes at the host that heard most, all else in sum")
    shown = [name for name, bound in BOUNDS.items() if bound]
    lines.append(
        f"{'fault':<36}{'times':>6}{'gap ms':>10}{'sender ms':>11}{'whole s':>9}"
        + "".join(f"{name:>15}" for name in shown)
    )
    for cost in results.costs:
        cells = "".join(f"{cost.counts.get(name, 0) / cost.faults:>15.2f}" for name in shown)
        lines.append(
            f"{cost.what:<36}{cost.faults:>6}{cost.gap_ms:>10.1f}{cost.paused_ms:>11.1f}{cost.rejoin_s:>9.1f}{cells}"
        )
    lines.append(f"{'at most':<72}" + "".join(f"{BOUNDS[name]:>15}" for name in shown))
    never = ", ".join(name for name, bound in BOUNDS.items() if not bound)
    lines += ["", f"must be 0 throughout: {never}; passes of the reconcilers: {results.passes}"]
    lines.append(f"alarms of fast paths: {', '.join(results.alarms) or 'none'}")
    return "\n".join([*lines, *(wrong(results) or ["nothing amplified, nothing left standing"])])


def as_json(results: StormResults) -> dict[str, Any]:
    """Everything."""
    return {**asdict(results), "machine": results.machine.as_dict(), "bounds": BOUNDS, "wrong": wrong(results)}
