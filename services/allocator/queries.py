"""Replies to `allocator.state` and `allocator.explain`; any replica names the owner, the owner gives details."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

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
from services._runtime.clock import Clock
from services.allocator.budget.committed import committed_limits
from services.allocator.cycle import AllocationCycle
from services.allocator.explain import explanations, summary
from services.allocator.ownership.membership import Membership


class Queries:
    """Answers from the allocation and its recent decisions; changes nothing."""

    def __init__(
        self,
        allocation: AllocationCycle,
        membership: Membership,
        clock: Clock,
        history: Mapping[str, Sequence[LimitDecisions]],
    ) -> None:
        """Answer; ``history``: recent decisions by application, oldest first."""
        self._allocation = allocation
        self._membership = membership
        self._clock = clock
        self._history = history

    # -- any replica ---------------------------------------------------------------------------------------------

    async def state(self, delivery: Delivery) -> Message:
        """Applications with containers, limits and pools; of other replicas' applications only the owner."""
        request = delivery.message
        if not isinstance(request, StateRequest):
            return _bad_request(request)
        specs = self._allocation.cluster.specs
        if request.app is not None and request.app not in specs:
            return self._unknown(request.app)
        names = [request.app] if request.app is not None else sorted(specs)
        states = self._own_states(names)
        if request.app is not None and not states and self._owner_elsewhere(request.app) == "":
            return _no_owner(request.app)
        return self._reply([states.get(name) or self._state_elsewhere(name) for name in names])

    async def explain(self, delivery: Delivery) -> Message:
        """Why an application's limits are what they are, or which replica owns it."""
        request = delivery.message
        if not isinstance(request, ExplainRequest):
            return _bad_request(request)
        if request.app not in self._allocation.cluster.specs:
            return self._unknown(request.app)
        if self._membership.owner(request.app) == self._membership.id:
            return await self.own_explain(delivery)
        owner = self._owner_elsewhere(request.app)
        if not owner:
            return _no_owner(request.app)
        return ExplainReply(app=request.app, summary=f"{owner} decides for it", decisions=(), owner=owner)

    def _owner_elsewhere(self, app: str) -> str:
        """Owner of an application if another replica; empty: none known."""
        owner = self._membership.owner(app)
        return "" if owner == self._membership.id else owner

    # -- this replica --------------------------------------------------------------------------------------------

    async def own_state(self, delivery: Delivery) -> Message:
        """State of the applications that this replica owns."""
        request = delivery.message
        if not isinstance(request, StateRequest):
            return _bad_request(request)
        states = self._own_states(sorted(self._membership.held) if request.app is None else [request.app])
        if request.app is not None and not states:
            return _no_owner(request.app)
        return self._reply(list(states.values()))

    async def own_explain(self, delivery: Delivery) -> Message:
        """Explanations of this replica's decisions."""
        request = delivery.message
        if not isinstance(request, ExplainRequest):
            return _bad_request(request)
        states = self._own_states([request.app])
        if not states:
            return _no_owner(request.app)
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
        specs = self._allocation.cluster.specs
        return {app: self._app_state(app) for app in names if app in specs and self._allocation.owned.epoch_of(app)}

    def _reply(self, states: list[AppState]) -> StateReply:
        return StateReply(
            epoch=max((state.epoch for state in states), default=0),
            steps=self._allocation.step_count,
            superseded=not self._membership.may_act(),
            replica=self._membership.id,
            members=self._membership.view.record.replicas,
            members_epoch=self._membership.view.record.epoch,
            members_since_ns=self._membership.view.record.time_ns,
            apps=tuple(states),
        )

    def _unknown(self, app: str) -> QueryError:
        known = ", ".join(sorted(self._allocation.cluster.specs)) or "none"
        return QueryError(code=404, message=f"no application {app!r} is announced (announced: {known})")

    def _state_elsewhere(self, app: str) -> AppState:
        spec = self._allocation.cluster.specs[app]
        limits = {"cpu_free_us": spec.cpu_limit_us, "memory_free_bytes": int(spec.memory_limit)}
        owner = self._owner_elsewhere(app)
        return AppState(spec=spec, cpu_committed_us=0, memory_committed_bytes=0, owner=owner, containers=(), **limits)

    def _app_state(self, app: str) -> AppState:
        allocation = self._allocation
        cluster, spec = allocation.cluster, allocation.cluster.specs[app]
        index = cluster.app_index(app)
        pools, rows = allocation.pools(), cluster.rows
        quota_held, limit_held = committed_limits(rows, allocation.table.observe_only[rows.app])
        now_ns = self._clock.monotonic_ns()
        containers = tuple(
            ContainerState(
                container=cluster.keys[row],
                node=(node := cluster.nodes[int(rows.node[row])].name),
                quota_us=int(rows.quota_us[row]),
                assigned_us=int(rows.quota_ordered_us[row]),
                committed_us=int(quota_held[row]),
                used_us=int(rows.used_us[row]),
                throttled=bool(rows.throttled[row]),
                memory_usage_bytes=int(rows.memory_usage_bytes[row]),
                memory_limit_bytes=int(rows.limit_bytes[row]),
                memory_committed_bytes=int(limit_held[row]),
                admitted=bool(rows.admitted[row]) and (node, cluster.keys[row]) not in allocation.refused.reasons,
                rejection=allocation.refused.reasons.get((node, cluster.keys[row]), ""),
                report_age_s=(now_ns - int(rows.report_ns[row])) / 1e9,
                kernel_refusal=allocation.kernel_refusals.of_row(row, now_ns),
            )
            for row in np.flatnonzero(rows.app == index).tolist()
        )
        return AppState(
            spec=spec,
            cpu_committed_us=int(pools.quota_committed_us[index]),
            cpu_free_us=spec.cpu_limit_us - int(pools.quota_committed_us[index]),
            memory_committed_bytes=int(pools.limit_committed_bytes[index]),
            memory_free_bytes=int(spec.memory_limit) - int(pools.limit_committed_bytes[index]),
            memory_reserved_bytes=int(pools.reserved_bytes[index]),
            epoch=allocation.owned.epoch_of(app),
            owner=self._membership.id,
            containers=containers,
            node_warnings=allocation.inventory.warnings(cluster, app),
        )


def _bad_request(request: Message) -> QueryError:
    return QueryError(code=400, message=f"unexpected {request.type_name}")


def _no_owner(app: str) -> QueryError:
    return QueryError(code=503, message=f"{app!r} has no owner at present: retry in a few seconds")
