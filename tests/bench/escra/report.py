"""A plan's results as Markdown for people, JSON for programs, and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.bench.escra import figures
from tests.bench.escra.judgement import DEFAULT_POLICY, front, headline, point, verdicts
from tests.bench.escra.notes import extent, notes
from tests.bench.escra.plan import BATCH_LOAD, LIMITS, REFERENCE, Limit, may_tune_on
from tests.bench.escra.results import QUANTILES, Pooled, Results, collect
from tests.bench.escra.store import Store
from tests.bench.outcome import write_record

Row = Sequence[str]
_SUMMARY_HEAD: Final = (
    "policy",
    "p99.9 ratio (range over pairs)",
    "not at equal speed",
    "p99 ratio",
    "p50 ratio",
    "throughput ratio",
    "slack p50 / p99, cores",
    "slack per used",
    "memory slack p50 / p99, MiB",
    "throttled %",
    "unmet %",
    "writes",
    "kills",
    "failed",
    "controller, cores",
)
_NOTHING: Final = ("nan", "nan / nan", "nan (nan-nan)")
_HALVES_HEAD: Final = (
    "policy",
    "p99.9 ratio, tuned on",
    "held out",
    "slack p50, tuned on",
    "held out",
    "unmet %, tuned on",
    "held out",
)
_PAIR_HEAD: Final = (
    "policy",
    "p50 / p99 / p99.9, ms",
    "requests",
    "ok per s",
    "slack p50 / p99, cores",
    "sum of limits p50, cores",
    "over limit, % of periods (most)",
    "unmet %",
    "kills",
    "client late p99, ms",
)
_BATCH_HEAD: Final = (
    "pair",
    "limit",
    "policy",
    "completion, s",
    "sum of CPU limits p50 / most, cores",
    "sum of memory limits p50 / most, MiB",
    "used, cores",
    "kills",
)


def brief(record: dict[str, Any]) -> str:
    """One finished cell, for the progress."""
    metrics = record["metrics"]
    said = f"{metrics['used_cores']:.2f} cores used, slack {metrics['cpu_slack_p50']:.3f}"
    if "batch" in record:
        said += f", {record['batch']['completion_s']:.1f} s"
    else:
        client = record["client"]
        said += f", {client['ok']} of {client['requests']} requests answered"
    kills = metrics["oom_kills"]
    return said + (f", {kills} killed" if kills else "")


def table(results: Results) -> str:
    """Everything, as Markdown."""
    lines = [results.machine.line, "", extent(results), ""]
    for limit in LIMITS:
        if results.pairs(limit):
            lines += [f"## Application limit: {limit}", "", *_summary(results, limit), "", *_halves(results, limit)]
    for limit in LIMITS:
        if results.pairs(limit):
            lines += [f"## By application and load, {limit} limit", "", *_by_pair(results, limit), ""]
    lines += _serverless(results)
    lines += _judged(results)
    return "\n".join([*lines, *(f"- {line}" for line in notes(results))])


def _summary(results: Results, limit: Limit) -> list[str]:
    rows = [_summary_row(results, limit, policy) for policy in results.policies(limit)]
    held = _markdown(_SUMMARY_HEAD, rows)
    best = front({name: point(results, limit, name) for name in results.policies(limit)})
    return [*held, "", f"Nobody is better in both latency and slack than: {', '.join(best) or 'nobody was measured'}."]


def _halves(results: Results, limit: Limit) -> list[str]:
    """What may have been tuned on, and what was held out."""
    pairs = results.pairs(limit)
    tuned = [pair for pair in pairs if may_tune_on(pair)]
    held_out = [pair for pair in pairs if not may_tune_on(pair)]
    if not tuned or not held_out:
        return []
    halves = [results.only(half) for half in (tuned, held_out)]
    rows = [
        (
            policy,
            *(half.latency_ratio(limit, policy, 99.9).text() for half in halves),
            *(f"{half.slack_cores(limit, policy, 50):.3f}" for half in halves),
            *(f"{half.mean_over_pairs(limit, policy, 'unmet_share') * 100:.1f}" for half in halves),
        )
        for policy in results.policies(limit)
    ]
    return [f"Tuned on {', '.join(tuned)}; held out {', '.join(held_out)}:", "", *_markdown(_HALVES_HEAD, rows), ""]


def _summary_row(results: Results, limit: Limit, policy: str) -> Row:
    def mean(name: str) -> float:
        return results.mean_over_pairs(limit, policy, name)

    ratios = [results.latency_ratio(limit, policy, percent) for percent in reversed(QUANTILES)]
    pooled = results.of_policy(limit, policy)
    requests = sum(one.requests for one in pooled)
    return (
        policy,
        ratios[0].text(),
        f"{results.latency_ratio(limit, policy, 99.9, equal_speed=False).mean:.2f}",
        f"{ratios[1].mean:.2f}",
        f"{ratios[2].mean:.2f}",
        f"{results.throughput_ratio(limit, policy).mean:.3f}",
        f"{results.slack_cores(limit, policy, 50):.3f} / {results.slack_cores(limit, policy, 99):.2f}",
        f"{mean('cpu_slack_per_used'):.2f}",
        f"{results.memory_slack_mib(limit, policy, 50):.0f} / {results.memory_slack_mib(limit, policy, 99):.0f}",
        f"{mean('throttled_share') * 100:.1f}",
        f"{mean('unmet_share') * 100:.1f}",
        f"{mean('quota_writes'):.3f}",
        str(results.oom_kills(limit, policy)),
        f"{sum(one.failed for one in pooled)} of {requests}",
        f"{np.mean([one.controller_cores for one in pooled]):.3f}",
    )


def _by_pair(results: Results, limit: Limit) -> list[str]:
    lines = []
    for pair in results.pairs(limit):
        rows = []
        for policy in dict.fromkeys((REFERENCE, *results.policies(limit))):
            one = results.of(pair, limit, policy)
            if one is not None:
                rows.append(_pair_row(policy, one))
        lines += [_pair_head(results, pair, limit), "", *_markdown(_PAIR_HEAD, rows), ""]
    return lines[:-1]


def _pair_head(results: Results, pair: str, limit: Limit) -> str:
    measured = (one for (name, held, _), one in results.pooled.items() if (name, held) == (pair, limit))
    limits = next(measured).cells[0].record["limits"]
    return (
        f"**{pair}**, limit {limits['cpu_cores']:.2f} cores: demands {limits['demand_over_limit']:.2f} times, peak "
        f"{limits['peak_over_limit']:.2f} times of it"
    )


def _pair_row(policy: str, one: Pooled) -> Row:
    quantiles = " / ".join(f"{one.quantile_s(percent) * 1e3:.1f}" for percent in QUANTILES)
    return (
        policy,
        quantiles,
        f"{one.requests}, {one.failed} failed",
        f"{one.throughput_rps:.1f}",
        f"{one.slack_cores(50):.3f} / {one.slack_cores(99):.2f}",
        f"{one.mean('cpu_limit_p50'):.2f}",
        f"{one.mean('over_limit_share') * 100:.1f} ({one.most('over_limit_most'):.2f})",
        f"{one.mean('unmet_share') * 100:.1f}",
        str(one.oom_kills),
        f"{np.mean([cell.lag_p99_s for cell in one.cells]) * 1e3:.1f}",
    )


def _serverless(results: Results) -> list[str]:
    """Aggregate limits of what comes and goes (thesis 2.6.6), and how long a batch takes."""
    rows = []
    order = {name: number for limit in LIMITS for number, name in enumerate(results.policies(limit))}
    for (pair, limit, policy), one in sorted(
        results.pooled.items(), key=lambda item: (*item[0][:2], order[item[0][2]])
    ):
        if pair.endswith(f"/{BATCH_LOAD}") or pair.startswith("functions/"):
            batches = [cell.record["batch"]["completion_s"] for cell in one.cells if "batch" in cell.record]
            failed = sum(cell.record["batch"]["workers_failed"] for cell in one.cells if "batch" in cell.record)
            rows.append(
                (
                    pair,
                    limit,
                    policy,
                    f"{np.mean(batches):.2f} ({min(batches):.2f}-{max(batches):.2f})" if batches else "",
                    f"{one.mean('cpu_limit_p50'):.2f} / {one.most('cpu_limit_max'):.2f}",
                    f"{one.mean('memory_limit_p50'):.0f} / {one.most('memory_limit_max'):.0f}",
                    f"{one.mean('used_cores'):.2f}",
                    f"{one.oom_kills}, {failed} workers failed" if batches else str(one.oom_kills),
                )
            )
    return ["## Serverless: aggregate limits", "", *_markdown(_BATCH_HEAD, rows), ""] if rows else []


def _judged(results: Results) -> list[str]:
    rows = [(one.what, one.wanted, one.measured, one.word) for one in verdicts(results)]
    if not rows:
        return []
    return [
        f"## What must hold for the default, {DEFAULT_POLICY}",
        "",
        *_markdown(("what", "wanted", "measured", ""), rows),
        "",
    ]


def _markdown(head: Row, rows: Iterable[Row]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join('-' if cell in _NOTHING else cell for cell in row)} |" for row in rows),
    ]


def as_json(results: Results) -> dict[str, Any]:
    """Everything but single requests and batches; what does not exist is null."""
    record = {
        "machine": results.machine.as_dict(),
        "plan": results.plan.as_dict(),
        "finished": results.finished,
        "figures": headline(results),
        "policies": {
            limit: {policy: _policy_json(results, limit, policy) for policy in results.policies(limit)}
            for limit in LIMITS
            if results.policies(limit)
        },
        "pairs": [_pair_json(*key, one) for key, one in results.pooled.items()],
        "verdicts": [one.as_dict() for one in verdicts(results)],
        "notes": notes(results),
    }
    known: dict[str, Any] = _without_nan(record)
    return known


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _policy_json(results: Results, limit: Limit, policy: str) -> dict[str, Any]:
    ratios = {f"p{percent:g}": results.latency_ratio(limit, policy, percent) for percent in QUANTILES}
    ratios["p99.9_not_at_equal_speed"] = results.latency_ratio(limit, policy, 99.9, equal_speed=False)
    ratios["throughput"] = results.throughput_ratio(limit, policy)
    names = (
        "cpu_slack_per_used",
        "throttled_share",
        "unmet_share",
        "quota_writes",
        "cpu_limit_p50",
        "over_limit_share",
    )
    return {
        "ratios": {
            name: {"mean": one.mean, "least": one.least, "most": one.most, "pairs": one.count}
            for name, one in ratios.items()
        },
        "slack_cores": {f"p{percent}": results.slack_cores(limit, policy, percent) for percent in (50, 99)},
        "memory_slack_mib": {f"p{percent}": results.memory_slack_mib(limit, policy, percent) for percent in (50, 99)},
        "oom_kills": results.oom_kills(limit, policy),
        **{name: results.mean_over_pairs(limit, policy, name) for name in names},
    }


def _pair_json(pair: str, limit: Limit, policy: str, one: Pooled) -> dict[str, Any]:
    return {
        "pair": pair,
        "limit": limit,
        "policy": policy,
        "latency_ms": {f"p{percent:g}": one.quantile_s(percent) * 1e3 for percent in QUANTILES},
        "requests": one.requests,
        "failed": one.failed,
        "throughput_rps": one.throughput_rps,
        "slack_cores": {f"p{percent}": one.slack_cores(percent) for percent in (50, 99)},
        "repetitions": [cell.record for cell in one.cells],
    }


def write(results: Results, store: Store, directory: Path) -> list[Path]:
    """JSON, Markdown and figures into a directory; returns what was written."""
    directory.mkdir(parents=True, exist_ok=True)
    record = write_record(as_json(results), directory / "escra.json")
    text = directory / "escra.md"
    text.write_text(f"{table(results)}\n", encoding="utf-8")
    return [record, text, *figures.draw(results, store, directory)]


__all__ = ["as_json", "brief", "collect", "table", "write"]
