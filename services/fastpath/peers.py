"""Telling the other hosts of a fault, until each has acknowledged, and hearing theirs (rules 6 and 7).

What arrives passes, in this order: the kernel's filter (length, our tag, no denied source), the bucket of its source,
its HMAC, the comparison of source and sender, the replay guard. So garbage costs no HMAC, and at most so many datagrams
a second are read at all.
"""

from __future__ import annotations

import secrets
import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from services._host.netns import socket_in
from services.fastpath.limiter import Denied, SourceLimiter
from services.fastpath.packet_filter import attach, datagram_filter, dropped_by
from services.fastpath.protocol import (
    Kind,
    PeerMessage,
    Refusal,
    ReplayGuard,
    Verdict,
    decode,
    later_boot,
    receiver_tag,
    seal,
)

REPEAT_S: Final = 0.002
REPEATS: Final = 8
_BURST: Final = 64
"""Datagrams sent or read in one go: between two of them the loop looks for what is more urgent."""
_MOST_PENDING: Final = 64
_MOST_TAGS: Final = 100_000
_SALT_BITS: Final = 32
_CS6: Final = 0xC0
"""Network control (RFC 4594)."""
_IP_FREEBIND: Final = 15
_IPV6_TCLASS: Final = 67


@dataclass(slots=True)
class Announcement:
    """A fault that is being told."""

    number: int
    tor: str
    datagram: bytes
    """Without a tag."""
    started_s: float
    """When the fault was noticed."""
    waiting: dict[str, None]
    """VTEPs that have not acknowledged, in order."""
    asked: int
    round: list[str]
    """Those that are still to be sent to in this round."""
    next_s: float
    rounds: int = 0
    last_ack_s: float = 0.0

    @property
    def done(self) -> bool:
        """Whether nothing is to be sent any more."""
        return not self.waiting or (self.rounds >= REPEATS and not self.round)


class Fault(NamedTuple):
    """Another host's fault, new and authentic."""

    sender: str
    tor: str


class PeerLink:
    """The UDP socket of this host's VTEP. Never waits."""

    def __init__(self, netns: str | None, vtep: str, port: int, *, key: bytes, boot: int) -> None:
        """Bind.

        Raises:
            OSError: no such namespace, no right, or the port is taken.
        """
        self._vtep, self._port, self._key, self._boot = vtep, port, key, boot
        family = socket.AF_INET6 if ":" in vtep else socket.AF_INET
        self._socket = socket_in(netns, family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)  # the address may come later than we do
        if family == socket.AF_INET6:
            self._socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_TCLASS, _CS6)
        else:
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _CS6)
        self._tag = receiver_tag(key, vtep)
        self._tags: dict[str, bytes] = {}
        self._limiter = SourceLimiter(0.0)
        self._filtered = -1
        self._filter()
        self._socket.bind((vtep, port))
        self._guard = ReplayGuard()
        self._number = 0
        self._pending: dict[int, Announcement] = {}
        self._answers: list[tuple[PeerMessage, str]] = []
        self.counts: Counter[str] = Counter()
        """sent, acked, limited, dropped (by the kernel), a `Verdict`'s and a `Refusal`'s value."""

    def fileno(self) -> int:
        """For epoll."""
        return self._socket.fileno()

    def close(self) -> None:
        """Let go."""
        self._socket.close()

    def tell(self, tor: str, vteps: Iterable[str], *, noticed_s: float, now_s: float) -> Announcement:
        """Begin to tell; the first datagrams leave at once."""
        self._number += 1
        waiting = dict.fromkeys(vtep for vtep in vteps if vtep != self._vtep)
        datagram = self._sealed(self._number, tor)
        made = Announcement(self._number, tor, datagram, noticed_s, waiting, len(waiting), list(waiting), now_s)
        made.round.reverse()
        self._send_round(made, now_s)
        if len(self._pending) < _MOST_PENDING:
            self._pending[made.number] = made
        else:
            made.waiting.clear()  # nobody will be asked again
        return made

    def _sealed(self, number: int, tor: str) -> bytes:
        return seal(PeerMessage(Kind.FAULT, self._boot, number, self._vtep, tor), self._key)

    @property
    def due_s(self) -> float:
        """When `send_due` has something to send."""
        return min((made.next_s for made in self._pending.values()), default=float("inf"))

    @property
    def limit_due_s(self) -> float:
        """When `lift_limits` has something to do."""
        return self._limiter.due_s

    @property
    def paused_until_s(self) -> float:
        """Too many datagrams in all: nothing is read until then, and waits in the socket's queue."""
        return self._limiter.paused_until_s

    def lift_limits(self, now_s: float) -> None:
        """Listen again to sources whose time of being denied is over."""
        self._limiter.expire(now_s)
        self._filter()

    def newly_denied(self) -> list[Denied]:
        """Sources that were denied since the last call."""
        news, self._limiter.news = self._limiter.news, []
        return news

    @property
    def denied_now(self) -> list[str]:
        """Sources whose datagrams are dropped."""
        return list(self._limiter.denied)

    def count_dropped(self) -> None:
        """Have the kernel's count of dropped datagrams among the others."""
        with suppress(OSError):
            self.counts["dropped"] = dropped_by(self._socket)

    def _filter(self) -> None:
        """Have the kernel drop what need not be read."""
        if self._filtered != self._limiter.changes:
            self._filtered = self._limiter.changes
            with suppress(OSError):  # then what it would drop is dropped here, at a higher price
                attach(self._socket, datagram_filter(self._tag, self._limiter.denied))

    def send_due(self, now_s: float) -> list[Announcement]:
        """Send what is due, at most a burst of each; returns what has come to its end."""
        ended = []
        for made in list(self._pending.values()):
            if not made.done and now_s >= made.next_s:
                if not made.round:
                    made.round = [*made.waiting]
                    made.round.reverse()
                self._send_round(made, now_s)
            if not made.waiting or (made.done and now_s >= made.next_s):
                ended.append(self._pending.pop(made.number))
        return ended

    def _send_round(self, made: Announcement, now_s: float) -> None:
        for _ in range(min(_BURST, len(made.round))):
            vtep = made.round.pop()
            if vtep in made.waiting:
                self._send(made.datagram, vtep)
        if made.round:
            made.next_s = now_s
        else:
            made.rounds += 1
            made.next_s = now_s + REPEAT_S

    def _send(self, datagram: bytes, vtep: str) -> None:
        tag = self._tags.get(vtep)
        if tag is None:
            if len(self._tags) >= _MOST_TAGS:
                self._tags.clear()
            tag = self._tags[vtep] = receiver_tag(self._key, vtep)
        try:
            self._socket.sendto(tag + datagram, (vtep, self._port))
            self.counts["sent"] += 1
        except OSError:  # no route just now, or the buffer is full: it is sent again
            self.counts["unsent"] += 1

    def receive(self, now_s: float) -> list[Fault]:
        """Faults of others that are new: act on them, then `answer`. Acknowledgements of ours are taken."""
        faults: list[Fault] = []
        limiter = self._limiter
        for _ in range(_BURST):
            try:
                data, source = self._socket.recvfrom(256)
            except BlockingIOError:
                break
            except OSError:  # an ICMP error of something that was sent
                continue
            if not limiter.allow(str(source[0]), now_s):
                self.counts["limited"] += 1
                if now_s < limiter.paused_until_s:
                    break
                continue
            message = decode(data, str(source[0]), self._key, self._tag)
            if isinstance(message, Refusal):
                self.counts[message.value] += 1
            else:
                faults += self._heard(message, now_s)
        self._filter()
        return faults

    def _heard(self, message: PeerMessage, now_s: float) -> list[Fault]:
        if message.kind is Kind.ACK:
            self._acknowledged(message, now_s)
            return []
        if message.kind is Kind.STALE:
            self._refused(message)
            return []
        verdict = self._guard.judge(message)
        self.counts[verdict.value] += 1
        if verdict is Verdict.STALE:
            latest = self._guard.latest_boot(message.sender)
            self._answers.append((message._replace(kind=Kind.STALE, boot=latest, sender=self._vtep), message.sender))
        elif verdict is not Verdict.REPLAYED:
            self._answers.append((message._replace(kind=Kind.ACK, sender=self._vtep), message.sender))
        return [Fault(message.sender, message.tor)] if verdict is Verdict.NEW else []

    def answer(self) -> None:
        """Answer what was received: after the override, for before it the answer might take the dead hop."""
        answers, self._answers = self._answers, []
        for message, receiver in answers:
            self._send(seal(message, self._key), receiver)

    def _acknowledged(self, message: PeerMessage, now_s: float) -> None:
        made = self._pending.get(message.number) if message.boot == self._boot else None
        if made is not None and message.sender in made.waiting:
            del made.waiting[message.sender]
            made.last_ack_s = now_s
            self.counts["acked"] += 1

    def _refused(self, message: PeerMessage) -> None:
        """A receiver knows a later start of ours, as our clock went backwards: repeat, as of one later still."""
        made = self._pending.get(message.number)
        if made is None or message.sender not in made.waiting:
            return
        boot = later_boot(self._boot, message.boot, secrets.randbits(_SALT_BITS))
        if boot != self._boot:
            self._boot = boot
            self.counts["refused_as_stale"] += 1
            for each in self._pending.values():
                each.datagram = self._sealed(each.number, each.tor)
        self._send(made.datagram, message.sender)
