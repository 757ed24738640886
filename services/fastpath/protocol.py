"""Datagrams between hosts: "this host is unreachable through that ToR", and its acknowledgement. Pure.

One datagram: the receiver's tag; then magic, version, kind, boot id, number, sender's VTEP, ToR's router id; then the
HMAC-SHA256 of all but the tag, with the fabric's key. A receiver also requires the datagram's source address to be the
sender's VTEP.

The tag is 64 bits of an HMAC of the receiver's address: constant per receiver, so that a classic BPF program can
compare it: a sender that has never seen a datagram to that receiver cannot pass the kernel's filter. It authenticates
nothing.

Boot ids are ordered: the sender's CLOCK_REALTIME in nanoseconds at its start. Of each sender the highest one counts,
lower ones are rejected, as are numbers seen before: a replayed datagram acts at most once, and never at a receiver that
knows a later start. A sender whose clock went backwards between two starts receives `Kind.STALE` with the boot id that
the receiver knows (authenticated like all others), takes a higher one, and repeats: it is never locked out.
"""

from __future__ import annotations

import hmac
import struct
from collections import deque
from dataclasses import dataclass
from enum import Enum, IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

PORT: Final = 4799
_BODY: Final = struct.Struct("!4sBBHQQ16s4s")
_MAGIC: Final = b"TBFP"
_VERSION: Final = 2
"""1 had random boot ids, whose order says nothing, and no tag: neither version acts upon the other."""
_MAC_BYTES: Final = 32
TAG_BYTES: Final = 8
SIZE: Final = TAG_BYTES + _BODY.size + _MAC_BYTES
_LAST_BOOT: Final = (1 << 64) - 1
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""An IPv4 address in sixteen bytes (RFC 4291, 2.5.5.2)."""
_WINDOW: Final = 64
REPEATS: Final = 8
"""Of an announcement, to each host that has not acknowledged it."""


class Kind(IntEnum):
    """Type of a datagram."""

    FAULT = 1
    """The sender cannot be reached through the ToR."""
    ACK = 2
    """The sender has received the fault with this boot id and number."""
    STALE = 3
    """The sender has rejected the fault with this number: it knows a later start, whose boot id this carries."""


_KINDS: Final = frozenset(Kind)


class PeerMessage(NamedTuple):
    """A datagram's content."""

    kind: Kind
    boot: int
    """Of the host that has the fault."""
    number: int
    """Counts that host's faults from 1."""
    sender: str
    """VTEP of the sender of this datagram."""
    tor: str
    """Router id."""


class RejectReason(Enum):
    """Why a datagram is rejected."""

    MALFORMED = "malformed"
    """Its length, tag or content is invalid."""
    VERSION = "version"
    """Of another version of this protocol."""
    FORGED = "forged"
    """Its HMAC was not made with this key."""
    SPOOFED = "spoofed"
    """Its source address is not the sender that it names."""


def receiver_tag(key: bytes, vtep: str) -> bytes:
    """The first bytes of a datagram to this address.

    Raises:
        OSError: it is no address.
    """
    return hmac.digest(key, b"turnbuckle fast path receiver" + _pack_address(vtep), "sha256")[:TAG_BYTES]


def seal(message: PeerMessage, key: bytes) -> bytes:
    """The datagram without its tag, the same for every receiver.

    Raises:
        ValueError: sender or ToR is no address.
    """
    body = _BODY.pack(
        _MAGIC,
        _VERSION,
        message.kind,
        0,
        message.boot,
        message.number,
        _pack_address(message.sender),
        IPv4Address(message.tor).packed,
    )
    return body + hmac.digest(key, body, "sha256")


def encode(message: PeerMessage, key: bytes, receiver: str) -> bytes:
    """The datagram to one receiver. Raises OSError as `seal`."""
    return receiver_tag(key, receiver) + seal(message, key)


def decode(data: bytes, source: str, key: bytes, tag: bytes) -> PeerMessage | RejectReason:
    """Verify a datagram and return its content, or why it is rejected.

    Args:
        data: the datagram.
        source: the address that it came from.
        key: the fabric's.
        tag: this receiver's.
    """
    if len(data) != SIZE or not data.startswith(tag):
        return RejectReason.MALFORMED
    body = data[TAG_BYTES : TAG_BYTES + _BODY.size]
    magic, version, kind, _, boot, number, sender, tor = _BODY.unpack(body)
    if magic != _MAGIC or kind not in _KINDS:
        return RejectReason.MALFORMED
    if version != _VERSION:
        return RejectReason.VERSION
    if not hmac.compare_digest(hmac.digest(key, body, "sha256"), data[TAG_BYTES + _BODY.size :]):
        return RejectReason.FORGED
    address = _unpack_address(sender)
    if address != source:
        return RejectReason.SPOOFED
    return PeerMessage(Kind(kind), boot, number, address, str(IPv4Address(tor)))


def later_boot(own: int, known: int, salt: int) -> int:
    """The sender's next boot id, if a receiver knows ``known``.

    Args:
        own: the current one.
        known: of an authentic `Kind.STALE`; ignored unless it is higher.
        salt: random, below 2**32: two starts that receive the same one do not take the same boot id, whose numbers a
            receiver would take for repeats.
    """
    return min(known + 1 + salt, _LAST_BOOT) if known > own else own


@dataclass(slots=True)
class Announcement:
    """A fault that is being announced."""

    number: int
    tor: str
    datagram: bytes
    """Without a tag."""
    started_s: float
    """When the fault was detected."""
    unacknowledged: dict[str, None]
    """VTEPs without acknowledgement, in order."""
    recipients: int
    round: list[str]
    """VTEPs not yet sent to in this round."""
    next_s: float
    rounds: int = 0
    last_ack_s: float = 0.0

    @property
    def done(self) -> bool:
        """Whether all have acknowledged, or all repeats were sent."""
        return not self.unacknowledged or (self.rounds >= REPEATS and not self.round)


def _pack_address(address: str) -> bytes:
    packed = ip_address(address).packed
    return packed if len(packed) == len(_MAPPED) + 4 else _MAPPED + packed


def _unpack_address(data: bytes) -> str:
    return str(IPv4Address(data[12:]) if data.startswith(_MAPPED) else IPv6Address(data))


class ReplayCheck(Enum):
    """Result of the replay check of a fault's boot id and number."""

    NEW = "new"
    REPEATED = "repeated"
    """Of this start, seen before: the acknowledgement was lost."""
    REPLAYED = "replayed"
    """Of this start, and older than the window."""
    STALE = "stale"
    """Of an earlier start: replayed, or its sender's clock went backwards."""


class _Sender:
    __slots__ = ("boot", "highest", "seen")

    def __init__(self, boot: int) -> None:
        self.boot = boot
        self.highest = 0
        self.seen: deque[int] = deque(maxlen=_WINDOW)


class ReplayGuard:
    """Keeps each sender's latest start and its numbers."""

    def __init__(self) -> None:
        self._senders: dict[str, _Sender] = {}

    def check(self, message: PeerMessage) -> ReplayCheck:
        """Check a fault, and record it."""
        sender = self._senders.get(message.sender)
        if sender is None or message.boot > sender.boot:
            sender = self._senders[message.sender] = _Sender(message.boot)
        elif message.boot < sender.boot:
            return ReplayCheck.STALE
        if message.number in sender.seen:
            return ReplayCheck.REPEATED
        if message.number <= sender.highest - _WINDOW:
            return ReplayCheck.REPLAYED
        sender.seen.append(message.number)
        sender.highest = max(sender.highest, message.number)
        return ReplayCheck.NEW

    def latest_boot(self, sender: str) -> int:
        """The latest boot id of a sender.

        Raises:
            KeyError: unknown sender.
        """
        return self._senders[sender].boot
