"""Detects that a switch closes its BGP session: the sign of a link that loses packets towards the switch.

FRR's bfdd does not signal its peer that it receives nothing any more, so this host's session expires up to a detection
time later. But the switch's bgpd closes the session at once (RFC 5882, 10.1), and its FIN arrives on the direction that
still works: measured 2 to 5 ms after the switch's detection, 70 ms before this host's FRR has a new route.

The switch does not receive the acknowledgement and retransmits its FIN, also after the link has recovered: only the
first FIN of a connection counts.

One packet socket per uplink, for IPv6 only, as sessions of unnumbered uplinks are: packets of the tunnels between IPv4
addresses do not pass its filter at all. Only link-local sources count, which are never forwarded.
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
_MAX_READS: Final = 16
_PACKET_BYTES: Final = 64
"""The IPv6 header (40 bytes) and TCP's."""
_PORTS: Final = slice(40, 44)
_SEQUENCE: Final = slice(44, 48)
_SAME_CONNECTION_BYTES: Final = 1 << 24
"""FINs and RSTs of one connection differ by at most the sender's retransmission buffer."""
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


class ClosedConnections:
    """The last closed connections of one link, identified by ports and final sequence number.

    Ports are reused, and each connection starts at its own sequence number (RFC 6528).
    """

    def __init__(self) -> None:
        self._ends: dict[bytes, int] = {}
        """Sequence number by ports, most recent last."""

    def is_new(self, packet: bytes) -> bool:
        """Whether this FIN or RST, from its IPv6 header on, is the first of its connection."""
        ports, sequence = packet[_PORTS], int.from_bytes(packet[_SEQUENCE], "big")
        known = self._ends.pop(ports, None)
        self._ends[ports] = sequence
        if len(self._ends) > _REMEMBERED:
            del self._ends[next(iter(self._ends))]
        return known is None or _distance(known, sequence) > _SAME_CONNECTION_BYTES


def _distance(one: int, other: int) -> int:
    """Distance of sequence numbers, modulo 2**32."""
    distance = (one - other) % (1 << 32)
    return min(distance, (1 << 32) - distance)


class BgpWatch:
    """The packet sockets of all uplinks."""

    def __init__(self, netns: str | None, poller: Poller, on_closed: Callable[[str], None]) -> None:
        """Start without sockets.

        Args:
            netns: where the uplinks are.
            poller: dispatches readable sockets.
            on_closed: called with the uplink's name.
        """
        self._netns, self._poller, self._on_closed = netns, poller, on_closed
        self._sockets: dict[str, tuple[int, socket.socket]] = {}

    def follow(self, name: str, ifindex: int) -> str | None:
        """Watch an uplink's current link (0: none). Returns the error, or None."""
        before = self._sockets.get(name)
        if before is not None:
            if before[0] == ifindex:
                return None
            self._poller.unwatch(before[1])
            before[1].close()
            del self._sockets[name]
        if not ifindex:
            return None
        created: socket.socket | None = None
        try:
            created = socket_in(self._netns, socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            attach(created, closing_filter())
            created.bind((name, _ETH_P_IPV6))
        except OSError as error:
            if created is not None:
                created.close()
            return str(error)
        self._sockets[name] = (ifindex, created)
        connections = ClosedConnections()
        self._poller.watch(created, lambda: self._read(name, created, connections))
        return None

    def _read(self, name: str, watched: socket.socket, connections: ClosedConnections) -> None:
        closed = False
        for _ in range(_MAX_READS):
            try:
                packet = watched.recv(_PACKET_BYTES)
            except OSError:  # no more packets, or the link was deleted, which netlink reports
                break
            closed |= connections.is_new(packet)
        if closed:
            self._on_closed(name)
