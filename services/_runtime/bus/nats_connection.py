"""NATS client connection: nats-py 2.16 with fixes. All uses of its private attributes are in this file.

* Nothing is buffered while disconnected (``pending_size=0``), and data not yet sent when the connection broke is
  discarded: stale messages are never replayed.
* Pending requests fail at once when the connection breaks, instead of at their timeout.
* A PONG that arrives after its `flush` timed out would raise in the read loop and end it.
* A PING is sent after everything written before it: nats-py sends it first, so its `flush` is no barrier.
* A transport with unsent bytes to a dead peer is aborted: closing it could take 15 minutes.
* An unexpected error while reconnecting (a malformed INFO line) does not end the attempts.
* Subjects and headers that are not UTF-8 do not end its read loop: one publisher could stop all subscribers by them.
* A request that the server denies fails at once: nats-py only reports the server's error line.
* Names of headers that the server sets are looked up: nats-py examines each character of each. What a replay or a
  buffered subscription reads is handed over unparsed (`subscribe_unparsed`): headers, `Msg`, queue and callback took a
  third of a replay's time.
* TLS that the settings require is never skipped (`nats_tls`).
* Inboxes and reply subjects end with 128 random bits: nats-py uses a counter, so a responder to one request could
  forge replies to the next ones.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import nats.errors
import nats.js.errors
from nats.aio.client import NO_RESPONDERS_STATUS, Server
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import Header

from schemas.permissions import INBOX
from schemas.subjects import token
from services._runtime.bus.api import (
    BusError,
    BusSettingsError,
    BusUnavailableError,
    CredentialsRefusedError,
    NotPermittedError,
    Screen,
)
from services._runtime.bus.dispatch import Dispatch
from services._runtime.bus.nats_failures import describe, failure, refusal
from services._runtime.bus.nats_tls import SecuredClient, check_urls, requires_tls, tls_context
from services._runtime.bus.options import BusOptions
from services._runtime.bus.random_tokens import RandomTokens
from services._runtime.task_cancellation import cancel_all
from services._runtime.telemetry.logging import log_once

Taker = Callable[[bytes, bytes, bytes], None]
"""Of a message's subject and headers, as they came, and its payload."""

_CONNECT_TIMEOUT_S: Final = 2
_LAST_RETRY_S: Final = 2.0
_PING: Final = b"PING\r\n"
_KNOWN_HEADERS: Final = {
    name.encode(): name
    for name in (
        "Nats-Expected-Last-Sequence",
        "Nats-Last-Sequence",
        "Nats-Msg-Id",
        "Nats-Num-Pending",
        "Nats-Sequence",
        "Nats-Stream",
        "Nats-Subject",
        "Nats-Time-Stamp",
        "Nats-UpTo-Sequence",
        "traceparent",
    )
}
_REFUSALS_KEPT: Final = 1_000
_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)
_OLDEST_SERVER: Final = (2, 11)
_UNAVAILABLE: Final = (
    nats.errors.OutboundBufferLimitError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionDrainingError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.StaleConnectionError,
    nats.errors.NoRespondersError,
    nats.js.errors.ServiceUnavailableError,
    nats.js.errors.NoStreamResponseError,
    TimeoutError,
    OSError,
)


@contextmanager
def as_bus_errors(action: str) -> Iterator[None]:
    """Convert exceptions of nats-py into a `BusError` that names the action."""
    try:
        yield
    except BusError:
        raise
    except _UNAVAILABLE as error:
        raise BusUnavailableError(f"{action}: {describe(error)}") from error
    except RefusedError as error:
        raise NotPermittedError(f"{action}: {describe(error)}", error.subject) from error
    except (nats.errors.Error, ValueError) as error:
        raise BusError(f"{action}: {describe(error)}") from error


class RefusedError(nats.errors.Error):
    """The server denied a publish."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"this user may not publish to {subject}")
        self.subject = subject


@dataclass(slots=True)
class ConnectionEvents:
    """Callbacks of the connection, on the event loop; must not block."""

    disconnected: Callable[[], None]
    reconnected: Callable[[], None]
    closed: Callable[[], None]


class Connection(SecuredClient):
    """A nats-py client that never replays stale messages and reconnects for ever."""

    def __init__(self, *, tls_required: bool = False, tls_first: bool | None = None) -> None:
        super().__init__(tls_required=tls_required, tls_first=tls_first)
        self._nuid = RandomTokens()  # type: ignore[assignment]  # nats-py calls `next` only
        self._pending_subjects: dict[str, str] = {}
        """Subjects of the pending requests, by the token of the reply subject."""
        self._refused: set[str] = set()
        """Subjects and patterns that the server denied."""
        self._first_attempts = 0
        self._takers: dict[int, Taker] = {}
        """By subscription."""
        self._screens: dict[int, Screen] = {}
        """By subscription."""

    def send_now(self, subject: str, data: bytes, reply: str = "", headers: dict[str, Any] | None = None) -> None:
        """Publish synchronously: without buffering `Client.publish` never suspends, so one step completes it.

        Raises:
            nats.errors.Error: not connected, or the payload exceeds the server's limit.
        """
        step = self.publish(subject, data, reply, headers)
        try:
            step.send(None)
        except StopIteration:
            return
        step.close()
        raise RuntimeError("nats-py's publish() suspended: this version of it cannot be used")

    def forget_unsent(self) -> None:
        """Discard data not yet written to the socket, and fail the pending requests."""
        self._pending.clear()
        self._pending_data_size = 0
        for future in list(self._resp_map.values()):
            if not future.done():
                future.set_exception(nats.errors.ConnectionReconnectingError())
                future.exception()  # marks it as retrieved if its caller is gone

    def has_refused(self, subject: str) -> bool:
        """Whether the server denied publishing to a subject or subscribing to a pattern."""
        return subject.lower() in self._refused

    def refused(self, violation: str) -> None:
        """Handle a permissions violation: fail the pending requests on its subject."""
        found = _VIOLATION.search(violation)
        if found is None:
            return
        subject = found[2].lower()  # nats-py lower-cases it
        if len(self._refused) < _REFUSALS_KEPT:
            self._refused.add(subject)
        for key, pending in list(self._pending_subjects.items()):
            future = self._resp_map.get(key)
            if pending.lower() == subject and future is not None and not future.done():
                future.set_exception(RefusedError(pending))

    async def subscribe_unparsed(self, subject: str, take: Taker) -> Subscription:
        """Subscribe, without any limit of pending messages: each is handed over within the read loop.

        Args:
            subject: or a pattern.
            take: must not raise.

        Raises:
            nats.errors.Error: not connected.
        """
        made = await self.subscribe(subject)
        self._takers[made._id] = take  # noqa: SLF001 - by it messages name it; in time: nothing has been asked for yet
        return made

    def screen(self, subscription: Subscription, screen: Screen) -> None:
        """Drop what the screen refuses within the read loop: before headers are parsed, and before it is queued."""
        self._screens[subscription._id] = screen  # noqa: SLF001 - as above

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._takers.pop(sid, None)
        self._screens.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        take = self._takers.get(sid)
        if take is not None:
            take(subject, headers or b"", data)
            return
        screen = self._screens.get(sid)
        if screen is None or screen(subject.decode(errors="replace"), len(data) + len(headers or b"")):
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type]  # None: no headers

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        """As nats-py's, but none where they are none: the server passes on whatever a publisher has sent as headers."""
        try:
            return await super()._process_headers(headers)
        except (IndexError, UnicodeDecodeError):
            return None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        """As nats-py's, also of a subject that is no UTF-8."""
        subject_text, reply_text = subject.decode(errors="replace"), reply.decode(errors="replace")
        return Msg(_client=self, subject=subject_text, reply=reply_text, data=data, headers=headers, _sid=sid)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """As nats-py's."""
        found: dict[str, str] = {}
        for line in raw.split(b"\r\n"):
            name, _, value = line.partition(b":")
            known = _KNOWN_HEADERS.get(name)
            if known is not None:
                found[known] = value.strip().decode("utf-8", "replace")
            elif line:
                found.update(SecuredClient._parse_header_lines(line))  # noqa: SLF001 - overridden
        return found

    async def _request_new_style(
        self,
        subject: str,
        payload: bytes,
        timeout: float = 1,  # noqa: ASYNC109 - the overridden method's
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """As nats-py's, in two parts."""
        await self.prepare_requests()
        return await self.reply_to(self.send_request(subject, payload, headers), timeout)

    async def prepare_requests(self) -> None:
        """Subscribe to the replies of all requests, once: to declare streams and buckets is the first of them."""
        if not self._resp_sub_prefix and self.is_connected:
            await self._init_request_sub()

    def send_request(self, subject: str, payload: bytes, headers: dict[str, Any] | None = None) -> str:
        """Send a request; returns the token of its reply subject, for `reply_to`.

        Raises:
            nats.errors.Error: it could not be sent.
        """
        if not self.is_connected or not self._resp_sub_prefix:
            raise nats.errors.ConnectionReconnectingError
        key: str = self._nuid.next().decode()
        self.send_now(subject, payload, f"{self._resp_sub_prefix.decode()}{key}", headers)
        self._resp_map[key], self._pending_subjects[key] = asyncio.get_running_loop().create_future(), subject
        return key

    async def reply_to(self, key: str, timeout: float) -> Msg:  # noqa: ASYNC109 - as nats-py's
        """The reply to a request.

        Raises:
            TimeoutError, nats.errors.Error: there is none.
        """
        future: asyncio.Future[Msg] = self._resp_map[key]
        try:
            async with asyncio.timeout(timeout):  # `wait_for` would swallow a cancel that comes with the reply
                reply = await future
        except TimeoutError as error:
            raise nats.errors.TimeoutError from error
        finally:
            del self._pending_subjects[key]
            self._resp_map.pop(key, None)
        if reply.headers and reply.headers.get(Header.STATUS) == NO_RESPONDERS_STATUS:
            raise nats.errors.NoRespondersError
        return reply

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        await self._send_command(_PING)
        await self._flush_pending()

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pings_outstanding = 0
            return
        await super()._process_pong()

    async def _select_next_server(self) -> None:
        """As nats-py's, with a back-off; it is called while connecting first, without a pause after a refusal."""
        if self._first_attempts:
            await asyncio.sleep(_pause_s(self._first_attempts - 1))
        self._first_attempts += 1
        await super()._select_next_server()

    async def _attempt_reconnect(self) -> None:
        while True:
            self.abort_transport()
            try:
                await super()._attempt_reconnect()
            except Exception as error:  # noqa: BLE001 - any error: the next attempt is the only remedy
                await self._error_cb(error)
                await asyncio.sleep(_LAST_RETRY_S)
            else:
                return


async def open_connection(options: BusOptions, dispatch: Dispatch, events: ConnectionEvents) -> Connection:
    """Connect, retrying until it succeeds or the options' deadline has passed.

    Raises:
        CredentialsRefusedError: with a deadline: the server rejects the credentials.
        BusUnavailableError: the deadline has passed; the text names a remedy.
        BusSettingsError: the options are invalid (a missing file, a bad URL), or with a deadline: TLS failed.
    """
    check_urls(options)
    errors = _ErrorWatch(options, dispatch)
    deadline = options.connect_deadline_s
    loop = asyncio.get_running_loop()
    deadline_at = None if deadline is None else loop.time() + deadline
    while True:
        connection = Connection(tls_required=requires_tls(options), tls_first=options.tls_first)
        arguments = _arguments(options, errors, events, connection)
        task = loop.create_task(connection.connect(**arguments))
        waiting = {task} if deadline_at is None else {task, errors.refused}
        timeout_s = None if deadline_at is None else max(0.0, deadline_at - loop.time())
        try:
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done() or task.cancelled() or task.exception() is not None:
                await _abandon(connection, task)
        if not task.cancelled() and task.exception() is None:
            _check_version(connection, dispatch)
            return connection
        if not task.cancelled() and isinstance(task.exception(), (nats.errors.Error, FileNotFoundError)):
            raise BusSettingsError(f"cannot use {options.address} ({options.origin}): {describe(task.exception())}")  # type: ignore[arg-type]
        if deadline_at is not None and (errors.refused.done() or loop.time() >= deadline_at):
            raise errors.failure()
        await asyncio.sleep(1.0)


async def _abandon(connection: Connection, task: asyncio.Task[None]) -> None:
    await cancel_all({task})
    connection.abort_transport()
    if connection._flush_queue is not None:  # noqa: SLF001 - close() asserts it, and a bad URL fails before it exists
        await connection.close()


class _ErrorWatch:
    """nats-py's error callback. It is awaited in the read loop, so it only counts and logs at a limited rate."""

    def __init__(self, options: BusOptions, dispatch: Dispatch) -> None:
        self._options = options
        self._dispatch = dispatch
        self._last: BaseException | None = None
        self._refusal: BusError | None = None
        self.refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when a retry would fail the same way."""

    async def __call__(self, error: Exception) -> None:
        if isinstance(error, nats.errors.SlowConsumerError):
            self._dispatch.counts["dropped_slow"] += 1
            log_once(self._dispatch.log.warning, self._dispatch.limiter, "slow_consumer", subject=error.subject)
            return
        why = refusal(self._options, error)
        self._last, self._refusal = error, why or self._refusal
        final = isinstance(why, CredentialsRefusedError) or (
            isinstance(why, BusSettingsError) and len(self._options.servers) == 1  # else another server may accept
        )
        if final and not self.refused.done():
            self.refused.set_result(None)
        log_once(
            self._dispatch.log.warning,
            self._dispatch.limiter,
            f"nats_error_{type(error).__name__}",
            5.0,
            error=str(why or describe(error)),
            servers=self._options.address,
        )

    def failure(self) -> BusError:
        """The error of the last attempt, with a remedy."""
        return self._refusal or failure(self._options, self._last)


def _arguments(
    options: BusOptions, errors: _ErrorWatch, events: ConnectionEvents, connection: Connection
) -> dict[str, Any]:
    async def on_error(error: Exception) -> None:
        connection.refused(str(error))
        await errors(error)

    async def on_disconnect() -> None:
        connection.forget_unsent()
        events.disconnected()

    async def on_reconnect() -> None:
        events.reconnected()

    async def on_close() -> None:
        events.closed()

    return {
        "servers": list(options.servers),
        "name": options.name,
        "error_cb": on_error,
        "disconnected_cb": on_disconnect,
        "reconnected_cb": on_reconnect,
        "closed_cb": on_close,
        "max_reconnect_attempts": -1,
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "reconnect_time_wait": random.uniform(0.1, 0.3),  # noqa: S311 - jitter, not a secret
        "reconnect_to_server_handler": _next_server,
        "ping_interval": options.ping_interval_s,
        "pending_size": 0,
        "inbox_prefix": inbox_prefix(options),
        "user": options.user,
        "password": options.password,
        "token": options.token,
        "user_credentials": _existing(options.creds_file, "TURNBUCKLE_NATS_CREDS_FILE"),
        "nkeys_seed": _existing(options.nkey_seed_file),
        "tls": tls_context(options),
    }


def _next_server(servers: list[Server], _info: dict[str, Any]) -> tuple[Server, float]:
    """The server with the fewest failed attempts, after a growing pause (seconds)."""
    server = min(servers, key=lambda each: each.reconnects)
    return server, _pause_s(server.reconnects)


def _pause_s(failures: int) -> float:
    """Back-off in seconds after a number of failed attempts, with jitter."""
    return min(_LAST_RETRY_S, 0.1 * 2.0 ** min(failures, 8)) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


def inbox_prefix(options: BusOptions) -> str:
    """Prefix of this user's inboxes: no other user may subscribe to it (`schemas.permissions`).

    Raises:
        BusSettingsError: the seed cannot be read.
    """
    if options.nkey_seed_file is not None:
        return f"{INBOX}.{public_key(options.nkey_seed_file)}"
    user = options.user or next(filter(None, map(_user_in, options.servers)), None)
    return INBOX if user is None else f"{INBOX}.{token(user)}"


def _user_in(url: str) -> str | None:
    """The user in a URL; one without a password is a token, and secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return unquote(parts.username) if parts.username and parts.password else None


def public_key(seed_file: str) -> str:
    """The public key of a seed. Error messages never contain any of the seed.

    Raises:
        BusSettingsError: there is no usable seed in the file.
    """
    path = _existing(seed_file)
    import nkeys  # type: ignore[import-untyped,unused-ignore] # noqa: PLC0415 - only needed with credentials

    try:
        return str(nkeys.from_seed(bytearray(Path(str(path)).read_bytes().strip())).public_key.decode())
    except OSError as error:
        raise BusSettingsError(f"NKEY seed file {path} cannot be read: {error.strerror}") from None
    except Exception:  # noqa: BLE001 - the library's errors may quote the seed
        raise BusSettingsError(f"{path} holds no NKEY seed (a line that begins with SU)") from None


def _existing(path: str | None, variable: str = "TURNBUCKLE_NATS_NKEY_SEED_FILE") -> str | None:
    if path is None:
        return None
    expanded = Path(path).expanduser()
    if not expanded.is_file():
        raise BusSettingsError(f"{variable}: {expanded} does not exist")
    try:
        import nkeys  # type: ignore[import-not-found,unused-ignore] # noqa: F401, PLC0415 - only needed with credentials
    except ImportError as error:
        raise BusSettingsError("credentials files need the package nkeys: pip install nkeys") from error
    return str(expanded)


def _check_version(connection: Connection, dispatch: Dispatch) -> None:
    version = connection.connected_server_version
    if (version.major, version.minor) < _OLDEST_SERVER:
        dispatch.log.warning(
            "server_too_old",
            version=f"{version.major}.{version.minor}.{version.patch}",
            consequence="histories cannot be read; before 2.10, times to live are ignored silently: use 2.11 or later",
        )
