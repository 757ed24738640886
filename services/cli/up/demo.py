"""The demo: one application under Turnbuckle beside an identical twin that keeps its static limits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import ByteSize

from schemas.apps import AppSpec, Policy
from services._host.simulation.load_profile import (
    DEMO_CPU_LIMIT,
    DEMO_MEMORY_LIMIT_BYTES,
    ContainerLoad,
    Scenario,
    demo_scenario,
)
from services.cli.apps.deployer import InitialLimits

MANAGED_APP: Final = "demo"
STATIC_APP: Final = "demo-static"
WATCH_EVERY_S: Final = 0.1
DEMO_GAMMA_CORES: Final = 0.02
"""The default of 0.2 cores is more than these small containers' whole quota: `escra` would never shrink one."""

SIMULATED_MEMORY_RATE_BYTES_S: Final = 200_000_000
"""On a real host a container's quota slows its growth to about this; the simulated one ties no memory to CPU time."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Both applications with the same load and the same limits."""

    scenario: Scenario
    specs: tuple[AppSpec, AppSpec]
    """The managed one and the static one (mode `observe`: decided about, never written to)."""
    limits: InitialLimits
    """What every container starts with: equations 2.1 and 2.2. The static ones keep it."""

    @property
    def workers(self) -> list[tuple[str, ContainerLoad]]:
        """Application and load of every container."""
        return [(spec.name, load) for spec in self.specs for load in self.scenario.containers]

    @property
    def simulated_scenario(self) -> Scenario:
        """The same for a simulated host, where nothing grows faster than CPU time would allow."""
        slowed = [
            load.model_copy(
                update={"memory_rate_bytes_s": min(load.memory_rate_bytes_s, SIMULATED_MEMORY_RATE_BYTES_S)}
            )
            for load in self.scenario.containers
        ]
        return self.scenario.model_copy(update={"containers": tuple(slowed)})


class DemoWorkload(Protocol):
    """The demo's containers, however they are made."""

    maker: str
    """``docker``, ``processes`` or ``simulated``."""
    kills_seen: dict[str, int]
    """Workers that ended by an out-of-memory kill, by application."""

    async def start(self) -> None:
        """Make and start every container."""

    async def watch(self) -> None:
        """Start again what was killed for want of memory, until cancelled."""

    async def stop(self) -> None:
        """Remove every container."""


def plan_demo(policy: Policy = "waterfill") -> DemoPlan:
    """The built-in scenario in both applications."""
    scenario = demo_scenario()
    managed = AppSpec(
        name=MANAGED_APP,
        cpu_limit=DEMO_CPU_LIMIT,
        memory_limit=ByteSize(DEMO_MEMORY_LIMIT_BYTES),
        policy=policy,
        mode="enforce",
        gamma=DEMO_GAMMA_CORES,
        announced_containers=len(scenario.containers),
    )
    static = managed.model_copy(update={"name": STATIC_APP, "mode": "observe"})
    return DemoPlan(scenario, (managed, static), InitialLimits.of(managed, len(scenario.containers)))


class SimulatedWorkload:
    """The agent's simulated host carries the load itself: nothing to start here."""

    maker = "simulated"

    def __init__(self) -> None:
        self.kills_seen: dict[str, int] = {}

    async def start(self) -> None:
        """Nothing to do."""

    async def watch(self) -> None:
        """Nothing to do: wait to be cancelled."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Nothing to do."""
