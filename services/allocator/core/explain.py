"""Decisions as sentences, with the numbers that led to them, in cores and MiB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from schemas.apps import PERIOD_US
from schemas.limits import LimitDecisions, Reason
from schemas.queries import AppState, Explanation

_CPU: Final[dict[Reason, str]] = {
    Reason.NONE: "no reason recorded",
    Reason.ADMITTED: "joined the application, asked for {measured}, {threshold} were free",
    Reason.THROTTLED: "throttled, demand estimated {measured}, quota was {threshold}",
    Reason.UNUSED: "left {measured} unused, {threshold} are kept as headroom",
    Reason.DEMAND_ROSE: "demand with headroom rose to {measured}, quota was {threshold}",
    Reason.SHARED_SCARCITY: "shared scarcity, the application asks for {measured} and may have {threshold}",
    Reason.OVER_LIMIT: "the application held {measured}, its limit is {threshold}",
    Reason.RESYNC: "the kernel held {measured}, ordered was {threshold}",
}
_MEMORY: Final[dict[Reason, str]] = {
    Reason.NONE: "no reason recorded",
    Reason.ADMITTED: "joined the application, asked for {measured}, {threshold} were free",
    Reason.MEMORY_GROWTH: "usage of {measured} came within {threshold} of the limit",
    Reason.MEMORY_RECLAIM: "limit was {measured} above usage, {threshold} are kept",
    Reason.OVER_LIMIT: "the application held {measured}, its limit is {threshold}",
    Reason.RESYNC: "the kernel held {measured}, ordered was {threshold}",
}


def explain_cpu(change: tuple[int, int], reason: int, numbers: tuple[float, float], pool_us: int | None = None) -> str:
    """One CPU decision, such as "raised 0.30 -> 0.45 cores: throttled, ... , pool 0.50".

    Args:
        change: quota before and after, microseconds per period; -1: unlimited.
        reason: `schemas.limits.Reason`; unknown numbers (a newer sender) are named as such.
        numbers: measured and threshold, microseconds per period.
        pool_us: what the application had free after the step, if known.
    """
    before, after = change
    measured, threshold = (f"{value / PERIOD_US:.2f}" for value in numbers)
    because = _because(_CPU, reason, measured, threshold)
    pool = "" if pool_us is None else f", pool {pool_us / PERIOD_US:.2f}"
    return f"{_verb(before, after)} {_cores(before)} -> {_cores(after)} cores: {because}{pool}"


def explain_memory(
    change: tuple[int, int], reason: int, numbers: tuple[float, float], pool_bytes: int | None = None
) -> str:
    """One memory decision; everything in bytes, -1 as a limit before: unlimited."""
    before, after = change
    measured, threshold = (f"{_mib(value)} MiB" for value in numbers)
    because = _because(_MEMORY, reason, measured, threshold)
    pool = "" if pool_bytes is None else f", pool {_mib(pool_bytes)} MiB"
    shown = "unlimited" if before < 0 else _mib(before)
    return f"{_verb(before, after)} {shown} -> {_mib(after)} MiB: {because}{pool}"


def explanations(decisions: LimitDecisions) -> Iterator[Explanation]:
    """Every change of a step in words; the pools are those after it."""
    cpu_free_us = decisions.cpu_limit_us - decisions.cpu_allocated_us
    memory_free_bytes = decisions.memory_limit_bytes - decisions.memory_allocated_bytes
    for row in decisions.rows():
        for resource, prefix, unit, explain, free in (
            ("cpu", "quota", "us", explain_cpu, cpu_free_us),
            ("memory", "limit", "bytes", explain_memory, memory_free_bytes),
        ):
            before, after = row[f"{prefix}_from_{unit}"], row[f"{prefix}_to_{unit}"]
            if after:
                numbers = (row[f"{prefix}_measured"], row[f"{prefix}_threshold"])
                reason = row[f"{prefix}_reason"]
                yield Explanation(
                    time_ns=decisions.time_ns,
                    container=row["container"],
                    resource=resource,
                    before=before,
                    after=after,
                    reason=_reason_name(reason),
                    sentence=explain((before, after), reason, numbers, free),
                )


def summary(state: AppState) -> str:
    """One application in a sentence."""
    spec, waiting = state.spec, sum(not container.admitted for container in state.containers)
    verb = "would hold" if spec.mode == "observe" else "hold"
    return (
        f"{len(state.containers)} containers {verb} {_cores(state.cpu_held_us)} of {spec.cpu_limit:.2f} cores "
        f"and {_mib(state.memory_held_bytes)} of {_mib(int(spec.memory_limit))} MiB "
        f"(policy {spec.policy}, mode {spec.mode})" + (f"; {waiting} not admitted" if waiting else "")
    )


def _reason_name(reason: int) -> str:
    try:
        return Reason(reason).name.lower()
    except ValueError:
        return str(reason)


def _because(texts: dict[Reason, str], reason: int, measured: str, threshold: str) -> str:
    try:
        text = texts[Reason(reason)]
    except (ValueError, KeyError):
        return f"reason {reason}, measured {measured}, threshold {threshold}"
    return text.format(measured=measured, threshold=threshold)


def _verb(before: int, after: int) -> str:
    if before == after:
        return "kept"
    return "cut" if before < 0 or after < before else "raised"


def _cores(quota_us: int) -> str:
    return "unlimited" if quota_us < 0 else f"{quota_us / PERIOD_US:.2f}"


def _mib(size: float) -> str:
    return f"{size / (1 << 20):.1f}"
