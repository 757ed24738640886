"""States of applications as an allocator gives them."""

from __future__ import annotations

from typing import Any

from schemas.apps import AppSpec
from schemas.queries import AppState, ContainerState


def app_state(*containers: ContainerState, app: str = "shop") -> AppState:
    """Two cores and 1 GiB, of which nothing is held."""
    spec = AppSpec(name=app, cpu_limit=2, memory_limit=1 << 30)
    held = {"cpu_committed_us": 0, "memory_committed_bytes": 0}
    free = {"cpu_free_us": spec.cpu_limit_us, "memory_free_bytes": 1 << 30}
    return AppState(spec=spec, containers=containers, **held, **free)


def container_state(container: str, **fields: Any) -> ContainerState:
    """A container that does nothing."""
    zeros = dict.fromkeys(("quota_us", "assigned_us", "committed_us", "used_us", "memory_usage_bytes"), 0)
    zeros |= dict.fromkeys(("memory_limit_bytes", "memory_committed_bytes"), 0)
    head: dict[str, Any] = {"node": "n1", "throttled": False, "admitted": True, "report_age_s": 0.0}
    return ContainerState(container=container, **(zeros | head | fields))
