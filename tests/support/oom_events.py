"""Memory events and drift for folds: every field has a plain default."""

from __future__ import annotations

from typing import Any

from schemas.containers import ContainerChange, ContainerEvent, ContainerSource
from schemas.oom import OomCause, OomEvent, OomKind
from tests.support.cfs_batches import PERIOD_NS, START_NS

MIB = 1 << 20


def oom_event(kind: OomKind = OomKind.GRANT, tick: int = 0, **fields: Any) -> OomEvent:
    """What happened in one tick."""
    head: dict[str, Any] = {
        "cause": OomCause.SAMPLE,
        "app": "shop",
        "node": "n1",
        "container": "web-0123456789ab",
        "incarnation": 1,
        "time_ns": START_NS + tick * PERIOD_NS,
        "usage_bytes": 95 * MIB,
        "limit_before_bytes": 100 * MIB,
        "limit_after_bytes": (132 if kind is OomKind.GRANT else 100) * MIB,
        "reserve_bytes": 64 * MIB,
    }
    return OomEvent(kind=kind, **(head | fields))


def drift(tick: int = 0, **fields: Any) -> ContainerEvent:
    """Other hands have changed limits."""
    head: dict[str, Any] = {
        "change": ContainerChange.DRIFTED,
        "app": "shop",
        "node": "n1",
        "container": "web-0123456789ab",
        "name": "web",
        "source": ContainerSource.EXEC,
        "time_ns": START_NS + tick * PERIOD_NS,
        "incarnation": 1,
        "reason": "modified externally: memory limit 100 MiB became 64 MiB, put back",
    }
    return ContainerEvent(**(head | fields))
