"""Nobody between us and the server can talk us out of TLS, and so read our credentials or speak in our name."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.roles import Role
from services._runtime.bus.api import BusError
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.cli.main import app
from tests.support.authority import make_ca
from tests.support.cluster_lab import ServiceProcess
from tests.support.deadline import until
from tests.support.secured_nats import SecuredNats
from tests.support.stripping_proxy import StrippingProxy

SPEC = "name: shop\ncpu_limit: 2\nmemory_limit: 2GiB\n"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ca(tmp_path_factory.mktemp("tls") / "tls", "127.0.0.1", "localhost")


@pytest.fixture
async def server(certificates: Path, tmp_path: Path) -> AsyncIterator[SecuredNats]:
    async with SecuredNats(tmp_path / "secrets", tls=certificates) as made:
        yield made


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_the_command_tells_a_proxy_nothing(server: SecuredNats, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "app.yaml").write_text(SPEC)
    async with StrippingProxy(server.port) as proxy:
        environment = server.environment(Role.OPERATOR) | {"NATS_URL": f"{scheme}://127.0.0.1:{proxy.port}"}
        done = await asyncio.to_thread(
            CliRunner().invoke, app, ["apply", str(tmp_path / "app.yaml")], env=environment, catch_exceptions=False
        )

        assert "announced" not in done.output
        assert done.exit_code == 78, done.output
        assert "without TLS" in done.output
        assert proxy.stripped
        assert b"CONNECT" not in proxy.heard


async def test_a_service_tells_a_proxy_nothing(server: SecuredNats, tmp_path: Path) -> None:
    """It tries for ever, and says in its log why in vain."""
    async with StrippingProxy(server.port) as proxy:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "TURNBUCKLE_"))}
        environment = kept | server.environment(Role.ALLOCATOR) | {"NATS_URL": f"nats://127.0.0.1:{proxy.port}"}
        allocator = ServiceProcess("allocator", environment, tmp_path / "allocator.log")
        try:
            await until(lambda: proxy.stripped >= 3, within_s=60)
            await until(lambda: any("speaks without TLS" in str(line) for line in allocator.log()), within_s=30)
            assert allocator.running
            assert b"CONNECT" not in proxy.heard
        finally:
            allocator.kill()


def test_every_connection_is_made_in_one_place() -> None:
    """So what holds for it holds in every service and command."""
    services = Path(__file__).resolve().parents[2] / "services"
    making = re.compile(r"\bnats\.connect\(|\bNATS\(\)|\bnats\.aio\.client import\b")
    found = {path.name for path in services.rglob("*.py") if making.search(path.read_text(encoding="utf-8"))}

    assert found == {"nats_connection.py", "nats_tls.py"}


async def test_a_proxy_that_begins_later_hears_nothing(server: SecuredNats) -> None:
    """The first connection was encrypted; the next one is held to the same."""
    async with StrippingProxy(server.port, strip=False) as proxy:
        options = dataclasses.replace(server.options(Role.ALLOCATOR), servers=(f"nats://127.0.0.1:{proxy.port}",))
        bus = await NatsBus.connect(options)
        proxy.strip = True
        await proxy.disconnect()
        await until(lambda: proxy.stripped >= 3, within_s=30)

        assert not bus.connected
        assert b"CONNECT" not in proxy.heard

        proxy.strip = False
        await until(lambda: bus.connected, within_s=30)
        await bus.flush(10)
        await bus.close(2)


@pytest.mark.parametrize("wish", ["nats and CA", "tls and CA", "tls"])
async def test_a_server_without_tls_is_refused(certificates: Path, wish: str) -> None:
    async with EmbeddedNats() as plain:
        scheme, _, authority = wish.partition(" and ")
        options = BusOptions(
            servers=(f"{scheme}://127.0.0.1:{plain.port}",),
            tls_ca_file=str(certificates / "ca.pem") if authority else None,
            connect_deadline_s=2.0,
        )
        with pytest.raises(BusError, match="without TLS"):
            await NatsBus.connect(options)


class GossipingServer:
    """Speaks as much NATS as it takes to connect, and names a further server in its INFO."""

    def __init__(self, certificates: Path, *, info_first: bool, further: str) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        self._info_first = info_first
        self._line = b"INFO " + json.dumps(INFO | {"connect_urls": [further]}).encode() + b"\r\n"
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self) -> asyncio.Server:
        context = None if self._info_first else self._context
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        return self._server

    async def leave(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        writer.write(self._line)
        if self._info_first:
            await writer.drain()
            try:
                await writer.start_tls(self._context)
            except OSError:
                return  # a client that began with TLS, and was answered in clear text
        try:
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        except OSError:
            return


INFO = {"server_id": "x", "version": "2.12.0", "headers": True, "max_payload": 1 << 20, "tls_required": True}


def gossiped(server: asyncio.Server, certificates: Path, *, first: bool | None) -> BusOptions:
    port = server.sockets[0].getsockname()[1]
    return BusOptions(
        servers=(f"nats://127.0.0.1:{port}",),
        tls_ca_file=str(certificates / "ca.pem"),
        tls_first=first,
        password="secret",
        user="me",
        connect_deadline_s=30.0,
        streams=(),
        buckets=(),
        object_stores=(),
    )


async def test_a_server_that_another_one_names_is_held_to_tls_too(certificates: Path) -> None:
    """Addresses in an INFO have no scheme, and the library takes that of the present server: nats://, here."""
    heard: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told = {key: value for key, value in INFO.items() if key != "tls_required"}
        writer.write(b"INFO " + json.dumps(told).encode() + b"\r\n")
        heard.append(await reader.read(1_000))
        writer.transport.abort()

    further = await asyncio.start_server(plain, "127.0.0.1", 0)
    address = f"127.0.0.1:{further.sockets[0].getsockname()[1]}"
    gossip = GossipingServer(certificates, info_first=False, further=address)
    bus = await NatsBus.connect(gossiped(await gossip.listen(), certificates, first=None))
    assert [server.netloc for server in bus.connection.discovered_servers] == [address]
    await gossip.leave()
    await until(lambda: len(heard) >= 4, within_s=30)

    assert not bus.connected
    assert not [data for data in heard if b"CONNECT" in data or b"secret" in data]
    await bus.close(2)
    further.close()


@pytest.mark.parametrize("first", [None, False])
async def test_servers_named_in_clear_text_are_not_believed(certificates: Path, first: bool | None) -> None:
    """Before the handshake anybody can have written them, with a certificate of his own for his own name."""
    gossip = GossipingServer(certificates, info_first=True, further="evil.example:4222")
    bus = await NatsBus.connect(gossiped(await gossip.listen(), certificates, first=first))

    assert bus.connection.is_encrypted
    assert bus.connection.discovered_servers == []
    await bus.close(2)
    await gossip.leave()
