"""What issue 8 asks of the default policy, beside what was measured. Never asserted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from schemas.apps import AppSpec
from tests.bench.escra.plan import Limit
from tests.bench.escra.policies import parse
from tests.bench.escra.results import Results

DEFAULT_POLICY: Final = str(AppSpec.model_fields["policy"].default)
LATENCY_AT_MOST: Final = 1.3
THROUGHPUT_AT_LEAST: Final = 0.99
SLACK_AT_MOST: Final = 0.5
"""Of static 1.5x."""
STATIC: Final = "static-1.5"
WHOLE_PAIRS: Final = 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line."""

    what: str
    wanted: str
    measured: str
    met: bool | None
    """None: it could not be told from what was measured."""

    @property
    def word(self) -> str:
        """For people."""
        return {True: "met", False: "MISSED", None: "not measured"}[self.met]

    def as_dict(self) -> dict[str, Any]:
        """For the JSON record."""
        return asdict(self)


def verdicts(results: Results, policy: str = DEFAULT_POLICY) -> list[Verdict]:
    """All lines, in the order of issue 8."""
    lines = _ample(results, policy) if policy in results.policies("ample") else []
    for limit in ("matched", "tight"):
        if policy in results.policies(limit):
            lines += _scarce(results, limit, policy)
    return lines


def _ample(results: Results, policy: str) -> list[Verdict]:
    latency, throughput = results.latency_ratio("ample", policy, 99.9), results.throughput_ratio("ample", policy)
    raw = results.latency_ratio("ample", policy, 99.9, equal_speed=False)
    slack, static = (results.slack_cores("ample", name, 50) for name in (policy, STATIC))
    kills = results.oom_kills("ample", policy)
    better = dominating(results, "ample", policy)
    pairs = f"{latency.count} of {WHOLE_PAIRS} pairs"
    return [
        Verdict(
            f"p99.9 against no limits, ample, {pairs}",
            f"<= {LATENCY_AT_MOST}",
            f"{latency.text()}; not brought to equal speed: {raw.text()}",
            _told(latency.mean <= LATENCY_AT_MOST, latency.mean),
        ),
        Verdict(
            "throughput against no limits, ample",
            f">= {THROUGHPUT_AT_LEAST}",
            throughput.text(4),
            _told(throughput.mean >= THROUGHPUT_AT_LEAST, throughput.mean),
        ),
        Verdict(
            "median CPU slack against static 1.5x (quota; no burst is used: quota + burst is the same)",
            f"<= {SLACK_AT_MOST}",
            f"{slack / static:.2f} ({slack:.3f} of {static:.3f} cores)" if static else "static has none",
            _told(slack <= SLACK_AT_MOST * static, slack, static),
        ),
        Verdict(
            "peers better in both p99.9 and median slack, ample",
            "none",
            ", ".join(better) or "none",
            _told(not better, latency.mean, slack),
        ),
        Verdict("OOM kills, ample", "0", str(kills), kills == 0),
    ]


def _scarce(results: Results, limit: Limit, policy: str) -> list[Verdict]:
    def latency(name: str) -> float:
        return results.latency_ratio(limit, name, 99.9).mean

    def unmet(name: str) -> float:
        return results.mean_over_pairs(limit, name, "unmet_share")

    figures: tuple[tuple[str, Callable[[str], float]], ...] = (
        ("p99.9 against no limits", latency),
        ("unmet demand", unmet),
    )
    lines = []
    for what, value in figures:
        ours = value(policy)
        peers = {name: value(name) for name in peers_of(results, limit)}
        known = {name: found for name, found in peers.items() if np.isfinite(found)}
        best = min(known, key=known.__getitem__, default="")
        lines.append(
            Verdict(
                f"{what}, {limit} limit, against every peer under the same limit",
                f"< {known[best]:.3g} ({best})" if best else "no peer was measured",
                f"{ours:.3g}",
                _told(bool(best) and ours < known[best], ours) if best else None,
            )
        )
    kills = results.oom_kills(limit, policy)
    return [*lines, Verdict(f"OOM kills, {limit}", "0", str(kills), kills == 0)]


def peers_of(results: Results, limit: Limit) -> list[str]:
    """Policies of others that set limits."""
    return [name for name in results.policies(limit) if parse(name).limited and not parse(name).ours]


def dominating(results: Results, limit: Limit, policy: str) -> list[str]:
    """Peers whose latency and slack are both below ours."""
    ours = point(results, limit, policy)
    return [
        name
        for name in peers_of(results, limit)
        if all(theirs < mine for theirs, mine in zip(point(results, limit, name), ours, strict=True))
    ]


def point(results: Results, limit: Limit, policy: str) -> tuple[float, float]:
    """On the Pareto plot: median slack in cores (mean over pairs), and p99.9 against no limits (geometric mean)."""
    return results.slack_cores(limit, policy, 50), results.latency_ratio(limit, policy, 99.9).mean


def front(points: dict[str, tuple[float, float]]) -> list[str]:
    """Names of those that nobody beats in both, by their slack."""
    known = {name: value for name, value in points.items() if np.isfinite(value).all()}
    best = [
        name
        for name, (slack, latency) in known.items()
        if not any(other[0] <= slack and other[1] <= latency and other != (slack, latency) for other in known.values())
    ]
    return sorted(best, key=lambda name: known[name])


def _told(met: bool, *values: float) -> bool | None:
    return bool(met) if np.isfinite(values).all() else None


RESAMPLES: Final = 10_000


def headline(results: Results, policy: str = DEFAULT_POLICY) -> dict[str, dict[str, str]]:
    """Rows for pages (`scripts.generate_figures`), ample limit. Intervals: bootstrap over pairs (Efron, 1979)."""
    if not {policy, STATIC} <= set(results.policies("ample")):
        return {}
    ratios = np.array(results.latency_ratios("ample", policy, 99.9))
    both = [
        (ours.slack_cores(50), static.slack_cores(50))
        for pair in results.pairs("ample")
        if (ours := results.of(pair, "ample", policy)) and (static := results.of(pair, "ample", STATIC))
    ]
    slacks = np.array(both)
    if not len(ratios) or not len(slacks) or not (np.isfinite(ratios).all() and np.isfinite(slacks).all()):
        return {}
    cells = f"{len(ratios)} loads"
    return {
        "latency": {
            "what": f"p99.9 latency over that without limits, geometric mean over {cells}",
            "unit": "",
            "shown": _with_interval(ratios, lambda chosen: float(np.exp(np.log(chosen).mean()))),
        },
        "slack": {
            "what": f"median CPU slack over that of static limits (1.5 times the maximum), mean over {cells}",
            "unit": "",
            "shown": _with_interval(slacks, lambda chosen: float(np.divide(*chosen.mean(axis=0)))),
        },
        "kills": {
            "what": "out-of-memory kills in these runs; with static limits at 1.5 times the maximum",
            "unit": "",
            "shown": "; ".join(str(results.oom_kills("ample", name)) for name in (policy, STATIC)),
        },
    }


def _with_interval(values: np.ndarray[Any, Any], statistic: Callable[[np.ndarray[Any, Any]], float]) -> str:
    random = np.random.default_rng(0)
    again = [statistic(values[random.integers(len(values), size=len(values))]) for _ in range(RESAMPLES)]
    low, high = np.quantile(again, [0.025, 0.975])
    return f"{statistic(values):.2f} times (95 % interval {low:.2f}-{high:.2f})"
