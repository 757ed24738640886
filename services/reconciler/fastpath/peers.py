"""Telling the other hosts of a fault, until each has acknowledged, and hearing theirs (rules 6 and 7)."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from services._runtime.netns import socket_in
from services.reconciler.fastpath.protocol import (
    Kind,
    PeerMessage,
    Refusal,
    ReplayGuard,
    Verdict,
    decode,
    encode,
)

REPEAT_S: Final = 0.002
REPEATS: Final = 8
_BURST: Final = 64
"""Datagrams sent or read in one go: between two of them the loop looks for what is more urgent."""
_MOST_PENDING: Final = 64
_CS6: Final = 0xC0
"""Network control (RFC 4594)."""
_IP_FREEBIND: Final = 15
_IPV6_TCLASS: Final = 67


@dataclass(slots=True)
class Announcement:
    """A fault that is being told."""

    number: int
    datagram: bytes
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
        self._socket.bind((vtep, port))
        self._guard = ReplayGuard()
        self._number = 0
        self._pending: dict[int, Announcement] = {}
        self._unacknowledged: list[PeerMessage] = []
        self.counts: Counter[str] = Counter()
        """sent, acked, faults, repeated, replayed, and a `Refusal`'s value."""

    def fileno(self) -> int:
        """For epoll."""
        return self._socket.fileno()

    def close(self) -> None:
        """Let go."""
        self._socket.close()

    def tell(self, tor: str, vteps: Iterable[str], *, noticed_s: float, now_s: float) -> Announcement:
        """Begin to tell; the first datagrams leave at once."""
        self._number += 1
        message = PeerMessage(Kind.FAULT, self._boot, self._number, self._vtep, tor)
        waiting = dict.fromkeys(vtep for vtep in vteps if vtep != self._vtep)
        made = Announcement(
            self._number, encode(message, self._key), noticed_s, waiting, len(waiting), list(waiting), now_s
        )
        made.round.reverse()
        self._send_round(made, now_s)
        if len(self._pending) < _MOST_PENDING:
            self._pending[made.number] = made
        else:
            made.waiting.clear()  # nobody will be asked again
        return made

    @property
    def due_s(self) -> float:
        """When `send_due` has something to send."""
        return min((made.next_s for made in self._pending.values()), default=float("inf"))

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
        try:
            self._socket.sendto(datagram, (vtep, self._port))
            self.counts["sent"] += 1
        except OSError:  # no route just now, or the buffer is full: it is sent again
            self.counts["unsent"] += 1

    def receive(self, now_s: float) -> list[Fault]:
        """Faults of others that are new: act on them, then `acknowledge`. Acknowledgements of ours are taken."""
        faults: list[Fault] = []
        for _ in range(_BURST):
            try:
                data, source = self._socket.recvfrom(256)
            except BlockingIOError:
                break
            except OSError:  # an ICMP error of something that was sent
                continue
            message = decode(data, str(source[0]), self._key)
            if isinstance(message, Refusal):
                self.counts[message.value] += 1
            elif message.kind is Kind.ACK:
                self._acknowledged(message, now_s)
            else:
                verdict = self._guard.judge(message)
                self.counts[verdict.value] += 1
                if verdict is Verdict.NEW:
                    faults.append(Fault(message.sender, message.tor))
                if verdict is not Verdict.REPLAYED:
                    self._unacknowledged.append(message)
        return faults

    def acknowledge(self) -> None:
        """Answer what was received: after the override, for before it the answer might take the dead hop."""
        heard, self._unacknowledged = self._unacknowledged, []
        for message in heard:
            self._send(encode(message._replace(kind=Kind.ACK, sender=self._vtep), self._key), message.sender)

    def _acknowledged(self, message: PeerMessage, now_s: float) -> None:
        made = self._pending.get(message.number) if message.boot == self._boot else None
        if made is not None and message.sender in made.waiting:
            del made.waiting[message.sender]
            made.last_ack_s = now_s
            self.counts["acked"] += 1
