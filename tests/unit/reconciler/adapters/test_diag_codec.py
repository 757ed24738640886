"""Sockets and counters in messages of sock_diag(7): as the kernel lays them out, cut short, and nonsense."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services._host.netlink.attributes import MalformedError, attribute
from services._host.netlink.diag_codec import TcpCounters, counters_request, dump_request, read_counters, read_socket

INFO, CONGESTION = 2, 4
COOKIE = b"\x01\x02\x03\x04\x05\x06\x07\x08"


def message(tcp_info: bytes, *more: bytes) -> bytes:
    """``struct inet_diag_msg`` of 10.0.0.1:5000 to 10.0.0.2:80, then attributes."""
    addresses = socket.inet_aton("10.0.0.1").ljust(16, b"\0") + socket.inet_aton("10.0.0.2").ljust(16, b"\0")
    identity = struct.pack("!HH", 5000, 80) + addresses + struct.pack("=I", 0) + COOKIE
    rest = struct.pack("=IIIII", 0, 0, 0, 0, 4711)
    return bytes([socket.AF_INET, 1, 0, 0]) + identity + rest + attribute(INFO, tcp_info) + b"".join(more)


def info(size: int = 240) -> bytes:
    """3 segments sent again, 900 bytes acknowledged, 1,000 sent, of these 40 again, in 70 ms, 8 ms ago.

    Offsets as in include/uapi/linux/tcp.h.
    """
    content = bytearray(240)
    struct.pack_into("=I", content, 44, 8)
    struct.pack_into("=Q", content, 168, 70_000)
    struct.pack_into("=I", content, 100, 3)
    struct.pack_into("=Q", content, 120, 900)
    struct.pack_into("=QQ", content, 200, 1_000, 40)
    return bytes(content[:size])


def test_a_socket() -> None:
    found = read_socket(message(info(), attribute(CONGESTION, b"reno\0")))

    assert (found.local, found.remote, found.inode) == (("10.0.0.1", 5000), ("10.0.0.2", 80), 4711)
    assert found.counters == TcpCounters(960, 3, busy_us=70_000, quiet_ms=8)
    assert found.congestion_control == "reno"
    assert counters_request(found).payload.endswith(COOKIE)
    assert len(counters_request(found).payload) == len(dump_request(socket.AF_INET).payload) == 56


def test_kernels_before_4_19_count_what_was_acknowledged() -> None:
    assert read_counters(message(info(192))) == TcpCounters(900, 3)


@pytest.mark.parametrize("payload", [b"", bytes(71), message(b""), message(info(100)), message(info())[:-8]])
def test_cut_short(payload: bytes) -> None:
    for read in (read_socket, read_counters):
        with pytest.raises(MalformedError):
            read(payload)


@pytest.mark.parametrize("state", [5, 6])
def test_a_closed_connection_has_no_counters(state: int) -> None:
    """FIN_WAIT2 and TIME_WAIT: what the kernel answered for a killed worker's connection."""
    identity = message(b"")[:72]
    assert read_counters(identity[:1] + bytes([state]) + identity[2:]) is None
    with pytest.raises(MalformedError):
        read_counters(identity)


@given(st.binary(max_size=300))
def test_nonsense_is_refused_or_read(payload: bytes) -> None:
    for read in (read_socket, read_counters):
        try:
            read(payload)
        except MalformedError:
            continue
