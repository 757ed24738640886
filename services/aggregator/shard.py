"""One aggregator: listens for workers and for other aggregators, and has ranges of several jobs.

A connection belongs to one job from its first frames on, by a proof of that job's key: it names no job afterwards, so
that it reaches no other one's ranges. What a peer can make this process hold is bounded: by the lengths of its own
job's ranges, by two connections per rank, and by deadlines for what has begun.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from services._jobs.aggregation_frames import (
    MOST_TEXT,
    AnyHeader,
    FetchHeader,
    FrameError,
    Header,
    PushHeader,
    StateHeader,
    TakenHeader,
    address_of,
)
from services._runtime.connection_server import ConnectionServer
from services.aggregator.adapters.wire import Peer, Wire, admit, join, no_content
from services.aggregator.core.memory import CONNECTIONS_PER_RANK
from services.aggregator.core.packing import JobLoad
from services.aggregator.hosted_job import STATE, HostedJob, JobSpec, RangeError

UNPROVEN_CONNECTIONS: Final = 64
"""That have not shown a key yet; beyond them the oldest is closed, since a key takes one round trip to show."""
AGGREGATOR_CONNECTIONS: Final = 16
"""That send ranges of one job at the same time."""
_HEADERS_BYTES: Final = 1 << 16
"""Of answers that wait to be sent, beside their contents."""
TRANSFER_S: Final = 120.0
"""For a range's state to be sent and acknowledged."""
_BROKEN: Final = (FrameError, OSError, EOFError, TimeoutError)


@dataclass(frozen=True, slots=True)
class JobKeys:
    """Of one job: workers cannot pass for an aggregator, which may replace parameters."""

    worker: bytes
    aggregator: bytes


class _Connection:
    """What a worker is answered by."""

    def __init__(self, wire: Wire, job: HostedJob) -> None:
        self._wire = wire
        self._job = job

    def answer(self, header: Header, content: bytes = b"") -> None:
        """Queue an answer; where that is more than all ranges' results, the connection ends."""
        self._wire.send(header, content, self._job.length_bytes + _HEADERS_BYTES)

    def abort(self) -> None:
        """End the connection."""
        self._wire.abort()


class Shard:
    """Jobs, their keys and their connections."""

    def __init__(self, memory_limit_bytes: int) -> None:
        self._memory_limit_bytes = memory_limit_bytes
        self._jobs: dict[str, tuple[HostedJob, JobKeys]] = {}
        self._connections: dict[Peer, list[Wire]] = defaultdict(list)
        self._server = ConnectionServer(self._serve, UNPROVEN_CONNECTIONS)

    @property
    def address(self) -> str:
        """HOST:PORT, once it listens."""
        return self._server.address

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0: any.

        Raises:
            OSError: it cannot listen there.
        """
        await self._server.start(host, port)

    async def stop(self) -> None:
        """Close every connection; workers go on once their ranges are elsewhere, or fail by their own deadline."""
        await self._server.stop()

    def host(self, spec: JobSpec, keys: JobKeys) -> None:
        """A job whose ranges may come here.

        Raises:
            RangeError: it is here.
        """
        if spec.job in self._jobs:
            raise RangeError(f"job {spec.job} is here")
        self._jobs[spec.job] = HostedJob(spec, self.address, _monotonic_us, _cpu_us), keys

    def drop(self, job: str) -> None:
        """Free a job that has ended; its connections are closed.

        Raises:
            RangeError: it is not here.
        """
        self._job(job)
        del self._jobs[job]
        for peer in [peer for peer in self._connections if peer.job == job]:
            for wire in self._connections.pop(peer):
                wire.abort()

    def add(self, job: str, index: int, values: int, version: int, *, moving: bool = False) -> None:
        """A range that begins here, or (moving) will come from another aggregator.

        Raises:
            RangeError: the job is not here, the range does not fit what is known of it, or memory is short.
        """
        hosted = self._job(job)
        needed = sum(each.most_bytes for each, _ in self._jobs.values())
        needed += hosted.most_bytes_of(values)
        if needed > self._memory_limit_bytes:
            raise RangeError(f"{needed} bytes may be needed with range {index} of {job}, of {self._memory_limit_bytes}")
        hosted.add(index, values, version, moving=moving)

    async def move(self, job: str, index: int, version: int, address: str) -> None:
        """Send a range to its next owner, which has to expect it; a second call sends again what was not acknowledged.

        Raises:
            RangeError: it is not here, or the next owner refuses it or cannot be reached.
        """
        hosted, keys = self._job(job), self._jobs[job][1]
        try:
            host, port = address_of(address)
        except ValueError as error:
            raise RangeError(str(error)) from error
        header, content = hosted.leave(index, version, address)
        try:
            async with asyncio.timeout(TRANSFER_S):
                reader, writer = await asyncio.open_connection(host, port)
                wire = Wire(reader, writer)
                try:
                    await _transfer(wire, (job, keys.aggregator), header, content)
                finally:
                    wire.abort()
        except (*_BROKEN, UnicodeError) as error:  # a name of a host that cannot be one
            raise RangeError(
                f"range {index} of {job} was not taken by {address}: {error or type(error).__name__}"
            ) from error
        hosted.left(index, version)

    def loads(self) -> list[JobLoad]:
        """What each job has asked for lately; those without two steps are left out."""
        return [load for hosted, _ in self._jobs.values() if (load := hosted.load()) is not None]

    def finished_steps(self) -> dict[str, int]:
        """The last step of each job that all its ranges here have finished; without those that have no range here."""
        found = {job: hosted.finished for job, (hosted, _) in self._jobs.items()}
        return {job: step for job, step in found.items() if step is not None}

    def _job(self, job: str) -> HostedJob:
        if job not in self._jobs:
            raise RangeError(f"job {job} is not here")
        return self._jobs[job][0]

    def _key_of(self, peer: Peer) -> bytes | None:
        if peer.job not in self._jobs:
            return None
        hosted, keys = self._jobs[peer.job]
        if peer.role == "aggregator":
            return keys.aggregator if peer.rank == 0 else None
        return keys.worker if peer.rank < hosted.spec.ranks else None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        with suppress(*_BROKEN, RangeError):  # of a job that was dropped meanwhile
            with self._server.unproven(writer):
                peer = await admit(wire, self._key_of)
            await self._serve_peer(peer, wire)

    async def _serve_peer(self, peer: Peer, wire: Wire) -> None:
        hosted = self._job(peer.job)
        wires = self._connections[peer]
        wires.append(wire)
        if len(wires) > (CONNECTIONS_PER_RANK if peer.role == "worker" else AGGREGATOR_CONNECTIONS):
            wires.pop(0).abort()
        try:
            if peer.role == "worker":
                await _serve_worker(hosted, peer.rank, wire)
            else:
                await _serve_aggregator(hosted, wire)
        finally:
            if wire in wires:
                wires.remove(wire)
            if not wires and self._connections.get(peer) is wires:
                del self._connections[peer]


async def _serve_worker(hosted: HostedJob, rank: int, wire: Wire) -> None:
    connection = _Connection(wire, hosted)

    def wanted(header: AnyHeader, content_bytes: int) -> bool:
        if isinstance(header, FetchHeader):
            return no_content(header, content_bytes)
        if not isinstance(header, PushHeader):
            raise FrameError(f"a worker does not send {header.kind}")
        return hosted.wants(connection, rank, header, content_bytes)

    try:
        while True:
            header, content = await wire.receive(wanted)
            if isinstance(header, FetchHeader):
                hosted.fetch(connection, header)
                continue
            assert isinstance(header, PushHeader)
            hosted.push(connection, rank, header, content)
    finally:
        hosted.forget(connection, rank)


async def _serve_aggregator(hosted: HostedJob, wire: Wire) -> None:
    connection = _Connection(wire, hosted)

    def wanted(header: AnyHeader, content_bytes: int) -> bool:
        if not isinstance(header, StateHeader):
            raise FrameError(f"an aggregator does not send {header.kind}")
        return hosted.wants_state(connection, header, content_bytes)

    try:
        header, content = await wire.receive(wanted)
        assert isinstance(header, StateHeader)
        refused = hosted.arrive(header, content)
    finally:
        hosted.forget(connection, STATE)
    wire.send(TakenHeader(range=header.range, version=header.version, refused=refused[:MOST_TEXT]))
    await wire.drain()


async def _transfer(wire: Wire, job_and_key: tuple[str, bytes], header: StateHeader, content: bytes) -> None:
    await join(wire, *job_and_key)
    wire.send(header, content)
    await wire.drain()
    taken, _ = await wire.receive(no_content)
    if not isinstance(taken, TakenHeader) or (taken.range, taken.version) != (header.range, header.version):
        raise FrameError("an acknowledgement was due")
    if taken.refused:
        raise FrameError(taken.refused)


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000


def _cpu_us() -> int:
    return time.process_time_ns() // 1000
