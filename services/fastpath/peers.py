"""Peer signalling over UDP: announces faults until each host has acknowledged, receives theirs (rules 6 and 7).

A received datagram passes, in this order: the kernel's filter (length, tag, denied sources), the token bucket of its
source, the HMAC, the comparison of source and sender, the replay check. So garbage costs no HMAC, and the number of
datagrams read per second is bounded.
"""

from __future__ import annotations

import secrets
import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from services._host.netns import socket_in
from services.fastpath.limiter import Denied, SourceLimiter
from services.fastpath.packet_filter import attach, datagram_filter, dropped_by
from services.fastpath.protocol import (
    Announcement,
    Kind,
    PeerMessage,
    RejectReason,
    ReplayCheck,
    ReplayGuard,
    decode,
    later_boot,
    receiver_tag,
    seal,
)

REPEAT_S: Final = 0.002
_BURST: Final = 64
"""Datagrams sent or read at once; then the loop handles more urgent events."""
_MAX_PENDING: Final = 64
_MAX_TAGS: Final = 100_000
_SALT_BITS: Final = 32
_CS6: Final = 0xC0
"""Network control (RFC 4594)."""
_IP_FREEBIND: Final = 15
_IPV6_TCLASS: Final = 67


class PeerFault(NamedTuple):
    """A new, authenticated fault of another host."""

    sender: str
    tor: str


class PeerLink:
    """The UDP socket of this host's VTEP. Non-blocking."""

    def __init__(self, netns: str | None, vtep: str, port: int, *, key: bytes, boot: int) -> None:
        """Bind.

        Raises:
            OSError: no such namespace, no right, or the port is taken.
        """
        self._vtep, self._port, self._key, self._boot = vtep, port, key, boot
        family = socket.AF_INET6 if ":" in vtep else socket.AF_INET
        self._socket = socket_in(netns, family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)  # the address may be configured later
        if family == socket.AF_INET6:
            self._socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_TCLASS, _CS6)
        else:
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _CS6)
        self._tag = receiver_tag(key, vtep)
        self._tags: dict[str, bytes] = {}
        self._limiter = SourceLimiter(0.0)
        self._filtered = -1
        self._update_filter()
        self._socket.bind((vtep, port))
        self._replay_guard = ReplayGuard()
        self._number = 0
        self._pending: dict[int, Announcement] = {}
        self._replies: list[tuple[PeerMessage, str]] = []
        self.counts: Counter[str] = Counter()
        """sent, acked, limited, dropped (by the kernel), a `ReplayCheck`'s and a `RejectReason`'s value."""

    def fileno(self) -> int:
        """For epoll."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def announce(self, tor: str, vteps: Iterable[str], *, noticed_s: float, now_s: float) -> Announcement:
        """Start an announcement; the first datagrams are sent at once."""
        self._number += 1
        unacknowledged = dict.fromkeys(vtep for vtep in vteps if vtep != self._vtep)
        datagram = self._sealed(self._number, tor)
        announcement = Announcement(
            self._number,
            tor,
            datagram,
            noticed_s,
            unacknowledged,
            len(unacknowledged),
            list(unacknowledged),
            now_s,
        )
        announcement.round.reverse()
        self._send_round(announcement, now_s)
        if len(self._pending) < _MAX_PENDING:
            self._pending[announcement.number] = announcement
        else:
            announcement.unacknowledged.clear()  # sent once, without repeats
        return announcement

    def _sealed(self, number: int, tor: str) -> bytes:
        return seal(PeerMessage(Kind.FAULT, self._boot, number, self._vtep, tor), self._key)

    @property
    def due_s(self) -> float:
        """When the next `send_due` is due."""
        return min((announcement.next_s for announcement in self._pending.values()), default=float("inf"))

    @property
    def limit_due_s(self) -> float:
        """When the next `lift_limits` is due."""
        return self._limiter.due_s

    @property
    def paused_until_s(self) -> float:
        """After too many datagrams in total nothing is read until then; they stay in the socket's queue."""
        return self._limiter.paused_until_s

    def lift_limits(self, now_s: float) -> None:
        """Accept sources again whose denial has expired."""
        self._limiter.expire(now_s)
        self._update_filter()

    def newly_denied(self) -> list[Denied]:
        """Sources that were denied since the last call."""
        news, self._limiter.newly_denied = self._limiter.newly_denied, []
        return news

    @property
    def denied_now(self) -> list[str]:
        """Sources that are denied."""
        return list(self._limiter.denied)

    def count_dropped(self) -> None:
        """Update the count of datagrams that the kernel dropped."""
        with suppress(OSError):
            self.counts["dropped"] = dropped_by(self._socket)

    def _update_filter(self) -> None:
        """Update the kernel's filter with the denied sources."""
        if self._filtered != self._limiter.changes:
            self._filtered = self._limiter.changes
            with suppress(OSError):  # then they are dropped here, at a higher cost
                attach(self._socket, datagram_filter(self._tag, self._limiter.denied))

    def send_due(self, now_s: float) -> list[Announcement]:
        """Send what is due, at most a burst of each; returns announcements that have ended."""
        ended = []
        for announcement in list(self._pending.values()):
            if not announcement.done and now_s >= announcement.next_s:
                if not announcement.round:
                    announcement.round = [*announcement.unacknowledged]
                    announcement.round.reverse()
                self._send_round(announcement, now_s)
            if not announcement.unacknowledged or (announcement.done and now_s >= announcement.next_s):
                ended.append(self._pending.pop(announcement.number))
        return ended

    def _send_round(self, announcement: Announcement, now_s: float) -> None:
        for _ in range(min(_BURST, len(announcement.round))):
            vtep = announcement.round.pop()
            if vtep in announcement.unacknowledged:
                self._send(announcement.datagram, vtep)
        if announcement.round:
            announcement.next_s = now_s
        else:
            announcement.rounds += 1
            announcement.next_s = now_s + REPEAT_S

    def _send(self, datagram: bytes, vtep: str) -> None:
        tag = self._tags.get(vtep)
        if tag is None:
            if len(self._tags) >= _MAX_TAGS:
                self._tags.clear()
            tag = self._tags[vtep] = receiver_tag(self._key, vtep)
        try:
            self._socket.sendto(tag + datagram, (vtep, self._port))
            self.counts["sent"] += 1
        except OSError:  # no route, or the buffer is full: it is repeated
            self.counts["unsent"] += 1

    def receive(self, now_s: float) -> list[PeerFault]:
        """Receive datagrams; returns new faults of others, to apply before `send_replies`."""
        faults: list[PeerFault] = []
        limiter = self._limiter
        for _ in range(_BURST):
            try:
                data, source = self._socket.recvfrom(256)
            except BlockingIOError:
                break
            except OSError:  # an ICMP error for a sent datagram
                continue
            if not limiter.allow(str(source[0]), now_s):
                self.counts["limited"] += 1
                if now_s < limiter.paused_until_s:
                    break
                continue
            message = decode(data, str(source[0]), self._key, self._tag)
            if isinstance(message, RejectReason):
                self.counts[message.value] += 1
            else:
                faults += self._handle(message, now_s)
        self._update_filter()
        return faults

    def _handle(self, message: PeerMessage, now_s: float) -> list[PeerFault]:
        if message.kind is Kind.ACK:
            self._acknowledged(message, now_s)
            return []
        if message.kind is Kind.STALE:
            self._handle_stale(message)
            return []
        check = self._replay_guard.check(message)
        self.counts[check.value] += 1
        if check is ReplayCheck.STALE:
            latest = self._replay_guard.latest_boot(message.sender)
            self._replies.append((message._replace(kind=Kind.STALE, boot=latest, sender=self._vtep), message.sender))
        elif check is not ReplayCheck.REPLAYED:
            self._replies.append((message._replace(kind=Kind.ACK, sender=self._vtep), message.sender))
        return [PeerFault(message.sender, message.tor)] if check is ReplayCheck.NEW else []

    def send_replies(self) -> None:
        """Send acknowledgements: after the override, as before it they might use the dead hop."""
        answers, self._replies = self._replies, []
        for message, receiver in answers:
            self._send(seal(message, self._key), receiver)

    def _acknowledged(self, message: PeerMessage, now_s: float) -> None:
        announcement = self._pending.get(message.number) if message.boot == self._boot else None
        if announcement is not None and message.sender in announcement.unacknowledged:
            del announcement.unacknowledged[message.sender]
            announcement.last_ack_s = now_s
            self.counts["acked"] += 1

    def _handle_stale(self, message: PeerMessage) -> None:
        """A receiver knows a later start of this host, whose clock went backwards: repeat with a higher boot id."""
        announcement = self._pending.get(message.number)
        if announcement is None or message.sender not in announcement.unacknowledged:
            return
        boot = later_boot(self._boot, message.boot, secrets.randbits(_SALT_BITS))
        if boot != self._boot:
            self._boot = boot
            self.counts["refused_as_stale"] += 1
            for each in self._pending.values():
                each.datagram = self._sealed(each.number, each.tor)
        self._send(announcement.datagram, message.sender)
