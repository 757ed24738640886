"""The same traces with and without elastic jobs, by simulation: ``make bench-scheduler ARGS=--elastic``.

Each job may have 1 to 4 workers, or as many as it asks for where that is more; its speed-up is the published one of its
model where there is one, else Amdahl's law (`services.scheduler.core.speedup`). A third run has linear speed-ups: there
a job needs as many slot-seconds with any number of workers, so what is gained comes from the order alone. Nothing is
asserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Final

from services.scheduler.comparison import Figures, figures, with_estimates
from services.scheduler.core.jobs import Job, Node
from services.scheduler.core.simulation import simulate
from services.scheduler.trace import Elasticity, read_trace
from tests.bench.machine import Machine, this_machine
from tests.bench.outcome import OUTPUT, say, tell, text_table, write_record
from tests.bench.scheduler import COLUMNS, SEEDS, TRACES
from tests.support.tiresias import DIRECTORY

POLICIES: Final = (
    "Tiresias' 2D-LAS",
    "ours, ended jobs only",
    "ours, all known to 25 %",
    "SRSF, an oracle",
)
ELASTICITY: Final = Elasticity(1, 4, pause_s=10.0)
COST_S: Final = 60


@dataclass(frozen=True, slots=True)
class Pair:
    """One policy over one trace: with as many workers as jobs ask for, and with numbers that change."""

    trace: str
    policy: str
    rigid: Figures
    elastic: Figures
    linear: Figures
    """Elastic, with speed-ups that are the numbers of workers."""


def jobs_of(trace: str) -> list[Job]:
    """Elastic ones that fit into the cluster as they ask for."""
    name, slots = TRACES[trace]
    return [job for job in read_trace(DIRECTORY / name, ELASTICITY) if job.slots <= slots]


def measure(traces: list[str], seeds: tuple[int, ...]) -> Iterator[Pair]:
    """Every trace, policy and drawing of estimates."""
    for trace in traces:
        jobs, nodes = jobs_of(trace), [Node("all", TRACES[trace][1])]
        for policy in POLICIES:
            column = COLUMNS[policy]
            for seed in seeds if column.error else seeds[:1]:
                known = with_estimates(jobs, column.error, column.share, seed) if column.error else jobs
                variants = [replace(job, elastic=None) for job in known], known, [_linear(job) for job in known]
                runs = [simulate(variant, nodes, column.policy(), COST_S) for variant in variants]
                pair = Pair(trace, policy, *(figures(policy, run) for run in runs))
                say(f"{trace}, {policy}: {pair.rigid.mean_jct_s:,.0f} s, elastic {pair.elastic.mean_jct_s:,.0f} s")
                yield pair


def _linear(job: Job) -> Job:
    if job.elastic is None:
        return job
    workers = range(1, job.elastic.most_workers + 1)
    return replace(job, elastic=replace(job.elastic, speedups=tuple(float(each) for each in workers)))


def page_table(pairs: list[Pair], machine: Machine) -> dict[str, Any]:
    """For a page: the median over the drawings of estimates."""
    rows = []
    for trace, policy in dict.fromkeys((pair.trace, pair.policy) for pair in pairs):
        some = [pair for pair in pairs if (pair.trace, pair.policy) == (trace, policy)]
        rows.append([f"{trace} ({TRACES[trace][1]})", policy, *_cells(some)])
    return {
        "machine": machine.line,
        "columns": [
            "trace (slots)",
            "policy",
            "mean JCT",
            "mean JCT, elastic",
            "ratio",
            "ratio if speed-ups were linear",
            "p99 stretch",
            "p99 stretch, elastic",
            "preemptions a job",
            "preemptions a job, elastic",
            "changes of size a job",
            "slot time lost, elastic",
        ],
        "rows": rows,
    }


def _cells(pairs: list[Pair]) -> list[str]:
    def ratio(value: Callable[[Pair], Figures]) -> str:
        return f"{median(value(pair).mean_jct_s / pair.rigid.mean_jct_s for pair in pairs):.2f}"

    def both(value: Callable[[Figures], float], digits: int, unit: str = "") -> list[str]:
        found = median(value(pair.rigid) for pair in pairs), median(value(pair.elastic) for pair in pairs)
        return [f"{each:,.{digits}f}{unit}" for each in found]

    return [
        *both(lambda each: each.mean_jct_s, 0, " s"),
        ratio(lambda pair: pair.elastic),
        ratio(lambda pair: pair.linear),
        *both(lambda each: each.p99_stretch, 1),
        *both(lambda each: each.preemptions_per_job, 2),
        both(lambda each: each.resizes_per_job, 2)[1],
        both(lambda each: 100 * each.lost_share, 1, " %")[1],
    ]


def main(*, quick: bool, as_json: bool) -> int:
    """Measure, write, tell."""
    machine = this_machine()
    pairs = list(measure(["480"] if quick else list(TRACES), SEEDS[:1] if quick else SEEDS))
    table = page_table(pairs, machine)
    record = {
        "machine": machine.as_dict(),
        "pairs": [asdict(pair) for pair in pairs],
        "tables": {"elastic": table},
    }
    lines = [machine.line, *text_table(f"1 to 4 workers; a preemption costs {COST_S} s, a change 10 s", table)]
    written = [write_record(record, OUTPUT / "scheduler-elastic.json")]
    tell("\n".join(lines), record, written, as_json=as_json)
    return 0
