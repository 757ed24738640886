"""Connections that are encrypted, with the test authority of scripts/make_test_ca.sh."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.permissions import Role
from schemas.streams import LEASES
from services._runtime.bus import BusError
from services._runtime.bus_nats import NatsBus
from services._runtime.nats_server import find_binary
from services.cli.main import app
from tests.support.secured_nats import SecuredNats

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_test_ca.sh"


def make_ca(directory: Path, *hosts: str) -> Path:
    """Certificates in a directory."""
    assert shutil.which("openssl"), "needs openssl: apt-get install openssl"
    subprocess.run([SCRIPT, directory, *hosts], check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ca(tmp_path_factory.mktemp("tls") / "tls", "127.0.0.1", "localhost")


@pytest.fixture
async def server(certificates: Path, tmp_path: Path) -> AsyncIterator[SecuredNats]:
    async with SecuredNats(tmp_path / "secrets", tls=certificates) as made:
        yield made


async def test_who_knows_the_authority_is_served(server: SecuredNats) -> None:
    bus = await server.bus(Role.OPERATOR)

    assert bus.connection.is_connected
    assert bus.connection._transport._io_writer.get_extra_info("cipher")
    assert await bus.bucket(LEASES).entries() == {}
    await bus.close(2)


async def test_who_does_not_is_not(server: SecuredNats, tmp_path: Path) -> None:
    """Nor is a server believed whose certificate somebody else has signed."""
    stranger = make_ca(tmp_path / "stranger", "127.0.0.1")
    options = dataclasses.replace(server.options(Role.OPERATOR), connect_deadline_s=1.5)

    for changes in ({"tls_ca_file": None}, {"tls_ca_file": str(stranger / "ca.pem")}):
        with pytest.raises(BusError, match=r"(?i)certificate"):
            await NatsBus.connect(dataclasses.replace(options, **changes))


def test_keys_are_for_their_owner_only(certificates: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in certificates.iterdir()}

    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "server.key": 0o600, "server.pem": 0o644}


def test_a_second_run_keeps_the_authority(tmp_path: Path) -> None:
    first = make_ca(tmp_path / "tls", "a.example")
    ca, certificate = (first / "ca.pem").read_bytes(), (first / "server.pem").read_bytes()

    make_ca(tmp_path / "tls", "b.example", "10.0.0.1")

    assert (first / "ca.pem").read_bytes() == ca
    assert (first / "server.pem").read_bytes() != certificate
    shown = subprocess.run(
        ["openssl", "x509", "-in", first / "server.pem", "-noout", "-ext", "subjectAltName"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "DNS:b.example, IP Address:10.0.0.1" in shown


@pytest.mark.parametrize("options", [(), ("--tls",), ("--cluster", "nats-1,nats-2,nats-3", "--tls")], ids=" ".join)
def test_the_server_takes_what_the_command_writes(tmp_path: Path, certificates: Path, options: tuple[str, ...]) -> None:
    shutil.copytree(certificates, tmp_path / "tls")
    done = CliRunner().invoke(app, ["nats", "config", "--out", str(tmp_path), "--node", "n1", *options])
    assert done.exit_code == 0, done.output
    files = sorted(path for path in tmp_path.glob("nats*.conf"))

    assert [path.name for path in files] == (
        ["nats-1.conf", "nats-2.conf", "nats-3.conf"] if "--cluster" in options else ["nats.conf"]
    )
    for path in files:
        tried = subprocess.run([find_binary(), "-t", "-c", path], check=False, capture_output=True, text=True)
        assert tried.returncode == 0, tried.stderr
    password = tmp_path / "secrets" / "cluster.password"
    if password.exists():
        for path in tmp_path.glob("cluster-*.conf"):
            assert path.stat().st_mode & 0o777 == 0o600
            assert password.read_text().strip() in path.read_text()
        assert all(password.read_text().strip() not in path.read_text() for path in (*files, tmp_path / "users.conf"))


def test_missing_certificates_are_asked_for(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["nats", "config", "--out", str(tmp_path), "--tls"])

    assert done.exit_code == 0
    assert "make_test_ca.sh" in done.output
