"""Connections that are encrypted, with the test CA of `turnbuckle nats config`."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.roles import Role
from schemas.streams import LEASES
from services._runtime.bus.api import BusSettingsError
from services._runtime.bus.embedded_server import EmbeddedNats, find_binary
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.cli.main import app
from services.cli.toolkit.supervisor import free_port
from tests.support.authority import make_ca, make_expired
from tests.support.deadline import until
from tests.support.secured_nats import SecuredNats


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ca(tmp_path_factory.mktemp("tls") / "tls", "127.0.0.1", "localhost")


@pytest.fixture
async def server(certificates: Path, tmp_path: Path) -> AsyncIterator[SecuredNats]:
    async with SecuredNats(tmp_path / "secrets", tls=certificates) as made:
        yield made


@pytest.mark.parametrize("scheme", ["nats", "tls"])
@pytest.mark.parametrize("first", [None, True, False])
async def test_who_knows_the_authority_is_served(server: SecuredNats, scheme: str, first: bool | None) -> None:
    options = dataclasses.replace(
        server.options(Role.ADMINISTRATOR), servers=(f"{scheme}://127.0.0.1:{server.port}",), tls_first=first
    )
    bus = await NatsBus.connect(options)

    assert bus.connection.is_connected
    assert bus.connection.is_encrypted
    assert await bus.bucket(LEASES).entries() == {}
    await bus.close(2)


async def test_the_end_of_an_encrypted_connection_is_no_warning_of_asyncio(
    server: SecuredNats, caplog: pytest.LogCaptureFixture
) -> None:
    """Not when the server closes it, and not when we do: a service would log it at each attempt to connect."""
    bus = await NatsBus.connect(server.options(Role.ADMINISTRATOR))
    before = bus.counters["reconnects"]

    await server.halt()
    await server.start()
    await until(lambda: bus.connected and bus.counters["reconnects"] > before, within_s=30)
    await bus.close(2)

    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def plain_tls(directory: Path) -> EmbeddedNats:
    """A server as others set it up: its INFO comes before the handshake."""
    files = f'cert_file: "{directory}/server.pem", key_file: "{directory}/server.key"'
    return EmbeddedNats(extra_configuration=f"tls {{ {files} }}")


def options_for(server: EmbeddedNats, directory: Path) -> BusOptions:
    return BusOptions(
        servers=(f"tls://127.0.0.1:{server.port}",),
        tls_ca_file=str(directory / "ca.pem"),
        connect_deadline_s=30.0,
    )


async def test_a_server_that_speaks_first_is_served_too(certificates: Path) -> None:
    """Also at the second connection, where it is known; also where it is told beforehand."""
    async with plain_tls(certificates) as server:
        for first in (None, False):
            bus = await NatsBus.connect(dataclasses.replace(options_for(server, certificates), tls_first=first))
            assert bus.connection.is_encrypted
            before = bus.counters["reconnects"]
            await bus.connection.force_reconnect()
            await until(lambda: bus.connected and bus.counters["reconnects"] > before, within_s=30)  # noqa: B023
            assert bus.connection.is_encrypted
            await bus.close(2)


@pytest.mark.parametrize("first", [True, False])
async def test_a_certificate_that_does_not_fit_is_named(tmp_path: Path, first: bool) -> None:
    """By its kind, and with what to do; whether the handshake comes first or not."""
    good = make_ca(tmp_path / "good", "127.0.0.1")
    stranger = make_ca(tmp_path / "stranger", "127.0.0.1")
    elsewhere = make_ca(tmp_path / "elsewhere", "nats.example")
    expired = make_expired(tmp_path / "expired", "127.0.0.1")
    for at_server, at_client, sentence in (
        (good, stranger / "ca.pem", r"not signed by the CA in .*stranger/ca.pem.*TURNBUCKLE_NATS_TLS_CA_FILE"),
        (good, None, r"not signed by a CA that this machine trusts.*TURNBUCKLE_NATS_TLS_CA_FILE"),
        (elsewhere, elsewhere / "ca.pem", r"is for another name .*127.0.0.1.*--host"),
        (expired, expired / "ca.pem", r"has expired: renew it"),
    ):
        async with plain_tls(at_server) as server:
            options = dataclasses.replace(options_for(server, good), tls_ca_file=at_client and str(at_client))
            with pytest.raises(BusSettingsError, match=sentence) as caught:
                await NatsBus.connect(dataclasses.replace(options, tls_first=None if first else False))
            assert "no NATS server" not in str(caught.value)


async def test_a_server_that_wants_our_certificate_says_so(certificates: Path) -> None:
    files = f'cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key"'
    verify = f'tls {{ {files}, ca_file: "{certificates}/ca.pem", verify: true }}'
    async with EmbeddedNats(extra_configuration=verify) as server:
        options = options_for(server, certificates)
        with pytest.raises(BusSettingsError, match="TURNBUCKLE_NATS_TLS_CERT_FILE"):
            await NatsBus.connect(options)
        ours = {"tls_cert_file": str(certificates / "server.pem"), "tls_key_file": str(certificates / "server.key")}
        bus = await NatsBus.connect(dataclasses.replace(options, **ours))
        assert bus.connection.is_encrypted
        await bus.close(2)


def configure(out: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["nats", "config", "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    return done.output


CLUSTER = ("--cluster", "nats-1,nats-2,nats-3")


@pytest.mark.parametrize("options", [(), ("--no-tls",), CLUSTER, ("--websocket", "127.0.0.1:8080")], ids=" ".join)
def test_the_server_takes_what_the_command_writes(tmp_path: Path, options: tuple[str, ...]) -> None:
    configure(tmp_path, "--node", "n1", *options)
    files = sorted(path for path in tmp_path.glob("nats*.conf"))

    assert [path.name for path in files] == (
        ["nats-1.conf", "nats-2.conf", "nats-3.conf"] if "--cluster" in options else ["nats.conf"]
    )
    for path in files:
        tried = subprocess.run([find_binary(), "-t", "-c", path], check=False, capture_output=True, text=True)
        assert tried.returncode == 0, tried.stderr
        assert ("websocket {" in path.read_text()) == ("--websocket" in options)
        assert ("tls {" in path.read_text()) == ("--no-tls" not in options)
        assert 'listen: "127.0.0.1:4222"' in path.read_text()
    password = tmp_path / "secrets" / "cluster.password"
    if password.exists():
        for path in tmp_path.glob("cluster-*.conf"):
            assert path.stat().st_mode & 0o777 == 0o600
            assert password.read_text().strip() in path.read_text()
        assert all(password.read_text().strip() not in path.read_text() for path in (*files, tmp_path / "users.conf"))


class WrittenServer(EmbeddedNats):
    """Started with what the command has written."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._written = directory / "nats.conf"

    def _configuration(self) -> str:
        there = os.path.relpath(self._written, self.log_path.parent)
        return f'log_file: "{self.log_path}"\ninclude "{there}"\n'


async def test_what_the_command_writes_by_itself_is_encrypted(tmp_path: Path) -> None:
    """As a newcomer starts: nothing but the names of hosts is given, and ports that are free here."""
    configure(tmp_path, "--node", "n1", "--listen", f"127.0.0.1:{free_port()}", "--monitor", "")
    async with WrittenServer(tmp_path) as server:
        options = BusOptions(
            servers=(f"tls://127.0.0.1:{server.port}",),
            tls_ca_file=str(tmp_path / "tls" / "ca.pem"),
            nkey_seed_file=str(tmp_path / "secrets" / "operator.nk"),
            connect_deadline_s=30.0,
        )
        bus = await NatsBus.connect(options)
        assert bus.connection.is_encrypted
        await bus.close(2)
        with pytest.raises(BusSettingsError, match="not signed by a CA that this machine trusts"):
            await NatsBus.connect(dataclasses.replace(options, tls_ca_file=None))


def test_a_test_ca_is_said_to_be_one(tmp_path: Path) -> None:
    first, second = configure(tmp_path), configure(tmp_path)

    for output, when in ((first, "made now"), (second, "made by an earlier run")):
        assert f"is a test CA, {when}" in output
        assert "To replace it" in output
    assert "NATS_URL=tls://127.0.0.1:4222" in first
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "server.key": 0o600, "server.pem": 0o644}


def test_no_tls_is_asked_for_and_warned_of(tmp_path: Path) -> None:
    output = configure(tmp_path, "--no-tls")

    assert "warning: without TLS" in output
    assert "NATS_URL=nats://" in output
    assert not (tmp_path / "tls").exists()


def test_names_are_added_and_the_authority_stays(tmp_path: Path) -> None:
    configure(tmp_path, "--host", "a.example")
    ca, certificate = ((tmp_path / "tls" / name).read_bytes() for name in ("ca.pem", "server.pem"))

    again = json.loads(configure(tmp_path, "--json"))
    assert (again["tls"]["new"], (tmp_path / "tls" / "server.pem").read_bytes()) == ([], certificate)
    more = json.loads(configure(tmp_path, "--host", "10.0.0.1", "--listen", "0.0.0.0:4000", "--json"))

    assert set(more["tls"]["hosts"]) == {"a.example", "localhost", "127.0.0.1", "::1", "10.0.0.1"}
    assert more["tls"]["new"] == ["server.pem", "server.key"]
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == ca
    assert more["urls"] == "tls://a.example:4000"


def test_certificates_that_are_given_are_left_alone(tmp_path: Path) -> None:
    made = make_ca(tmp_path / "elsewhere", "nats.example")
    given = tmp_path / "out" / "tls"
    given.mkdir(parents=True)
    for name in ("ca.pem", "server.pem", "server.key"):
        shutil.copy(made / name, given)
    before = {path.name: path.read_bytes() for path in given.iterdir()}

    output = json.loads(configure(tmp_path / "out", "--host", "other.example", "--json"))

    assert {path.name: path.read_bytes() for path in given.iterdir()} == before
    assert (output["tls"]["test_ca"], output["tls"]["hosts"]) == (False, ["nats.example"])
    (given / "server.key").unlink()
    done = CliRunner().invoke(app, ["nats", "config", "--out", str(tmp_path / "out")])
    assert done.exit_code == 78
    assert "lacks server.key" in done.output


def test_a_certificate_is_renewed_before_it_expires(tmp_path: Path) -> None:
    make_expired(tmp_path / "tls", "127.0.0.1", "a.example")

    output = json.loads(configure(tmp_path, "--json"))

    assert output["tls"]["new"] == ["server.pem", "server.key"]
    assert "a.example" in output["tls"]["hosts"]


@pytest.mark.parametrize(
    "wrong",
    [("--listen", "4222"), ("--websocket", ":"), ("--listen", "h:x"), ("--host", "a b"), ("--host", "http://x")],
)
def test_what_is_no_address_is_refused(tmp_path: Path, wrong: tuple[str, str]) -> None:
    done = CliRunner().invoke(app, ["nats", "config", "--out", str(tmp_path / "new"), *wrong])

    assert done.exit_code == 2, done.output
    assert not (tmp_path / "new").exists()
