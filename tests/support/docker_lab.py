"""Real containers from the host image, and a proxy in front of the engine's socket that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import docker

from services.cli.up.demo_docker import ensure_host_image, host_mounts


class DockerLab:
    """Starts containers and removes them all at the end."""

    def __init__(self) -> None:
        self.client = docker.APIClient(version="auto", **docker.utils.kwargs_from_env())
        self.image = ensure_host_image(self.client)
        self.ids: list[str] = []

    def run(self, *command: str, name: str, labels: dict[str, str] | None = None, **host_config: Any) -> str:
        """Start a container, ``sleep 1000`` by default, and return its id."""
        created = self.client.create_container(
            self.image,
            list(command) or ["sleep", "1000"],
            name=f"{name}-{os.getpid()}",
            labels=labels,
            host_config=self.client.create_host_config(binds=host_mounts(), **host_config),
        )
        container_id = str(created["Id"])
        self.ids.append(container_id)
        self.client.start(container_id)
        return container_id

    def remove(self, container_id: str) -> None:
        """Kill and remove."""
        self.client.remove_container(container_id, force=True)
        self.ids.remove(container_id)

    def close(self) -> None:
        """Remove all that is left."""
        for container_id in list(self.ids):
            self.remove(container_id)
        self.client.close()


class CuttableProxy:
    """Forwards a unix socket to the engine's, after `delay_s` each; `cut` breaks all and can refuse new ones."""

    def __init__(self, path: Path, target: str = "/var/run/docker.sock") -> None:
        self.url = f"unix://{path}"
        self.delay_s = 0.0
        self._path = path
        self._target = target
        self._server: asyncio.AbstractServer | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begin, or begin again, to listen."""
        self._server = await asyncio.start_unix_server(self._serve, str(self._path))

    async def cut(self) -> None:
        """Stop listening and break what is connected."""
        if self._server is not None:
            self._server.close()
        self._path.unlink(missing_ok=True)
        for writer in list(self._writers):
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        await asyncio.sleep(self.delay_s)
        far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            for each in (writer, far_writer):
                each.transport.abort()
                self._writers.discard(each)
            self._tasks.discard(task)

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
