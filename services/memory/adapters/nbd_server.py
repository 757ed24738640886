"""A server of the NBD protocol over asyncio, bounded against hostile and stuck peers.

An export is found by its name only, which is a secret of 256 bits: there is no list of exports, and no answer tells a
name that is wrong from one that has ended. An export takes one connection and ends with it: its owner has its own copy
of every page, and what an ended connection has left is never read. Contents cross the network as they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from services._runtime.connection_server import ConnectionServer
from services.memory.adapters.locked_memory import LockedMemory
from services.memory.core import nbd
from services.memory.core.nbd import Command, Error, NbdError, Option, Reply, TransmissionFlag

HANDSHAKE_S: Final = 60.0
"""Long: on a busy machine a name may take seconds to come, and how many may try is bounded."""
SILENCE_S: Final = 60.0
"""Between two parts of a request that has begun, and for a peer to read a part of an answer."""
UNNAMED_CONNECTIONS: Final = 64
"""That have not named an export yet; beyond them the oldest is closed, since a name takes one round trip to come."""
MOST_OPTIONS: Final = 16
"""Of one handshake; clients send two or three."""
FLAGS: Final = TransmissionFlag.HAS_FLAGS | TransmissionFlag.SEND_TRIM | TransmissionFlag.SEND_WRITE_ZEROES
"""Not SEND_FLUSH, SEND_FUA: memory has nothing slower behind it. Both are taken all the same."""
_PART_BYTES: Final = 1 << 18
_ZEROED_PART_BYTES: Final = 1 << 20
"""A request of 28 bytes may have 4 GiB zeroed: other connections, and readings of free memory, come in between."""
_BROKEN: Final = (NbdError, OSError, EOFError, TimeoutError)
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
"""An owner whose host has died frees its slabs after half a minute."""


class Export:
    """Memory under a name, and the one connection to it."""

    def __init__(self, memory: LockedMemory, ended: Callable[[], None]) -> None:
        self.memory = memory
        self.size_bytes = len(memory)
        self.connected = False
        self.pages = 0
        """Read and written so far; a part of a page counts as one."""
        self._ended = ended
        self._writer: asyncio.StreamWriter | None = None

    def open(self, writer: asyncio.StreamWriter) -> None:
        """The connection begins."""
        self.connected = True
        self._writer = writer

    def end(self) -> None:
        """The connection has ended, and there is no other one."""
        self._writer = None
        self._ended()

    def abort(self) -> None:
        """Close the connection; `end` follows."""
        if self._writer is not None:
            self._writer.transport.abort()


class NbdServer:
    """Exports and their connections."""

    def __init__(self) -> None:
        self._exports: dict[bytes, Export] = {}
        self._server = ConnectionServer(self._serve, UNNAMED_CONNECTIONS)

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
        """Close every connection."""
        await self._server.stop()

    def add(self, name: bytes, export: Export) -> None:
        """Offer an export; its name is kept as a digest only."""
        self._exports[_digest(name)] = export

    def remove(self, name: bytes) -> None:
        """The name leads nowhere any more; a connection goes on."""
        self._exports.pop(_digest(name), None)

    def _found(self, name: bytes) -> Export | None:
        export = self._exports.get(_digest(name))
        return None if export is None or export.connected else export

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*_BROKEN):
            for level, name, value in _KEEPALIVE:
                writer.get_extra_info("socket").setsockopt(level, name, value)
            with self._server.unproven(writer):
                async with asyncio.timeout(HANDSHAKE_S):
                    export = await self._handshake(reader, writer)
            if export is not None:
                await _transmit(export, reader, writer)

    async def _handshake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Export | None:
        """The export of the transmission phase, which is the peer's from now on; None: the peer leaves."""
        writer.write(nbd.greeting())
        [flags] = nbd.CLIENT_FLAGS.unpack(await reader.readexactly(nbd.CLIENT_FLAGS.size))
        if flags & ~int(nbd.KNOWN_CLIENT_FLAGS):  # a flag's own complement has only bits that are known
            raise NbdError(f"client flags {flags:#x} are not known")
        for _ in range(MOST_OPTIONS):
            kind, content = await _read_option(reader)
            if kind == Option.EXPORT_NAME:
                return self._by_export_name(writer, content or b"", zeroes=not flags & nbd.HandshakeFlag.NO_ZEROES)
            if content is None:
                writer.write(nbd.option_reply(kind, Reply.ERR_TOO_BIG))
            elif kind in {Option.INFO, Option.GO}:
                if (export := self._by_go(writer, kind, content)) is not None:
                    return export
            else:
                writer.write(nbd.option_reply(kind, _OTHER_REPLIES.get(kind, Reply.ERR_UNSUP)))
            await writer.drain()
            if kind == Option.ABORT:
                return None
        raise NbdError("the handshake does not come to an end")

    def _by_export_name(self, writer: asyncio.StreamWriter, name: bytes, *, zeroes: bool) -> Export:
        if (export := self._found(name)) is None:
            raise NbdError("no such export")  # the option knows no refusal but the end of the connection
        export.open(writer)
        writer.write(nbd.export_reply(export.size_bytes, FLAGS, zeroes=zeroes))
        return export

    def _by_go(self, writer: asyncio.StreamWriter, kind: int, content: bytes) -> Export | None:
        """None: the handshake goes on."""
        try:
            export = self._found(nbd.requested_name(content))
        except NbdError:
            writer.write(nbd.option_reply(kind, Reply.ERR_INVALID))
            return None
        if export is None:
            writer.write(nbd.option_reply(kind, Reply.ERR_UNKNOWN))
            return None
        for information in (nbd.export_info(export.size_bytes, FLAGS), nbd.block_size_info()):
            writer.write(nbd.option_reply(kind, Reply.INFO, information))
        writer.write(nbd.option_reply(kind, Reply.ACK))
        if kind == Option.INFO:
            return None
        export.open(writer)
        return export


_OTHER_REPLIES: Final[dict[int, Reply]] = {Option.ABORT: Reply.ACK, Option.LIST: Reply.ERR_POLICY}


def _digest(name: bytes) -> bytes:
    return hashlib.sha256(name).digest()


async def _read_option(reader: asyncio.StreamReader) -> tuple[int, bytes | None]:
    """An option and its content; None: it is longer than any that is known, and was skipped."""
    magic, kind, length = nbd.OPTION.unpack(await reader.readexactly(nbd.OPTION.size))
    if magic != nbd.OPTION_MAGIC:
        raise NbdError(f"an option begins with {magic:#x}")
    if length <= nbd.MOST_OPTION_BYTES:
        return kind, await reader.readexactly(length)
    if length > nbd.MOST_PAYLOAD_BYTES:
        raise NbdError(f"an option of {length} bytes")
    while length:
        part = await reader.read(min(length, _PART_BYTES))
        if not part:
            raise EOFError("the connection has ended inside an option")
        length -= len(part)
    return kind, None


async def _transmit(export: Export, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer requests in their order, until the peer leaves."""
    try:
        while True:
            first = await reader.readexactly(1)
            async with asyncio.timeout(SILENCE_S):
                request = nbd.read_request(first + await reader.readexactly(nbd.REQUEST.size - 1))
            if request.kind == Command.DISC:
                return
            error = nbd.check(request, export.size_bytes)
            if request.kind == Command.WRITE:
                await _write(export, request, reader, wanted=error is Error.NONE)
            elif error is Error.NONE and request.kind in {Command.TRIM, Command.WRITE_ZEROES}:
                await _zero(export, request)
            writer.write(nbd.simple_reply(request.cookie, error))
            if error is Error.NONE and request.kind == Command.READ:
                await _read(export, request, writer)
            async with asyncio.timeout(SILENCE_S):
                await writer.drain()
    finally:
        export.end()


async def _write(export: Export, request: nbd.Request, reader: asyncio.StreamReader, *, wanted: bool) -> None:
    """Take the content of a write part by part; of one that is refused it is read into nothing."""
    if request.length > nbd.MOST_PAYLOAD_BYTES:
        raise NbdError(f"a write of {request.length} bytes")
    done = 0
    while done < request.length:
        async with asyncio.timeout(SILENCE_S):
            part = await reader.read(min(request.length - done, _PART_BYTES))
        if not part:
            raise EOFError("the connection has ended inside a write")
        if wanted:
            export.memory.write(request.offset + done, part)
        done += len(part)
    if wanted:
        export.pages += _pages(request)


async def _zero(export: Export, request: nbd.Request) -> None:
    keep = request.kind == Command.WRITE_ZEROES and bool(request.flags & nbd.CommandFlag.NO_HOLE)
    offset, end = request.offset, request.offset + request.length
    while offset < end:
        until = min(end, (offset // _ZEROED_PART_BYTES + 1) * _ZEROED_PART_BYTES)  # only whole pages are given back
        export.memory.zero(offset, until - offset, keep=keep)
        offset = until
        await asyncio.sleep(0)


async def _read(export: Export, request: nbd.Request, writer: asyncio.StreamWriter) -> None:
    """Send content part by part: no more than some parts wait for a peer that does not read."""
    export.pages += _pages(request)
    for offset in range(request.offset, request.offset + request.length, _PART_BYTES):
        writer.write(export.memory.read(offset, min(_PART_BYTES, request.offset + request.length - offset)))
        async with asyncio.timeout(SILENCE_S):
            await writer.drain()


def _pages(request: nbd.Request) -> int:
    return (request.offset + request.length - 1) // nbd.BLOCK_BYTES - request.offset // nbd.BLOCK_BYTES + 1
