r"""Containers of one run at the Docker Engine of this machine: limits, standard streams, the engine's times, removal.

    async with Containers("turnbuckle-train") as containers:
        container = await containers.start(ContainerSpec("worker-1", "image:tag", ("program",), cpu_cores=0.5))
        container.stdin.write(b"a line\n")
        ... await container.stdout.readline() ...
        ended = await container.wait()

They share a network of their own and reach each other at their addresses. Each is labelled with the process that owns
it: what a killed owner has left is removed when the next run begins, and standard input ends with the owner, however it
ends. The docker package blocks: its calls run in threads.

Source: Docker Engine API 1.41, attach (framing of output), events, container limits.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

import docker
from docker.constants import DEFAULT_UNIX_SOCKET
from docker.errors import APIError, ImageNotFound, NotFound

from services._host.docker_engine import FAILURES, FIRST_RETRY_S, probe
from services._host.owner import Owner
from services._runtime.task_cancellation import uninterrupted

OWNER_LABEL: Final = "turnbuckle.owner"
"""`Owner` as JSON: of a container or network that no other process uses."""
RUN_LABEL: Final = "turnbuckle.run"
REQUEST_TIMEOUT_S: Final = 60
EVENT_WITHIN_S: Final = 10.0
"""Of an event that the engine sends of what has happened already; later, the container's state says the same."""
_FRAME_HEADER: Final = struct.Struct(">BxxxL")
_STDOUT, _STDERR = 1, 2
_SIGNAL_CODES: Final = range(129, 193)
"""Exit codes of programs that a signal has ended: 128 and its number."""


class ContainersUnavailableError(Exception):
    """Containers cannot be made here; the message gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container."""

    name: str
    """Within the run."""
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside the image's own."""
    binds: tuple[str, ...] = ()
    """``SOURCE:TARGET[:ro]`` each."""
    working_directory: str = "/"
    cpu_cores: float | None = None
    """None: no limit."""
    memory_bytes: int | None = None
    """Without swap; None: no limit."""


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How a container has ended."""

    code: int
    """Negative: of a signal."""
    time_ns: int
    """By the engine's clock, since the epoch."""


class ContainerInput:
    """Standard input; what is written after its end is dropped."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._is_closed = False

    def write(self, data: bytes) -> None:
        """Queue it."""
        if not self._is_closed:
            self._writer.write(data)

    def close(self) -> None:
        """End it."""
        if not self._is_closed:
            self._is_closed = True
            with suppress(OSError, RuntimeError):  # the container has ended
                self._writer.write_eof()


class Container:
    """One that was started, made by `Containers.start`."""

    def __init__(
        self, run: Containers, container_id: str, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> None:
        self.id = container_id
        self.address = ""
        """IPv4, reachable from the other containers of the run."""
        self.started_ns = 0
        """By the engine's clock, since the epoch."""
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        reader, self._writer = streams
        self.stdin = ContainerInput(self._writer)
        self._run = run
        self._separating = asyncio.create_task(self._separate(reader))

    def send(self, number: signal.Signals) -> None:
        """Send its first process a signal; one that has ended gets none."""
        asyncio.get_running_loop().run_in_executor(None, self._run.kill, self.id, number.name)

    async def wait(self) -> ContainerExit:
        """Until it has ended; removes it."""
        await asyncio.wait({self._separating})
        try:
            ended = await self._run.lifetimes.end_of(self.id)
        except TimeoutError:  # the engine was restarted, and its events of before are gone
            ended = await asyncio.to_thread(self._run.end, self.id)
        await asyncio.to_thread(self._run.remove, self.id)
        return ended

    def close_output(self) -> None:
        """It ends with the container's connection, which `wait` has waited for."""

    async def _separate(self, reader: asyncio.StreamReader) -> None:
        """Output and errors come in frames of one connection, which ends with the container."""
        streams = {_STDOUT: self.stdout, _STDERR: self.stderr}
        try:
            while True:
                kind, length = _FRAME_HEADER.unpack(await reader.readexactly(_FRAME_HEADER.size))
                streams[kind].feed_data(await reader.readexactly(length))
        except (EOFError, OSError):
            pass
        finally:
            self.stdout.feed_eof()
            self.stderr.feed_eof()
            self._writer.close()


class Lifetimes:
    """When containers of a run were started and have ended, by the engine's events; followed in a thread."""

    def __init__(self, label: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._filters = {"type": "container", "event": ["start", "die"], "label": label}
        self._since_ns = time.time_ns()
        self._started: dict[str, asyncio.Future[int]] = {}
        self._ended: dict[str, asyncio.Future[ContainerExit]] = {}
        self._is_stopped = threading.Event()
        self._stream_lock = threading.Lock()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._follow, name="docker-events", daemon=True)
        self._thread.start()

    async def start_of(self, container_id: str) -> int:
        """When it was started, in nanoseconds since the epoch.

        Raises:
            TimeoutError: the engine has not sent it.
        """
        async with asyncio.timeout(EVENT_WITHIN_S):
            return await asyncio.shield(self._future(self._started, container_id))

    async def end_of(self, container_id: str) -> ContainerExit:
        """How and when it has ended.

        Raises:
            TimeoutError: the engine has not sent it.
        """
        async with asyncio.timeout(EVENT_WITHIN_S):
            return await asyncio.shield(self._future(self._ended, container_id))

    def stop(self) -> None:
        """End the thread; blocks until it has."""
        self._is_stopped.set()
        with self._stream_lock:
            if self._stream is not None:
                self._stream.close()
        self._thread.join()

    def _future(self, futures: dict[str, asyncio.Future[Any]], container_id: str) -> asyncio.Future[Any]:
        return futures.setdefault(container_id, self._loop.create_future())

    def _follow(self) -> None:
        """From the run's beginning on; after a lost connection from the last event on, which then comes again."""
        while not self._is_stopped.is_set():
            with suppress(*FAILURES, ContainersUnavailableError):
                client = connect()
                try:
                    self._read(client)
                finally:
                    client.close()
            self._is_stopped.wait(FIRST_RETRY_S)

    def _read(self, client: docker.APIClient) -> None:
        seconds, nanoseconds = divmod(self._since_ns, 1_000_000_000)
        since: Any = f"{seconds}.{nanoseconds:09}"
        stream = client.events(since=since, filters=self._filters, decode=True)
        with self._stream_lock:
            self._stream = stream
        try:
            for event in stream if not self._is_stopped.is_set() else ():
                self._since_ns = int(event["timeNano"])
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._take, event)
        finally:
            with self._stream_lock:
                self._stream = None
            stream.close()

    def _take(self, event: Mapping[str, Any]) -> None:
        container_id, time_ns = event["Actor"]["ID"], int(event["timeNano"])
        if event["Action"] == "start":
            started = self._future(self._started, container_id)
            if not started.done():
                started.set_result(time_ns)
            return
        ended = self._future(self._ended, container_id)
        if not ended.done():
            code = int(event["Actor"]["Attributes"].get("exitCode", 0))
            ended.set_result(ContainerExit(_signed(code), time_ns))


class Containers:
    """The containers of one run and their network, as an asynchronous context manager: removed at its end."""

    lifetimes: Lifetimes

    def __init__(self, prefix: str) -> None:
        self.name = f"{prefix}-{secrets.token_hex(4)}"
        """Of the network; its containers' names begin with it."""
        self.swept: list[str] = []
        """Names of containers and networks of dead owners that were removed at the start."""
        self._labels = {OWNER_LABEL: json.dumps(asdict(Owner.this_process())), RUN_LABEL: self.name}

    async def __aenter__(self) -> Self:
        """Remove what killed runs have left, and make the network.

        Raises:
            ContainersUnavailableError: no engine answers, or it refuses; says why and what helps.
        """
        self._client = await uninterrupted(connect)
        try:
            await uninterrupted(self._begin)
        except FAILURES as error:
            self._client.close()
            raise ContainersUnavailableError(f"the Docker Engine refuses a network: {_reason(error)}") from error
        except asyncio.CancelledError:
            await uninterrupted(self._end)
            raise
        self.lifetimes = Lifetimes(f"{RUN_LABEL}={self.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill and remove all of it."""
        try:
            await uninterrupted(self._end)
        finally:
            await uninterrupted(self.lifetimes.stop)

    async def start(self, spec: ContainerSpec) -> Container:
        """Make and start a container; its standard streams are connected before.

        Raises:
            ContainersUnavailableError: the engine refuses, with the reason; nothing of it is left.
        """
        try:
            container_id = await uninterrupted(self._create, spec)
        except ImageNotFound as error:
            raise ContainersUnavailableError(
                f"the Docker Engine has no image {spec.image}: docker pull or docker build it first"
            ) from error
        except FAILURES as error:
            raise ContainersUnavailableError(f"{spec.name} cannot be made: {_reason(error)}") from error
        try:
            connection = await asyncio.to_thread(self._attach, container_id)
            container = Container(self, container_id, await asyncio.open_unix_connection(sock=connection))
            await asyncio.to_thread(self._client.start, container_id)
            container.started_ns = await self._start_of(container_id)
            container.address = await asyncio.to_thread(self._address, container_id)
        except FAILURES as error:
            await asyncio.to_thread(self.remove, container_id)
            raise ContainersUnavailableError(f"{spec.name} cannot be started: {_reason(error)}") from error
        return container

    def kill(self, container_id: str, signal_name: str) -> None:
        """Send a signal; blocks. One that has ended gets none."""
        with suppress(*FAILURES):
            self._client.kill(container_id, signal_name)

    def end(self, container_id: str) -> ContainerExit:
        """Kill one whose streams are lost, and read from its state how it has ended; blocks."""
        self.kill(container_id, "SIGKILL")
        try:
            self._client.wait(container_id)
            state = self._client.inspect_container(container_id)["State"]
            return ContainerExit(_signed(int(state["ExitCode"])), _nanoseconds(state["FinishedAt"]))
        except FAILURES:
            return ContainerExit(-signal.SIGKILL, time.time_ns())

    def remove(self, container_id: str) -> None:
        """Kill and remove one; blocks. Idempotent."""
        with suppress(*FAILURES):
            self._client.remove_container(container_id, force=True, v=True)

    async def _start_of(self, container_id: str) -> int:
        try:
            return await self.lifetimes.start_of(container_id)
        except TimeoutError:
            inspected = await asyncio.to_thread(self._client.inspect_container, container_id)
            return _nanoseconds(inspected["State"]["StartedAt"])

    def _begin(self) -> None:
        self.swept = sweep(self._client)
        self._client.create_network(self.name, driver="bridge", labels=self._labels)

    def _end(self) -> None:
        with suppress(*FAILURES):
            own = {"label": f"{RUN_LABEL}={self.name}"}
            for container in self._client.containers(all=True, filters=own):
                self.remove(container["Id"])
            self._client.remove_network(self.name)
        self._client.close()

    def _create(self, spec: ContainerSpec) -> str:
        host = self._client.create_host_config(
            binds=list(spec.binds),
            network_mode=self.name,
            mem_limit=spec.memory_bytes,
            memswap_limit=spec.memory_bytes,
            nano_cpus=None if spec.cpu_cores is None else round(spec.cpu_cores * 1e9),
            security_opt=["no-new-privileges"],
        )
        created = self._client.create_container(
            spec.image,
            list(spec.command),
            name=f"{self.name}-{spec.name}",
            user=f"{os.getuid()}:{os.getgid()}",
            working_dir=spec.working_directory,
            environment=dict(spec.environment),
            labels=self._labels,
            stdin_open=True,
            host_config=host,
        )
        return str(created["Id"])

    def _attach(self, container_id: str) -> socket.socket:
        """Its standard streams: a connection of our own, as the docker package closes its one with its answer."""
        wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        attached = self._client.attach_socket(container_id, wanted)
        connection = socket.socket(fileno=os.dup(attached.fileno()))
        attached._response.close()  # noqa: SLF001 - the package keeps the answer there, which owns its connection
        connection.settimeout(0.0)
        return connection

    def _address(self, container_id: str) -> str:
        networks = self._client.inspect_container(container_id)["NetworkSettings"]["Networks"]
        return str(networks[self.name]["IPAddress"])


def connect() -> docker.APIClient:
    """A client of the engine at the socket of this machine, or where DOCKER_HOST says. The caller closes it.

    Raises:
        ContainersUnavailableError: there is none, or not on this machine; says what helps.
    """
    url = os.environ.get("DOCKER_HOST") or DEFAULT_UNIX_SOCKET
    _, unix, path = url.partition("unix://")
    if not unix:
        raise ContainersUnavailableError(
            f"DOCKER_HOST is {url}: containers share files with this command, so the engine has to be at a unix:// "
            "socket of this machine"
        )
    try:
        probe(url)
        return docker.APIClient(base_url=url, version="auto", timeout=REQUEST_TIMEOUT_S)
    except PermissionError as error:
        raise ContainersUnavailableError(
            f"no permission for the Docker Engine at {path}: join the group docker, or use sudo"
        ) from error
    except FAILURES as error:
        raise ContainersUnavailableError(
            f"no Docker Engine answers at {path} ({_reason(error)}): systemctl start docker"
        ) from error


def sweep(client: docker.APIClient) -> list[str]:
    """Remove containers and networks whose owner was killed; returns their names. Blocks.

    Raises one of `FAILURES`.
    """
    owned, swept = {"label": OWNER_LABEL}, []
    for container in client.containers(all=True, filters=owned):
        if _is_left_behind(container["Labels"]):
            with suppress(NotFound, APIError):  # another run that begins removes it as well
                client.remove_container(container["Id"], force=True, v=True)
            swept.append(str(container["Names"][0]).removeprefix("/"))
    for network in client.networks(filters=owned):
        if _is_left_behind(network["Labels"]):
            with suppress(NotFound, APIError):
                client.remove_network(network["Id"])
            swept.append(str(network["Name"]))
    return swept


def _is_left_behind(labels: Mapping[str, str]) -> bool:
    """Whether its owner is dead. One without a readable label is left alone."""
    try:
        return Owner(**json.loads(labels[OWNER_LABEL])).is_gone()
    except (KeyError, TypeError, ValueError):
        return False


def _signed(code: int) -> int:
    return 128 - code if code in _SIGNAL_CODES else code


def _nanoseconds(text: str) -> int:
    """Of an RFC 3339 time, in whole microseconds."""
    at = datetime.fromisoformat(text)
    return int(at.timestamp()) * 1_000_000_000 + at.microsecond * 1_000


def _reason(error: Exception) -> str:
    said = getattr(error, "explanation", None) or getattr(error, "strerror", None) or error
    return (str(said).splitlines() or [type(error).__name__])[0][:300]
