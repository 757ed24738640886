"""bfdd's control socket: state changes of BFD sessions as they happen (FRR's bfdd/control.c, version 1).

A stream of frames: payload length, id, type, version in network order, then JSON without NUL. On a subscription
to all notifications, bfdd replies with the result and then with every session. Its JSON about an IPv6 session of
an interface names the interface, which identifies the uplink.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Final, NamedTuple

from services.fastpath.values import (
    ADMIN_DOWN,
    DOWN,
    LOCAL_ADMIN_DOWN,
    REMOTE_ADMIN_DOWN,
    UP,
    Status,
)

_FRAME: Final = struct.Struct("!IHBB")
_VERSION: Final = 1
_RESPONSE, _NOTIFY, _NOTIFY_ALL = 1, 4, 4
_SUBSCRIBE_ID: Final = 1
_PEER_STATE_AND_CONFIG: Final = struct.pack("=Q", 3)
"""In host byte order: bfdd copies it unchanged."""
_MAX_FRAME_BYTES: Final = 1 << 20
_RECEIVE_BYTES: Final = 1 << 16
_MAX_SESSIONS: Final = 100_000
_NEIGHBOUR_SIGNALED_DOWN: Final = 3
"""Diagnostic (RFC 5880, 4.1)."""
_NO_FAILURE: Final = frozenset({0, 7})
"""None, and administratively down."""


class BfdError(Exception):
    """The peer of the socket does not speak bfdd's protocol, version 1."""


class Session(NamedTuple):
    """Notification about one session."""

    interface: str
    """Empty: not bound to an interface."""
    peer: str
    state: str | None
    """up, down, init, or one of `ADMIN_DOWN`; None: the session was deleted."""


class Subscribed(NamedTuple):
    """bfdd accepted the subscription; its sessions follow at once."""


def subscribe_frame() -> bytes:
    """Request every session and every change."""
    return _FRAME.pack(len(_PEER_STATE_AND_CONFIG), _SUBSCRIBE_ID, _NOTIFY_ALL, _VERSION) + _PEER_STATE_AND_CONFIG


class FrameReader:
    """Parses the byte stream into notifications; frames may arrive in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Session | Subscribed]:
        """Notifications that these bytes complete.

        Raises:
            BfdError: not this protocol, or the subscription was refused.
        """
        rest = self._rest + data
        found: list[Session | Subscribed] = []
        while len(rest) >= _FRAME.size:
            length, _, kind, version = _FRAME.unpack_from(rest)
            if version != _VERSION or length > _MAX_FRAME_BYTES:
                raise BfdError(f"frame of type {kind}, version {version}, {length} bytes: version 1 is spoken here")
            if len(rest) < _FRAME.size + length:
                break
            fields = _read_payload(kind, rest[_FRAME.size : _FRAME.size + length])
            if fields is not None:
                found.append(fields)
            rest = rest[_FRAME.size + length :]
        self._rest = rest
        return found


def _read_payload(kind: int, payload: bytes) -> Session | Subscribed | None:
    try:
        fields = json.loads(payload)
    except ValueError as error:
        raise BfdError(f"a frame of type {kind} holds no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BfdError(f"a frame of type {kind} holds {type(fields).__name__}, not an object")
    if kind == _RESPONSE:
        if fields.get("status") != "ok":
            raise BfdError(f"bfdd refused the subscription: {fields.get('error', 'no reason given')}")
        return Subscribed()
    return _read_session(fields) if kind == _NOTIFY else None


def _read_session(fields: dict[str, Any]) -> Session | None:
    if fields.get("multihop") is True:
        return None  # routed over any path: it monitors no single uplink
    interface, peer = str(fields.get("local-interface", "")), str(fields.get("peer-address", ""))
    match fields.get("op"):
        case "status" if isinstance(fields.get("state"), str):
            return Session(interface, peer, _state_of(fields))
        case "delete":
            return Session(interface, peer, None)
    return None  # a session was added or its timers changed: its status follows


def _state_of(fields: dict[str, Any]) -> str:
    """The session's state; a session that goes down with diagnostic 3 follows its neighbour's state (RFC 5880, 6.8.6).

    A neighbour that detected a failure sends its diagnostic. One without has closed the session (FRR 8.4 sends "ok",
    not "administratively down"), or has restarted: its packets arrive, so the path is not at fault.
    """
    state = str(fields["state"])
    neighbor_signaled = fields.get("diagnostics") == _NEIGHBOUR_SIGNALED_DOWN
    closed = state in DOWN and neighbor_signaled and fields.get("remote-diagnostics") in _NO_FAILURE
    return REMOTE_ADMIN_DOWN if closed else state


def admin_down_status(uplink: str, before: str | None, state: str | None) -> Status | None:
    """Status event of a session that was closed administratively, or opened again (RFC 5882, 4.2).

    AdminDown says nothing about the path, so there is no override. But the path is no longer monitored.
    """
    if state in ADMIN_DOWN and state != before:
        where = "here" if state == LOCAL_ADMIN_DOWN else "by the switch, or its bfdd started again"
        reason = f"{uplink}: BFD was closed administratively {where}: silent faults cost BGP's hold time until it is up"
        return Status("bfd_admin_down", f"{reason}; no override for it", alarm=True, uplink=uplink)
    if before in ADMIN_DOWN and state not in ADMIN_DOWN and state is not None:
        return Status("bfd_opened", f"{uplink}: BFD is open again, its session is {state}", uplink=uplink)
    return None


class Sessions:
    """Combined session state per uplink: one session that is up means that packets pass."""

    def __init__(self, uplinks: frozenset[str]) -> None:
        self._uplinks = uplinks
        self._states: dict[str, dict[str, str]] = {}
        """By uplink and peer address."""

    def clear(self) -> None:
        """Forget all sessions."""
        self._states.clear()

    def update(self, session: Session) -> tuple[str, str | None] | None:
        """The uplink and the combined state of its sessions; None: not an uplink."""
        uplink = session.interface
        if uplink not in self._uplinks:
            return None
        states = self._states.setdefault(uplink, {})
        if session.state is None:
            states.pop(session.peer, None)
        elif len(states) < _MAX_SESSIONS:
            states[session.peer] = session.state
        return uplink, combined(states.values())

    def peers(self) -> dict[str, str]:
        """Uplink by the peer address of its session."""
        return {peer: uplink for uplink, states in self._states.items() for peer in states}


def combined(states: Any) -> str | None:
    """Up if one is up; else the worst state of the path; None: no session."""
    fields = set(states)
    for state in (UP, "down", "init", LOCAL_ADMIN_DOWN):
        if state in fields:
            return state
    return next(iter(fields), None)


class BfdClient:
    """Connection to bfdd. Non-blocking; `fileno` is for epoll. After an exception it is closed: make a new one."""

    def __init__(self, path: str) -> None:
        """Connect and subscribe.

        Raises:
            OSError: no connection.
        """
        self._reader = FrameReader()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(path)
            self._socket.sendall(subscribe_frame())
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """For epoll."""
        return self._socket.fileno()

    def read(self) -> list[Session | Subscribed]:
        """Read notifications.

        Raises:
            BfdError: see `FrameReader.feed`.
            OSError: the connection broke (ConnectionResetError where bfdd closed it).
        """
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("bfdd closed its control socket")
        return self._reader.feed(data)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
