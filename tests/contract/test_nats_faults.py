"""What only a real server can do: hang, forget everything, refuse us, be too old, be raced for."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.apps import AppSpec
from schemas.codec import encode
from schemas.message import Message
from schemas.streams import APPS, CONTAINER_STREAM, NODES, StreamSpec
from schemas.subjects import CFS, CONTAINER_EVENTS, LIMIT_UPDATES
from services._runtime.bus.api import BusError, BusUnavailableError, Delivery, Entry, RequestTimeoutError
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services._runtime.task_cancellation import cancel_all
from tests.support.bus_lab import container_event, event_subject, node_info, number_of
from tests.support.deadline import until
from tests.support.frozen_server import freeze, thaw


@pytest.fixture
async def own_server() -> AsyncIterator[EmbeddedNats]:
    """A server that a test may ruin."""
    server = EmbeddedNats()
    await server.start()
    yield server
    thaw(server)
    await server.stop()


async def test_hanging_server(own_server: EmbeddedNats) -> None:
    """A server that is frozen: nothing blocks, the surplus is dropped and counted, and all is well afterwards."""
    options = BusOptions(
        servers=(own_server.url,), connect_deadline_s=60.0, ping_interval_s=0.2, outbound_bytes=64 << 10
    )
    bus = await NatsBus.connect(options)
    got: list[int] = []
    await bus.subscribe(CFS.pattern("tb"), lambda delivery: got.append(number_of(delivery.message)))
    await bus.flush(60)
    freeze(own_server)
    subject = CFS.subject("tb", app="shop", node="n1")

    async def flood() -> None:
        while bus.connected:
            for number in range(2_000):
                bus.publish(subject, node_info(number))
            await asyncio.sleep(0.005)

    with pytest.raises(RequestTimeoutError):
        await bus.request(LIMIT_UPDATES.subject("tb", node="n1"), node_info(1), timeout_s=0.05)
    with pytest.raises(BusUnavailableError):
        await bus.flush(0.05)
    await asyncio.wait_for(flood(), 60)
    assert bus.counters["dropped_slow"] > 0
    assert not bus.connected, "three unanswered pings end the connection"

    thaw(own_server)
    await until(lambda: bus.connected)
    await bus.flush(60)
    bus.publish(subject, node_info(999_999))
    await until(lambda: got and got[-1] == 999_999)
    assert await bus.close(2) == {}


async def test_short_freeze_does_not_silence_the_connection(own_server: EmbeddedNats) -> None:
    """PONGs that arrive after their flush gave up must not end nats-py's read loop."""
    bus = await NatsBus.connect(BusOptions(servers=(own_server.url,), connect_deadline_s=60.0))
    got: list[int] = []
    await bus.subscribe(CFS.pattern("tb"), lambda delivery: got.append(number_of(delivery.message)))
    await bus.flush(60)

    freeze(own_server)
    for _ in range(3):
        with pytest.raises(BusUnavailableError):
            await bus.flush(0.05)
    thaw(own_server)
    bus.publish(CFS.subject("tb", app="shop", node="n1"), node_info(1))
    await until(lambda: got == [1])

    assert bus.counters["reconnects"] == 0
    await bus.flush(60)
    await bus.close(2)


async def test_flush_is_a_barrier() -> None:
    """The PING of a flush goes out behind what was sent before it; nats-py alone lets it overtake."""
    lines: list[bytes] = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version": "2.12.0", "headers": true, "max_payload": 1048576}\r\n')
        while line := await reader.readline():
            lines.append(line.partition(b" ")[0].strip())
            if lines[-1] == b"PING":
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    bus = await NatsBus.connect(
        BusOptions(servers=(url,), connect_deadline_s=60.0, streams=(), buckets=(), object_stores=())
    )
    for _ in range(5):
        await bus.subscribe(CFS.pattern("tb"), lambda _delivery: None)
        await bus.flush(60)
    await bus.close(2)
    server.close()
    await server.wait_closed()

    assert lines[:12] == [b"CONNECT", b"PING", *[b"SUB", b"PING"] * 5]


async def test_server_that_lost_its_store(own_server: EmbeddedNats, tmp_path: Path) -> None:
    """Streams, buckets and consumers are made anew; a watch reports what vanished; revisions start again."""
    bus = await NatsBus.connect(BusOptions(servers=(own_server.url,), connect_deadline_s=60.0))
    bucket = bus.bucket(NODES)
    live: dict[str, int] = {}
    got: list[int] = []

    def on_entry(key: str, entry: Entry | None) -> None:
        if entry is None:
            del live[key]
        else:
            live[key] = number_of(entry.message)

    async def on_fact(delivery: Delivery) -> None:
        got.append(number_of(delivery.message))

    await bus.replay(CONTAINER_STREAM, on_fact)
    async with bucket.watch(on_entry):
        for number in range(5):
            await bucket.put(f"old-{number}", node_info(number))
        await until(lambda: len(live) == 5)

        own_server.kill()
        await until(lambda: not bus.connected)
        shutil.rmtree(own_server.log_path.parent / "jetstream")
        await own_server.start()
        await until(lambda: bus.connected and not live)

        await bucket.put("old-1", node_info(70))
        await until(lambda: live == {"old-1": 70})
        bus.publish_event(event_subject("tb"), container_event(1), message_id="1")
        await until(lambda: got == [1])
    assert await bus.close(2) == {}


async def test_services_that_start_together(own_server: EmbeddedNats) -> None:
    """All of them declare everything at once; none fails, also where the specification has changed."""
    first = BusOptions(servers=(own_server.url,), connect_deadline_s=60.0)
    buses = await asyncio.gather(*(NatsBus.connect(first) for _ in range(8)))
    changed = StreamSpec("CONTAINER", (CONTAINER_EVENTS,), max_age_s=60.0, max_bytes=1 << 20, duplicate_window_s=30.0)
    second = BusOptions(servers=(own_server.url,), connect_deadline_s=60.0, streams=(changed,))
    buses += await asyncio.gather(*(NatsBus.connect(second) for _ in range(8)))

    info = await buses[0].jetstream.stream_info("TB_CONTAINER")

    assert (info.config.max_age, info.config.max_bytes) == (60.0, 1 << 20)
    await asyncio.gather(*(bus.close(2) for bus in buses))


async def test_no_server_within_the_deadline() -> None:
    """The text names the address, where it came from, and what to do; no password is shown."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        options = BusOptions(servers=(f"nats://me:secret@127.0.0.1:{port}",), origin="NATS_URL", connect_deadline_s=0.3)
        started = time.monotonic()
        with pytest.raises(BusUnavailableError) as caught:
            await NatsBus.connect(options)

    text = str(caught.value)
    assert f"no NATS server at nats://127.0.0.1:{port} (from NATS_URL)" in text
    assert "turnbuckle up" in text
    assert "secret" not in text
    assert time.monotonic() - started < 25


async def test_a_stranger_on_the_port() -> None:
    """Something that speaks another protocol is as good as no server."""

    async def hello(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n" + b"x" * 200_000)
        writer.close()

    stranger = await asyncio.start_server(hello, "127.0.0.1", 0)
    port = stranger.sockets[0].getsockname()[1]

    with pytest.raises(BusUnavailableError, match="no NATS server"):
        await NatsBus.connect(BusOptions(servers=(f"nats://127.0.0.1:{port}",), connect_deadline_s=0.5))
    stranger.close()
    await stranger.wait_closed()


async def test_a_first_connection_may_come_in_the_background() -> None:
    """Until then everything is as while disconnected; facts wait."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    bus = await NatsBus.connect(BusOptions(servers=(f"nats://127.0.0.1:{port}",)), wait_s=0.05)
    bus.publish(CFS.subject("tb", app="shop", node="n1"), node_info(1))
    bus.publish_event(event_subject("tb"), container_event(1), message_id="1")

    async def unused(delivery: Delivery) -> Message:
        return delivery.message

    subject = LIMIT_UPDATES.subject("tb", node="n1")
    for attempt in (
        lambda: bus.serve(subject, unused),
        lambda: bus.subscribe(subject, lambda _delivery: None),
        lambda: bus.request(subject, node_info(1), timeout_s=1),
        lambda: bus.bucket(NODES).put("n1", node_info(1)),
    ):
        with pytest.raises(BusUnavailableError):
            await attempt()
    assert not bus.connected
    assert (bus.counters["dropped_disconnected"], bus.counters["events_pending"]) == (1, 1)

    server = EmbeddedNats(port=port)
    await server.start()
    await until(lambda: bus.counters["events_pending"] == 0)
    await bus.serve(subject, unused)
    assert number_of(await bus.request(subject, node_info(2), timeout_s=1)) == 2
    assert await bus.close(2) == {}
    await server.stop()


async def test_a_bus_that_never_connected_can_be_closed() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        bus = await NatsBus.connect(BusOptions(servers=(f"nats://127.0.0.1:{port}",)), wait_s=0.05)
        bus.publish_event(event_subject("tb"), container_event(1), message_id="1")

        assert await bus.close(0.2) == {"events": 1}


async def test_what_cannot_be_connected_to_in_the_background_is_told() -> None:
    options = BusOptions(servers=("nats://127.0.0.1:1",), connect_deadline_s=0.3)
    bus = await NatsBus.connect(options, wait_s=0.01)
    await until(bus.lost.done)

    assert isinstance(bus.lost.exception(), BusUnavailableError)
    await bus.close(0.2)


async def test_connect_waits_for_a_server_that_comes_later(own_server: EmbeddedNats) -> None:
    """Without a deadline it tries for ever."""
    own_server.kill()
    connecting = asyncio.create_task(NatsBus.connect(BusOptions(servers=(own_server.url,))))
    await asyncio.sleep(0)
    await own_server.start()

    bus = await asyncio.wait_for(connecting, 60)

    assert bus.connected
    await bus.close(2)


async def test_refused_credentials(tmp_path: Path) -> None:
    """Are told at once where there is a deadline."""
    server = EmbeddedNats(extra_configuration='authorization { user: "a", password: "b" }')
    await server.start()
    started = time.monotonic()

    with pytest.raises(BusUnavailableError, match="refuses the credentials"):
        await NatsBus.connect(BusOptions(servers=(server.url,), user="a", password="wrong", connect_deadline_s=20))
    bus = await NatsBus.connect(BusOptions(servers=(server.url,), user="a", password="b", connect_deadline_s=20))

    assert time.monotonic() - started < 19
    await bus.close(2)
    await server.stop()


async def test_a_service_that_is_refused_asks_ever_less_often() -> None:
    """It waits for the server's reload, since it has no deadline; a thousand hosts must not be a load meanwhile."""
    server = EmbeddedNats(extra_configuration='authorization { user: "a", password: "b" }')
    await server.start()
    connecting = asyncio.create_task(NatsBus.connect(BusOptions(servers=(server.url,), user="a", password="wrong")))

    async def refused(times: int) -> float:
        await until(lambda: server.log_path.read_text().count("authentication error") >= times, within_s=60)
        return time.monotonic()

    first, seventh = await refused(1), await refused(7)
    still_waits = not connecting.done()
    await cancel_all({connecting})
    await server.stop()

    assert still_waits
    assert seventh - first >= 0.5 * (0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 2.0) - 0.1  # until() looks every few milliseconds


async def test_server_without_jetstream() -> None:
    """Is named as such."""
    server = EmbeddedNats(extra_configuration='accounts { plain { users: [{ user: "a", password: "b" }] } }')
    await server.start()

    with pytest.raises(BusUnavailableError, match="JetStream"):
        await NatsBus.connect(BusOptions(servers=(server.url,), user="a", password="b", connect_deadline_s=5))
    await server.stop()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (BusOptions(creds_file="/nowhere/x.creds"), "TURNBUCKLE_NATS_CREDS_FILE: /nowhere/x.creds does not exist"),
        (BusOptions(nkey_seed_file="/nowhere/x.nk"), "TURNBUCKLE_NATS_NKEY_SEED_FILE: /nowhere/x.nk does not exist"),
        (BusOptions(servers=("http://x:1",)), "begins with tls://"),
        (BusOptions(tls_ca_file="/nowhere/ca.pem"), "TLS"),
        (BusOptions(servers=("nats://[bad",)), "cannot use"),
    ],
)
async def test_unusable_options(options: BusOptions, text: str) -> None:
    """Fail at once, whatever the deadline."""
    with pytest.raises(BusError, match=text):
        await NatsBus.connect(options)


async def test_oversized_message(own_server: EmbeddedNats) -> None:
    """Is refused here; the connection lives."""
    bus = await NatsBus.connect(BusOptions(servers=(own_server.url,), connect_deadline_s=60.0))
    huge = node_info(1).model_copy(update={"version": "x" * (1 << 20)})
    subject = CFS.subject("tb", app="shop", node="n1")

    with pytest.raises(BusError, match="oversized"):
        bus.publish(subject, huge)
    with pytest.raises(BusError, match="oversized"):
        await bus.bucket(APPS).put("a", huge)

    assert bus.connected
    await bus.bucket(APPS).put("a", AppSpec(name="a", cpu_limit=1, memory_limit=1 << 30))
    await bus.close(2)


async def test_slow_receiver_drops_the_newest_and_counts(own_server: EmbeddedNats) -> None:
    """A subscription holds no more than it was told to."""
    options = BusOptions(servers=(own_server.url,), connect_deadline_s=60.0, pending_messages=100)
    slow, fast = await NatsBus.connect(options), await NatsBus.connect(options)
    got: list[int] = []
    await slow.subscribe(CFS.pattern("tb"), lambda delivery: got.append(number_of(delivery.message)))
    await slow.flush(60)

    for number in range(5_000):
        fast.publish(CFS.subject("tb", app="shop", node="n1"), node_info(number))
        if number % 1_000 == 999:  # 0.5 MB: the sender's own buffer has room for 2
            await fast.flush(60)
    assert fast.counters["dropped_slow"] == 0
    await until(lambda: len(got) + slow.counters["dropped_slow"] == 5_000)

    assert got == sorted(got)
    assert slow.connected
    await asyncio.gather(slow.close(2), fast.close(2))


async def send_raw(server: EmbeddedNats, subject: bytes, headers: bytes, data: bytes) -> None:
    """Publish what a client would refuse to; returns once the server has it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = b"HPUB %s %d %d\r\n" % (subject, len(headers), len(headers) + len(data))
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + head + headers + data + b"\r\nPING\r\n")
    assert b"PONG" in await reader.readuntil(b"PONG\r\n")
    writer.close()
    await writer.wait_closed()


async def test_what_is_written_now_has_left_before_other_work_is_done(own_server: EmbeddedNats) -> None:
    """In one step of the event loop, and in order with what is published before and after."""
    options = BusOptions(servers=(own_server.url,), connect_deadline_s=60.0)
    sender, receiver = await NatsBus.connect(options), await NatsBus.connect(options)
    got: list[int] = []
    await receiver.subscribe(CFS.pattern("tb"), lambda delivery: got.append(number_of(delivery.message)))
    await receiver.flush(60)
    subject = CFS.subject("tb", app="shop", node="n1")

    sender.publish(subject, node_info(1))
    assert sender.connection.pending_data_size > 0
    sender.write_now()
    assert sender.connection.pending_data_size == 0
    sender.publish(subject, node_info(2))
    await until(lambda: len(got) == 2)
    sender.write_now()  # nothing is left

    assert got == [1, 2]
    assert await sender.close(60) == await receiver.close(60) == {}


async def test_what_is_written_now_is_dropped_and_counted_too_where_the_server_reads_nothing(
    own_server: EmbeddedNats,
) -> None:
    """The socket takes some MB; what it does not take counts against `outbound_bytes`."""
    bus = await NatsBus.connect(BusOptions(servers=(own_server.url,), connect_deadline_s=60.0, outbound_bytes=1 << 20))
    subject = CFS.subject("tb", app="shop", node="n1")
    message = node_info(1).model_copy(update={"version": "0" * 200_000})
    freeze(own_server)

    for _ in range(1_000):  # 200 MB
        bus.publish(subject, message)
        bus.write_now()
        await asyncio.sleep(0)

    assert bus.counters["dropped_slow"] > 0
    thaw(own_server)
    await bus.flush(60)
    assert await bus.close(60) == {}


@pytest.mark.parametrize(
    ("subject", "headers"),
    [
        (b"tb.evt.container.shop.\xff", b"NATS/1.0\r\n\r\n"),
        (b"tb.evt.container.shop.n2", b"x"),
        (b"tb.evt.container.shop.n2", b"NATS/1.0 \xff\xff\xff\r\n\r\n"),
    ],
    ids=["subject", "no header line", "status"],
)
async def test_bytes_that_are_no_text_silence_nobody(own_server: EmbeddedNats, subject: bytes, headers: bytes) -> None:
    """nats-py ends its read loop at them: a publisher could stop all subscribers, again after each reconnection."""
    bus = await NatsBus.connect(BusOptions(servers=(own_server.url,), connect_deadline_s=60.0))
    heard: list[int] = []
    replayed: list[int] = []

    async def handle(delivery: Delivery) -> None:
        replayed.append(number_of(delivery.message))

    pattern = CONTAINER_EVENTS.pattern("tb")
    await bus.subscribe(pattern, lambda delivery: heard.append(number_of(delivery.message)))
    await bus.flush(60)
    await send_raw(own_server, subject, headers, encode(container_event(1)))
    bus.publish_event(event_subject("tb"), container_event(2), message_id="2")
    await until(lambda: 2 in heard, what="what is published after it")
    replay = await bus.replay(CONTAINER_STREAM, handle)
    await asyncio.wait_for(replay.caught_up(), 60)
    assert replayed == [1, 2]
    await send_raw(own_server, subject, headers, encode(container_event(3)))
    bus.publish_event(event_subject("tb"), container_event(4), message_id="4")
    await until(lambda: 4 in replayed and 4 in heard, what="what is published later")
    await bus.close(2)
