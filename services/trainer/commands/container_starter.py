"""Workers of an elastic training as containers of the Docker Engine at this machine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services._host.docker_containers import Container, Containers, ContainerSpec, ContainersUnavailableError
from services._jobs.rank_environment import GLOO_DEVICE
from services._runtime.command.errors import UnavailableError
from services.trainer.commands.starters import Launch, rank, threads
from services.trainer.core.worker_place import Place, WorkerLimits

DEVICE = "eth0"
"""A container's, on the only network that it has."""


@asynccontextmanager
async def containers(place: Place, reports: Path) -> AsyncIterator[ContainerStarter]:
    """Containers with the place's limits; all are gone at its end, with their network.

    Args:
        place: with an image.
        reports: directory of the socket on which workers report.

    Raises:
        UnavailableError: this is not possible here; says what helps.
    """
    assert place.limits is not None
    here = str(Path.cwd())
    mounts = (f"{here}:{here}", f"{reports}:{reports}", *place.mounts)
    try:
        async with Containers("turnbuckle-train") as made:
            yield ContainerStarter(made, place.limits, place.image, mounts, here)
    except ContainersUnavailableError as error:
        raise UnavailableError(f"workers cannot have containers: {error}") from error


@dataclass(frozen=True, slots=True)
class ContainerStarter:
    """A container for each program: with the limits, but for the store, and on a network of their own.

    Of this command's environment a container gets nothing: the image's own holds.
    """

    made: Containers
    limits: WorkerLimits
    image: str
    mounts: tuple[str, ...]
    directory: str

    @staticmethod
    def now_ns() -> int:
        """By the machine's wall clock, as the engine's events."""
        return time.time_ns()

    async def start(self, launch: Launch) -> Container:
        """Start one.

        Raises:
            UnavailableError: the engine refuses, with the reason.
        """
        limits = None if launch.rank is None else self.limits
        spec = ContainerSpec(
            launch.name,
            self.image,
            ("python3", "-P", "-m", launch.module, *launch.arguments),
            threads(limits) | {GLOO_DEVICE: DEVICE} | rank(launch),
            self.mounts,
            self.directory,
            None if limits is None else limits.cpu_cores,
            None if limits is None else limits.memory_bytes,
        )
        try:
            return await self.made.start(spec)
        except ContainersUnavailableError as error:
            raise UnavailableError(str(error)) from error
