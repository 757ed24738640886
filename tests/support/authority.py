"""Certificates of a test CA in a directory, as `turnbuckle nats config` makes them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from services.cli.nats.certificates import Pair, ensure, make_server


def now() -> dt.datetime:
    """The time, with its zone."""
    return dt.datetime.now(dt.UTC)


def make_ca(directory: Path, *hosts: str) -> Path:
    """ca.pem, ca.key, server.pem, server.key."""
    ensure(directory, hosts, now())
    return directory


def make_expired(directory: Path, *hosts: str) -> Path:
    """The server's certificate is a year too old, its CA's is not."""
    make_ca(directory, *hosts)
    authority = Pair((directory / "ca.pem").read_bytes(), (directory / "ca.key").read_bytes())
    server = make_server(authority, hosts, now() - dt.timedelta(days=730))
    (directory / "server.pem").write_bytes(server.certificate)
    (directory / "server.key").write_bytes(server.key)
    return directory
