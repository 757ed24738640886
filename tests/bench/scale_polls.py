"""What usage readings between two samples cost: ``make bench-scale ARGS=--polls``.

Where only files can be read, an agent polls the usage of idle containers between two samples, and tells at once of one
that has used up its quota (`services.agent.sampling.sampler.QuotaWatch`). Measured without and with polls in turn: the
agent on real control groups, and allocators with synthetic agents whose polls send early batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from schemas.apps import PERIOD_US
from services.agent.settings import AgentSettings
from tests.bench.cluster import Cluster
from tests.bench.containers import Containers
from tests.bench.figures import Spread
from tests.bench.machine import Machine
from tests.bench.outcome import say
from tests.bench.scale_figures import CHANGE_SHARES, FleetKey, kept_up
from tests.bench.scenario_agent import AgentRun, AgentSetting, run_agent
from tests.bench.scenario_allocator import AllocatorRun, run_allocator
from tests.bench.synthetic_agents import Load

DEFAULT_POLLS: Final[int] = AgentSettings.model_fields["throttle_polls_per_period"].default
MOST_POLLS: Final = 9
"""That the agent's setting allows."""
COUNTS: Final = (100, 1_000)
QUICK_COUNTS: Final = (100,)
FLEETS: Final = (FleetKey(100, 100, 1, "busy"), FleetKey(1_000, 100, 1, "busy"))
CONTAINERS_PER_APP: Final = 1_000

_Run = TypeVar("_Run", AgentRun, AllocatorRun)


@dataclass(frozen=True, slots=True)
class PollPlan:
    """What is run."""

    polls: int
    """Between two samples, at most."""
    seconds: float
    """Of each window."""
    repetitions: int
    counts: tuple[int, ...]
    """Real control groups."""
    phases: tuple[bool, ...]
    """Windows of these, one after the other: whether their burners burn."""
    fleets: tuple[FleetKey, ...]
    """Synthetic agents."""


@dataclass(slots=True)
class PollResults:
    """Everything that was measured."""

    machine: Machine
    polls: int
    """Between two samples, at most, where there are any."""
    hosts: list[AgentRun] = field(default_factory=list)
    fleets: list[AllocatorRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def host_groups(self) -> dict[tuple[int, int, int], list[AgentRun]]:
        """Repetitions of one point together: containers, how many are busy, polls."""
        groups: defaultdict[tuple[int, int, int], list[AgentRun]] = defaultdict(list)
        for run in self.hosts:
            groups[run.containers, run.busy, run.polls or 0].append(run)
        return dict(sorted(groups.items()))

    def fleet_groups(self) -> dict[tuple[int, int, int], list[AllocatorRun]]:
        """Repetitions of one point together: containers, containers a node, polls."""
        groups: defaultdict[tuple[int, int, int], list[AllocatorRun]] = defaultdict(list)
        for run in self.fleets:
            groups[run.load.containers, run.load.containers_per_node, run.load.polls].append(run)
        return dict(sorted(groups.items()))

    def as_dict(self) -> dict[str, Any]:
        """For the JSON record."""
        hosts, fleets = self.host_groups(), self.fleet_groups()
        return {
            "machine": self.machine.as_dict(),
            "polls": self.polls,
            "agent": [
                {"containers": count, "busy": busy, "polls": polls, "kept_up": kept_up(runs)}
                | _spreads(_AGENT_COLUMNS, runs)
                | {"added_us": _as_dict(added(runs, hosts.get((count, busy, 0), []), _agent_us) if polls else None)}
                for (count, busy, polls), runs in hosts.items()
            ],
            "allocator": [
                {"containers": count, "containers_per_node": a_node, "polls": polls, "kept_up": kept_up(runs)}
                | _spreads(_ALLOCATOR_COLUMNS, runs)
                | {"added_us": _as_dict(added(runs, fleets.get((count, a_node, 0), []), _step_us) if polls else None)}
                for (count, a_node, polls), runs in fleets.items()
            ],
            "hosts": [asdict(run) for run in self.hosts],
            "fleets": [asdict(run) for run in self.fleets],
            "notes": self.notes,
            "tables": {
                "agent": self._table(hosts, "busy", _AGENT_COLUMNS, _agent_us),
                "allocator": self._table(fleets, "a node", _ALLOCATOR_COLUMNS, _step_us),
            },
        }

    def _table(
        self,
        groups: Mapping[tuple[int, int, int], list[_Run]],
        second_head: str,
        columns: Mapping[str, tuple[Callable[[_Run], float], int]],
        cost: Callable[[_Run], float],
    ) -> dict[str, Any]:
        """For a page: median (range)."""
        rows, shown = [], [name for name in columns if name in _ON_PAGES]
        for (first, second, polls), runs in groups.items():
            cells = [Spread.of([columns[name][0](run) for run in runs]).text(1) for name in shown]
            more = added(runs, groups.get((first, second, 0), []), cost) if polls else None
            rows.append([f"{first:,}", f"{second:,}", str(polls), *cells, more.text(1) if more else "-"])
        heads = ["containers", second_head, "polls", *shown, "polls add us"]
        return {"machine": self.machine.line, "columns": heads, "rows": rows}


def _agent_us(run: AgentRun) -> float:
    return run.process_us


def _step_us(run: AllocatorRun) -> float:
    return run.step_us


def us_per_read(run: AgentRun) -> float:
    """CPU time of polls by the files that they read; 0 where none was read."""
    return run.poll_us / run.usage_reads if run.usage_reads else 0.0


_AGENT_COLUMNS: Final[dict[str, tuple[Callable[[AgentRun], float], int]]] = {
    "done": (lambda run: run.polls_per_period, 1),
    "reads": (lambda run: run.usage_reads, 2),
    "told": (lambda run: run.told_by_polls, 2),
    "us a read": (us_per_read, 1),
    "polls us": (lambda run: run.poll_us, 2),
    "of a core %": (lambda run: 100 * run.poll_us * run.containers / PERIOD_US, 2),
    "agent us": (_agent_us, 2),
    "allocator us": (lambda run: run.allocator_us, 2),
}
_ALLOCATOR_COLUMNS: Final[dict[str, tuple[Callable[[AllocatorRun], float], int]]] = {
    "done": (lambda run: run.polls_per_period, 1),
    "told": (lambda run: run.told_by_polls, 2),
    "steps": (lambda run: run.steps_per_period, 1),
    "step us": (_step_us, 2),
    "of that early": (lambda run: run.early_step_us, 2),
    "allocator us": (lambda run: run.process_us, 2),
    "nats us": (lambda run: run.nats_us, 2),
    "changes": (lambda run: run.changed_share, 2),
}

_ON_PAGES: Final = ("told", "steps", "step us", "agent us", "allocator us", "nats us")


def added(runs: Sequence[_Run], without: Sequence[_Run], cost: Callable[[_Run], float]) -> Spread | None:
    """What polls add to a cost: repetitions with them less those without, in pairs. None without any pair."""
    pairs = list(zip(runs, without, strict=False))
    return Spread.of([cost(run) - cost(other) for run, other in pairs]) if pairs else None


def _spreads(columns: dict[str, tuple[Callable[[_Run], float], int]], runs: Sequence[_Run]) -> dict[str, Any]:
    return {
        name.replace("%", "percent").replace(" ", "_"): asdict(Spread.of([value(run) for run in runs]))
        for name, (value, _) in columns.items()
    }


def _as_dict(spread: Spread | None) -> dict[str, Any] | None:
    return None if spread is None else asdict(spread)


async def measure(results: PollResults, cluster: Cluster, plan: PollPlan) -> None:
    """Without and with polls in turn, so that a change of the machine's load meets both; the record grows."""
    choices = (0, plan.polls)
    for count in plan.counts:
        with Containers(count) as containers:
            for turn in range(plan.repetitions):
                for polls in choices:
                    say(f"{count:,} containers, {polls} polls, {turn + 1} of {plan.repetitions}")
                    setting = AgentSetting(plan.seconds, source="off", phases=plan.phases, polls=polls)
                    try:
                        results.hosts += await run_agent(cluster, containers, setting)
                    except RuntimeError as error:
                        results.notes.append(f"{count:,} containers, {polls} polls: not measured: {error}")
        await cluster.withdraw_all()
    for key in plan.fleets:
        for turn in range(plan.repetitions):
            for polls in choices:
                say(f"synthetic agents: {key.text}, {polls} polls, {turn + 1} of {plan.repetitions}")
                try:
                    run = await run_allocator(cluster, load_of(key, polls), "waterfill", plan.seconds)
                except RuntimeError as error:  # too much for this machine: say so, and go on
                    results.notes.append(f"synthetic agents, {key.text}, {polls} polls: not measured: {error}")
                    continue
                results.fleets.append(run)


def plan_of(polls: int, seconds: float | None, repetitions: int | None, *, quick: bool) -> PollPlan:
    """The defaults of a quick run, or of a whole one."""
    return PollPlan(
        polls,
        seconds or (1.5 if quick else 4.0),
        repetitions or (1 if quick else 3),
        QUICK_COUNTS if quick else COUNTS,
        (True,) if quick else (True, False),
        FLEETS,
    )


def load_of(key: FleetKey, polls: int) -> Load:
    """What the synthetic agents pretend."""
    per_app = min(CONTAINERS_PER_APP, key.containers)
    return Load(key.containers, key.containers_per_node, per_app, CHANGE_SHARES[key.activity], polls)


def table(results: PollResults) -> str:
    """Everything as text."""
    lines = [
        results.machine.line,
        "",
        "without and with polls between two samples, at most so many: median (range)",
        "",
    ]
    if hosts := results.host_groups():
        lines.append(
            "agent that reads files only, real control groups: polls done and containers told of per period; files "
            "read, CPU us each per container and period"
        )
        host_rows = [
            (
                f"{count:>10,}{busy:>6}{polls:>6}",
                runs,
                added(runs, hosts.get((count, busy, 0), []), _agent_us) if polls else None,
            )
            for (count, busy, polls), runs in hosts.items()
        ]
        lines += _rows(f"{'containers':>10}{'busy':>6}{'polls':>6}", _AGENT_COLUMNS, host_rows)
    if fleets := results.fleet_groups():
        lines.append("allocator, synthetic agents whose polls send early batches: CPU us per container and period")
        fleet_rows = [
            (
                f"{count:>10,}{a_node:>8,}{polls:>6}",
                runs,
                added(runs, fleets.get((count, a_node, 0), []), _step_us) if polls else None,
            )
            for (count, a_node, polls), runs in fleets.items()
        ]
        lines += _rows(f"{'containers':>10}{'a node':>8}{'polls':>6}", _ALLOCATOR_COLUMNS, fleet_rows)
    return "\n".join([*lines, *results.notes])


_WITH_RANGE: Final = ("polls us", "agent us", "step us", "of that early", "polls add us")


def _rows(
    head: str,
    columns: dict[str, tuple[Callable[[_Run], float], int]],
    groups: Sequence[tuple[str, list[_Run], Spread | None]],
) -> list[str]:
    lines = [head + "".join(f"{column:>{_width(column)}}" for column in (*columns, "polls add us"))]
    for name, runs, more in groups:
        cells = [
            f"{_cell(column, Spread.of([value(run) for run in runs]), digits):>{_width(column)}}"
            for column, (value, digits) in columns.items()
        ]
        cells.append(f"{more.text(2) if more else '-':>{_width('polls add us')}}")
        lines.append(name + "".join(cells) + ("" if kept_up(runs) else "  DID NOT KEEP UP"))
    return [*lines, ""]


def _width(column: str) -> int:
    return 23 if column in _WITH_RANGE else max(9, len(column) + 2)


def _cell(column: str, spread: Spread, digits: int) -> str:
    return spread.text(digits) if column in _WITH_RANGE else f"{spread.median:.{digits}f}"
