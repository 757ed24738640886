"""TLS of the connection to NATS. If required, nothing is sent before the handshake: no CONNECT, no signature.

nats-py upgrades to TLS only if the server's INFO says so, and INFO is clear text: an attacker in the middle can remove
``tls_required`` and read everything (nats/aio/client.py, `_process_connect_init`). Here the client's settings alone
require TLS, at the first connection and at every reconnect. The handshake comes first if the server supports it
(``handshake_first``); otherwise INFO comes first, and only the fact that TLS follows is used of it: its addresses of
further servers (``connect_urls``) may be forged.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import ParseResult, urlsplit

import nats.errors
from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Srv
from nats.aio.transport import TcpTransport

from services._runtime.bus.api import BusSettingsError
from services._runtime.bus.options import BusOptions, without_credentials

_SCHEMES: Final = ("nats", "tls")


class TlsMissingError(nats.errors.Error):
    """The peer uses no TLS although it is required: the server, or an attacker in the middle."""


class SilentServerError(nats.errors.Error):
    """A connection was accepted but nothing was received on it."""


def check_urls(options: BusOptions) -> None:
    """Check that the URLs are valid for NATS servers.

    Raises:
        BusSettingsError: one is not; the text shows it without credentials.
    """
    for url in options.servers:
        scheme, separator, _ = url.partition("://")
        if separator and scheme not in _SCHEMES:
            shown = without_credentials(url)
            raise BusSettingsError(
                f"cannot use {shown} ({options.origin}): the URL of a NATS server begins with tls:// or nats://"
            )
        try:
            parts = urlsplit(url if separator else f"nats://{url}")
            usable = bool(parts.hostname) and parts.port != 0 and parts.path in {"", "/"}
        except ValueError:
            usable = False
        if not usable:
            raise BusSettingsError(
                f"cannot use {without_credentials(url)} ({options.origin}): it is not of the form tls://HOST:PORT"
            )


def requires_tls(options: BusOptions) -> bool:
    """Whether the settings require TLS: by a URL, a CA file, a client certificate, or handshake-first."""
    return bool(options.tls_ca_file or options.tls_cert_file or options.tls_first) or any(
        url.startswith("tls://") for url in options.servers
    )


def tls_context(options: BusOptions) -> ssl.SSLContext | None:
    """A context that verifies the server's certificate and host name; None without TLS.

    Raises:
        BusSettingsError: a file is unusable; the text names it and its setting.
    """
    if not requires_tls(options):
        return None
    authority, certificate, key = options.tls_ca_file, options.tls_cert_file, options.tls_key_file
    for path, name in ((authority, "CA"), (certificate, "CERT"), (key, "KEY")):
        if path is not None:
            _check_readable(path, f"TURNBUCKLE_NATS_TLS_{name}_FILE")
    try:
        context = ssl.create_default_context(cafile=authority and str(Path(authority).expanduser()))
    except (OSError, ValueError) as error:
        raise BusSettingsError(f"TURNBUCKLE_NATS_TLS_CA_FILE: {authority} holds no certificate (PEM)") from error
    if certificate is not None:
        try:
            context.load_cert_chain(Path(certificate).expanduser(), key and Path(key).expanduser())
        except (OSError, ValueError) as error:
            raise BusSettingsError(
                f"TURNBUCKLE_NATS_TLS_CERT_FILE and _KEY_FILE: {certificate} and {key} are no certificate and its key"
            ) from error
    return context


def _check_readable(path: str, variable: str) -> None:
    try:
        with Path(path).expanduser().open("rb"):
            return
    except OSError as error:
        raise BusSettingsError(f"{variable}: {path} cannot be read: {error.strerror}") from error


class _EncryptedProtocol(asyncio.StreamReaderProtocol):
    """Stream protocol under TLS that never stays half open, which asyncio would warn of."""

    def eof_received(self) -> bool:
        """Close when the peer has closed."""
        super().eof_received()
        return False


class _Transport(TcpTransport):
    """TCP transport that records whether the server sent anything before the TLS handshake."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spoke_in_clear = False
        """The line read last, or read next, was not encrypted."""
        self._early = b""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """As nats-py's."""
        self.spoke_in_clear, self._early = False, b""
        await super().connect(uri, buffer_size, connect_timeout)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """As nats-py's; an INFO line received before the handshake is read afterwards."""
        assert self._io_writer is not None
        assert self._bare_io_reader is not None
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=2 * buffer_size)
        protocol = _EncryptedProtocol(reader)
        name = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            transport = await loop.start_tls(self._io_writer.transport, protocol, ssl_context, server_hostname=name)
        assert transport is not None
        self._io_reader, self._io_writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        if not self.spoke_in_clear:  # else INFO has been read, and what followed it may be forged
            self._bare_io_reader.feed_eof()
            early, newline, _ = (await self._bare_io_reader.read()).partition(b"\n")
            self._early = early + newline
            self.spoke_in_clear = bool(self._early)

    async def readline(self) -> bytes:
        """As nats-py's."""
        if self._early:
            line, self._early = self._early, b""
            return line
        self.spoke_in_clear = not self.is_encrypted
        return bytes(await super().readline())  # type: ignore[no-untyped-call]

    @property
    def is_encrypted(self) -> bool:
        """Whether a TLS handshake has succeeded."""
        return self._io_writer is not None and self._io_writer.get_extra_info("ssl_object") is not None

    @property
    def is_idle(self) -> bool:
        """Whether the kernel has taken all that was written, and more may be written."""
        if self._io_writer is None or self._io_writer.transport.is_closing():
            return False
        return self._io_writer.transport.get_write_buffer_size() == 0

    def abort(self) -> None:
        """Close the socket without flushing."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()


class SecuredClient(Client):
    """A nats-py client that sends CONNECT on an encrypted connection only, where TLS is required."""

    def __init__(self, *, tls_required: bool = False, tls_first: bool | None = None) -> None:
        """Both as in `BusOptions`."""
        super().__init__()
        self._tls_required = tls_required
        self._tls_first = tls_first
        self._speaks_first: set[str] = set()
        """Servers that send INFO before the TLS handshake."""

    @property
    def is_encrypted(self) -> bool:
        """Whether a TLS handshake has succeeded on the present connection."""
        return isinstance(self._transport, _Transport) and self._transport.is_encrypted

    def write_now(self) -> None:
        """Write what is pending, unless the socket is full: then it stays pending, and counts against bounds."""
        transport = self._transport
        if self._pending and self.is_connected and isinstance(transport, _Transport) and transport.is_idle:
            transport.writelines(self._pending)  # type: ignore[no-untyped-call]
            self._pending, self._pending_data_size = [], 0

    def abort_transport(self) -> None:
        """Close the socket without flushing."""
        if isinstance(self._transport, _Transport):
            self._transport.abort()

    async def _connect_to_server(self, s: Srv) -> None:
        s.last_attempt = time.monotonic()
        if self._transport is None:
            self._transport = _Transport()
        await self._transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])

    def _connect_command(self) -> bytes:
        """The CONNECT line, which holds the credentials; refused without encryption, whatever the code path."""
        self._require_encryption()
        return bytes(super()._connect_command())

    def _require_encryption(self) -> None:
        if self._tls_required and not self.is_encrypted:
            raise TlsMissingError("the server speaks without TLS")

    async def _process_info(
        self,
        info: dict[str, Any],
        initial_connection: bool = False,  # noqa: FBT002 - the overridden method's
    ) -> None:
        transport = self._transport
        assert isinstance(transport, _Transport)
        if self._tls_required and initial_connection and transport.spoke_in_clear:
            if not (info.get("tls_required") or info.get("tls_available")):
                self._require_encryption()
            info["tls_required"] = True
            info.pop("connect_urls", None)
        await super()._process_info(info, initial_connection)

    async def _process_connect_init(self) -> None:
        try:
            await self._connect_securely()
        except TimeoutError as error:
            self.abort_transport()
            raise SilentServerError("the connection was accepted, but nothing was received on it") from error
        except BaseException:
            self.abort_transport()  # nats-py leaves it open while reconnecting
            raise

    async def _connect_securely(self) -> None:
        server = self._current_server
        assert server is not None
        if not self._tls_required or self._tls_first is False:
            await self._log_in(handshake_first=False)
            return
        address = server.uri.netloc
        if self._tls_first is None and address in self._speaks_first:
            self._speaks_first.discard(address)  # probed again in case this has changed
        else:
            try:
                await self._log_in(handshake_first=True)
            except (ssl.SSLError, ConnectionError) as error:
                if self._tls_first or self.is_encrypted or isinstance(error, ssl.SSLCertVerificationError):
                    raise
            else:
                return
            self.abort_transport()
            await self._connect_to_server(server)
        await self._log_in(handshake_first=False)
        self._speaks_first.add(address)

    async def _log_in(self, *, handshake_first: bool) -> None:
        self.options["tls_handshake_first"] = handshake_first
        await super()._process_connect_init()
