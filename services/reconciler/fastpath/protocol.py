"""What hosts tell each other: "I cannot be reached through that ToR", and that it was heard. Pure.

One datagram: magic, version, kind, boot id, number, sender's VTEP, ToR's router id, HMAC-SHA256 of all that with the
fabric's key. A receiver also wants the datagram's source address to be the sender's VTEP. The boot id is random per
start; of each sender the latest one counts, and those before it are refused, as are numbers seen before: what was
recorded once does not work a second time.
"""

from __future__ import annotations

import hmac
import socket
import struct
from collections import deque
from enum import Enum, IntEnum
from typing import Final, NamedTuple

PORT: Final = 4799
_BODY: Final = struct.Struct("!4sBBHQQ16s4s")
_MAGIC: Final = b"TBFP"
_VERSION: Final = 1
_MAC_BYTES: Final = 32
SIZE: Final = _BODY.size + _MAC_BYTES
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""An IPv4 address in sixteen bytes (RFC 4291, 2.5.5.2)."""
_WINDOW: Final = 64
_BOOTS: Final = 64


class Kind(IntEnum):
    """What a datagram is."""

    FAULT = 1
    """The sender cannot be reached through the ToR."""
    ACK = 2
    """The sender has heard the fault with this boot id and number, of whom it answers."""


class PeerMessage(NamedTuple):
    """A datagram's content."""

    kind: Kind
    boot: int
    """Of the host that has the fault."""
    number: int
    """Counts that host's faults from 1."""
    sender: str
    """VTEP of who sends this datagram."""
    tor: str
    """Router id."""


class Refusal(Enum):
    """Why a datagram is not listened to."""

    MALFORMED = "malformed"
    FORGED = "forged"
    """Its HMAC is not of our key."""
    SPOOFED = "spoofed"
    """It did not come from the sender that it names."""


def encode(message: PeerMessage, key: bytes) -> bytes:
    """The datagram.

    Raises:
        OSError: sender or ToR is no address.
    """
    body = _BODY.pack(
        _MAGIC,
        _VERSION,
        message.kind,
        0,
        message.boot,
        message.number,
        _pack_address(message.sender),
        socket.inet_aton(message.tor),
    )
    return body + hmac.digest(key, body, "sha256")


def decode(data: bytes, source: str, key: bytes) -> PeerMessage | Refusal:
    """The content, once everything about it is in order."""
    if len(data) != SIZE:
        return Refusal.MALFORMED
    body = data[: _BODY.size]
    magic, version, kind, _, boot, number, sender, tor = _BODY.unpack(body)
    if magic != _MAGIC or version != _VERSION or kind not in {1, 2}:
        return Refusal.MALFORMED
    if not hmac.compare_digest(hmac.digest(key, body, "sha256"), data[_BODY.size :]):
        return Refusal.FORGED
    address = _unpack_address(sender)
    if address != source:
        return Refusal.SPOOFED
    return PeerMessage(Kind(kind), boot, number, address, socket.inet_ntoa(tor))


def _pack_address(address: str) -> bytes:
    if ":" in address:
        return socket.inet_pton(socket.AF_INET6, address)
    return _MAPPED + socket.inet_pton(socket.AF_INET, address)


def _unpack_address(data: bytes) -> str:
    if data.startswith(_MAPPED):
        return socket.inet_ntoa(data[12:])
    return socket.inet_ntop(socket.AF_INET6, data)


class Verdict(Enum):
    """What a fault's boot id and number say."""

    NEW = "new"
    REPEATED = "repeated"
    """Of this start, seen before: its sender has not got our acknowledgement."""
    REPLAYED = "replayed"
    """Of a start before the current one, or too old to tell."""


class _Sender:
    __slots__ = ("boot", "highest", "retired", "seen")

    def __init__(self, boot: int) -> None:
        self.boot = boot
        self.highest = 0
        self.seen: deque[int] = deque(maxlen=_WINDOW)
        self.retired: deque[int] = deque(maxlen=_BOOTS)


class ReplayGuard:
    """Remembers, of each sender, its starts and the numbers of the latest."""

    def __init__(self) -> None:
        self._senders: dict[str, _Sender] = {}

    def judge(self, message: PeerMessage) -> Verdict:
        """Whether a fault is new; from then on it is not."""
        sender = self._senders.get(message.sender)
        if sender is None:
            sender = self._senders[message.sender] = _Sender(message.boot)
        elif message.boot != sender.boot:
            if message.boot in sender.retired:
                return Verdict.REPLAYED
            sender.retired.append(sender.boot)
            sender.boot, sender.highest = message.boot, 0
            sender.seen.clear()
        if message.number in sender.seen:
            return Verdict.REPEATED
        if message.number <= sender.highest - _WINDOW:
            return Verdict.REPLAYED
        sender.seen.append(message.number)
        sender.highest = max(sender.highest, message.number)
        return Verdict.NEW
