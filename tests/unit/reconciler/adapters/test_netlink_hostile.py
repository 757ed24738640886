"""A kernel that answers nonsense, nothing, or for somebody else: a clear error each time, and never a hang."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services._host.netlink import socket as netlink
from services._host.netlink import subscription
from services._host.netlink.messages import HEADER
from services._host.netlink.socket import (
    Ack,
    DumpInterruptedError,
    MalformedError,
    NetlinkError,
    NetlinkSocket,
    Request,
    Subscription,
)

REQUEST = Request(18, 0, bytes(16))
DATAGRAMS = st.lists(st.binary(max_size=80), max_size=8)
ANSWERS = st.builds(
    lambda kind, flags, sequence, payload: HEADER.pack(16 + len(payload), kind, flags, sequence, 0) + payload,
    st.sampled_from([1, 2, 3, 4, 16, 24]),
    st.sampled_from([0, 2, 0x10, 0x200]),
    st.integers(0, 5),
    st.binary(max_size=40).filter(lambda payload: len(payload) % 4 == 0),
)


class FakeSocket:
    """Says what it was told to say, then nothing more."""

    def __init__(self, answers: Iterable[bytes | OSError]) -> None:
        self.answers = list(answers)
        self.sent = 0

    def recvfrom_into(self, buffer: bytearray, _size: int, _flags: int) -> tuple[int, tuple[int, int]]:
        if not self.answers:
            raise BlockingIOError(errno.EAGAIN, "nothing more")
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        buffer[: len(answer)] = answer[: len(buffer)]
        return len(answer), (0, 0)

    def send(self, data: bytes) -> int:
        self.sent += 1
        return len(data)

    def setsockopt(self, *_: object) -> None:
        pass

    def settimeout(self, _: float) -> None:
        pass

    def close(self) -> None:
        pass


def talking(monkeypatch: pytest.MonkeyPatch, *answers: bytes | OSError) -> NetlinkSocket:
    """A socket whose kernel gives these answers, however often it is opened."""
    fake = FakeSocket(answers)
    monkeypatch.setattr(netlink, "open_netlink", lambda *_: fake)
    return NetlinkSocket()


def answer(kind: int, payload: bytes, *, flags: int = 0, sequence: int = 1) -> bytes:
    return HEADER.pack(16 + len(payload), kind, flags, sequence, 0) + payload


def error(number: int, sequence: int = 1) -> bytes:
    return answer(2, struct.pack("=i", -number) + bytes(16), sequence=sequence)


DONE = answer(3, bytes(4))
ROW = answer(16, bytes(16), flags=2)


@given(st.one_of(DATAGRAMS, st.lists(st.one_of(ANSWERS, st.binary(max_size=40)), max_size=8)))
def test_whatever_comes_ends(answers: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        for act in (
            lambda kernel: kernel.write([REQUEST] * 3),
            lambda kernel: kernel.dump(REQUEST),
        ):
            kernel = talking(monkeypatch, *answers)
            try:
                found = act(kernel)
            except (NetlinkError, OSError):
                continue
            assert found is not None


@given(st.lists(st.one_of(ANSWERS, st.binary(max_size=40)), max_size=8))
def test_whatever_a_subscription_gets_is_a_value(datagrams: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(subscription, "open_netlink", lambda *_: FakeSocket(datagrams))
        received = Subscription([1]).read()
    assert not received.more
    assert len(received.messages) <= sum(len(data) for data in datagrams) // 16


def test_silence_is_an_error_and_the_next_call_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = talking(monkeypatch)
    for act in (kernel.write_one, kernel.dump):
        with pytest.raises(NetlinkError, match="has not answered within 5 s"):
            act(REQUEST)
    assert kernel._socket is None


def test_an_answer_to_another_request_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = error(errno.EPERM, sequence=99)
    assert talking(monkeypatch, stale, error(0)).write_one(REQUEST) == Ack(0)
    assert talking(monkeypatch, stale, ROW + DONE).dump(REQUEST)[0].payload == bytes(16)


@pytest.mark.parametrize(
    "again",
    [
        [ROW, answer(3, struct.pack("=i", -errno.EINTR))],
        [ROW, error(errno.EINTR)],
        [answer(16, bytes(16), flags=0x12), DONE],
        [ROW, answer(3, bytes(4), flags=0x10)],
    ],
    ids=["done with EINTR", "error EINTR", "flag on a row", "flag on the end"],
)
def test_every_way_of_being_interrupted(again: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt has the next sequence number."""

    def numbered(datagrams: list[bytes], sequence: int) -> list[bytes]:
        return [data[:8] + struct.pack("=I", sequence) + data[12:] for data in datagrams]

    answers = [data for attempt in range(1, 5) for data in numbered(again, attempt)]
    kernel = talking(monkeypatch, *answers, *numbered([ROW + DONE[:8] + struct.pack("=I", 5) + DONE[12:]], 5))
    assert len(kernel.dump(REQUEST)) == 1
    answers = [data for attempt in range(1, 6) for data in numbered(again, attempt)]
    with pytest.raises(DumpInterruptedError, match="changed 5 times"):
        talking(monkeypatch, *answers).dump(REQUEST)


def test_a_refused_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PermissionError, match=r"dump \(message type 18\)"):
        talking(monkeypatch, error(errno.EPERM)).dump(REQUEST)
    with pytest.raises(OSError, match="dump") as caught:
        talking(monkeypatch, ROW, answer(3, struct.pack("=i", -errno.EOPNOTSUPP))).dump(REQUEST)
    assert caught.value.errno == errno.EOPNOTSUPP


def test_a_datagram_that_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """MSG_TRUNC tells its real length."""
    with pytest.raises(MalformedError, match="the most is"):
        talking(monkeypatch, bytes(subscription.LARGEST_DATAGRAM + 1)).dump(REQUEST)
    long = answer(16, bytes(100)) * 1_200
    monkeypatch.setattr(subscription, "open_netlink", lambda *_: FakeSocket([long]))
    assert len(long) > subscription.LARGEST_DATAGRAM
    assert Subscription([1]).read().overrun


def test_lost_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused and told is known; of the others nobody knows."""
    overrun = OSError(errno.ENOBUFS, "lost")
    kernel = talking(monkeypatch, overrun, error(errno.EEXIST, sequence=2))
    assert kernel.write([REQUEST] * 3) == [Ack(errno.ENOBUFS), Ack(errno.EEXIST), Ack(errno.ENOBUFS)]
    assert kernel._socket is None, "what comes late must not be taken for the next answer"


def test_a_socket_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for act in ("write_one", "dump"):
        kernel = talking(monkeypatch, OSError(errno.EIO, "broken"))
        with pytest.raises(OSError, match="broken"):
            getattr(kernel, act)(REQUEST)
    monkeypatch.setattr(subscription, "open_netlink", lambda *_: FakeSocket([OSError(errno.EIO, "broken")]))
    with pytest.raises(OSError, match="broken"):
        Subscription([1]).read()
