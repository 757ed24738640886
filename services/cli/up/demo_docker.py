"""The demo's containers as Docker containers, from an empty image into which the host's Python is mounted."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import tarfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container

import services
from schemas.apps import PERIOD_US
from services._host.simulation.load_profile import ContainerLoad
from services._runtime.command.errors import CommandError
from services.cli.apps.deployer import APP_LABEL, NAME_LABEL
from services.cli.apps.docker_engine import FAILURES, first_line, open_engine
from services.cli.up.demo import DemoPlan
from services.cli.up.demo_processes import RESTART_AFTER_S, WORKER_MODULE, worker_arguments

OWNER_LABEL: Final = "turnbuckle.demo-pid"
"""Process id of the `turnbuckle up` that made the container: those of a dead one are removed by the next."""
LIST_EVERY_S: Final = 0.5


@dataclass(slots=True)
class _Worker:
    app: str
    container: Container
    restart_at_s: float | None = None


class DockerWorkload:
    """One container per load, with the limits of equations 2.1 and 2.2."""

    maker = "docker"

    def __init__(self, plan: DemoPlan) -> None:
        self.kills_seen: dict[str, int] = {}
        self._plan = plan
        self._client: docker.DockerClient | None = None
        self._workers: list[_Worker] = []
        self._epoch_s = time.time()

    async def start(self) -> None:
        """Create and start the containers.

        Raises:
            CommandError: there is no Docker Engine here, or it refuses; nothing is left behind after `stop`.
        """
        try:
            await asyncio.to_thread(self._start)
        except FAILURES as error:
            raise CommandError(f"Docker cannot run it ({first_line(error)})") from error

    async def watch(self) -> None:
        """Start killed containers again."""
        while True:
            await asyncio.sleep(LIST_EVERY_S)
            with suppress(*FAILURES):  # the engine may restart meanwhile
                await asyncio.to_thread(self._restart_killed)

    async def stop(self) -> None:
        """Kill and remove the containers."""
        await asyncio.to_thread(self._remove_all)

    def _start(self) -> None:
        self._client = client = open_engine(30)
        _remove_stale(client)
        image = ensure_host_image(client.api)
        for app, load in self._plan.workers:
            container = client.containers.create(image, **self._options(app, load))
            self._workers.append(_Worker(app, container))
            container.start()

    def _options(self, app: str, load: ContainerLoad) -> dict[str, Any]:
        limits = self._plan.limits
        source = str(Path(next(iter(services.__path__))).parent)
        return {
            "name": f"{app}-{load.name}-{os.getpid()}",
            "command": [sys.executable, "-P", "-m", WORKER_MODULE, *worker_arguments(load, self._epoch_s)],
            "labels": {APP_LABEL: app, NAME_LABEL: load.name, OWNER_LABEL: str(os.getpid())},
            "environment": {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"},
            "volumes": host_mounts(source),
            "network_mode": "none",
            "cpu_period": PERIOD_US,
            "cpu_quota": limits.quota_us,
            "mem_limit": limits.memory_bytes,
            "memswap_limit": limits.memory_bytes,
            "working_dir": "/tmp",  # noqa: S108 - inside the container
        }

    def _restart_killed(self) -> None:
        now_s = time.monotonic()
        for worker in self._workers:
            worker.container.reload()
            if worker.container.status != "exited":
                continue
            if worker.restart_at_s is None:
                worker.restart_at_s = now_s + RESTART_AFTER_S
                if worker.container.attrs["State"].get("OOMKilled"):
                    self.kills_seen[worker.app] = self.kills_seen.get(worker.app, 0) + 1
            elif now_s >= worker.restart_at_s:
                worker.restart_at_s = None
                worker.container.start()

    def _remove_all(self) -> None:
        for worker in self._workers:
            with suppress(NotFound, APIError):
                worker.container.remove(force=True, v=True)
        self._workers.clear()
        if self._client is not None:
            self._client.close()
            self._client = None


def _remove_stale(client: docker.DockerClient) -> None:
    """Remove what an earlier demo that was killed has left."""
    for container in client.containers.list(all=True, ignore_removed=True, filters={"label": OWNER_LABEL}):
        if not Path("/proc", container.labels[OWNER_LABEL]).exists():
            with suppress(NotFound, APIError):
                container.remove(force=True, v=True)


IMAGE: Final = "turnbuckle-host:latest"
_SYSTEM_DIRECTORIES: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache")


def ensure_host_image(client: docker.APIClient, image: str = IMAGE) -> str:
    """Make the empty image unless the engine has it, and return its name.

    Raises:
        docker.errors.APIError: the engine refuses the import.
    """
    if not client.images(name=image):
        repository, _, tag = image.rpartition(":")
        client.import_image_from_data(_empty_root(), repository=repository, tag=tag)
    return image


def host_mounts(*extra: str) -> list[str]:
    """Bind mounts (``source:target:ro``) of the host's programs, this Python, and ``extra`` directories.

    Each keeps its own path. Directories below another one that is mounted anyway are left out. The environment of this
    Python (its prefix) and the installation that it came from (its base prefix) may be different places.
    """
    wanted = [*_SYSTEM_DIRECTORIES, sys.base_prefix, sys.prefix, *extra]
    existing = sorted({str(Path(path).absolute()) for path in wanted if Path(path).exists()})
    kept: list[str] = []
    for path in existing:
        if not any(path.startswith(f"{parent}/") for parent in kept):
            kept.append(path)
    return [f"{path}:{path}:ro" for path in kept]


def _empty_root() -> bytes:
    """A tar file with the directories that a process expects; mount points appear by themselves."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, mode in (("tmp", 0o1777), ("etc", 0o755), ("root", 0o700)):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, mode
            tar.addfile(directory)
    return buffer.getvalue()
