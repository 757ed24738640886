"""Where workers of an elastic training run, and what each may use: what its plan or the user says. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from schemas.plans import Plan

LEAST_MEMORY_BYTES: Final = 64 << 20
"""No interpreter with torch starts in less."""
_SANDBOX: Final = re.compile(r"sandbox:(\d+(?:\.\d+)?)")
"""A kind of device: a control group with so many cores (`schemas.devices.Device.kind`)."""


class Form(StrEnum):
    """What a worker is."""

    PROCESS = "process"
    """Without limits."""
    SANDBOX = "sandbox"
    """A control group with a network namespace: services/_jobs/sandbox."""
    DOCKER = "docker"
    """A container."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Of one worker; all have the same."""

    cpu_cores: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where workers run, and what each may use."""

    form: Form = Form.PROCESS
    limits: WorkerLimits | None = None
    """None: of processes."""
    image: str = ""
    """Of containers: one in which ``python3 -m services.trainer.worker`` runs."""
    mounts: tuple[str, ...] = ()
    """Of containers, beside the current directory: ``SOURCE:TARGET[:ro]`` each."""


def worker_limits(plan: Plan, cpu_cores: float | None, memory_bytes: int | None) -> WorkerLimits:
    """The plan's first device as it was planned with, or what the user says.

    Memory is what the plan allows a device (`DevicePlan.allowed_bytes`), not what it counts on using: with fewer
    workers than planned each holds more of the state.

    Args:
        plan: its devices are all alike.
        cpu_cores: the user's; None: those of the device's kind, ``sandbox:CORES``.
        memory_bytes: the user's; None: the plan's.

    Raises:
        ValueError: neither says it, or it is too little; says which option does.
    """
    device = plan.devices[0]
    if cpu_cores is None:
        found = _SANDBOX.fullmatch(device.kind)
        if found is None or not float(found[1]):
            kind = f"is for devices of kind {device.kind!r}" if device.kind else "does not name its devices' kind"
            raise ValueError(f"the plan {kind}, which has no number of cores: say --worker-cpus")
        cpu_cores = float(found[1])
    if memory_bytes is None:
        memory_bytes = device.allowed_bytes
        if not memory_bytes:
            raise ValueError("the plan does not say how much memory a device may use: say --worker-memory")
    if memory_bytes < LEAST_MEMORY_BYTES:
        least = f"{LEAST_MEMORY_BYTES >> 20} MiB"
        raise ValueError(
            f"{memory_bytes} bytes of memory are less than a worker needs to start ({least}): say --worker-memory"
        )
    return WorkerLimits(cpu_cores, memory_bytes)
