"""Datagrams of many messages, and what an answer says."""

from __future__ import annotations

import errno
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services._host.netlink.attributes import MalformedError, text
from services._host.netlink.messages import HEADER, Ack, framed, leading_int, read_ack
from services._host.netlink.route_codec import decode_route

MESSAGES = st.lists(st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.binary(max_size=60)), max_size=6)


def datagram(messages: list[tuple[int, int, bytes]]) -> bytes:
    return b"".join(
        HEADER.pack(16 + len(payload), kind, flags, index, 7) + payload + bytes(-len(payload) % 4)
        for index, (kind, flags, payload) in enumerate(messages)
    )


@given(MESSAGES)
def test_each_message_of_a_datagram(messages: list[tuple[int, int, bytes]]) -> None:
    data = datagram(messages)
    found = [(kind, flags, data[start:end]) for kind, flags, _, _, start, end in framed(data)]
    assert found == messages
    assert [(sequence, port_id) for _, _, sequence, port_id, _, _ in framed(data)] == [
        (index, 7) for index in range(len(messages))
    ]


@given(MESSAGES.filter(bool), st.data())
def test_a_datagram_cut_short(messages: list[tuple[int, int, bytes]], data: st.DataObject) -> None:
    whole = datagram(messages)
    cut = data.draw(st.integers(0, len(whole) - 1))
    seen = 0
    try:
        for _ in framed(whole[:cut]):
            seen += 1
    except MalformedError:
        pass
    assert seen <= len(messages)


@given(st.binary(max_size=300))
def test_garbage_ends(data: bytes) -> None:
    with suppress(MalformedError):
        assert sum(1 for _ in framed(data)) <= len(data) // 16


@pytest.mark.parametrize("length", [0, 1, 15, 17, 0x7FFFFFFF, 0xFFFFFFFF])
def test_hostile_lengths_are_refused(length: int) -> None:
    with pytest.raises(MalformedError, match="says"):
        list(framed(HEADER.pack(length, 24, 0, 1, 0)))


def test_an_answer_with_the_kernels_words() -> None:
    # struct nlmsgerr: error, header of the request; with NLM_F_ACK_TLVS (0x200) attributes, NLMSGERR_ATTR_MSG is 1.
    plain = struct.pack("=i", -errno.ENODEV) + bytes(16)
    told = plain + text(1, "TC classifier not found")
    assert read_ack(plain, 0, 0, len(plain)) == Ack(errno.ENODEV)
    assert read_ack(told, 0x200, 0, len(told)) == Ack(errno.ENODEV, "TC classifier not found")
    assert read_ack(told, 0, 0, len(told)) == Ack(errno.ENODEV)
    assert read_ack(struct.pack("=i", 0) + bytes(16), 0x100, 0, 20) == Ack(0)
    other = plain + text(2, "an offset")
    assert read_ack(other, 0x200, 0, len(other)) == Ack(errno.ENODEV)


def test_an_answer_cut_short() -> None:
    for size in range(4):
        with pytest.raises(MalformedError):
            leading_int(bytes(4), 0, size)
    cut = struct.pack("=i", -22) + bytes(16) + text(1, "words")[:-6]
    with pytest.raises(MalformedError):
        read_ack(cut, 0x200, 0, len(cut))


def test_a_payload_is_what_a_decoder_takes() -> None:
    assert decode_route(struct.pack("=8BI", 7, 0, 0, 0, 0, 0, 0, 0, 0)) is None
