"""Pods and their containers as the container runtime knows them, over the Container Runtime Interface at its socket.

Two questions of `runtime.v1.RuntimeService` (k8s.io/cri-api, api.proto; containerd from 1.6, CRI-O from 1.20): the
kubelet gives the labels and annotations of a pod to its sandbox, and the names of containers to them. Few fields of the
answers are needed, so they are read here, field by field, instead of by classes made from the definition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import grpc  # type: ignore[import-untyped]  # grpcio ships no types

TIMEOUT_S: Final = 5.0
LARGEST_ANSWER_BYTES: Final = 16 << 20
"""A node's containers with all that has ended; annotations may be long. The kubelet itself takes as much."""
_SERVICE: Final = "/runtime.v1.RuntimeService"
_CREATED, _RUNNING = 0, 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class CriError(Exception):
    """The runtime does not answer, or not as agreed."""


class Sandbox(NamedTuple):
    """A pod as its runtime knows it."""

    sandbox_id: str
    namespace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class PodContainer(NamedTuple):
    """A container of a pod that has been created or runs."""

    container_id: str
    sandbox_id: str
    name: str


class Listing(NamedTuple):
    """One answer to both questions."""

    sandboxes: Mapping[str, Sandbox]
    """By id, also of pods that have ended."""
    containers: Mapping[str, PodContainer]
    """By id."""


class CriClient:
    """Queries a runtime. Makes no connection before the first query, and a new one whenever the old one breaks."""

    def __init__(self, socket_path: str, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(
            f"unix:{socket_path}",
            options=[
                ("grpc.default_authority", "localhost"),  # Go refuses the path that would stand there
                ("grpc.max_receive_message_length", LARGEST_ANSWER_BYTES),
                ("grpc.max_reconnect_backoff_ms", 2_000),
            ],
        )
        # No serialisers: bytes go out and come in.
        self._list_sandboxes = self._channel.unary_unary(f"{_SERVICE}/ListPodSandbox")
        self._list_containers = self._channel.unary_unary(f"{_SERVICE}/ListContainers")

    async def list(self) -> Listing:
        """All pods, and their containers that are there.

        Raises:
            CriError: no answer in time, or one that cannot be read.
        """
        # Sandboxes last: a container that was listed has its sandbox in the other answer.
        containers = await self._ask(self._list_containers)
        sandboxes = await self._ask(self._list_sandboxes)
        try:
            return Listing(
                {sandbox.sandbox_id: sandbox for sandbox in _sandboxes(sandboxes)},
                {container.container_id: container for container in _containers(containers)},
            )
        except (ValueError, IndexError, TypeError, AttributeError) as error:
            raise CriError(f"an answer that is none of CRI v1: {error}") from error

    async def _ask(self, method: grpc.UnaryUnaryMultiCallable) -> bytes:
        """An empty request: no filter."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        call = method.future(b"", timeout=self._timeout_s)

        def on_end(_: object) -> None:
            with suppress(RuntimeError):  # the loop was closed while this was under way
                loop.call_soon_threadsafe(ended.set)

        call.add_done_callback(on_end)
        try:
            await ended.wait()
            answer: bytes = call.result()
        except grpc.RpcError as error:
            raise CriError(f"{call.code().name.lower()}: {call.details()}") from error
        finally:
            call.cancel()
        return answer

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


def _sandboxes(answer: bytes) -> Iterator[Sandbox]:
    """Of a ListPodSandboxResponse {items = 1}."""
    for item in _Fields(answer).messages(1):  # PodSandbox {id = 1, metadata = 2, labels = 5, annotations = 6}
        namespace = item.message(2).text(3)  # PodSandboxMetadata {name = 1, uid = 2, namespace = 3}
        yield Sandbox(item.text(1), namespace, item.text_map(5), item.text_map(6))


def _containers(answer: bytes) -> Iterator[PodContainer]:
    """Of a ListContainersResponse {containers = 1}."""
    for item in _Fields(answer).messages(1):  # Container {id = 1, pod_sandbox_id = 2, metadata = 3, state = 6}
        if item.number(6) in (_CREATED, _RUNNING):
            yield PodContainer(item.text(1), item.text(2), item.message(3).text(1))  # ContainerMetadata {name = 1}


class _Fields:
    """A message's fields by number (protobuf.dev, "Encoding"). Raises ValueError or IndexError where it is none."""

    def __init__(self, data: bytes) -> None:
        self._values: dict[int, list[int | bytes]] = {}
        position = 0
        while position < len(data):
            tag, position = _read_varint(data, position)
            value, position = _read_value(data, position, tag & 7)
            self._values.setdefault(tag >> 3, []).append(value)

    def _last(self, field: int) -> int | bytes | None:
        values = self._values.get(field)
        return values[-1] if values else None

    def number(self, field: int) -> int:
        value = self._last(field)
        if isinstance(value, bytes):
            raise TypeError(f"field {field} is no number")
        return value or 0

    def text(self, field: int) -> str:
        value = self._last(field)
        if isinstance(value, int):
            raise TypeError(f"field {field} is no text")
        return (value or b"").decode()

    def messages(self, field: int) -> Iterator[_Fields]:
        for value in self._values.get(field, ()):
            if isinstance(value, int):
                raise TypeError(f"field {field} is no message")
            yield _Fields(value)

    def message(self, field: int) -> _Fields:
        return next(iter([*self.messages(field)][-1:]), _Fields(b""))

    def text_map(self, field: int) -> dict[str, str]:
        return {entry.text(1): entry.text(2) for entry in self.messages(field)}


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _read_value(data: bytes, position: int, wire_type: int) -> tuple[int | bytes, int]:
    if wire_type == _VARINT:
        return _read_varint(data, position)
    if wire_type == _BYTES:
        length, position = _read_varint(data, position)
    elif wire_type in (_FIXED64, _FIXED32):
        length = 8 if wire_type == _FIXED64 else 4
    else:
        raise ValueError(f"wire type {wire_type}")
    end = position + length
    if end > len(data):
        raise ValueError("cut off")
    return data[position:end], end
