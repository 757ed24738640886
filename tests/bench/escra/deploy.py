"""Starts an application of the bench as containers on a network of its own, and takes all of it away again.

Every container carries turnbuckle.app and turnbuckle.name, by which the agent finds it, and the bench's own labels, by
which what an earlier run left behind is found and removed. Limits are none of this module's business: containers start
without.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import docker
from docker.errors import APIError, ImageNotFound, NotFound
from docker.types import IPAMConfig, IPAMPool
from docker.utils import kwargs_from_env

from tests.bench.escra.apps.application import SERVICES_DIRECTORY, Application, Container, Ending, Request
from tests.bench.escra.image.packages import IMAGE

BENCH_LABEL = "turnbuckle.bench"
OWNER_LABEL = "turnbuckle.bench.owner"
"""The process that started it: what belongs to a dead one is left over."""
APP_LABEL = "turnbuckle.app"
NAME_LABEL = "turnbuckle.name"
SERVICES = Path(__file__).parent / "apps" / "services"
_FIRST_HOST = 10
_BATCH_RANGE = 128
"""Host numbers below are for an application's standing containers, above for those of its batches."""
_SUBNETS = 64
_ENGINE_TIMEOUT_S = 60
_PROBE_S = 2.0
_THREADS = 32
"""One is blocked for every container of a batch until it has ended."""
_T = TypeVar("_T")


class Engine:
    """The Docker Engine, asked from threads: its package blocks."""

    def __init__(self, client: docker.APIClient | None = None, threads: int = _THREADS) -> None:
        self.client = client or docker.APIClient(
            version="auto", timeout=_ENGINE_TIMEOUT_S, max_pool_size=threads, **kwargs_from_env()
        )
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="docker")

    async def __call__(self, call: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
        """Call one of the client's methods in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: call(*arguments, **named))

    def close(self) -> None:
        """End the threads and the connections."""
        self._pool.shutdown()
        self.client.close()


class Deployment:
    """A running application: `deploy` makes it, `stop` removes it."""

    def __init__(self, app: Application, bus_app_name: str, engine: Engine) -> None:
        self.app = app
        self.bus_app_name = bus_app_name
        self.names: dict[str, str] = {}
        """Label turnbuckle.name -> id of the container, standing containers only."""
        self._engine = engine
        self._files = Path(tempfile.mkdtemp(prefix="turnbuckle-bench-"))
        self._network = f"turnbuckle-bench-{bus_app_name}"
        self._subnet = 0

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the front server."""
        return self._host(self.app.entry), 80

    def _host(self, name: str) -> str:
        number = [container.name for container in self.app.containers].index(name)
        return f"10.213.{self._subnet}.{_FIRST_HOST + number}"

    async def start(self) -> None:
        """Create the network and start the containers."""
        await self._create_network()
        started = await asyncio.gather(*(self._run(each, self._host(each.name)) for each in self.app.containers))
        self.names = dict(zip((each.name for each in self.app.containers), started, strict=True))

    async def _create_network(self) -> None:
        for self._subnet in range(_SUBNETS):
            prefix = f"10.213.{self._subnet}"
            pool = IPAMPool(f"{prefix}.0/24", f"{prefix}.{_BATCH_RANGE}/25", f"{prefix}.1")
            try:
                await self._engine(
                    self._engine.client.create_network,
                    self._network,
                    driver="bridge",
                    ipam=IPAMConfig(pool_configs=[pool]),
                    labels=self._labels(),
                )
            except APIError as error:
                if "overlap" not in str(error):
                    raise
            else:
                return
        raise RuntimeError("no free address range for the application's network")

    def _labels(self) -> dict[str, str]:
        return {BENCH_LABEL: self.bus_app_name, OWNER_LABEL: str(os.getpid())}

    async def _run(self, container: Container, address: str | None, *, restart: bool = True) -> str:
        client = self._engine.client
        host_config = client.create_host_config(
            binds=[f"{SERVICES}:{SERVICES_DIRECTORY}:ro", *self._mounts(container)],
            extra_hosts={each.name: self._host(each.name) for each in self.app.containers},
            restart_policy={"Name": "always"} if restart else None,
            shm_size="64m",
        )
        endpoints: Any = {self._network: client.create_endpoint_config(ipv4_address=address)}
        created = await self._engine(
            client.create_container,
            IMAGE,
            list(container.command),
            name=f"{self._network}-{container.name}",
            hostname=container.name,
            user=container.user or None,
            environment=dict(container.environment),
            labels={APP_LABEL: self.bus_app_name, NAME_LABEL: container.name, **self._labels()},
            host_config=host_config,
            networking_config=client.create_networking_config(endpoints),
        )
        container_id = str(created["Id"])
        await self._engine(client.start, container_id)
        return container_id

    def _mounts(self, container: Container) -> list[str]:
        mounts = []
        for number, (path, text) in enumerate(container.files.items()):
            file = self._files / f"{container.name}-{number}"
            file.write_text(text, encoding="utf-8")
            mounts.append(f"{file}:{path}:ro")
        return mounts

    async def wait_ready(self, deadline_s: float = 30.0) -> None:
        """Load the data and wait until requests are answered rightly.

        Raises:
            TimeoutError: not within ``deadline_s``; the message holds the last answer and the containers' last words.
        """
        end_s = time.monotonic() + deadline_s
        await self._until(end_s, self._prepared)
        if self.app.base_rate_rps:
            await self._until(end_s, self._answers)

    async def _until(self, end_s: float, attempt: Callable[[], Any]) -> None:
        while True:
            try:
                await attempt()
            except (OSError, RuntimeError, EOFError, asyncio.IncompleteReadError) as error:
                if time.monotonic() > end_s:
                    raise TimeoutError(f"{self.app.name} is not ready: {error}\n{await self.last_words()}") from error
                await asyncio.sleep(0.05)
            else:
                return

    async def _prepared(self) -> None:
        await self.app.prepare(self)

    async def _answers(self) -> None:
        rng = random.Random(0)
        for sequence in range(20):
            request = self.app.request(rng, sequence)
            status, body = await exchange(self.address, request)
            if not self.app.check(request, status, body):
                raise RuntimeError(f"{request.method} {request.path}: {status} {body[:200]!r}")

    async def last_words(self, lines: int = 15) -> str:
        """The ends of the containers' logs, for an error message."""
        logs = []
        for name, container_id in self.names.items():
            told: Any = await self._engine(self._engine.client.logs, container_id, tail=lines)
            logs.append(f"-- {name}\n{told.decode(errors='replace')}")
        return "\n".join(logs)

    async def reset(self, deadline_s: float = 15.0) -> None:
        """Data as they were after the start; between two runs.

        Raises:
            TimeoutError: a server that was killed is not back within ``deadline_s``.
        """
        await self._until(time.monotonic() + deadline_s, self._back_to_start)

    async def _back_to_start(self) -> None:
        await self.app.reset(self)

    async def restarts(self) -> dict[str, int]:
        """How often each standing container's first process died so far and was started again: name -> count.

        Mostly kills for memory. A killed worker of gunicorn or PostgreSQL is replaced without a restart.
        """
        found = await asyncio.gather(
            *(self._engine(self._engine.client.inspect_container, each) for each in self.names.values())
        )
        return {name: int(state["RestartCount"]) for name, state in zip(self.names, found, strict=True)}

    async def execute(self, container: str, *command: str) -> str:
        """See `Site.execute`."""
        client = self._engine.client
        order = await self._engine(client.exec_create, self.names[container], list(command))
        output = await self._engine(client.exec_start, order["Id"])
        ended = await self._engine(client.exec_inspect, order["Id"])
        text = bytes(output).decode(errors="replace")
        if ended["ExitCode"] != 0:
            raise RuntimeError(f"{container}: {command[0]} ended with {ended['ExitCode']}: {text[-500:]}")
        return text

    async def ask(self, container: str, port: int, lines: bytes, answers: int) -> list[bytes]:
        """See `Site.ask`."""
        async with asyncio.timeout(_ENGINE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(self._host(container), port)
            try:
                writer.write(lines)
                return [(await reader.readuntil(b"\r\n")).rstrip() for _ in range(answers)]
            finally:
                writer.close()

    async def run_to_end(self, containers: tuple[Container, ...], deadline_s: float) -> dict[str, Ending]:
        """See `Site.run_to_end`."""
        ids: dict[str, str] = {}
        try:
            async with asyncio.timeout(deadline_s):
                endings = await asyncio.gather(*(self._one_to_end(each, ids, deadline_s) for each in containers))
        finally:
            await asyncio.gather(*(_remove(self._engine, each) for each in ids.values()))
        return dict(zip((each.name for each in containers), endings, strict=True))

    async def _one_to_end(self, container: Container, ids: dict[str, str], deadline_s: float) -> Ending:
        container_id = ids[container.name] = await self._run(container, None, restart=False)
        started_s = time.monotonic()
        client = self._engine.client
        await self._engine(client.wait, container_id, timeout=deadline_s)
        ended_s = time.monotonic()
        state = (await self._engine(client.inspect_container, container_id))["State"]
        return Ending(int(state["ExitCode"]), bool(state["OOMKilled"]), started_s, ended_s)

    async def stop(self) -> None:
        """Remove the containers, the network and the files, and let go of the engine."""
        await _remove_labelled(self._engine, lambda app, _: app == self.bus_app_name)
        shutil.rmtree(self._files, ignore_errors=True)
        self._engine.close()


async def deploy(app: Application, bus_app_name: str | None = None, engine: Engine | None = None) -> Deployment:
    """Start an application; `Deployment.wait_ready` waits until it answers.

    Args:
        app: what to start.
        bus_app_name: the label turnbuckle.app of its containers, by default the application's name.
        engine: by default this host's; `Deployment.stop` lets go of it.

    Raises:
        RuntimeError: the image is not there (`python -m tests.bench.escra.image.build`).
    """
    engine = engine or Engine()
    name = bus_app_name or app.name
    await remove_left_overs(engine, name)
    deployment = Deployment(app, name, engine)
    try:
        await deployment.start()
    except ImageNotFound as error:
        await deployment.stop()
        raise RuntimeError(f"no image {IMAGE}: python -m tests.bench.escra.image.build") from error
    except BaseException:
        await deployment.stop()
        raise
    return deployment


async def remove_left_overs(engine: Engine, bus_app_name: str) -> None:
    """Remove what carries the bench's label and this application's name, or a process's that is no more."""
    await _remove_labelled(engine, lambda app, owner: app == bus_app_name or not Path(f"/proc/{owner}").exists())


async def _remove_labelled(engine: Engine, chosen: Callable[[str, str], bool]) -> None:
    def is_chosen(row: Mapping[str, Any]) -> bool:
        return chosen(row["Labels"].get(BENCH_LABEL, ""), row["Labels"].get(OWNER_LABEL, ""))

    client = engine.client
    filters = {"label": BENCH_LABEL}
    containers = await engine(client.containers, all=True, filters=filters)
    await asyncio.gather(*(_remove(engine, row["Id"]) for row in containers if is_chosen(row)))
    for row in await engine(client.networks, filters=filters):
        if is_chosen(row):
            with contextlib.suppress(NotFound):
                await engine(client.remove_network, row["Id"])


async def _remove(engine: Engine, container_id: str) -> None:
    try:
        await engine(engine.client.remove_container, container_id, force=True, v=True)
    except NotFound:
        pass
    except APIError as error:
        if "already in progress" not in str(error):  # somebody else cleans up too
            raise


async def exchange(address: tuple[str, int], request: Request) -> tuple[int, bytes]:
    """One request over a connection of its own, for probes: status and body.

    Raises:
        TimeoutError: no answer within two seconds.
        OSError, EOFError: no connection, or it broke.
    """
    async with asyncio.timeout(_PROBE_S):
        reader, writer = await asyncio.open_connection(*address)
        try:
            ask = f"{request.method} {request.path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
            writer.write(f"{ask}Content-Length: {len(request.body)}\r\n\r\n".encode() + request.body)
            answer = await reader.read()
        finally:
            writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1."):
        raise EOFError("the connection ended before an answer")
    if b"chunked" in head.lower():
        body = b"".join(_chunks(body))
    return int(head.split(b" ", 2)[1]), body


def _chunks(body: bytes) -> list[bytes]:
    chunks = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            break
        chunks.append(body[:length])
        body = body[length + 2 :]
    return chunks
