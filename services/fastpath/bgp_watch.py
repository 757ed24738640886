"""A switch that closes its BGP session with us: what only it can see, a link that loses what we send.

FRR's bfdd does not tell its peer that it hears nothing any more, so our own session expires up to one detection time
later. But the switch's bgpd closes the session at once (RFC 5882, 10.1), and its FIN comes in on the direction that
still works: measured 2 to 5 ms after the switch's detection, 70 ms before our FRR has a new route.

A connection is closed once: that it cannot hear our acknowledgement lets the switch send its FIN again and again, also
when the link has long been whole. A closing that was told of already is no news.

One packet socket per uplink, for IPv6 only, as sessions of unnumbered uplinks are: packets of the tunnels between IPv4
addresses do not pass its filter at all. Only link-local sources count, which nobody forwards.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from services._host.netns import socket_in
from services.fastpath.packet_filter import (
    AND,
    ANY_BIT,
    EQUAL,
    LOAD_BYTE,
    LOAD_HALF,
    RETURN,
    assemble,
    attach,
)
from services.fastpath.poller import Poller

_ETH_P_IPV6: Final = 0x86DD
_MOST: Final = 16
_PACKET_BYTES: Final = 64
"""The IPv6 header (40 bytes) and TCP's."""
_PORTS: Final = slice(40, 44)
_SEQUENCE: Final = slice(44, 48)
_SAME_CONNECTION_BYTES: Final = 1 << 24
"""Between sequence numbers of FINs and RSTs of one connection there is at most what a sender keeps for repeating."""
_REMEMBERED: Final = 8


def closing_filter() -> bytes:
    """Classic BPF (Documentation/networking/filter.rst): TCP of port 179 over IPv6, link-local, with FIN or RST."""
    return assemble(
        (
            (LOAD_BYTE, 0, 0, 6),  # next header
            (EQUAL, 0, 9, socket.IPPROTO_TCP),
            (LOAD_HALF, 0, 0, 8),  # source address
            (AND, 0, 0, 0xFFC0),
            (EQUAL, 0, 6, 0xFE80),
            (LOAD_HALF, 0, 0, 40),  # source port
            (EQUAL, 2, 0, 179),
            (LOAD_HALF, 0, 0, 42),  # destination port
            (EQUAL, 0, 2, 179),
            (LOAD_BYTE, 0, 0, 53),  # flags
            (ANY_BIT, 1, 0, 0x05),
            (RETURN, 0, 0, 0),
            (RETURN, 0, 0, _PACKET_BYTES),
        )
    )


class Closings:
    """The connections of one link that were closed last, known by their ports and by where their sequence ended.

    By both: ports come again, and a connection begins at a number of its own (RFC 6528).
    """

    def __init__(self) -> None:
        self._ends: dict[bytes, int] = {}
        """Sequence number by ports, heard last at the end."""

    def is_new(self, packet: bytes) -> bool:
        """Whether this FIN or RST, from its IPv6 header on, is the first of its connection."""
        ports, sequence = packet[_PORTS], int.from_bytes(packet[_SEQUENCE], "big")
        known = self._ends.pop(ports, None)
        self._ends[ports] = sequence
        if len(self._ends) > _REMEMBERED:
            del self._ends[next(iter(self._ends))]
        return known is None or _apart(known, sequence) > _SAME_CONNECTION_BYTES


def _apart(one: int, other: int) -> int:
    """How far sequence numbers are from each other, the shorter way round."""
    apart = (one - other) % (1 << 32)
    return min(apart, (1 << 32) - apart)


class BgpWatch:
    """The packet sockets of all uplinks."""

    def __init__(self, netns: str | None, poller: Poller, on_closed: Callable[[str], None]) -> None:
        """Begin with none.

        Args:
            netns: where the uplinks are.
            poller: that calls back.
            on_closed: called with the uplink's name.
        """
        self._netns, self._poller, self._on_closed = netns, poller, on_closed
        self._sockets: dict[str, tuple[int, socket.socket]] = {}

    def follow(self, name: str, ifindex: int) -> str | None:
        """An uplink is this link now (0: none). Returns why it cannot be watched, or None."""
        before = self._sockets.get(name)
        if before is not None:
            if before[0] == ifindex:
                return None
            self._poller.unwatch(before[1])
            before[1].close()
            del self._sockets[name]
        if not ifindex:
            return None
        made: socket.socket | None = None
        try:
            made = socket_in(self._netns, socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            attach(made, closing_filter())
            made.bind((name, _ETH_P_IPV6))
        except OSError as error:
            if made is not None:
                made.close()
            return str(error)
        self._sockets[name] = (ifindex, made)
        closings = Closings()
        self._poller.watch(made, lambda: self._read(name, made, closings))
        return None

    def _read(self, name: str, watched: socket.socket, closings: Closings) -> None:
        closed = False
        for _ in range(_MOST):
            try:
                packet = watched.recv(_PACKET_BYTES)
            except OSError:  # no more, or the link has gone, which others tell
                break
            closed |= closings.is_new(packet)
        if closed:
            self._on_closed(name)
