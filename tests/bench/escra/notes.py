"""What a reader of the tables must know."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.bench.escra.disturbance import MOST_FOREIGN_CORES
from tests.bench.escra.load.arrivals import BURST_CYCLE_S, TRACE_SPEEDUP, TRACES
from tests.bench.escra.plan import LOAD_SHARES
from tests.bench.escra.policies import parse
from tests.bench.escra.results import QUANTILES, Results

_RATIOS: Final = (
    "Ratios: to no limits of the same pair and repetitions, whose requests and moments are the same; geometric mean "
    "over repetitions and pairs. Latency: from the intended moment; a failed request counts as the time-out "
    "({timeout_s:g} s) at least."
)
_SPEED: Final = (
    "Equal speed: a fixed piece of work, timed 20 times a second meanwhile, took {least:.0f} to {most:.0f} us of CPU "
    "(median of a cell, 5 % to 95 % of cells); latencies of equal cells differ by the power {p50:.1f} (p50), {p99:.1f} "
    "(p99), {p999:.1f} (p99.9) of it (ample limit), and ratios are given as at equal speed."
)
_SLACK: Final = (
    "Slack: limit in force - use per container and period; no burst is used, so quota + burst is the same. "
    "Percentiles: pooled over repetitions, mean over pairs."
)
_SHARES: Final = (
    "Unmet: throttled over used + throttled time as the kernel counts both, on all CPUs. Writes: quotas changed per "
    "container and period. Controller: agent, allocator and nats-server."
)
_LIMITS: Final = (
    "Limits: ample = 1.5 S, matched = S, tight = S / 1.5 but at least 1.12 times the largest 10-s use; S: sum of the "
    "containers' largest 1-s uses in a run under the same load without limits and with other seeds. Memory is ample in "
    "all. Load, of base rate: {shares}; matched at the full load all would wait for the machine."
)


def extent(results: Results) -> str:
    """How much was measured."""
    plan = results.plan
    return (
        f"{results.finished} of {len(plan.order())} cells, {plan.repetitions} repetitions in mixed order, windows of "
        f"{plan.window_s:g} s after {plan.settle_s:g} s that are not counted, rate {plan.rate:g}, seed {plan.seed}"
    )


def notes(results: Results) -> list[str]:
    """Definitions, compressions, peers' peculiarities, and what could not be measured."""
    plan = results.plan
    loads = {load for block in plan.blocks for load in block.loads}
    shares = ", ".join(f"{limit} {share:g}" for limit, share in LOAD_SHARES.items())
    limits = _LIMITS.format(shares=shares)
    said = [_RATIOS.format(timeout_s=plan.timeout_s), *_speed(results), _SLACK, _SHARES, limits]
    if "burst" in loads:
        said.append(f"Burst: one cycle of quiet and burst in {plan.cycle_s:g} s (the thesis: {BURST_CYCLE_S:g} s).")
    if loads & set(TRACES):
        said.append(f"Traces: {TRACE_SPEEDUP:g} s of trace per second (the thesis: 10).")
    for policy in dict.fromkeys(policy for block in plan.blocks for policy in block.policies):
        spec = parse(policy)
        if spec.note:
            said.append(f"{policy}: {spec.note}.")
    late_ms = [cell.lag_p99_s * 1e3 for one in results.pooled.values() for cell in one.cells]
    late_ms = [value for value in late_ms if np.isfinite(value)]
    if late_ms:
        said.append(
            f"The client handed requests over late by {np.median(late_ms):.2f} ms (p99 of a cell, median of cells)."
        )
    if results.disturbed:
        said.append(
            f"{results.disturbed} of {results.finished} cells were disturbed, also when measured again as far as there "
            f"was time: others used more than {MOST_FOREIGN_CORES:g} cores, or this machine was given less. They count "
            "only where there is no other repetition."
        )
    return [*said, *(f"Not measured: {trouble}" for trouble in results.troubles)]


def _speed(results: Results) -> list[str]:
    probes_us = [cell.record["probe_us"] for one in results.pooled.values() for cell in one.cells]
    if not probes_us:
        return []
    least, most = np.percentile(probes_us, (5, 95))
    p50, p99, p999 = (results.speed_exponent("ample", percent) for percent in QUANTILES)
    return [_SPEED.format(least=least, most=most, p50=p50, p99=p99, p999=p999)]
