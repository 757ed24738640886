"""CFS quota containers as a policy sees them: demand in, per-period samples out, quotas applied after a delay.

Pure and small: one step is one period of 100 ms. Work that does not fit into a period is dropped, so that a constant
demand stays constant. What it does not model: phases finer than a period, backlog, refill by writes (the simulator
behind measured/policy.md does).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.allocator.cpu import escra as policy_escra
from services.allocator.cpu import waterfill as policy_waterfill
from services.allocator.cpu.escra import EscraState
from services.allocator.cpu.policy_interface import CpuParameters, CpuTargets, CpuView
from services.allocator.cpu.waterfill import WaterfillState

PERIOD_US = 100_000
HOST_CPUS = 16
POLICIES: dict[str, tuple[ModuleType, Any]] = {
    "escra": (policy_escra, EscraState),
    "waterfill": (policy_waterfill, WaterfillState),
}


def parameters(
    apps: int, *, kappa: float = 0.8, gamma_us: int = 20_000, upsilon: float = 0.2, window: int = 10
) -> CpuParameters:
    """The thesis' parameters, the same for every application."""
    return CpuParameters(
        np.full(apps, kappa), np.full(apps, gamma_us), np.full(apps, upsilon), np.full(apps, window, np.int64)
    )


def decide(policy: ModuleType, state: Any, view: CpuView, rows: NDArray[np.int64]) -> CpuTargets:
    """Targets of a policy from what the slots ``rows`` of ``state`` hold, which then hold the new state."""
    targets: CpuTargets = state.decide(rows, partial(policy.step, view=view))
    return targets


@dataclass
class Sample:
    """What the agents report of one period, shape N."""

    fresh: NDArray[np.bool_]
    used_us: NDArray[np.int64]
    unused_us: NDArray[np.int64]
    throttled_us: NDArray[np.int64]
    throttled: NDArray[np.bool_]


@dataclass
class CfsPlant:
    """Containers with quotas in force, orders under way, and a policy that is stepped over them."""

    app: NDArray[np.integer[Any]]
    limit_us: NDArray[np.int64]
    quota_us: NDArray[np.int64]
    """In the kernel."""
    policy: str = "waterfill"
    threads: int = 4
    noise: float = 0.0
    """Demand is multiplied by 1 +- noise, uniform, per container and period."""
    silent: float = 0.0
    """Chance that a container has no new sample in a step: phases differ, so steps and periods do not match."""
    min_us: int = 1_000
    seed: int = 0
    params: CpuParameters | None = None
    delay: int = 1
    """Periods between a decision and the period for which it is in force, beyond the next one."""
    writes: NDArray[np.int64] = field(init=False)
    last: CpuTargets | None = None

    def __post_init__(self) -> None:
        self.module, state = POLICIES[self.policy]
        self.state = state(len(self.app))
        self.ordered_us = self.quota_us.copy()
        self.pipeline = [self.quota_us.copy() for _ in range(self.delay)]
        self.random = np.random.default_rng(self.seed)
        self.writes = np.zeros(len(self.app), np.int64)

    @property
    def cap_us(self) -> NDArray[np.int64]:
        return np.full(len(self.app), min(self.threads, HOST_CPUS) * PERIOD_US)

    def run_period(self, demand_us: NDArray[np.int64]) -> Sample:
        """Let the containers run for one period with the quotas that are in force."""
        count = len(self.app)
        factor = 1 + self.noise * self.random.uniform(-1, 1, count)
        demand = np.minimum((demand_us * factor).astype(np.int64), self.cap_us)
        used = np.minimum(demand, self.quota_us)
        throttled = demand > self.quota_us
        # Demand arrives evenly: the quota is gone after quota / demand of the period; then all threads wait.
        waiting = np.where(throttled, PERIOD_US - PERIOD_US * self.quota_us // np.maximum(demand, 1), 0)
        fresh = self.random.uniform(size=count) >= self.silent
        return Sample(fresh, used, self.quota_us - used, waiting * self.threads, throttled)

    def view(self, sample: Sample) -> CpuView:
        count = len(self.app)
        return CpuView(
            app=self.app,
            fresh=sample.fresh,
            used_us=sample.used_us,
            unused_us=sample.unused_us,
            throttled_us=sample.throttled_us,
            throttled=sample.throttled,
            quota_us=self.quota_us.copy(),
            ordered_us=self.ordered_us.copy(),
            min_us=np.full(count, self.min_us, np.int64),
            cap_us=self.cap_us,
            node_idle_percent=np.full(count, -1),
            limit_us=self.limit_us,
            params=self.params or parameters(len(self.limit_us)),
        )

    def by_app(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sums by application, shape A."""
        sums = np.zeros(len(self.limit_us), np.int64)
        np.add.at(sums, self.app, values)
        return sums

    def held_us(self) -> NDArray[np.int64]:
        """The largest quota that may be in force: in the kernel, on its way, or ordered."""
        held: NDArray[np.int64] = np.maximum.reduce([self.quota_us, self.ordered_us, *self.pipeline])
        return held

    def commit(self, target_us: NDArray[np.int64]) -> NDArray[np.int64]:
        """Limit updates out of targets: cuts as they are, raises scaled into limit - sum(max(old, new))."""
        held = self.held_us()
        ask = np.where(target_us > self.ordered_us, np.maximum(target_us - held, 0), 0)
        room, asked = np.maximum(self.limit_us - self.by_app(held), 0), self.by_app(ask)
        scaled = ask * room[self.app] // np.maximum(asked, 1)[self.app]
        ask = np.where((asked > room)[self.app], scaled, ask)
        raised = np.maximum(np.where(target_us > held, held + ask, target_us), self.ordered_us)
        return np.where(target_us > self.ordered_us, raised, target_us)

    def step(self, demand_us: NDArray[np.int64]) -> Sample:
        """One period and the decision after it."""
        sample = self.run_period(demand_us)
        self.last = decide(self.module, self.state, self.view(sample), np.arange(len(self.app)))
        ordered = self.commit(self.last.target_us)
        self.writes += ordered != self.ordered_us
        self.ordered_us = ordered
        self.pipeline.append(ordered.copy())
        self.quota_us = self.pipeline.pop(0)
        return sample
