"""Attributes both ways; whatever comes in is read to its end or refused, and never for ever."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services._host.netlink import attributes as at
from services._host.netlink.attributes import MalformedError

KINDS = st.integers(0, 0x3FFF)
PAYLOADS = st.binary(max_size=70)


def test_golden_bytes() -> None:
    # struct nlattr: length (with its own four bytes), type, payload, padding to four.
    assert at.u8(1, 7) == b"\x05\x00\x01\x00\x07\x00\x00\x00"
    assert at.be16(9, 4789) == b"\x06\x00\x09\x00\x12\xb5\x00\x00"
    assert at.be32(7, 100) == b"\x08\x00\x07\x00\x00\x00\x00\x64"
    assert at.text(1, "flower") == b"\x0b\x00\x01\x00flower\0\0"
    # 0x8000: NLA_F_NESTED.
    assert at.nested(2, at.u8(1, 7)) == b"\x0c\x00\x02\x80\x05\x00\x01\x00\x07\x00\x00\x00"
    assert at.u32(4, 1) == struct.pack("=HHI", 8, 4, 1)
    assert at.u16(5, 258) == struct.pack("=HHHxx", 6, 5, 258)


@given(st.lists(st.tuples(KINDS, PAYLOADS), max_size=10))
def test_what_was_written_is_read(pairs: list[tuple[int, bytes]]) -> None:
    data = b"".join(at.attribute(kind, payload) for kind, payload in pairs)
    assert list(at.each_attribute(data)) == pairs
    assert at.attributes(data) == dict(pairs)
    assert at.attributes(at.nested(3, data))[3] == data


@given(st.lists(st.tuples(KINDS, PAYLOADS), min_size=1, max_size=5), st.data())
def test_what_was_cut_short_is_refused_or_a_prefix(pairs: list[tuple[int, bytes]], data: st.DataObject) -> None:
    whole = b"".join(at.attribute(kind, payload) for kind, payload in pairs)
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        found = list(at.each_attribute(whole[:cut]))
    except MalformedError:
        return
    assert found == pairs[: len(found)]


@given(st.binary(max_size=200), st.integers(-5, 210), st.integers(-5, 210))
def test_garbage_ends(data: bytes, start: int, end: int) -> None:
    """Every attribute takes four bytes at least: so many there can be at most."""
    with suppress(MalformedError):
        assert len(list(at.each_attribute(data, start, end))) <= len(data) // 4


@pytest.mark.parametrize(
    "hostile",
    [
        struct.pack("=HH", 0, 1),  # advances by nothing
        struct.pack("=HH", 3, 1),
        struct.pack("=HHI", 0xFFFF, 1, 0),
        struct.pack("=HHI", 9, 1, 0),
        struct.pack("=HHI", 8, 1, 0) + b"\0",
    ],
)
def test_hostile_lengths_are_refused(hostile: bytes) -> None:
    with pytest.raises(MalformedError):
        at.attributes(hostile)


def test_padding_may_be_missing_at_the_end() -> None:
    assert at.attributes(b"\x05\x00\x01\x00\x07") == {1: b"\x07"}


def test_numbers_by_their_width() -> None:
    assert [at.number(struct.pack(f"={code}", 200)) for code in "BHIQ"] == [200] * 4
    assert at.network_number(b"\x12\xb5", 2) == 4789
    for payload in (b"", b"\0\0\0", bytes(9)):
        with pytest.raises(MalformedError):
            at.number(payload)
    with pytest.raises(MalformedError):
        at.network_number(b"\0", 2)


@given(st.ip_addresses())
def test_addresses_in_canonical_form(address: object) -> None:
    text = str(address)
    if "%" in text:
        return
    assert at.address_text(at.address_bytes(text)) == text


def test_what_is_no_address() -> None:
    for text in ("", "10.0.0", "10.0.0.256", "::g", "host", "10.0.0.1/32"):
        with pytest.raises(ValueError, match="is no IP address"):
            at.address_bytes(text)
    for payload in (b"", bytes(5), bytes(17)):
        with pytest.raises(MalformedError):
            at.address_text(payload)


def test_mac_addresses() -> None:
    assert at.mac_text(at.mac_bytes("02:00:00:00:00:0A")) == "02:00:00:00:00:0a"
    assert at.mac_text(b"") == ""
    for text in ("", "02:00:00:00:00", "02:00:00:00:00:0g", "02:00:00:00:00:00:00"):
        with pytest.raises(ValueError, match=r"is no MAC address|non-hexadecimal"):
            at.mac_bytes(text)


def test_names_may_hold_any_byte() -> None:
    assert at.string(b"eth0\0\xff") == "eth0"
    assert at.string(b"e\xfft\0") == "e\\xfft"
    assert at.string(b"") == ""


def test_the_longest_attribute() -> None:
    assert len(at.attribute(1, bytes(65_531))) == 65_536
    with pytest.raises(ValueError, match="the most is 65531"):
        at.attribute(1, bytes(65_532))
