"""bfdd's control socket: state changes of BFD sessions as they happen (FRR's bfdd/control.c, version 1).

A stream of frames: payload length, id, type, version in network order, then JSON without NUL. Asked for all
notifications, bfdd answers with the outcome and then with every session that it has. Its JSON about an IPv6 session of
an interface names the interface, which is what an uplink is known by.
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
"""In the machine's order: bfdd copies it as it comes."""
_LONGEST: Final = 1 << 20
_RECEIVE_BYTES: Final = 1 << 16
_MOST_SESSIONS: Final = 100_000
_NEIGHBOUR_SIGNALED_DOWN: Final = 3
"""Diagnostic (RFC 5880, 4.1)."""
_NO_FAILURE: Final = frozenset({0, 7})
"""None, and administratively down."""


class BfdError(Exception):
    """The other end of the socket is no bfdd that we understand."""


class Session(NamedTuple):
    """What one frame says of one session."""

    interface: str
    """Empty: not bound to one."""
    peer: str
    state: str | None
    """up, down, init, or one of `ADMIN_DOWN`; None: the session was deleted."""


class Subscribed(NamedTuple):
    """bfdd has taken our subscription; the sessions that it has follow at once."""


def subscribe_frame() -> bytes:
    """Ask for every session and every change."""
    return _FRAME.pack(len(_PEER_STATE_AND_CONFIG), _SUBSCRIBE_ID, _NOTIFY_ALL, _VERSION) + _PEER_STATE_AND_CONFIG


class FrameReader:
    """Bytes in, what they say out; frames come in any pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Session | Subscribed]:
        """What is complete with these bytes.

        Raises:
            BfdError: not this protocol, or the subscription was refused.
        """
        rest = self._rest + data
        found: list[Session | Subscribed] = []
        while len(rest) >= _FRAME.size:
            length, _, kind, version = _FRAME.unpack_from(rest)
            if version != _VERSION or length > _LONGEST:
                raise BfdError(f"frame of type {kind}, version {version}, {length} bytes: version 1 is spoken here")
            if len(rest) < _FRAME.size + length:
                break
            said = _read_payload(kind, rest[_FRAME.size : _FRAME.size + length])
            if said is not None:
                found.append(said)
            rest = rest[_FRAME.size + length :]
        self._rest = rest
        return found


def _read_payload(kind: int, payload: bytes) -> Session | Subscribed | None:
    try:
        said = json.loads(payload)
    except ValueError as error:
        raise BfdError(f"a frame of type {kind} holds no JSON: {error}") from error
    if not isinstance(said, dict):
        raise BfdError(f"a frame of type {kind} holds {type(said).__name__}, not an object")
    if kind == _RESPONSE:
        if said.get("status") != "ok":
            raise BfdError(f"bfdd refused the subscription: {said.get('error', 'no reason given')}")
        return Subscribed()
    return _read_session(said) if kind == _NOTIFY else None


def _read_session(said: dict[str, Any]) -> Session | None:
    if said.get("multihop") is True:
        return None  # over whatever path: it says nothing of one uplink
    interface, peer = str(said.get("local-interface", "")), str(said.get("peer-address", ""))
    match said.get("op"):
        case "status" if isinstance(said.get("state"), str):
            return Session(interface, peer, _state_of(said))
        case "delete":
            return Session(interface, peer, None)
    return None  # a session was added or its timers changed: its status follows by itself


def _state_of(said: dict[str, Any]) -> str:
    """Whoever is told AdminDown or Down goes down itself, for the reason 3 (RFC 5880, 6.8.6).

    A neighbour that detected a failure says which. One that says none has closed the session (FRR 8.4 says "ok" then,
    not "administratively down"), or has started again: both ways we hear it, and it blames nothing on the path.
    """
    state = str(said["state"])
    told_to = said.get("diagnostics") == _NEIGHBOUR_SIGNALED_DOWN
    return REMOTE_ADMIN_DOWN if state in DOWN and told_to and said.get("remote-diagnostics") in _NO_FAILURE else state


def admin_down_news(uplink: str, before: str | None, state: str | None) -> Status | None:
    """What is to be told of a session that was closed administratively, or is open again (RFC 5882, 4.2).

    It says nothing of the path, so there is no override for it. But nobody watches the path any more.
    """
    if state in ADMIN_DOWN and state != before:
        where = "here" if state == LOCAL_ADMIN_DOWN else "by the switch, or its bfdd started again"
        reason = f"{uplink}: BFD was closed administratively {where}: silent faults cost BGP's hold time until it is up"
        return Status("bfd_admin_down", f"{reason}; no override for it", alarm=True, uplink=uplink)
    if before in ADMIN_DOWN and state not in ADMIN_DOWN and state is not None:
        return Status("bfd_opened", f"{uplink}: BFD is open again, its session is {state}", uplink=uplink)
    return None


class Sessions:
    """The sessions of each uplink, taken together: one that is up means that packets pass."""

    def __init__(self, uplinks: frozenset[str]) -> None:
        self._uplinks = uplinks
        self._states: dict[str, dict[str, str]] = {}
        """By uplink and peer address."""

    def clear(self) -> None:
        """Nothing is known any more."""
        self._states.clear()

    def update(self, session: Session) -> tuple[str, str | None] | None:
        """The uplink that this is about, and the state of all its sessions; None: none of ours."""
        uplink = session.interface
        if uplink not in self._uplinks:
            return None
        states = self._states.setdefault(uplink, {})
        if session.state is None:
            states.pop(session.peer, None)
        elif len(states) < _MOST_SESSIONS:
            states[session.peer] = session.state
        return uplink, combined(states.values())

    def peers(self) -> dict[str, str]:
        """Uplink by the peer address of its session."""
        return {peer: uplink for uplink, states in self._states.items() for peer in states}


def combined(states: Any) -> str | None:
    """Up where one is up; else the worst that is said of the path; None: no session."""
    said = set(states)
    for state in (UP, "down", "init", LOCAL_ADMIN_DOWN):
        if state in said:
            return state
    return next(iter(said), None)


class BfdClient:
    """The connection. Never waits; `fileno` is for epoll. After an exception it is closed: make a new one."""

    def __init__(self, path: str) -> None:
        """Connect and subscribe.

        Raises:
            OSError: nobody listens there.
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
        """What has come.

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
        """Let go."""
        self._socket.close()
