"""The status of an Application, as Kubernetes shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.apps import PERIOD_US
from schemas.queries import AppState
from services.kubeoperator.core.declaration import Declaration, Refusal
from services.kubeoperator.core.quantity import format_bytes, format_cores


@dataclass(frozen=True, slots=True)
class LastEvent:
    """The newest event of an application's containers."""

    time: str
    """RFC 3339, UTC."""
    type: str
    message: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of an application beside its declaration."""

    state: AppState | None = None
    """None: the allocator does not know it, or did not reply."""
    event: LastEvent | None = None


def status_of(
    outcome: Declaration | Refusal, seen: Seen, before: Mapping[str, Any], generation: int, now: str
) -> dict[str, Any]:
    """The whole status.

    Args:
        outcome: of reading the Application.
        seen: of its application.
        before: the status that the object has; a condition that has not changed keeps its time.
        generation: ``metadata.generation`` of what was read.
        now: RFC 3339, UTC.
    """
    refused = isinstance(outcome, Refusal)
    owner = seen.state.owner if seen.state is not None and not refused else ""
    accepted = ("False", outcome.reason, outcome.message) if isinstance(outcome, Refusal) else ("True", "Announced", "")
    owned = ("True", "Owned", f"decided by {owner}") if owner else ("False", "NoOwner", "no allocator decides about it")
    conditions = [
        _condition("Accepted", accepted, before, generation, now),
        _condition("Owned", owned, before, generation, now),
    ]
    status = {
        "application": outcome.app if isinstance(outcome, Refusal) else outcome.spec.name,
        "phase": _phase(outcome, owner),
        "observedGeneration": generation,
        "conditions": conditions,
        "limits": None,
        "usage": None,
        "committed": None,
        "containers": 0,
        "refusedContainers": 0,
        "lastEvent": None,
    }
    if isinstance(outcome, Declaration):
        spec = outcome.spec
        status["limits"] = {"cpu": format_cores(spec.cpu_limit), "memory": format_bytes(int(spec.memory_limit))}
    if seen.state is not None and not refused:
        status |= _measured(seen.state)
    if seen.event is not None:
        status["lastEvent"] = {"time": seen.event.time, "type": seen.event.type, "message": seen.event.message}
    return status


def _phase(outcome: Declaration | Refusal, owner: str) -> str:
    if isinstance(outcome, Refusal):
        return "Refused"
    if not owner:
        return "Pending"
    return "Enforcing" if outcome.spec.mode == "enforce" else "Observing"


def _measured(state: AppState) -> dict[str, Any]:
    admitted = [container for container in state.containers if container.admitted]
    used_us = sum(container.used_us for container in admitted)
    used_bytes = sum(container.memory_usage_bytes for container in admitted)
    committed_us, committed_bytes = state.cpu_committed_us, state.memory_committed_bytes
    return {
        "usage": {"cpu": format_cores(used_us / PERIOD_US), "memory": format_bytes(used_bytes)},
        "committed": {"cpu": format_cores(committed_us / PERIOD_US), "memory": format_bytes(committed_bytes)},
        "containers": len(admitted),
        "refusedContainers": len(state.containers) - len(admitted),
    }


def _condition(
    kind: str, said: tuple[str, str, str], before: Mapping[str, Any], generation: int, now: str
) -> dict[str, Any]:
    status, reason, message = said
    old: Mapping[str, Any] = next((each for each in before.get("conditions") or () if each.get("type") == kind), {})
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": since or now,
    }
