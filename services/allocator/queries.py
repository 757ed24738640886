"""Answers to `allocator.state` and `allocator.explain`: any replica says whose an application is, its owner more."""

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
from services._runtime.bus.api import Delivery
from services._runtime.clock import Clock, monotonic_ns
from services.allocator.budget import ledger
from services.allocator.cycle import Allocation
from services.allocator.explain import explanations, summary
from services.allocator.leases.membership import Replicas

REMEMBERED_STEPS = 600
"""Steps with changes per application: a minute at one per period."""


class Queries:
    """Reads the allocation and remembers recent decisions; changes nothing."""

    def __init__(self, allocation: Allocation, replicas: Replicas, clock: Clock) -> None:
        self._allocation = allocation
        self._replicas = replicas
        self._clock = clock
        self._history: defaultdict[str, deque[LimitDecisions]] = defaultdict(lambda: deque(maxlen=REMEMBERED_STEPS))

    def remember(self, decisions: LimitDecisions) -> None:
        """Keep a step's changes for `explain`."""
        if decisions.row_count:
            self._history[decisions.app].append(decisions)

    def forget(self, app: str) -> None:
        """Another replica decides for it now."""
        self._history.pop(app, None)

    # -- of anyone -----------------------------------------------------------------------------------------------

    async def state(self, delivery: Delivery) -> Message:
        """Applications with containers, limits and pools; of those of other replicas only the owner."""
        request = delivery.message
        if not isinstance(request, StateRequest):
            return _wrong(request)
        specs = self._allocation.roster.specs
        if request.app is not None and request.app not in specs:
            return self._unknown(request.app)
        names = [request.app] if request.app is not None else sorted(specs)
        states = self._own_states(names)
        if request.app is not None and not states and self._owner_elsewhere(request.app) == "":
            return _ownerless(request.app)
        return self._reply([states.get(name) or self._state_elsewhere(name) for name in names])

    async def explain(self, delivery: Delivery) -> Message:
        """Why an application's limits are what they are, or who else knows."""
        request = delivery.message
        if not isinstance(request, ExplainRequest):
            return _wrong(request)
        if request.app not in self._allocation.roster.specs:
            return self._unknown(request.app)
        if self._replicas.owner(request.app) == self._replicas.id:
            return await self.own_explain(delivery)
        owner = self._owner_elsewhere(request.app)
        if not owner:
            return _ownerless(request.app)
        return ExplainReply(app=request.app, summary=f"{owner} decides for it", decisions=(), owner=owner)

    def _owner_elsewhere(self, app: str) -> str:
        """Another replica that decides for an application, so far as is known; empty: none."""
        owner = self._replicas.owner(app)
        return "" if owner == self._replicas.id else owner

    # -- of this replica -----------------------------------------------------------------------------------------

    async def own_state(self, delivery: Delivery) -> Message:
        """What this replica owns."""
        request = delivery.message
        if not isinstance(request, StateRequest):
            return _wrong(request)
        states = self._own_states(sorted(self._replicas.held) if request.app is None else [request.app])
        if request.app is not None and not states:
            return _ownerless(request.app)
        return self._reply(list(states.values()))

    async def own_explain(self, delivery: Delivery) -> Message:
        """What this replica has decided."""
        request = delivery.message
        if not isinstance(request, ExplainRequest):
            return _wrong(request)
        states = self._own_states([request.app])
        if not states:
            return _ownerless(request.app)
        history = [
            explanation
            for decisions in self._history.get(request.app, ())
            for explanation in explanations(decisions)
            if request.container is None or explanation.container.startswith(request.container)
        ]
        newest: defaultdict[tuple[str, str], list[Explanation]] = defaultdict(list)
        for explanation in reversed(history):
            seen = newest[explanation.container, explanation.resource]
            if len(seen) < request.last:
                seen.append(explanation)
        chosen = sorted((entry for group in newest.values() for entry in group), key=lambda entry: entry.time_ns)
        return ExplainReply(app=request.app, summary=summary(states[request.app]), decisions=tuple(chosen))

    def _own_states(self, names: list[str]) -> dict[str, AppState]:
        specs = self._allocation.roster.specs
        return {app: self._app_state(app) for app in names if app in specs and self._allocation.epoch_of(app)}

    def _reply(self, states: list[AppState]) -> StateReply:
        return StateReply(
            epoch=max((state.epoch for state in states), default=0),
            steps=self._allocation.step_count,
            superseded=not self._replicas.may_decide(),
            replica=self._replicas.id,
            apps=tuple(states),
        )

    def _unknown(self, app: str) -> QueryError:
        known = ", ".join(sorted(self._allocation.roster.specs)) or "none"
        return QueryError(code=404, message=f"no application {app!r} is announced (announced: {known})")

    def _state_elsewhere(self, app: str) -> AppState:
        spec = self._allocation.roster.specs[app]
        limits = {"cpu_free_us": spec.cpu_limit_us, "memory_free_bytes": int(spec.memory_limit)}
        owner = self._owner_elsewhere(app)
        return AppState(spec=spec, cpu_held_us=0, memory_held_bytes=0, owner=owner, containers=(), **limits)

    def _app_state(self, app: str) -> AppState:
        allocation = self._allocation
        roster, spec = allocation.roster, allocation.roster.specs[app]
        index = roster.app_index(app)
        pools, rows = allocation.pools(), roster.rows
        virtual = allocation.table.virtual[rows.app]
        quota_held, limit_held = (ledger.held(rows, account, virtual) for account in ledger.ACCOUNTS)
        now_ns = monotonic_ns(self._clock)
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
            memory_reserved_bytes=int(pools.reserved_bytes[index]),
            epoch=allocation.epoch_of(app),
            owner=self._replicas.id,
            containers=containers,
        )


def _wrong(request: Message) -> QueryError:
    return QueryError(code=400, message=f"unexpected {request.type_name}")


def _ownerless(app: str) -> QueryError:
    return QueryError(code=503, message=f"{app!r} has no owner at present: retry in a few seconds")
