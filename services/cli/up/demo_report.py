"""The figures at the end of `turnbuckle up --demo`: the managed application beside its twin with static limits.

Everything here is a pure function of the recording and of the agent's counters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from services.cli.up.recording import AppRecording, Recording


@dataclass(frozen=True, slots=True)
class WriteCounts:
    """The agent's counters of cgroup writes. None: not reported."""

    quota_writes: int | None = None
    memory_writes: int | None = None
    no_op_writes: int | None = None
    """Writes of the value that the kernel held already. Each would refill the bandwidth, so there must be none."""

    def since(self, before: WriteCounts) -> WriteCounts:
        """Difference to an earlier reading; None where a counter is not reported now."""

        def grown(now: int | None, then: int | None) -> int | None:
            return None if now is None else now - (then or 0)

        return WriteCounts(
            grown(self.quota_writes, before.quota_writes),
            grown(self.memory_writes, before.memory_writes),
            # Never once, from the very start.
            self.no_op_writes,
        )


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of a run that are not on the bus."""

    app: str
    static_app: str
    policy: str
    maker: str
    """``docker``, ``processes`` or ``simulated``."""
    writes: WriteCounts
    machine: dict[str, Any]
    kills_seen: dict[str, int] = field(default_factory=dict)
    """Workers that died of an out-of-memory kill, by application, as the demo's own supervision counted them."""
    notes: tuple[str, ...] = ()


def build_report(recording: Recording, facts: RunFacts) -> dict[str, Any]:
    """One JSON object: the managed application's figures, and the same figures of the static twin."""
    managed = recording.apps.get(facts.app, AppRecording(facts.app))
    static = recording.apps.get(facts.static_app, AppRecording(facts.static_app))
    return {
        "app": facts.app,
        "policy": facts.policy,
        "seconds": round(max(managed.seconds, static.seconds), 1),
        "simulated": facts.maker == "simulated",
        "maker": facts.maker,
        **_figures(managed, facts),
        "quota_writes": facts.writes.quota_writes,
        "memory_writes": facts.writes.memory_writes,
        "no_op_writes": facts.writes.no_op_writes,
        # The twin is only observed: a write to it would show as a quota that changed.
        "static": {
            **_figures(static, facts),
            "quota_writes": static.quota_changes,
            "memory_writes": 0,
            "no_op_writes": 0,
        },
        "machine": facts.machine,
        "notes": list(facts.notes),
    }


def _figures(app: AppRecording, facts: RunFacts) -> dict[str, Any]:
    slack = app.median_cpu_slack_cores
    return {
        "containers": len(app.timelines),
        "periods": app.periods,
        "container_periods": app.container_periods,
        "decisions": app.decisions,
        "oom_kills": max(app.oom_kills, facts.kills_seen.get(app.app, 0)),
        "peak_memory_bytes": app.peak_memory_bytes,
        "memory_events": app.memory.plain(),
        "drifts": app.drifts,
        "throttled_share": round(app.throttled_share, 4),
        "median_cpu_slack_cores": None if slack is None else round(slack, 4),
        "median_memory_slack_bytes": app.median_memory_slack_bytes,
    }
