"""Whatever a server says and whenever it fails: where TLS is required, nothing is written before the handshake."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import ParseResult, urlparse

import nats.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Srv

from services._runtime.bus import nats_tls
from services._runtime.bus.api import BusSettingsError
from services._runtime.bus.nats_tls import SecuredClient, check_urls, requires_tls
from services._runtime.bus.options import BusOptions

KEYS = ("tls_required", "tls_verify", "tls_available", "auth_required", "nonce", "connect_urls", "version", "headers")
VALUES = st.one_of(st.booleans(), st.none(), st.integers(0, 9), st.text(max_size=5), st.just(["evil.example:4222"]))
INFOS = st.dictionaries(st.sampled_from(KEYS), VALUES).map(lambda info: b"INFO " + json.dumps(info).encode() + b"\r\n")
LINES = st.one_of(INFOS, st.binary(max_size=20), st.just(b""), st.just(b"+OK\r\n"))
HANDSHAKES = st.sampled_from(["succeeds", "meets clear text", "reset", "wrong CA", "hangs", "INFO was there"])
ENDS: dict[str, Callable[[], Exception]] = {
    "meets clear text": lambda: ssl.SSLError(1, "wrong version number"),
    "reset": ConnectionResetError,
    "wrong CA": lambda: ssl.SSLCertVerificationError(1, "self-signed certificate"),
    "hangs": TimeoutError,
}


class ScriptedTransport(nats_tls._Transport):
    """Says what it is told to, and notes what happens in which order."""

    def __init__(self, lines: list[bytes], handshakes: list[str]) -> None:
        super().__init__()
        self.events: list[str] = []
        self._lines, self._handshakes = lines, handshakes
        self._encrypted = False

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        del uri, buffer_size, connect_timeout
        self._encrypted = self.spoke_in_clear = False
        self.events.append("connect")

    async def connect_tls(self, uri: Any, ssl_context: Any, buffer_size: int, connect_timeout: int) -> None:
        del uri, ssl_context, buffer_size, connect_timeout
        outcome = self._handshakes.pop(0) if self._handshakes else "reset"
        if outcome in ENDS:
            error = ENDS[outcome]()
            raise error
        self._encrypted = True
        self.spoke_in_clear = outcome == "INFO was there"
        self.events.append("handshake")

    async def readline(self) -> bytes:
        if not self._lines:
            raise TimeoutError
        self.spoke_in_clear = self.spoke_in_clear or not self._encrypted
        return self._lines.pop(0)

    def write(self, payload: Any) -> None:
        assert self._encrypted, f"{payload!r} in clear text"
        self.events.append("write")

    async def drain(self) -> None:
        return

    @property
    def is_encrypted(self) -> bool:
        return self._encrypted

    def abort(self) -> None:
        return

    def __bool__(self) -> bool:
        return True


@given(
    attempts=st.lists(st.tuples(st.lists(LINES, max_size=4), st.lists(HANDSHAKES, max_size=3)), min_size=1, max_size=4),
    first=st.sampled_from([None, True, False]),
    scheme=st.sampled_from(["nats", "tls"]),
)
def test_nothing_is_written_in_clear_text(
    attempts: list[tuple[list[bytes], list[str]]], first: bool | None, scheme: str
) -> None:
    asyncio.run(connect_again_and_again(attempts, first, scheme))


async def connect_again_and_again(
    attempts: list[tuple[list[bytes], list[str]]], first: bool | None, scheme: str
) -> None:
    client = SecuredClient(tls_required=True, tls_first=first)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.options |= {
        "tls": context,
        "connect_timeout": 1,
        "user": "me",
        "password": "secret",
        "token": None,
        "name": None,
        "no_echo": None,
        "verbose": False,
        "pedantic": False,
        "dont_randomize": True,
        "ping_interval": 60,
    }
    client._auth_configured = True
    client._current_server = Srv(urlparse(f"{scheme}://127.0.0.1:4222"))
    for lines, handshakes in attempts:
        transport = ScriptedTransport(list(lines), list(handshakes))
        client._transport = transport
        try:
            await client._process_connect_init()
        except (OSError, nats.errors.Error, ValueError, TypeError, AttributeError):
            continue
        assert transport.events.index("handshake") < transport.events.index("write")
        for task in (client._reading_task, client._ping_interval_task, client._flusher_task):
            assert task is not None
            task.cancel()
            await asyncio.wait({task})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (BusOptions(servers=("nats://a:1",)), False),
        (BusOptions(servers=("a:1",)), False),
        (BusOptions(servers=("nats://a:1", "tls://b:1")), True),
        (BusOptions(servers=("nats://a:1",), tls_ca_file="ca.pem"), True),
        (BusOptions(servers=("nats://a:1",), tls_cert_file="own.pem"), True),
        (BusOptions(servers=("nats://a:1",), tls_first=True), True),
        (BusOptions(servers=("nats://a:1",), tls_first=False), False),
    ],
)
def test_when_tls_is_required(options: BusOptions, expected: bool) -> None:
    assert requires_tls(options) is expected


@pytest.mark.parametrize("url", ["nats://a", "tls://a:4222", "a", "a:4222", "nats://me:p%40w@[::1]:4222"])
def test_urls_of_nats_servers(url: str) -> None:
    check_urls(BusOptions(servers=(url,)))


@pytest.mark.parametrize("url", ["http://a:1", "ws://a", "TLS//a:1", "nats://", "tls://me:secret@:1", "a:99999", "a:x"])
def test_other_urls_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(BusSettingsError, match="cannot use") as caught:
        check_urls(BusOptions(servers=(url,), origin="NATS_URL"))

    assert "NATS_URL" in str(caught.value)
    assert "secret" not in str(caught.value)
