"""The demo's containers as plain processes in managed control groups: for hosts without Docker."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services._host.cgroupfs import (
    MANAGED_ID_LENGTH,
    CgroupLayout,
    CgroupUnavailableError,
    ManagedCgroup,
    managed_directory,
    parse_managed,
)
from services._host.simulation.load_profile import ContainerLoad
from services._runtime.command.errors import UnavailableError
from services._runtime.service.interpreter import isolated_command
from services.cli.apps.managed_process import spawn_in_group
from services.cli.up.demo import WATCH_EVERY_S, DemoPlan

WORKER_MODULE: Final = "services._host.simulation.load_worker"
RESTART_AFTER_S: Final = 1.0


def worker_arguments(load: ContainerLoad, epoch_s: float) -> list[str]:
    """The arguments of one worker; twins share the epoch, so that both have the same load at the same moment."""
    return ["--profile", load.model_dump_json(), "--epoch-s", f"{epoch_s:.3f}"]


@dataclass(slots=True)
class _Worker:
    app: str
    load: ContainerLoad
    group: ManagedCgroup
    process: subprocess.Popen[bytes]
    restart_at_s: float | None = None


class ProcessWorkload:
    """One process per container, each in a control group with the limits of equations 2.1 and 2.2."""

    maker = "processes"

    def __init__(self, plan: DemoPlan, layout: CgroupLayout, managed_root: str, run_directory: Path) -> None:
        self.kills_seen: dict[str, int] = {}
        self._plan = plan
        self._layout = layout
        self._root = managed_root
        self._directory = run_directory
        self._workers: list[_Worker] = []
        self._epoch_s = time.time()

    async def start(self) -> None:
        """Make the groups and start the workers.

        Raises:
            UnavailableError: the kernel does not let us.
        """
        await asyncio.to_thread(self._remove_stale)
        for app, load in self._plan.workers:
            directory = managed_directory(app, load.name, secrets.token_hex(MANAGED_ID_LENGTH // 2), self._root)
            limits = self._plan.limits
            try:
                group = ManagedCgroup.create(self._layout, directory, limits.quota_us, limits.memory_bytes)
            except CgroupUnavailableError as error:
                raise UnavailableError(str(error)) from error
            self._workers.append(_Worker(app, load, group, self._spawn(group, load)))

    async def watch(self) -> None:
        """Start killed workers again in their groups."""
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            for worker in self._workers:
                if (code := worker.process.poll()) is None:
                    continue
                now_s = time.monotonic()
                if worker.restart_at_s is None:
                    worker.restart_at_s = now_s + RESTART_AFTER_S
                    if code == -signal.SIGKILL:
                        self.kills_seen[worker.app] = self.kills_seen.get(worker.app, 0) + 1
                elif now_s >= worker.restart_at_s:
                    worker.restart_at_s = None
                    worker.process = self._spawn(worker.group, worker.load)

    async def stop(self) -> None:
        """End the workers and remove their groups."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            await asyncio.to_thread(worker.process.wait)
            await asyncio.to_thread(worker.group.end)
        self._workers.clear()

    def _spawn(self, group: ManagedCgroup, load: ContainerLoad) -> subprocess.Popen[bytes]:
        command = isolated_command(WORKER_MODULE, *worker_arguments(load, self._epoch_s))
        return spawn_in_group(group, command, log_file=self._directory / "demo-workers.log", end_with_parent=True)

    def _remove_stale(self) -> None:
        """Remove what an earlier demo that was killed has left."""
        for spec in self._plan.specs:
            for mount in self._layout.distinct_mounts():
                for found in Path(mount.directory, self._root, spec.name).glob("*-*"):
                    directory = f"{self._root}/{spec.name}/{found.name}"
                    if parse_managed(directory, self._root) is not None:
                        ManagedCgroup(self._layout, directory).end()
