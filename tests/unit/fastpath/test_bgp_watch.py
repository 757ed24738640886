"""A switch that closes its BGP session sends its FIN again until somebody answers: that is one closing."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from services.fastpath.bgp_watch import ClosedConnections

FIN, RST, ACK = 0x01, 0x04, 0x10


def segment(source_port: int, destination_port: int, flags: int = FIN | ACK, sequence: int = 1) -> bytes:
    """As the packet socket gives it: from the IPv6 header on."""
    header = struct.pack("!IHBB16s16s", 6 << 28, 20, 6, 255, b"\xfe\x80" + bytes(14), b"\xfe\x80" + bytes(14))
    return header + struct.pack("!HHIIBBHHH", source_port, destination_port, sequence, 1, 5 << 4, flags, 0, 0, 0)


def test_a_fin_that_is_sent_again_is_no_news() -> None:
    connections = ClosedConnections()
    assert connections.is_new(segment(179, 40_000))
    assert not connections.is_new(segment(179, 40_000))
    assert not connections.is_new(segment(179, 40_000, RST))


def test_the_next_session_s_end_is_news() -> None:
    connections = ClosedConnections()
    assert connections.is_new(segment(179, 40_000))
    assert connections.is_new(segment(40_001, 179))
    assert not connections.is_new(segment(179, 40_000))


def test_a_later_connection_of_the_same_ports_ends_as_well() -> None:
    connections = ClosedConnections()
    assert connections.is_new(segment(179, 40_000, sequence=5))
    assert not connections.is_new(segment(179, 40_000, RST, sequence=(1 << 32) - 20)), "sent again with earlier data"
    assert connections.is_new(segment(179, 40_000, sequence=1 << 30))
    assert not connections.is_new(segment(179, 40_000, RST, sequence=(1 << 30) + 1))


def test_who_sends_again_is_not_forgotten_for_those_who_do_not() -> None:
    connections = ClosedConnections()
    assert connections.is_new(segment(179, 40_000))
    for port in range(40_001, 40_051):
        assert connections.is_new(segment(179, port))
        assert not connections.is_new(segment(179, 40_000))


@given(ports=st.lists(st.integers(1024, 65_535), min_size=1, max_size=8, unique=True), again=st.data())
def test_each_of_the_last_connections_is_told_of_once(ports: list[int], again: st.DataObject) -> None:
    sent = again.draw(st.permutations([*ports, *ports, *ports]))
    connections = ClosedConnections()
    assert sum(connections.is_new(segment(179, port)) for port in sent) == len(ports)
