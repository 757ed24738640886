"""Frames over asyncio streams, bounded against hostile and stuck peers; both sides' proof of the job's key."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from services._jobs.aggregation_frames import (
    NONCE_BYTES,
    PREFIX,
    AnyHeader,
    Challenge,
    DeniedHeader,
    FrameError,
    Header,
    Hello,
    Role,
    Welcome,
    client_proof,
    decode_header,
    decode_prefix,
    encode_frame,
    server_proof,
)

HANDSHAKE_S: Final = 60.0
"""Long: on a busy machine a key may take seconds to show, and how many may try is bounded."""
SILENCE_S: Final = 60.0
"""Between two parts of a frame that has begun."""
_PART_BYTES: Final = 1 << 18


class Peer(NamedTuple):
    """Who is at the other end of a connection, as its proof says."""

    job: str
    role: Role
    rank: int


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    async def receive(self, wanted: Callable[[AnyHeader, int], bool]) -> tuple[AnyHeader, bytearray | None]:
        """The next frame, however long it takes to begin; then no more than `SILENCE_S` may pass without a part of it.

        Args:
            wanted: whether to keep the content of so many bytes, by the header; raises `FrameError` where that is too
                long. Nothing is allocated before.

        Returns:
            The header, and the content; None: not wanted.

        Raises:
            FrameError: it is none.
            TimeoutError: it does not go on.
            OSError, EOFError: the connection has ended.
        """
        first = await self._reader.readexactly(1)
        async with asyncio.timeout(SILENCE_S):
            header_bytes, content_bytes = decode_prefix(first + await self._reader.readexactly(PREFIX.size - 1))
            header = decode_header(await self._reader.readexactly(header_bytes))
        content = bytearray(content_bytes) if wanted(header, content_bytes) else None
        read_bytes = 0
        while read_bytes < content_bytes:
            async with asyncio.timeout(SILENCE_S):
                part = await self._reader.read(min(content_bytes - read_bytes, _PART_BYTES))
            if not part:
                raise EOFError("the connection has ended inside a frame")
            if content is not None:
                content[read_bytes : read_bytes + len(part)] = part
            read_bytes += len(part)
        return header, content

    def send(self, header: Header, content: bytes | bytearray = b"", most_unsent_bytes: int = 1 << 62) -> None:
        """Queue a frame; where the peer would have more than so many bytes to read, end the connection instead."""
        if self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() + len(content) > most_unsent_bytes:
            self.abort()
            return
        self._writer.write(encode_frame(header, len(content)))
        if content:
            self._writer.write(content)

    async def drain(self) -> None:
        """Until the peer has read nearly all that was sent.

        Raises:
            OSError: the connection has ended.
        """
        await self._writer.drain()

    def abort(self) -> None:
        """End the connection without waiting for the peer."""
        self._writer.transport.abort()


def no_content(_: AnyHeader, content_bytes: int) -> bool:
    """Frames of a handshake, and answers to aggregators, have a header only.

    Raises:
        FrameError: this one has content.
    """
    if content_bytes:
        raise FrameError("content was not due")
    return True


async def admit(wire: Wire, key_of: Callable[[Peer], bytes | None]) -> Peer:
    """Whom a new connection is from.

    Args:
        wire: the connection.
        key_of: of a job's role and rank; None: not here, which is answered like a wrong key.

    Raises:
        FrameError: it has no key of a job here, or does not follow the protocol.
        TimeoutError: it takes more than `HANDSHAKE_S`.
        OSError, EOFError: the connection has ended.
    """
    async with asyncio.timeout(HANDSHAKE_S):
        nonce = secrets.token_bytes(NONCE_BYTES)
        wire.send(Challenge(nonce=nonce))
        hello, _ = await wire.receive(no_content)
    if not isinstance(hello, Hello):
        raise FrameError("a connection has to begin with hello")
    peer = Peer(hello.job, hello.role, hello.rank)
    key = key_of(peer)
    proof = client_proof(key or secrets.token_bytes(32), peer, nonce, hello.nonce)
    if not hmac.compare_digest(proof, hello.proof) or key is None:
        wire.send(DeniedHeader())
        raise FrameError("not a key of this job and role")
    wire.send(Welcome(proof=server_proof(key, nonce, hello.nonce)))
    return peer


async def join(wire: Wire, job: str, key: bytes) -> None:
    """Show another aggregator that this one has the job's key, and check that it has it, too.

    Raises:
        FrameError: it has not, or does not follow the protocol.
        TimeoutError: it takes more than `HANDSHAKE_S`.
        OSError, EOFError: the connection has ended.
    """
    async with asyncio.timeout(HANDSHAKE_S):
        challenge, _ = await wire.receive(no_content)
        if not isinstance(challenge, Challenge):
            raise FrameError("a challenge was due")
        nonce = secrets.token_bytes(NONCE_BYTES)
        proof = client_proof(key, (job, "aggregator", 0), challenge.nonce, nonce)
        wire.send(Hello(job=job, role="aggregator", nonce=nonce, proof=proof))
        welcome, _ = await wire.receive(no_content)
    if isinstance(welcome, DeniedHeader):
        raise FrameError("the job is not there, or has another key")
    if not isinstance(welcome, Welcome) or not hmac.compare_digest(
        welcome.proof, server_proof(key, challenge.nonce, nonce)
    ):
        raise FrameError("the aggregator does not have the job's key")
