"""The product's allocation with its policies exchanged: everything else, the ledger above all, is the product's own.

A peer has neither of our defences of memory: its applications have no reserves, and an agent that asks for memory is
refused, whereupon it gives the kernel its kill back at once (thesis 2.4.4.2). `escra` and `waterfill` are the product's
own code; a variant of them differs by constants, which are put back when another policy is chosen.
Where a profile is given, `waterfill` too begins as if it had watched it: else a short run would compare its first
seconds with what peers have learnt. (`escra` remembers one second: it has seen that when measuring begins.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import CfsBatch
from schemas.oom import MemoryReply, MemoryRequest
from services.allocator.arrays.array_types import BoolArray, IntArray
from services.allocator.arrays.reasons import Reasons
from services.allocator.budget.step_budget import StepBudget
from services.allocator.budget.step_context import StepContext, StepTime
from services.allocator.cpu import waterfill as policy_waterfill
from services.allocator.cpu.pipeline import CpuPipeline, capacity_us, cpu_view
from services.allocator.cycle import AllocationCycle, Outcome, Send, keep
from services.allocator.memory.pipeline import MemoryPipeline, capacity_bytes, memory_view
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.rows import Rows
from tests.bench.escra.peers.fitting import MemorySample
from tests.bench.escra.peers.rules import CpuRule, MemoryRule, rules_for
from tests.bench.escra.peers.starting import profile_of
from tests.bench.escra.peers.whole_periods import WholePeriods
from tests.bench.escra.policies import PolicySpec, module_of
from tests.bench.escra.profile import ContainerProfile, Profile

NO_PROFILE = Profile({})


class ExchangedPolicies:
    """The product's policies until `choose` names another one."""

    def __init__(self, cluster: ClusterState, cpu: CpuPipeline) -> None:
        self.cluster = cluster
        self.cpu, self.memory = ExchangedCpu(self, cpu), ExchangedMemory(self)
        self.spec: PolicySpec | None = None
        """None: every application's own policy."""
        self.rules: tuple[CpuRule, MemoryRule] | None = None
        self._profile = NO_PROFILE
        self._started: set[int] = set()
        """Slots whose container the chosen policy has begun with."""
        self._originals: list[tuple[ModuleType, str, object]] = []

    @property
    def guards_memory(self) -> bool:
        """Whether reserves are granted and requests for memory answered: ours only."""
        return self.rules is None

    def choose(self, spec: PolicySpec | None, profile: Profile = NO_PROFILE) -> None:
        """Decide by this policy from the next step on; all estimates start anew."""
        for module, name, value in self._originals:
            setattr(module, name, value)
        self._originals.clear()
        self.spec, self._profile = spec, profile
        self.rules = None if spec is None or spec.ours else rules_for(spec)
        self.follow(max(self.cluster.slot_capacity, 1), np.zeros(0, dtype=np.int64))
        self._started.clear()
        for state in (self.cpu.escra.state, self.cpu.waterfill.state, self.memory.state):
            state.forget(np.arange(state.capacity))
        if spec is not None and spec.ours:
            self._set_constants(spec)

    def _set_constants(self, spec: PolicySpec) -> None:
        for name, value in spec.constants.items():
            module = module_of(spec.family, name)
            if module is not None:
                original = getattr(module, name)
                self._originals.append((module, name, original))
                setattr(module, name, type(original)(value))

    def follow(self, slot_capacity: int, released: IntArray) -> None:
        """The rules' estimates follow the containers, too."""
        for rule in self.rules or ():
            rule.state.grow(slot_capacity)
            rule.state.forget(released)
        self._started.difference_update(released.tolist())

    def start(self, index: IntArray) -> None:
        """Begin with containers that have not been seen, from what the profile says of them."""
        slots = self.cluster.rows.slot
        new = [row for row in index.tolist() if int(slots[row]) not in self._started]
        if new:
            names = [self.cluster.keys[row].rpartition("-")[0] for row in new]
            known = [profile_of(self._profile, name) for name in names]
            for start in [rule.start for rule in self.rules or ()] or [self._watch]:
                start(slots[new], known)
            self._started.update(slots[new].tolist())

    def _watch(self, slots: IntArray, profiles: Sequence[ContainerProfile]) -> None:
        """Let `waterfill` see the profiles, period by period, as samples of containers that nothing limits."""
        for period in range(max((len(one.used_us) for one in profiles), default=0)):
            there = [position for position, one in enumerate(profiles) if period < len(one.used_us)]
            used_us = np.array([profiles[position].used_us[period] for position in there], dtype=np.float64)
            state, fresh = self.cpu.waterfill.state, np.ones(len(there), dtype=np.bool_)
            state.put(slots[there], policy_waterfill.observe(state.take(slots[there]), fresh, used_us))


class ExchangedCpu(CpuPipeline):
    """The product's CPU pipeline, by the chosen policy."""

    def __init__(self, policies: ExchangedPolicies, product: CpuPipeline) -> None:
        super().__init__(product.waterfill, product.escra)
        self._policies = policies

    def follow(self, slot_capacity: int, released: IntArray) -> None:
        """As the product's, and the rules' estimates."""
        super().follow(slot_capacity, released)
        self._policies.follow(slot_capacity, released)

    def targets(
        self, rows: Rows, context: StepContext, budget: StepBudget, decidable: BoolArray, reasons: Reasons
    ) -> IntArray:
        """As the product's, by the chosen policy."""
        index, rules = np.flatnonzero(decidable), self._policies.rules
        self._policies.start(index)
        if rules is None:
            return super().targets(rows, context, budget, decidable, reasons)
        targets = rows.quota_ordered_us.copy()
        if len(index):
            view = cpu_view(rows, context, budget, index, capacity_us(rows, budget, decidable))
            result = rules[0].decide(view, rows.slot[index])
            targets[index] = result.target_us
            reasons.copy_from(index, result)
        return targets


class ExchangedMemory(MemoryPipeline):
    """The product's memory pipeline, by the chosen policy; a peer reclaims when its own rule says so."""

    def __init__(self, policies: ExchangedPolicies) -> None:
        super().__init__()
        self._policies = policies

    def targets(
        self, rows: Rows, context: StepContext, budget: StepBudget, decidable: BoolArray, reasons: Reasons
    ) -> IntArray:
        """As the product's, by the chosen policy."""
        index, rules = np.flatnonzero(decidable), self._policies.rules
        if rules is None:
            return super().targets(rows, context, budget, decidable, reasons)
        targets = rows.limit_ordered_bytes.copy()
        if len(index):
            view = memory_view(rows, context, budget, index, capacity_bytes(rows, budget, decidable))
            result = rules[1].decide(MemorySample(view, rows.oom_kills[index]), rows.slot[index])
            targets[index] = result.target_bytes
            reasons.copy_from(index, result)
        return targets


class ExchangedAllocation(AllocationCycle):
    """The product's `AllocationCycle`, which asks `ExchangedPolicies`."""

    def __init__(self, warm_up_ns: int = 0, longest_wait_s: float = 30.0) -> None:
        super().__init__(warm_up_ns, longest_wait_s)
        self.exchanged = ExchangedPolicies(self.cluster, self.cpu)
        self.cpu, self.memory = self.exchanged.cpu, self.exchanged.memory
        self._from: AppTable | None = None
        self._exchanged_table: AppTable | None = None
        self._whole_periods = WholePeriods()

    def step(self, batches: Sequence[CfsBatch], time: StepTime, send: Send = keep) -> Outcome:
        """As the product's. Peers decide by whole periods, see `WholePeriods`."""
        if not self.exchanged.guards_memory:
            batches = self._whole_periods.of(batches)
        return super().step(batches, time, send) if batches else Outcome()

    def choose(self, spec: PolicySpec | None, profile: Profile = NO_PROFILE) -> None:
        """`ExchangedPolicies.choose`."""
        self.exchanged.choose(spec, profile)
        self._whole_periods.forget()
        self._from = None

    @property
    def table(self) -> AppTable:
        """The applications' parameters, with those that the chosen policy overrides."""
        table = super().table
        if self._exchanged_table is None or self._from is not table:
            self._from, self._exchanged_table = table, self._with_overrides(table)
        return self._exchanged_table

    def _with_overrides(self, table: AppTable) -> AppTable:
        spec = self.exchanged.spec
        if spec is None:
            return table
        table = replace(table, waterfill=np.full_like(table.waterfill, spec.family == "waterfill"))
        if not self.exchanged.guards_memory:
            table = replace(table, withheld_bytes=np.zeros_like(table.withheld_bytes))
        for name, value in spec.constants.items():
            if spec.ours and module_of(spec.family, name) is None:
                table = _overridden(table, name, value)
        return table

    def request_memory(self, request: MemoryRequest, time: StepTime) -> tuple[MemoryReply, Outcome]:
        """As the product's; a peer grants nothing."""
        if self.exchanged.guards_memory or not (epoch := self.owned.epoch_of(request.app)):
            return super().request_memory(request, time)
        refusal = f"policy {self.exchanged.spec.name if self.exchanged.spec else '?'} grants no memory on request"
        reply = MemoryReply(app=request.app, epoch=epoch, granted_bytes=0, reclaiming_bytes=0, denial=refusal)
        return reply, Outcome()


def _overridden(table: AppTable, parameter: str, value: float) -> AppTable:
    """The table with one value of a parameter for all applications; in the units of `AppSpec`, delta in MiB."""
    match parameter:
        case "kappa":
            return replace(table, kappa=np.full_like(table.kappa, value))
        case "gamma":
            return replace(table, gamma_us=np.full_like(table.gamma_us, round(value * PERIOD_US)))
        case "upsilon":
            return replace(table, upsilon_share=np.full_like(table.upsilon_share, value / 100))
        case "window":
            return replace(table, window=np.full_like(table.window, round(value)))
        case "delta":
            return replace(table, delta_bytes=np.full_like(table.delta_bytes, round(value * (1 << 20))))
    raise ValueError(f"{parameter} is no parameter of an application")
