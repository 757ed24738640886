"""Publishers of a training: the socket of its job's runner, the bus, or none. Training waits for neither."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from schemas.codec import encode
from schemas.streams import TRAINING_STREAM, BucketSpec
from schemas.subjects import STEPS, TRAINING_EVENTS
from schemas.trainings import TRAINING_SOCKET_VARIABLE, StepBatch, TrainingEvent
from services._runtime.bus.api import BusError
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import find_server, quiet_logs
from services._runtime.command.output import print_note
from services._runtime.deep_sockets import socket_address

MOST_WAITING: Final = 200
"""Messages of each kind that the runner has not taken yet; of more, the oldest are dropped."""
CLOSE_WITHIN_S: Final = 2.0
_AGAIN_S: Final = 0.05
_JOB_VARIABLE: Final = "TURNBUCKLE_JOB"


class Publisher(Protocol):
    """Takes messages at once, whatever becomes of them."""

    def publish(self, message: StepBatch | TrainingEvent) -> None:
        """Queue a message."""

    async def close(self) -> str:
        """Wait for `CLOSE_WITHIN_S` at most until all events are taken; returns what is wrong, or nothing."""


class RunnerSocket:
    """The socket of the job's runner. A runner that is away finds the newest messages once it is back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._events: deque[bytes] = deque(maxlen=MOST_WAITING)
        self._steps: deque[bytes] = deque(maxlen=MOST_WAITING)
        self._arrived, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._sending = asyncio.create_task(self._send_all())

    def publish(self, message: StepBatch | TrainingEvent) -> None:
        """Queue a message."""
        queue = self._steps if isinstance(message, StepBatch) else self._events
        queue.append(encode(message))
        self._empty.clear()
        self._arrived.set()

    async def close(self) -> str:
        """Wait until all are taken; returns what is wrong, or nothing."""
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._empty.wait()
        except TimeoutError:
            pass
        self._sending.cancel()
        await asyncio.wait({self._sending})
        self._socket.close()
        return f"{len(self._events)} events were not taken by the job's runner" if self._events else ""

    async def _send_all(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while queue := self._events or self._steps:
                if self._send(queue[0]):
                    queue.popleft()
                else:
                    await asyncio.sleep(_AGAIN_S)
            self._empty.set()

    def _send(self, datagram: bytes) -> bool:
        """Whether it was taken: not while the socket's queue is full, or no runner has it open."""
        try:
            with socket_address(self._path) as address:
                self._socket.sendto(datagram, address)
        except OSError:
            return False
        return True


class BusPublisher:
    """The bus itself, by a key of the role ``trainer``; it is connected, and again if it is lost, in the background."""

    def __init__(self, bus: NatsBus) -> None:
        self._bus = bus

    @property
    def bus(self) -> NatsBus:
        """For more than events."""
        return self._bus

    def publish(self, message: StepBatch | TrainingEvent) -> None:
        """Queue an event; drop steps while there is no server."""
        whose = {"job": message.job, "node": message.node}
        if isinstance(message, StepBatch):
            self._bus.publish(STEPS.subject(self._bus.root, **whose), message)
        else:
            subject = TRAINING_EVENTS.subject(self._bus.root, **whose)
            self._bus.publish_event(subject, message, message_id=message.message_id)

    async def close(self) -> str:
        """Disconnect; returns what is wrong, or nothing."""
        lost = self._bus.lost
        error = lost.exception() if lost.done() and not lost.cancelled() else None
        undelivered = (await self._bus.close(CLOSE_WITHIN_S)).get("events", 0)
        if error is not None:
            return f"nothing was published: {error}"
        return (
            f"{undelivered} events were not stored: {self._bus.options.address} did not take them"
            if undelivered
            else ""
        )


def find_bus(server: str | None, context: str | None, buckets: tuple[BucketSpec, ...] = ()) -> BusOptions | None:
    """The bus that options, environment or the selected NATS context give; None: none is given, or this is a job.

    A job publishes by its runner only: a key in its environment is the user's own affair. ``buckets``: that are used.

    Raises:
        BadFileError: a setting or the context cannot be used.
    """
    if _JOB_VARIABLE in os.environ and not (server or context):
        return None
    options = find_server(server, context)
    if options.origin == BusOptions().origin:
        return None
    return replace(options, name="turnbuckle-train", streams=(TRAINING_STREAM,), buckets=buckets, object_stores=())


@asynccontextmanager
async def publisher(bus: BusOptions | None) -> AsyncIterator[Publisher | None]:
    """The publisher of this command; None: there is none. What was not taken is said at the end."""
    made: Publisher
    if bus is not None:
        quiet_logs()
        try:
            made = BusPublisher(await NatsBus.connect(bus, wait_s=0.0))
        except BusError as error:
            print_note(f"nothing is published: {error}")
            yield None
            return
    elif path := os.environ.get(TRAINING_SOCKET_VARIABLE):
        made = RunnerSocket(Path(path))
    else:
        yield None
        return
    try:
        yield made
    finally:
        if problem := await made.close():
            print_note(problem)
