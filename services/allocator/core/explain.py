"""Decisions as sentences, with the numbers that led to them, in cores and MiB."""

from __future__ import annotations

from typing import Final

from schemas.apps import PERIOD_US
from schemas.limits import Reason

_CPU: Final[dict[Reason, str]] = {
    Reason.NONE: "no reason recorded",
    Reason.ADMITTED: "joined the application: asked for {measured}, {threshold} were free",
    Reason.THROTTLED: "throttled: demand estimated {measured}, quota was {threshold}",
    Reason.UNUSED: "left {measured} unused, {threshold} are kept as headroom",
    Reason.DEMAND_ROSE: "demand with headroom rose to {measured}, quota was {threshold}",
    Reason.SHARED_SCARCITY: "shared scarcity: the application asks for {measured} and may have {threshold}",
    Reason.OVER_LIMIT: "the application held {measured}, its limit is {threshold}",
    Reason.RESYNC: "the kernel held {measured}, ordered was {threshold}",
}
_MEMORY: Final[dict[Reason, str]] = {
    Reason.NONE: "no reason recorded",
    Reason.ADMITTED: "joined the application: asked for {measured}, {threshold} were free",
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
