"""One face for both buses, so that one suite can test them: connections, raw bytes, and a server that goes away."""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from typing import Literal, Protocol

import nats
from nats.aio.client import Client

from schemas.containers import ContainerChange, ContainerEvent, ContainerSource, NodeInfo
from schemas.streams import BUCKETS, CONTAINER_STREAM, BucketSpec, ObjectStoreSpec
from schemas.subjects import CONTAINER_EVENTS, Subject
from services._runtime.bus.api import Bus
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker

SHORT_LIVED = BucketSpec("shortlived", "expires quickly", ttl_s=0.6)
LAB_BUCKETS = (*BUCKETS, SHORT_LIVED)


Damage = Literal["missing", "changed"]


class BusLab(Protocol):
    """What the contract suite needs beside the bus."""

    root: str

    async def bus(self) -> Bus:
        """A new connection."""

    async def publish_raw(self, subject: str, data: bytes) -> None:
        """Any bytes on any subject."""

    async def put_raw(self, bucket: BucketSpec, key: str, data: bytes) -> None:
        """Any bytes under a key."""

    async def spoil_object(self, store: ObjectStoreSpec, name: str, how: Damage) -> None:
        """Pieces of an object get lost, or others are there than were put."""

    async def stop_server(self) -> None:
        """The server goes away."""

    async def start_server(self) -> None:
        """It comes back with what it had stored."""

    async def close(self) -> None:
        """Close every connection."""


class MemoryLab:
    """`BusLab` in memory."""

    def __init__(self) -> None:
        self.root = "lab"
        self.broker = MemoryBroker()
        self._buses: list[MemoryBus] = []

    async def bus(self) -> Bus:
        bus = MemoryBus(self.broker, self.root, buckets=LAB_BUCKETS)
        self._buses.append(bus)
        return bus

    async def publish_raw(self, subject: str, data: bytes) -> None:
        if not self.broker.publish_event(subject, data, uuid.uuid4().hex):
            self.broker.publish(subject, data)

    async def put_raw(self, bucket: BucketSpec, key: str, data: bytes) -> None:
        found = self.broker.bucket(bucket.bucket_name(self.root))
        assert found is not None
        found.store(key, data)

    async def spoil_object(self, store: ObjectStoreSpec, name: str, how: Damage) -> None:
        found = self.broker.object_store(store.bucket_name(self.root))
        assert found is not None
        held = found.objects[name]
        spoiled = held.data[:-1] if how == "missing" else bytes([held.data[0] ^ 1]) + held.data[1:]
        found.objects[name] = dataclasses.replace(held, data=spoiled)

    async def stop_server(self) -> None:
        self.broker.stop()

    async def start_server(self) -> None:
        self.broker.start()

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close(1.0)


class NatsLab:
    """`BusLab` on a real nats-server; the root is unique, so that tests do not meet."""

    def __init__(self, server: EmbeddedNats) -> None:
        self.root = f"t{uuid.uuid4().hex[:10]}"
        self.server = server
        self._buses: list[NatsBus] = []
        self._raw: Client | None = None

    async def bus(self) -> Bus:
        options = BusOptions(servers=(self.server.url,), root=self.root, buckets=LAB_BUCKETS, connect_deadline_s=60.0)
        bus = await NatsBus.connect(options)
        self._buses.append(bus)
        return bus

    async def raw(self) -> Client:
        """A plain nats-py connection."""
        if self._raw is None:
            self._raw = await nats.connect(self.server.url)
        return self._raw

    async def publish_raw(self, subject: str, data: bytes) -> None:
        raw = await self.raw()
        await raw.publish(subject, data)
        await raw.flush()

    async def put_raw(self, bucket: BucketSpec, key: str, data: bytes) -> None:
        raw = await self.raw()
        await raw.jetstream().publish(f"$KV.{bucket.bucket_name(self.root)}.{key}", data)

    async def spoil_object(self, store: ObjectStoreSpec, name: str, how: Damage) -> None:
        bucket, raw = store.bucket_name(self.root), (await self.raw()).jetstream()
        stream = f"OBJ_{bucket}"
        info = await raw.stream_info(stream, subjects_filter=f"$O.{bucket}.M.>")
        for subject in info.state.subjects or {}:
            message = await raw.get_last_msg(stream, subject)
            assert message.data is not None
            description = json.loads(message.data)
            if description["name"] != name:
                continue
            pieces = f"$O.{bucket}.C.{description['nuid']}"
            first = await raw.get_msg(stream, seq=1, subject=pieces, next=True)
            assert first.data is not None
            await raw.purge_stream(stream, subject=pieces, keep=description["chunks"] - 1)
            if how == "changed":
                await raw.publish(pieces, bytes([first.data[0] ^ 1]) + first.data[1:])

    async def stop_server(self) -> None:
        self.server.kill()

    async def start_server(self) -> None:
        await self.server.start()

    async def close(self) -> None:
        if not self.server.running:
            await self.server.start()
        for bus in self._buses:
            await bus.close(2.0)
        raw = await self.raw()
        # With an account's last stream the server removes the directory of all streams, a moment after it has answered:
        # one that the next test makes meanwhile fails with "error creating store for stream" (2 of 400).
        await raw.jetstream().add_stream(name="kept", subjects=["kept"])
        # What a stream may hold counts against the disk's free space while it is empty: a whole suite's do not fit.
        for stream in await raw.jetstream().streams_info():
            if stream.config.name and self.root in stream.config.name.lower():
                await raw.jetstream().delete_stream(stream.config.name)
        await raw.close()


def node_info(number: int, node: str = "n1") -> NodeInfo:
    """A message that carries a number (as its incarnation)."""
    return NodeInfo(
        node=node,
        incarnation=number,
        time_ns=time.time_ns(),
        host_cpus=2,
        memory_bytes=1 << 30,
        cgroup_version=1,
        telemetry_source="cgroup-v1",
        docker=False,
        container_count=0,
        version="0.1.0",
    )


def container_event(number: int) -> ContainerEvent:
    """A fact that carries a number (as its incarnation)."""
    return ContainerEvent(
        change=ContainerChange.STARTED,
        app="shop",
        node="n1",
        container=f"web-{number}",
        name="web",
        source=ContainerSource.SIMULATED,
        time_ns=time.time_ns(),
        incarnation=number,
    )


def event_subject(root: str) -> Subject:
    """Where `container_event` goes."""
    return CONTAINER_EVENTS.subject(root, app="shop", node="n1")


def number_of(message: object) -> int:
    """The number that `node_info` or `container_event` was made with."""
    assert isinstance(message, NodeInfo | ContainerEvent)
    return message.incarnation


__all__ = [
    "CONTAINER_STREAM",
    "LAB_BUCKETS",
    "SHORT_LIVED",
    "BusLab",
    "Damage",
    "MemoryLab",
    "NatsLab",
    "container_event",
    "event_subject",
    "node_info",
    "number_of",
]
