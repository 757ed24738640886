"""What the containers of a demo or simulation want, as a function of time: model, file form, built-in scenario."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.apps import Name
from services._host.simulation.load_schedule import Schedule

_MIB: Final = 1 << 20
DEMO_CYCLE_S: Final = 20.0
DEMO_CPU_LIMIT: Final = 0.75
"""Cores that `demo_scenario` is laid out for: less than its bursts if all came at once."""
DEMO_MEMORY_LIMIT_BYTES: Final = 1024 * _MIB


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LoadPhase(_Model):
    """A stretch of constant CPU demand; memory moves towards its target and then stays."""

    duration_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    cpu_cores: Annotated[float, Field(ge=0, le=1024)] = 0.0
    memory_bytes: Annotated[int, Field(ge=0)] = 0


class ContainerLoad(_Model):
    """One container: its phases repeat for ever, shifted by `offset_s`."""

    name: Name
    phases: Annotated[tuple[LoadPhase, ...], Field(min_length=1)]
    threads: Annotated[
        int, Field(ge=1, le=256, description="parallel burners: demand per thread is at most 1 core")
    ] = 1
    offset_s: Annotated[float, Field(ge=0, allow_inf_nan=False, description="where in its cycle it starts")] = 0.0
    memory_rate_bytes_s: Annotated[int, Field(gt=0, description="how fast memory grows to a phase's target")] = (
        100_000_000
    )

    @model_validator(mode="after")
    def _check_threads(self) -> Self:
        peak = max(phase.cpu_cores for phase in self.phases)
        if peak > self.threads:
            raise ValueError(f"{self.name}: demand of {peak:g} cores needs more than {self.threads} threads")
        return self

    @property
    def schedule(self) -> Schedule:
        """The arithmetic alone; keep it where demand is asked for often."""
        phases = tuple((phase.duration_s, phase.cpu_cores, phase.memory_bytes) for phase in self.phases)
        return Schedule(phases, self.offset_s, self.memory_rate_bytes_s)

    @property
    def cycle_s(self) -> float:
        """Seconds after which it repeats."""
        return self.schedule.cycle_s

    def demand_cores(self, time_s: float) -> float:
        """Cores that it would use at a time since the start if nothing limited it."""
        return self.schedule.demand_cores(time_s)

    def memory_bytes(self, time_s: float) -> int:
        """Bytes that it wants to hold: growth at `memory_rate_bytes_s`, release at once."""
        return self.schedule.memory_bytes(time_s)


class Scenario(_Model):
    """The containers of one application."""

    containers: Annotated[tuple[ContainerLoad, ...], Field(min_length=1)]
    seed: int = 0
    """For whatever is drawn by chance when it runs (the simulated host's period phases)."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = sorted(container.name for container in self.containers)
        if double := sorted({left for left, right in pairwise(names) if left == right}):
            raise ValueError(f"names are used twice: {', '.join(double)}")
        return self

    def demand_cores(self, time_s: float) -> float:
        """Cores wanted by all containers together."""
        return sum(container.demand_cores(time_s) for container in self.containers)

    def memory_bytes(self, time_s: float) -> int:
        """Bytes wanted by all containers together."""
        return sum(container.memory_bytes(time_s) for container in self.containers)


def _steps(*phases: tuple[float, float, int]) -> tuple[LoadPhase, ...]:
    """From (seconds, cores, MiB)."""
    return tuple(LoadPhase(duration_s=s, cpu_cores=cores, memory_bytes=mib * _MIB) for s, cores, mib in phases)


def demo_scenario(seed: int = 0) -> Scenario:
    """Five containers whose bursts take turns: steps up and down as in the thesis' Figure 2.2, and idle phases.

    One cycle takes `DEMO_CYCLE_S`. Single bursts reach 0.5 to 0.6 core while the sum stays under `DEMO_CPU_LIMIT`
    for most of the time, so shared limits follow the demand where the static share (0.15 core each) throttles. The
    cache's peak of 220 MiB exceeds its static share of memory, (1 - sigma) x 1 GiB / 5 = 163 MiB, but all five
    together stay far below 1 GiB. Once per cycle the batch job loads 256 MiB as fast as its CPU allows, up to 1 GB/s:
    that is past any limit before the next period's batch is out, and shows the memory guard.
    """
    return Scenario(
        containers=(
            ContainerLoad(
                name="web",
                phases=_steps((3, 0.12, 30), (2, 0.3, 34), (3, 0.55, 40), (2, 0.25, 36), (6, 0.08, 30), (4, 0.12, 30)),
            ),
            ContainerLoad(
                name="api",
                phases=_steps((8, 0.06, 28), (2, 0.1, 28), (2, 0.45, 34), (2, 0.2, 34), (6, 0.06, 28)),
            ),
            ContainerLoad(
                name="worker",
                phases=_steps((2, 0.25, 44), (10.5, 0.02, 26), (2, 0.1, 30), (3.5, 0.5, 56), (2, 0.25, 48)),
            ),
            ContainerLoad(
                name="cache",
                phases=_steps((4, 0.03, 30), (4, 0.05, 90), (4, 0.05, 220), (4, 0.04, 150), (4, 0.03, 60)),
            ),
            ContainerLoad(
                name="batch",
                phases=_steps((3, 0.2, 60), (1.5, 0.3, 280), (11.5, 0.0, 24), (1, 0.1, 40), (3, 0.08, 60)),
                memory_rate_bytes_s=1_000_000_000,
            ),
        ),
        seed=seed,
    )
