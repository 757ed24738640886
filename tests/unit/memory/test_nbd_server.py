"""A daemon on a loopback socket: what its owner reads is what it wrote, and a peer without the name gets nothing."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.memory.adapters import nbd_server
from services.memory.adapters.locked_memory import LockedMemory, LockedMemoryError
from services.memory.adapters.nbd_client import connect
from services.memory.core import nbd
from services.memory.core.mapping import export_label
from services.memory.core.nbd import Command, CommandFlag, Error, Info, NbdError, Option, Reply, TransmissionFlag
from services.memory.offering import OfferError, Offering
from services.memory.process import Commands
from tests.support.deadline import until

MIB = 1 << 20
GIB = 1 << 30
DEADLINE_S = 60.0
PAGE = 4096


@pytest.fixture(autouse=True)
def _readings_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.memory.offering.READ_EVERY_S", 3_600.0)


class Host:
    """Free memory of the daemon's host, as a test says."""

    def __init__(self, free_bytes: int | None = 16 * GIB) -> None:
        self.free_bytes = free_bytes

    def read(self) -> int | None:
        return self.free_bytes


@asynccontextmanager
async def offering(
    host: Host | None = None, limit_bytes: int = 8 * MIB, headroom: int = GIB, listen: str = "127.0.0.1"
) -> AsyncIterator[Offering]:
    started = Offering(limit_bytes, headroom, (host or Host()).read, per_owner_bytes=6 * MIB)
    await started.start(listen, 0)
    try:
        yield started
    finally:
        while Peer.opened:
            Peer.opened.pop().close()
        await started.stop()


class Peer:
    """A client that sends what a test says."""

    opened: ClassVar[list[asyncio.StreamWriter]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.cookie = 0
        self.opened.append(writer)

    @classmethod
    async def begin(cls, daemon: Offering, flags: int = 3) -> Peer:
        host, port = daemon.address.split(":")
        peer = cls(*await asyncio.open_connection(host, int(port)))
        assert await peer.receive(18) == nbd.greeting()
        peer.writer.write(nbd.CLIENT_FLAGS.pack(flags))
        return peer

    @classmethod
    async def open(cls, daemon: Offering, name: str) -> Peer:
        peer = await cls.begin(daemon)
        assert (await peer.option(Option.GO, nbd.name_request(name.encode())))[-1][0] == Reply.ACK
        return peer

    async def receive(self, size: int) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.readexactly(size)

    async def option(self, kind: int, content: bytes = b"") -> list[tuple[int, bytes]]:
        """The replies to an option; the last one is no information."""
        self.writer.write(nbd.OPTION.pack(nbd.OPTION_MAGIC, kind, len(content)) + content)
        replies = []
        while not replies or replies[-1][0] == Reply.INFO:
            magic, answered, reply, length = nbd.OPTION_REPLY.unpack(await self.receive(20))
            assert (magic, answered) == (nbd.REPLY_MAGIC, kind)
            replies.append((reply, await self.receive(length)))
        return replies

    async def ask(
        self, kind: int, offset: int = 0, length: int = 0, content: bytes = b"", flags: int = 0
    ) -> tuple[int, bytes]:
        self.cookie += 1
        self.writer.write(nbd.REQUEST.pack(nbd.REQUEST_MAGIC, flags, kind, self.cookie, offset, length) + content)
        magic, error, cookie = nbd.SIMPLE_REPLY.unpack(await self.receive(16))
        assert (magic, cookie) == (nbd.SIMPLE_REPLY_MAGIC, self.cookie)
        return error, await self.receive(length) if kind == Command.READ and not error else b""

    async def read(self, offset: int, length: int) -> bytes:
        error, content = await self.ask(Command.READ, offset, length)
        assert error == Error.NONE
        return content

    async def write(self, offset: int, content: bytes) -> None:
        assert (await self.ask(Command.WRITE, offset, len(content), content))[0] == Error.NONE

    async def ended(self) -> bytes:
        """What comes before the end of the connection."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


async def test_pages_are_read_as_they_were_written() -> None:
    async with offering() as daemon:
        peer = await Peer.open(daemon, await daemon.take(MIB, "gpu-07"))
        assert await peer.read(0, MIB) == bytes(MIB)
        await peer.write(PAGE, b"a" * PAGE)
        await peer.write(MIB - 3, b"end")

        assert await peer.read(PAGE - 1, PAGE + 2) == b"\0" + b"a" * PAGE + b"\0"
        assert await peer.read(MIB - 4, 4) == b"\0end"
        assert (await peer.ask(Command.FLUSH))[0] == Error.NONE


async def test_trimmed_and_zeroed_bytes_are_zero_and_the_others_stay() -> None:
    async with offering() as daemon:
        peer = await Peer.open(daemon, await daemon.take(MIB, "gpu-07"))
        await peer.write(0, b"x" * 4 * PAGE)
        assert (await peer.ask(Command.TRIM, 100, 2 * PAGE))[0] == Error.NONE
        keep = CommandFlag.NO_HOLE
        assert (await peer.ask(Command.WRITE_ZEROES, 3 * PAGE, 10, flags=keep))[0] == Error.NONE

        expected = b"x" * 100 + bytes(2 * PAGE) + b"x" * (PAGE - 100) + bytes(10) + b"x" * (PAGE - 10)
        assert await peer.read(0, 4 * PAGE) == expected


@pytest.mark.parametrize(("kind", "flags"), [(Command.WRITE_ZEROES, CommandFlag.NO_HOLE), (Command.TRIM, 0)])
async def test_others_are_served_while_much_is_zeroed(
    kind: Command, flags: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an owner would stop the daemon by 28 bytes, evictions too."""
    rounds = 0
    seen: list[int] = []
    zero = LockedMemory.zero

    def note(memory: LockedMemory, offset: int, length: int, *, keep: bool) -> None:
        seen.append(rounds)
        zero(memory, offset, length, keep=keep)

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(LockedMemory, "zero", note)
    async with offering() as daemon:
        peer = await Peer.open(daemon, await daemon.take(4 * MIB, "gpu-07"))
        await peer.write(0, b"x" * 4 * MIB)
        counting = asyncio.create_task(count())
        try:
            assert (await peer.ask(kind, 1, 4 * MIB - 2, flags=flags))[0] == Error.NONE
        finally:
            counting.cancel()
        # 4 MiB in parts of 1: another round of the event loop before each
        assert len(set(seen)) == len(seen) == 4
        assert await peer.read(0, 4 * MIB) == b"x" + bytes(4 * MIB - 2) + b"x"


@given(
    st.lists(
        st.tuples(st.sampled_from(["write", "zero", "keep"]), st.integers(0, 3 * PAGE), st.integers(1, 2 * PAGE)),
        max_size=12,
    )
)
def test_locked_memory_is_as_a_row_of_bytes(acts: list[tuple[str, int, int]]) -> None:
    memory, expected = LockedMemory(4 * PAGE), bytearray(4 * PAGE)
    for number, (act, offset, length) in enumerate(acts, start=1):
        end = min(4 * PAGE, offset + length)
        content = bytes([number]) * (end - offset) if act == "write" else bytes(end - offset)
        if act == "write":
            memory.write(offset, content)
        else:
            memory.zero(offset, end - offset, keep=act == "keep")
        expected[offset:end] = content
    assert memory.read(0, 4 * PAGE) == bytes(expected)
    memory.close()


def status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def test_locked_memory_is_locked_and_trimmed_pages_are_given_back() -> None:
    locked = status_bytes("VmLck")
    memory = LockedMemory(4 * MIB)
    assert status_bytes("VmLck") - locked == 4 * MIB
    present = status_bytes("RssAnon")
    memory.zero(0, 4 * MIB, keep=True)
    assert status_bytes("RssAnon") > present - MIB
    memory.zero(0, 4 * MIB, keep=False)
    assert status_bytes("RssAnon") < present - 3 * MIB
    memory.close()
    assert status_bytes("VmLck") == locked


def test_memory_that_cannot_be_had_is_said() -> None:
    with pytest.raises(LockedMemoryError, match="no multiple of the page size"):
        LockedMemory(PAGE + 1)
    with pytest.raises(LockedMemoryError, match="cannot be"):
        LockedMemory(1 << 60)


async def test_a_peer_without_the_name_gets_nothing() -> None:
    async with offering() as daemon:
        name = await daemon.take(MIB, "gpu-07")
        peer = await Peer.begin(daemon)
        for wrong in (b"", name[:-1].encode(), name.upper().encode() + b"x", daemon.offer().slabs[0].name.encode()):
            assert await peer.option(Option.GO, nbd.name_request(wrong)) == [(Reply.ERR_UNKNOWN, b"")]
            assert await peer.option(Option.INFO, nbd.name_request(wrong)) == [(Reply.ERR_UNKNOWN, b"")]
        assert await peer.option(Option.LIST) == [(Reply.ERR_POLICY, b"")]
        peer.writer.write(nbd.option(Option.EXPORT_NAME, b"wrong"))
        assert await peer.ended() == b""
        assert not daemon.offer().slabs[0].connected


async def test_options_of_other_kinds_are_answered_and_the_handshake_goes_on() -> None:
    async with offering() as daemon:
        name = (await daemon.take(MIB, "gpu-07")).encode()
        peer = await Peer.begin(daemon)
        assert await peer.option(8) == [(Reply.ERR_UNSUP, b"")]  # structured replies
        assert await peer.option(5) == [(Reply.ERR_UNSUP, b"")]  # TLS
        assert await peer.option(Option.GO, b"\0") == [(Reply.ERR_INVALID, b"")]
        assert await peer.option(9, bytes(5_000)) == [(Reply.ERR_TOO_BIG, b"")]
        flags = TransmissionFlag.HAS_FLAGS | TransmissionFlag.SEND_TRIM | TransmissionFlag.SEND_WRITE_ZEROES
        told = await peer.option(Option.INFO, nbd.name_request(name, (Info.BLOCK_SIZE,)))
        assert told == [
            (Reply.INFO, nbd.export_info(MIB, flags)),
            (Reply.INFO, nbd.block_size_info()),
            (Reply.ACK, b""),
        ]
        assert not daemon.offer().slabs[0].connected
        assert await peer.option(Option.ABORT) == [(Reply.ACK, b"")]
        assert await peer.ended() == b""


@pytest.mark.parametrize(("flags", "reserved_bytes"), [(3, 0), (1, 124)])
async def test_the_older_option_for_a_name_opens_an_export(flags: int, reserved_bytes: int) -> None:
    async with offering() as daemon:
        name = await daemon.take(MIB, "gpu-07")
        peer = await Peer.begin(daemon, flags)
        peer.writer.write(nbd.option(Option.EXPORT_NAME, name.encode()))
        assert await peer.receive(10 + reserved_bytes) == struct.pack(">QH", MIB, 0x61) + bytes(reserved_bytes)
        await peer.write(0, b"page")
        assert await peer.read(0, 4) == b"page"


async def test_an_export_takes_one_connection_and_ends_with_it() -> None:
    async with offering() as daemon:
        name = await daemon.take(MIB, "gpu-07")
        peer = await Peer.open(daemon, name)
        second = await Peer.begin(daemon)
        assert await second.option(Option.GO, nbd.name_request(name.encode())) == [(Reply.ERR_UNKNOWN, b"")]
        assert daemon.offer().offered_bytes == 7 * MIB

        peer.writer.write(nbd.request(Command.DISC, 1))

        assert await peer.ended() == b""
        await until(lambda: not daemon.offer().slabs, what="the slab given up")
        assert daemon.offer().offered_bytes == 8 * MIB
        assert await second.option(Option.GO, nbd.name_request(name.encode())) == [(Reply.ERR_UNKNOWN, b"")]


async def test_requests_that_are_refused_change_nothing_and_the_connection_goes_on() -> None:
    async with offering() as daemon:
        peer = await Peer.open(daemon, await daemon.take(MIB, "gpu-07"))
        assert (await peer.ask(Command.READ, MIB, 1))[0] == Error.INVAL
        assert (await peer.ask(Command.WRITE, MIB - 1, 2, b"xy"))[0] == Error.NOSPC
        assert (await peer.ask(99))[0] == Error.INVAL
        assert (await peer.ask(Command.TRIM, 0, MIB + 1))[0] == Error.INVAL
        assert await peer.read(0, MIB) == bytes(MIB)


@pytest.mark.parametrize(
    "nonsense",
    [
        bytes(28),
        nbd.REQUEST.pack(nbd.REQUEST_MAGIC, 0, Command.WRITE, 1, 0, nbd.MOST_PAYLOAD_BYTES + 1),
        nbd.request(Command.WRITE, 1, 0, 100) + b"half",
    ],
)
async def test_nonsense_ends_the_connection_and_the_slab(nonsense: bytes) -> None:
    async with offering() as daemon:
        peer = await Peer.open(daemon, await daemon.take(MIB, "gpu-07"))
        peer.writer.write(nonsense)
        peer.writer.write_eof()
        assert await peer.ended() == b""
        await until(lambda: not daemon.offer().slabs, what="the slab given up")


@pytest.mark.parametrize(
    "nonsense",
    [
        nbd.CLIENT_FLAGS.pack(4),
        nbd.CLIENT_FLAGS.pack(3) + bytes(16),
        nbd.CLIENT_FLAGS.pack(3) + nbd.OPTION.pack(nbd.OPTION_MAGIC, 9, (32 << 20) + 1),
    ],
)
async def test_a_handshake_of_another_protocol_is_ended(nonsense: bytes) -> None:
    async with offering() as daemon:
        host, port = daemon.address.split(":")
        peer = Peer(*await asyncio.open_connection(host, int(port)))
        peer.writer.write(nonsense)
        assert await peer.ended() == nbd.greeting()


async def test_a_handshake_without_an_end_is_ended() -> None:
    async with offering() as daemon:
        peer = await Peer.begin(daemon)
        for _ in range(nbd_server.MOST_OPTIONS):
            await peer.option(8)
        assert await peer.ended() == b""


async def test_peers_without_a_name_do_not_keep_others_out() -> None:
    async with offering() as daemon:
        name = await daemon.take(MIB, "gpu-07")
        idle = [await Peer.begin(daemon) for _ in range(nbd_server.UNNAMED_CONNECTIONS + 3)]
        assert await idle[0].ended() == b""
        peer = await Peer.open(daemon, name)
        await peer.write(0, b"page")


async def test_a_stuck_request_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with offering() as daemon:
        peer = await Peer.open(daemon, await daemon.take(MIB, "gpu-07"))
        await peer.write(0, b"page")
        monkeypatch.setattr(nbd_server, "SILENCE_S", 0.05)
        peer.writer.write(nbd.request(Command.WRITE, 1, 0, 100) + b"half")
        assert await peer.ended() == b""


async def test_a_slab_that_no_owner_connects_to_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.memory.offering.UNCONNECTED_S", 0.05)
    async with offering() as daemon:
        name = await daemon.take(MIB, "gpu-07")
        await until(lambda: not daemon.offer().slabs, what="the slab given up")
        peer = await Peer.begin(daemon)
        assert await peer.option(Option.GO, nbd.name_request(name.encode())) == [(Reply.ERR_UNKNOWN, b"")]


async def test_no_more_is_taken_than_is_offered() -> None:
    host = Host(GIB + 3 * MIB)
    async with offering(host) as daemon:
        with pytest.raises(OfferError, match=f"{4 * MIB} bytes are asked; {3 * MIB} are offered"):
            await daemon.take(4 * MIB, "gpu-07")
        await daemon.take(2 * MIB, "gpu-07")
        with pytest.raises(OfferError, match=f"{2 * MIB} bytes are asked; {MIB} are offered"):
            await daemon.take(2 * MIB, "gpu-07")
        for size in (0, -1):
            with pytest.raises(OfferError):
                await daemon.take(size, "gpu-07")
    async with offering(limit_bytes=MIB) as daemon:
        with pytest.raises(OfferError, match=f"{MIB} are offered"):
            await daemon.take(2 * MIB, "gpu-07")


async def test_a_host_that_needs_its_memory_gets_the_least_active_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.memory.offering.LEAVE_WITHIN_S", 0.05)
    host = Host()
    async with offering(host) as daemon:
        peers = [await Peer.open(daemon, await daemon.take(MIB, "gpu-07")) for _ in range(3)]
        for peer, pages in zip(peers, (50, 2, 30), strict=True):
            for page in range(pages):
                await peer.write(page * PAGE, b"page")
        daemon.read(1.0)
        labels = [slab.name for slab in daemon.offer().slabs]
        # 0.2 of the pages of one second
        assert [round(slab.pages_per_s, 6) for slab in daemon.offer().slabs] == [10.0, 0.4, 6.0]

        host.free_bytes = GIB - MIB // 2
        daemon.read(1.0)
        decision = daemon.read(1.0)

        assert decision.names == (labels[1],)
        assert daemon.offer().leaving == (labels[1],)
        assert await peers[1].ended() == b""
        host.free_bytes = GIB + MIB // 2
        await until(lambda: len(daemon.offer().slabs) == 2, what="the slab given up")
        assert daemon.read(1.0).names == (), "its memory is counted at once"
        await peers[0].write(0, b"stays")


async def test_memory_that_was_trimmed_is_not_counted_as_free_twice() -> None:
    """Its host had it back, and has read it as free, before the slab ends."""
    host = Host()
    async with offering(host) as daemon:
        names = [await daemon.take(4 * MIB, "gpu-07"), await daemon.take(4 * MIB, "gpu-08")]
        peer = await Peer.open(daemon, names[0])
        assert (await peer.ask(Command.TRIM, 0, 3 * MIB))[0] == Error.NONE
        host.free_bytes = GIB - 3 * MIB
        for _ in range(2):
            decision = daemon.read(1.0)
        # The slab without an owner goes first, whole: 3 MiB are missing, it frees 4.
        assert decision.names == (export_label(names[1]),)
        assert decision.missing_bytes == 0
        peer.writer.close()
        await until(lambda: not daemon.offer().slabs, what="the slab given up")
        # 1 GiB - 3 MiB, and 4 MiB of one slab, and what 3 MiB of trimmed memory have left of 4 of the other one.
        assert daemon.offer().free_bytes == GIB - 3 * MIB + 4 * MIB + MIB


async def test_free_memory_that_cannot_be_read_evicts_nothing_and_offers_nothing() -> None:
    host = Host()
    async with offering(host) as daemon:
        await daemon.take(MIB, "gpu-07")
        host.free_bytes = None
        for _ in range(3):
            assert daemon.read(1.0).names == ()
        assert daemon.offer().offered_bytes == 0
        with pytest.raises(OfferError, match="0 are offered"):
            await daemon.take(MIB, "gpu-07")
        host.free_bytes = 16 * GIB
        daemon.read(1.0)
        assert daemon.offer().offered_bytes == 7 * MIB
    with pytest.raises(OfferError, match="cannot be read"):
        Offering(MIB, 0, Host(None).read)


async def test_one_host_cannot_take_all_that_is_offered() -> None:
    """Whoever has the key of one host."""
    async with offering() as daemon:
        await daemon.take(6 * MIB, "gpu-07")
        with pytest.raises(OfferError, match=f"gpu-07 holds {6 * MIB} bytes and asks for {MIB}; one host may hold"):
            await daemon.take(MIB, "gpu-07")
        await daemon.take(MIB, "gpu-08")


async def test_a_daemon_on_an_ipv6_address_is_reached() -> None:
    async with offering(listen="::1") as daemon:
        assert daemon.address.startswith("[::1]:")
        found = await asyncio.to_thread(connect, daemon.address, await daemon.take(MIB, "gpu-07"), DEADLINE_S)
        found.socket.close()
        assert found.size_bytes == MIB


async def test_free_memory_is_read_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.memory.offering.READ_EVERY_S", 0.01)
    host = Host()
    async with offering(host) as daemon:
        await daemon.take(MIB, "gpu-07")
        host.free_bytes = 0
        await until(lambda: not daemon.offer().slabs, what="the slab given up")


async def test_commands_take_offer_and_leave() -> None:
    async with offering() as daemon:
        commands = Commands(daemon)
        name = (await commands.answer(b'{"command": "take", "bytes": 1048576, "owner": "gpu-07"}'))["name"]
        offer = await commands.answer(b'{"command": "offer"}')
        assert json.loads(json.dumps(offer))["offered_bytes"] == 7 * MIB
        [slab] = offer["slabs"]
        assert (slab["slab_bytes"], slab["connected"]) == (MIB, False)
        assert name not in json.dumps(offer)
        assert await commands.answer(json.dumps({"command": "leave", "label": slab["name"]}).encode()) == {}
        assert (await commands.answer(b'{"command": "offer"}'))["slabs"] == ()
        for line in (
            b"",
            b"[]",
            b'{"command": "drop"}',
            b'{"command": "take"}',
            b'{"command": "take", "bytes": 1048576}',
            b'{"command": "take", "bytes": 1048576, "owner": 7}',
            b'{"command": "take", "bytes": true, "owner": "gpu-07"}',
            b'{"command": "take", "bytes": 1e6, "owner": "gpu-07"}',
            b'{"command": "take", "bytes": 999999999999999999999, "owner": "gpu-07"}',
            b'{"command": "take", "bytes": 1048577, "owner": "gpu-07"}',
            b'{"command": "leave", "label": "x"}',
            b'{"command": "offer", "more": 1}',
        ):
            assert set(await commands.answer(line)) == {"refused"}, line


async def test_our_client_connects_as_the_kernels_would() -> None:
    async with offering() as daemon:
        name = await daemon.take(MIB, "gpu-07")
        found = await asyncio.to_thread(connect, daemon.address, name, DEADLINE_S)
        assert (found.size_bytes, found.flags) == (MIB, nbd_server.FLAGS)
        peer = Peer(*await asyncio.open_connection(sock=found.socket))
        await peer.write(0, b"page")
        assert await peer.read(0, 4) == b"page"
        with pytest.raises(NbdError, match="no such export") as refused:
            await asyncio.to_thread(connect, daemon.address, name, DEADLINE_S)
        assert name not in str(refused.value)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:65536", "host:-1"])
def test_an_address_that_is_none_is_said(address: str) -> None:
    with pytest.raises(NbdError, match="is no HOST:PORT"):
        connect(address, "name", DEADLINE_S)


async def test_our_client_refuses_what_is_no_nbd_server() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(NbdError, match="no NBD server"):
        await asyncio.to_thread(connect, f"127.0.0.1:{port}", "name", DEADLINE_S)
    server.close()
    await server.wait_closed()
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(connect, f"127.0.0.1:{port}", "name", DEADLINE_S)
