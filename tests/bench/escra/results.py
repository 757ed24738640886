"""What the cells say together: repetitions pooled, policies beside no limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from schemas.apps import PERIOD_US
from tests.bench.escra.load.sender import Outcome
from tests.bench.escra.measure import Ints
from tests.bench.escra.metrics import MIB, cpu_slack_us, memory_slack_bytes, total_limits
from tests.bench.escra.plan import BATCH_LOAD, REFERENCE, Cell, Limit, Plan
from tests.bench.escra.store import Store
from tests.bench.machine import Machine

QUANTILES: Final = (50.0, 99.0, 99.9)
Latencies = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class CellResult:
    """One cell, as far as it is pooled."""

    cell: Cell
    record: dict[str, Any]
    latency_s: Latencies
    """Of every request that was meant to be sent in the window; one that failed counts as the time-out at least."""
    ok: int
    failed: int
    lag_p99_s: float
    """The client's own: handed to the socket - intended; waits for a connection included."""
    cpu_slack_us: Ints
    memory_slack_bytes: Ints
    quota_totals_us: Ints
    memory_totals_bytes: Ints

    @property
    def metrics(self) -> dict[str, Any]:
        """`RunMetrics`."""
        found: dict[str, Any] = self.record["metrics"]
        return found

    @property
    def window_s(self) -> float:
        """Measured."""
        return float(self.record["window_s"])

    @property
    def log_probe(self) -> float:
        """Of `tests.bench.escra.speed.probe_us`: larger on a slower machine."""
        return float(np.log(self.record["probe_us"]))

    def log_quantile(self, percent: float) -> float:
        """Logarithm of a latency in seconds; nan without requests."""
        return float(np.log(np.percentile(self.latency_s, percent))) if len(self.latency_s) else float("nan")


def read_cell(store: Store, plan: Plan, cell: Cell) -> CellResult:
    """A finished cell from its files."""
    record, recording = store.record(cell), store.recording(cell)
    latency_s: Latencies = np.zeros(0)
    lag_s: np.ndarray[Any, Any] = np.zeros(0)
    ok = failed = 0
    if cell.load != BATCH_LOAD:
        rows = store.requests(cell, plan.settle_s, plan.settle_s + plan.window_s)
        good = rows.outcome == Outcome.OK
        latency_s = rows.latency_s.astype(np.float64)
        latency_s[~good] = np.maximum(latency_s[~good], plan.timeout_s)
        ok, failed, lag_s = int(np.count_nonzero(good)), int(np.count_nonzero(~good)), rows.lag_s[~np.isnan(rows.lag_s)]
    return CellResult(
        cell,
        record,
        latency_s,
        ok,
        failed,
        float(np.percentile(lag_s, 99)) if len(lag_s) else float("nan"),
        cpu_slack_us(recording),
        memory_slack_bytes(recording),
        total_limits(recording, "quota_us"),
        total_limits(recording, "memory_limit_bytes"),
    )


@dataclass(frozen=True)
class Pooled:
    """All repetitions of one policy under one load and limit."""

    cells: tuple[CellResult, ...]

    @cached_property
    def latency_s(self) -> Latencies:
        """Of all repetitions."""
        return np.concatenate([one.latency_s for one in self.cells])

    @property
    def requests(self) -> int:
        """How many latencies there are."""
        return len(self.latency_s)

    def quantile_s(self, percent: float) -> float:
        """Latency; nan without requests."""
        return float(np.percentile(self.latency_s, percent)) if self.requests else float("nan")

    def typical_s(self, percent: float, speed_exponent: float = 0.0) -> float:
        """Geometric mean over the repetitions of each one's latency, s, brought to a probe of 1 us; nan without any.

        Pooled, the slowest repetition alone would say how long p99.9 is.
        """
        logs = [one.log_quantile(percent) - speed_exponent * one.log_probe for one in self.cells]
        return float(np.exp(np.mean(logs)))

    @property
    def throughput_rps(self) -> float:
        """Successful requests per second."""
        return sum(one.ok for one in self.cells) / sum(one.window_s for one in self.cells)

    @property
    def failed(self) -> int:
        """Wrong answers, broken connections and time-outs."""
        return sum(one.failed for one in self.cells)

    @property
    def oom_kills(self) -> int:
        """Of all repetitions."""
        return sum(one.metrics["oom_kills"] for one in self.cells)

    def mean(self, name: str) -> float:
        """Mean of a metric over repetitions."""
        return float(np.mean([one.metrics[name] for one in self.cells]))

    def most(self, name: str) -> float:
        """Largest of a metric over repetitions."""
        return float(np.max([one.metrics[name] for one in self.cells]))

    def slack_cores(self, percent: float) -> float:
        """Percentile of the CPU slack over all container-periods."""
        return percentile(np.concatenate([one.cpu_slack_us for one in self.cells]), percent) / PERIOD_US

    def memory_slack_mib(self, percent: float) -> float:
        """Percentile of the memory slack over all container-periods."""
        return percentile(np.concatenate([one.memory_slack_bytes for one in self.cells]), percent) / MIB

    @property
    def controller_cores(self) -> float:
        """CPU of agent, allocator and nats-server together."""
        return sum(sum(one.record["controller_ns"].values()) for one in self.cells) / 1e9 / self.seconds

    @property
    def seconds(self) -> float:
        """Measured, all repetitions together."""
        return sum(one.window_s for one in self.cells)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Geometric mean over pairs, and the range over them."""

    mean: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Ratio:
        """Not a number without any."""
        known = np.array([value for value in values if np.isfinite(value) and value > 0])
        if not len(known):
            return cls(float("nan"), float("nan"), float("nan"), 0)
        return cls(float(np.exp(np.log(known).mean())), float(known.min()), float(known.max()), len(known))

    def text(self, digits: int = 2) -> str:
        """Such as ``1.25 (1.01-1.80)``."""
        return f"{self.mean:.{digits}f} ({self.least:.{digits}f}-{self.most:.{digits}f})"


@dataclass
class Results:
    """Everything that was measured of a plan."""

    plan: Plan
    machine: Machine
    pooled: dict[tuple[str, Limit, str], Pooled]
    """By pair, limit and policy."""
    finished: int
    disturbed: int = 0
    """Of them; they count only where a policy has no others under the same load and limit."""
    troubles: list[str] = field(default_factory=list)

    def only(self, pairs: Sequence[str]) -> Results:
        """The same of some pairs."""
        chosen = {key: one for key, one in self.pooled.items() if key[0] in pairs}
        return replace(self, pooled=chosen)

    def policies(self, limit: Limit) -> list[str]:
        """With at least one cell at this limit, in the order of the plan."""
        there = {policy for _, held, policy in self.pooled if held == limit}
        planned = [policy for block in self.plan.blocks for policy in block.policies]
        return [policy for policy in dict.fromkeys(planned) if policy in there]

    def pairs(self, limit: Limit, *, batches: bool = False) -> list[str]:
        """Measured at this limit, in the order of the plan: served ones, or batches."""
        there = {pair for pair, held, _ in self.pooled if held == limit}
        planned = [f"{app}/{load}" for block in self.plan.blocks for app in block.apps for load in block.loads]
        return [pair for pair in dict.fromkeys(planned) if pair in there and pair.endswith(f"/{BATCH_LOAD}") == batches]

    def of(self, pair: str, limit: Limit, policy: str) -> Pooled | None:
        """No limits are the same at every limit of the application, as long as the load is."""
        if policy == REFERENCE:
            app, _, load = pair.partition("/")
            limit = Cell(app, load, limit, policy, 0).reference.limit
        return self.pooled.get((pair, limit, policy))

    def of_policy(self, limit: Limit, policy: str) -> list[Pooled]:
        """All served pairs of a policy."""
        return [one for pair in self.pairs(limit) if (one := self.of(pair, limit, policy)) is not None]

    def latency_ratio(self, limit: Limit, policy: str, percent: float, *, equal_speed: bool = True) -> Ratio:
        """Against no limits of the same pair, over the pairs; of the same repetitions, as far as both have any.

        Args:
            limit: of the application.
            policy: which.
            percent: of the requests.
            equal_speed: what cells would have shown had the machine been equally fast in all of them.
        """
        return Ratio.of(self.latency_ratios(limit, policy, percent, equal_speed=equal_speed))

    def latency_ratios(self, limit: Limit, policy: str, percent: float, *, equal_speed: bool = True) -> list[float]:
        """Of each pair, as in `latency_ratio`."""
        exponent = self.speed_exponent(limit, percent) if equal_speed else 0.0
        return [
            one.typical_s(percent, exponent) / other.typical_s(percent, exponent)
            for one, other in self._beside(limit, policy)
        ]

    def speed_exponent(self, limit: Limit, percent: float) -> float:
        """By which power of the probe's time latency grows: least squares over repetitions of equal cells, at least 0.

        Repetitions of the same cell differ in seeds and in the machine's speed, in nothing else.
        """
        moves: list[tuple[float, float]] = []
        for pair in self.pairs(limit):
            for policy in {*self.policies(limit), REFERENCE}:
                one = self.of(pair, limit, policy)
                if one is not None and len(one.cells) > 1:
                    points = np.array([(cell.log_probe, cell.log_quantile(percent)) for cell in one.cells])
                    moves += (points - points.mean(axis=0)).tolist()
        probe, latency = np.array(moves, dtype=np.float64).reshape(-1, 2).T
        spread = float(probe @ probe)
        return max(float(probe @ latency) / spread, 0.0) if spread else 0.0

    def throughput_ratio(self, limit: Limit, policy: str) -> Ratio:
        """As `latency_ratio`."""
        return Ratio.of(one.throughput_rps / other.throughput_rps for one, other in self._beside(limit, policy))

    def _beside(self, limit: Limit, policy: str) -> list[tuple[Pooled, Pooled]]:
        found = []
        for pair in self.pairs(limit):
            one, other = self.of(pair, limit, policy), self.of(pair, limit, REFERENCE)
            if one is None or other is None:
                continue
            both = {each.cell.repetition for each in one.cells} & {each.cell.repetition for each in other.cells}
            found.append((_only(one, both), _only(other, both)) if both else (one, other))
        return found

    def mean_over_pairs(self, limit: Limit, policy: str, name: str) -> float:
        """Mean of a metric."""
        return _mean(one.mean(name) for one in self.of_policy(limit, policy))

    def slack_cores(self, limit: Limit, policy: str, percent: float) -> float:
        """Mean over the pairs of the pooled percentile."""
        return _mean(one.slack_cores(percent) for one in self.of_policy(limit, policy))

    def memory_slack_mib(self, limit: Limit, policy: str, percent: float) -> float:
        """Mean over the pairs of the pooled percentile."""
        return _mean(one.memory_slack_mib(percent) for one in self.of_policy(limit, policy))

    def oom_kills(self, limit: Limit, policy: str) -> int:
        """Over all pairs and repetitions, batches included."""
        return sum(one.oom_kills for (_, held, name), one in self.pooled.items() if (held, name) == (limit, policy))


def collect(store: Store, plan: Plan, machine: Machine, troubles: Sequence[str] = ()) -> Results:
    """Read every finished cell of a plan."""
    groups: defaultdict[tuple[str, Limit, str], list[CellResult]] = defaultdict(list)
    finished = [cell for cell in plan.order() if store.is_finished(cell)]
    disturbed = 0
    for cell in finished:
        result = read_cell(store, plan, cell)
        disturbed += bool(result.record["disturbed"])
        groups[cell.pair, cell.limit, cell.policy].append(result)
    pooled = {key: Pooled(tuple(_undisturbed(cells))) for key, cells in groups.items()}
    return Results(plan, machine, pooled, len(finished), disturbed, list(troubles))


def _undisturbed(cells: list[CellResult]) -> list[CellResult]:
    return [one for one in cells if not one.record["disturbed"]] or cells


def percentile(values: Ints, percent: float) -> float:
    """Not a number without any."""
    return float(np.percentile(values, percent)) if len(values) else float("nan")


def _only(pooled: Pooled, repetitions: set[int]) -> Pooled:
    if {one.cell.repetition for one in pooled.cells} == repetitions:
        return pooled
    return Pooled(tuple(one for one in pooled.cells if one.cell.repetition in repetitions))


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")
