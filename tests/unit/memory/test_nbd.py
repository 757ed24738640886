"""NBD messages are byte for byte those of the protocol's document, and every length is bounded."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.memory.core import nbd
from services.memory.core.nbd import Command, Error, Info, NbdError, Option, Reply, Request, TransmissionFlag

SIZE = 1 << 20


def test_messages_are_those_of_the_document() -> None:
    """doc/proto.md of the NBD project, by hand."""
    assert nbd.greeting() == b"NBDMAGIC" + b"IHAVEOPT" + b"\0\x03"
    assert nbd.option(Option.GO, b"abc") == b"IHAVEOPT" + bytes.fromhex("00000007 00000003") + b"abc"
    assert nbd.option_reply(Option.GO, Reply.ERR_UNKNOWN) == bytes.fromhex(
        "0003e889045565a9 00000007 80000006 00000000"
    )
    assert nbd.name_request(b"xy", (Info.EXPORT,)) == bytes.fromhex("00000002") + b"xy" + bytes.fromhex("0001 0000")
    assert nbd.export_reply(4096, TransmissionFlag(0x61), zeroes=False) == bytes.fromhex("0000000000001000 0061")
    assert len(nbd.export_reply(4096, TransmissionFlag(0x61), zeroes=True)) == 10 + 124
    assert nbd.export_info(4096, TransmissionFlag(0x61)) == bytes.fromhex("0000 0000000000001000 0061")
    assert nbd.block_size_info() == bytes.fromhex("0003 00000001 00001000 02000000")
    assert nbd.request(Command.WRITE, 7, 4096, 512, 1) == bytes.fromhex(
        "25609513 0001 0001 0000000000000007 0000000000001000 00000200"
    )
    assert nbd.simple_reply(7, Error.INVAL) == bytes.fromhex("67446698 00000016 0000000000000007")


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_request_is_read_as_it_was_written(flags: int, kind: int, cookie: int, offset: int) -> None:
    header = nbd.REQUEST.pack(nbd.REQUEST_MAGIC, flags, kind, cookie, offset, 9)
    assert nbd.read_request(header) == Request(flags, kind, cookie, offset, 9)


def test_a_request_out_of_step_is_refused() -> None:
    with pytest.raises(NbdError, match="a request begins with 0x0"):
        nbd.read_request(bytes(28))


@given(st.binary(max_size=nbd.MOST_NAME_BYTES))
def test_a_name_is_read_as_it_was_written(name: bytes) -> None:
    assert nbd.requested_name(nbd.name_request(name, (Info.EXPORT, Info.BLOCK_SIZE))) == name


@given(st.binary(max_size=64))
def test_any_content_of_an_option_is_a_name_or_an_error(content: bytes) -> None:
    with suppress(NbdError):
        assert nbd.requested_name(content) in content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(5),
        bytes.fromhex("00000001 0000"),
        bytes.fromhex("ffffffff 0000"),
        bytes.fromhex("00000000 0001"),
        bytes.fromhex("00000000 0000 00"),
        nbd.name_request(bytes(nbd.MOST_NAME_BYTES + 1)),
    ],
)
def test_lengths_that_contradict_each_other_are_refused(content: bytes) -> None:
    with pytest.raises(NbdError):
        nbd.requested_name(content)


def test_information_is_read_by_its_kind() -> None:
    assert nbd.read_export_info(nbd.export_info(SIZE, TransmissionFlag(0x61))) == (SIZE, TransmissionFlag(0x61))
    assert nbd.read_export_info(nbd.block_size_info()) is None
    for content in (b"", b"\0", b"\0\0\0"):
        with pytest.raises(NbdError):
            nbd.read_export_info(content)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Request(0, Command.READ, 1, 0, SIZE), Error.NONE),
        (Request(0, Command.READ, 1, SIZE - 1, 2), Error.INVAL),
        (Request(0, Command.READ, 1, 0, 0), Error.INVAL),
        (Request(1, Command.READ, 1, 0, 1), Error.INVAL),
        (Request(0, Command.READ, 1, 0, nbd.MOST_PAYLOAD_BYTES + 1), Error.OVERFLOW),
        (Request(1, Command.WRITE, 1, SIZE - 512, 512), Error.NONE),
        (Request(0, Command.WRITE, 1, SIZE, 1), Error.NOSPC),
        (Request(0, Command.WRITE, 1, 2**64 - 1, 1), Error.NOSPC),
        (Request(2, Command.WRITE, 1, 0, 1), Error.INVAL),
        (Request(1 << 15, Command.WRITE, 1, 0, 1), Error.INVAL),
        (Request(4, Command.FLUSH, 1, 0, 0), Error.INVAL),
        (Request(0, Command.FLUSH, 1, 0, 0), Error.NONE),
        (Request(0, Command.FLUSH, 1, 0, 1), Error.INVAL),
        (Request(0, Command.TRIM, 1, 0, SIZE), Error.NONE),
        (Request(0, Command.TRIM, 1, 1, SIZE), Error.INVAL),
        (Request(2, Command.WRITE_ZEROES, 1, 0, SIZE), Error.NONE),
        (Request(0, Command.WRITE_ZEROES, 1, 0, SIZE + 1), Error.NOSPC),
        (Request(0, 5, 1, 0, 1), Error.INVAL),
        (Request(0, 99, 1, 0, 1), Error.INVAL),
        (Request(0, Command.DISC, 1, 0, 0), Error.INVAL),
    ],
)
def test_requests_beyond_the_export_are_refused(request_: Request, error: Error) -> None:
    assert nbd.check(request_, SIZE) is error
