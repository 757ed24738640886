"""Connection options of the bus; made by `contexts` and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from schemas.streams import BUCKETS, OBJECT_STORES, STREAMS, BucketSpec, ObjectStoreSpec, StreamSpec

DEFAULT_URL: Final = "nats://127.0.0.1:4222"


@dataclass(frozen=True, slots=True)
class BusOptions:
    """Servers, credentials, timeouts and limits of one connection."""

    servers: tuple[str, ...] = field(default=(DEFAULT_URL,), repr=False)  # a URL may hold a password: see `address`
    origin: str = "the default"
    """Where `servers` came from, for error messages: ``NATS_URL``, ``context lab``."""
    name: str = "turnbuckle"
    """Shown in the server's connection list."""
    root: str = "tb"
    """First token of every subject."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds_file: str | None = None
    nkey_seed_file: str | None = None
    tls_ca_file: str | None = None
    """This, `tls_cert_file`, `tls_first` or a URL ``tls://``: nothing is sent before the TLS handshake."""
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_first: bool | None = None
    """TLS handshake before the server's INFO (its ``handshake_first``), or after it; None: before, else after."""
    connect_deadline_s: float | None = None
    """Timeout of the first connection in seconds; None: none."""
    ping_interval_s: float = 10.0
    """Three unanswered pings close the connection."""
    pending_messages: int = 8_192
    """Received messages that are buffered per subscription; more are dropped and counted."""
    pending_bytes: int = 64 << 20
    outbound_bytes: int = 2 << 20
    """Send buffer; observations are dropped and counted while it is full."""
    streams: tuple[StreamSpec, ...] = STREAMS
    buckets: tuple[BucketSpec, ...] = BUCKETS
    object_stores: tuple[ObjectStoreSpec, ...] = OBJECT_STORES
    replicas: int = 1
    """Replicas of each stream and bucket; existing ones with more are not reduced."""

    @property
    def address(self) -> str:
        """The servers without credentials, for messages."""
        return ", ".join(without_credentials(server) for server in self.servers)


def without_credentials(url: str) -> str:
    """The URL with user and password left out."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
    except ValueError:
        return url.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
