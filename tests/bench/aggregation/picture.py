"""Cores held over time by both ways, and what is saved on the trace by loss limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.bench.aggregation.report import Pair, Simulated
from tests.bench.machine import Machine
from tests.bench.pictures import panels, save


def draw(machine: Machine, pairs: Sequence[Pair], simulated: Sequence[Simulated], path: Path) -> Path:
    """Write the picture, with the last turn of the most jobs; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (cores, saved) = panels(2, (13, 4.8))
    pair = max(enumerate(pairs), key=lambda each: (each[1].jobs, each[0]))[1]
    for place, measured in enumerate((pair.dedicated, pair.shared)):
        times_s = [at_s - measured.began_s for at_s, _ in measured.cores]
        counts = [count for _, count in measured.cores]
        last_s = measured.window_s[1] - measured.began_s
        cores.step([*times_s, last_s], [*counts, counts[-1]], where="post", color=f"C{place}", label=measured.way)
        cores.axvspan(measured.window_s[0] - measured.began_s, last_s, color=f"C{place}", alpha=0.08)
    cores.set(title=f"cores held, {pair.jobs} jobs (shaded: measured)", xlabel="s", ylabel="cores", ylim=(0, None))
    cores.legend(fontsize=8)
    for place, one in enumerate(simulated):
        limits = [held.loss_limit for held in one.held]
        label = f"{one.ns_per_value:.2f} ns a value"
        saved.plot(limits, [100 * held.saving for held in one.held], marker="o", color=f"C{place}", label=label)
    saved.set(title="cores saved on the trace", xlabel="loss limit", ylabel="% of dedicated ones", ylim=(0, 100))
    saved.legend(fontsize=8)
    return save(figure, machine.line, path)
