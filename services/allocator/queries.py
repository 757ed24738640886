"""Answers to `allocator.state` and `allocator.explain`."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np

from schemas.limits import LimitDecisions
from schemas.message import Message
from schemas.queries import (
    AppState,
    ContainerState,
    ExplainReply,
    ExplainRequest,
    Explanation,
    QueryError,
    StateReply,
    StateRequest,
)
from services._runtime.bus import Delivery
from services._runtime.clock import Clock
from services.allocator.core import ledger
from services.allocator.core.allocation import Allocation
from services.allocator.core.explain import explanations, summary

REMEMBERED_STEPS = 600
"""Steps with changes per application: a minute at one per period."""


class Queries:
    """Reads the allocation and remembers recent decisions; changes nothing."""

    def __init__(self, allocation: Allocation, clock: Clock) -> None:
        self._allocation = allocation
        self._clock = clock
        self._history: defaultdict[str, deque[LimitDecisions]] = defaultdict(lambda: deque(maxlen=REMEMBERED_STEPS))

    def remember(self, decisions: LimitDecisions) -> None:
        """Keep a step's changes for `explain`."""
        if decisions.row_count:
            self._history[decisions.app].append(decisions)

    async def state(self, delivery: Delivery) -> Message:
        """Applications, containers, limits and pools."""
        request = delivery.message
        if not isinstance(request, StateRequest):
            return _wrong(request)
        allocation = self._allocation
        if request.app is not None and request.app not in allocation.roster.specs:
            return self._unknown(request.app)
        names = [request.app] if request.app is not None else sorted(allocation.roster.specs)
        return StateReply(
            epoch=allocation.epoch,
            steps=allocation.step_count,
            superseded=allocation.superseded,
            apps=tuple(self._app_state(name) for name in names),
        )

    async def explain(self, delivery: Delivery) -> Message:
        """Why an application's limits are what they are."""
        request = delivery.message
        if not isinstance(request, ExplainRequest):
            return _wrong(request)
        if request.app not in self._allocation.roster.specs:
            return self._unknown(request.app)
        history = [
            explanation
            for decisions in self._history[request.app]
            for explanation in explanations(decisions)
            if request.container is None or explanation.container.startswith(request.container)
        ]
        newest: defaultdict[tuple[str, str], list[Explanation]] = defaultdict(list)
        for explanation in reversed(history):
            seen = newest[explanation.container, explanation.resource]
            if len(seen) < request.last:
                seen.append(explanation)
        chosen = sorted((entry for group in newest.values() for entry in group), key=lambda entry: entry.time_ns)
        return ExplainReply(app=request.app, summary=summary(self._app_state(request.app)), decisions=tuple(chosen))

    def _unknown(self, app: str) -> QueryError:
        known = ", ".join(sorted(self._allocation.roster.specs)) or "none"
        return QueryError(code=404, message=f"no application {app!r} is announced (announced: {known})")

    def _app_state(self, app: str) -> AppState:
        allocation = self._allocation
        roster, spec = allocation.roster, allocation.roster.specs[app]
        index = roster.app_index(app)
        pools, rows = allocation.pools(), roster.rows
        virtual = allocation.table.virtual[rows.app]
        quota_held, limit_held = (ledger.held(rows, account, virtual) for account in ledger.ACCOUNTS)
        now_ns = int(self._clock.monotonic() * 1e9)
        containers = tuple(
            ContainerState(
                container=roster.keys[row],
                node=(node := roster.nodes[int(rows.node[row])].name),
                quota_us=int(rows.quota_us[row]),
                ordered_us=int(rows.quota_ordered_us[row]),
                held_us=int(quota_held[row]),
                used_us=int(rows.used_us[row]),
                throttled=bool(rows.throttled[row]),
                memory_usage_bytes=int(rows.memory_usage_bytes[row]),
                memory_limit_bytes=int(rows.limit_bytes[row]),
                memory_held_bytes=int(limit_held[row]),
                admitted=bool(rows.admitted[row]),
                refusal=allocation.refusals.get((node, roster.keys[row]), ""),
                report_age_s=(now_ns - int(rows.report_ns[row])) / 1e9,
            )
            for row in np.flatnonzero(rows.app == index).tolist()
        )
        return AppState(
            spec=spec,
            cpu_held_us=int(pools.quota_held_us[index]),
            cpu_free_us=spec.cpu_limit_us - int(pools.quota_held_us[index]),
            memory_held_bytes=int(pools.limit_held_bytes[index]),
            memory_free_bytes=int(spec.memory_limit) - int(pools.limit_held_bytes[index]),
            containers=containers,
        )


def _wrong(request: Message) -> QueryError:
    return QueryError(code=400, message=f"unexpected {request.type_name}")
