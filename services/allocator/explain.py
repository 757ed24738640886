"""Explanations of decisions in words, with the numbers behind them in cores and MiB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from schemas.limits import LimitDecisions
from schemas.queries import AppState, Explanation
from schemas.reasons import Reason, Resource, quantity, sentence

MAX_NAMED: Final = 3
"""Containers of which a summary says why they have no more than their floor, or what the kernel refuses; more are
counted."""


def explain(
    resource: Resource,
    change: tuple[int, int],
    why: tuple[int, float, float],
    pool: int | None = None,
    *,
    observed: bool = False,
) -> str:
    """One decision, such as "raised 0.30 cores -> 0.45 cores, throttled: ..., pool 0.50 cores".

    Args:
        resource: whose units the numbers have: us per period, or bytes.
        change: limit before and after; -1: unlimited.
        why: reason (`schemas.reasons.Reason`), measured value and threshold.
        pool: what the application had free after the step, if known.
        observed: mode `observe`: nothing was changed.
    """
    before, after = change
    verb = "keep" if before == after else "cut" if before < 0 or after < before else "raise"
    verb = f"would {verb}" if observed else {"keep": "kept", "cut": "cut", "raise": "raised"}[verb]
    left = "" if pool is None else f", pool {quantity(resource, max(pool, 0))}"
    return f"{verb} {quantity(resource, before)} -> {quantity(resource, after)}, {sentence(resource, *why)}{left}"


def explanations(decisions: LimitDecisions) -> Iterator[Explanation]:
    """Every change of a step in words; the pools are those after it."""
    pools: tuple[tuple[Resource, str, str, int], ...] = (
        ("cpu", "quota", "us", decisions.cpu_limit_us - decisions.cpu_allocated_us),
        ("memory", "limit", "bytes", decisions.memory_limit_bytes - decisions.memory_allocated_bytes),
    )
    for row in decisions.rows():
        for resource, prefix, unit, free in pools:
            before, after = row[f"{prefix}_from_{unit}"], row[f"{prefix}_to_{unit}"]
            if after:
                why = (row[f"{prefix}_reason"], row[f"{prefix}_measured"], row[f"{prefix}_threshold"])
                yield Explanation(
                    time_ns=decisions.time_ns,
                    container=row["container"],
                    resource=resource,
                    before=before,
                    after=after,
                    reason=_reason_name(why[0]),
                    sentence=explain(resource, (before, after), why, free, observed=decisions.mode == "observe"),
                )


def summary(state: AppState) -> str:
    """One application in a sentence."""
    spec, waiting = state.spec, sum(not container.admitted for container in state.containers)
    refused = [each.rejection for each in state.containers if each.rejection]
    refused += [f"{each.container}: {each.kernel_refusal}" for each in state.containers if each.kernel_refusal]
    more = [f"{len(refused) - MAX_NAMED} more of which limits are refused"] if len(refused) > MAX_NAMED else []
    verb = "would hold" if spec.mode == "observe" else "hold"
    return (
        f"{len(state.containers)} containers {verb} {quantity('cpu', state.cpu_committed_us)} of {spec.cpu_limit:.2f} "
        f"and {quantity('memory', state.memory_committed_bytes)} of {quantity('memory', int(spec.memory_limit))} "
        f"(policy {spec.policy}, mode {spec.mode})"
        + "; ".join(
            [
                "",
                *([f"{waiting} not admitted, with no more than their floor"] if waiting else []),
                *state.node_warnings,
                *refused[:MAX_NAMED],
                *more,
            ]
        )
    )


def _reason_name(reason: int) -> str:
    try:
        return Reason(reason).name.lower()
    except ValueError:
        return str(reason)
