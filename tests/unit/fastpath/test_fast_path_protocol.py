"""What hosts tell each other: authentic, fresh, from whom it says, acknowledged, and repeated until then."""

from __future__ import annotations

import socket

import hypothesis.strategies as st
import pytest
from hypothesis import given

from services.fastpath import peers
from services.fastpath.peers import REPEAT_S, PeerFault, PeerLink
from services.fastpath.protocol import (
    REPEATS,
    SIZE,
    Kind,
    PeerMessage,
    RejectReason,
    ReplayCheck,
    ReplayGuard,
    decode,
    encode,
    receiver_tag,
    seal,
)

KEY = b"sixteen bytes or more"
OURS, THEIRS = "10.255.0.1", "10.255.0.2"
FAULT = PeerMessage(Kind.FAULT, 7, 1, OURS, "10.255.0.101")
TAG = receiver_tag(KEY, THEIRS)
addresses = st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map(str)
messages = st.builds(
    PeerMessage,
    st.sampled_from(Kind),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    addresses,
    st.ip_addresses(v=4).map(str),
)


@given(messages)
def test_a_message_survives_the_wire(message) -> None:
    data = encode(message, KEY, THEIRS)
    found = decode(data, message.sender, KEY, TAG)

    assert len(data) == SIZE == 84
    # ::ffff:0:0/96 is how IPv4 stands in sixteen bytes: such an IPv6 address comes back as IPv4, from another sender.
    assert found == message or message.sender.startswith("::ffff:")


@given(messages, st.integers(0, SIZE - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(message, position, change) -> None:
    data = bytearray(encode(message, KEY, THEIRS))
    data[position] ^= change

    assert isinstance(decode(bytes(data), message.sender, KEY, TAG), RejectReason)


@given(st.binary(max_size=200), st.booleans())
def test_noise_is_refused(data, tagged) -> None:
    assert isinstance(decode(TAG + data if tagged else data, OURS, KEY, TAG), RejectReason)


def test_of_another_key_or_another_source_or_version_or_to_another_host() -> None:
    good = encode(FAULT, KEY, THEIRS)
    assert decode(good, OURS, KEY, TAG) == FAULT
    assert decode(TAG + seal(FAULT, b"another key of the kind"), OURS, KEY, TAG) is RejectReason.FORGED
    assert decode(good, THEIRS, KEY, TAG) is RejectReason.SPOOFED
    assert decode(good[:-1], OURS, KEY, TAG) is RejectReason.MALFORMED
    assert decode(good, OURS, KEY, receiver_tag(KEY, "10.255.0.3")) is RejectReason.MALFORMED
    # magic (4 bytes) after the tag (8 bytes): the version is byte 12.
    assert decode(good[:12] + b"\x03" + good[13:], OURS, KEY, TAG) is RejectReason.VERSION


def test_a_number_counts_once_and_an_earlier_start_never_again() -> None:
    guard = ReplayGuard()

    assert guard.check(FAULT) is ReplayCheck.NEW
    assert guard.check(FAULT) is ReplayCheck.REPEATED
    assert guard.check(FAULT._replace(number=3)) is ReplayCheck.NEW
    assert guard.check(FAULT._replace(number=2)) is ReplayCheck.NEW, "overtaken on its way"
    assert guard.check(FAULT._replace(boot=8)) is ReplayCheck.NEW, "a new start"
    assert guard.check(FAULT._replace(number=9)) is ReplayCheck.STALE, "of the start before"
    assert guard.check(FAULT._replace(boot=6, number=9)) is ReplayCheck.STALE, "of a start that was never heard"
    assert guard.check(FAULT._replace(boot=8, number=2)) is ReplayCheck.NEW, "the latest one goes on"
    assert guard.check(FAULT._replace(sender="10.255.0.2")) is ReplayCheck.NEW, "another host"


def test_numbers_that_are_too_old_to_tell() -> None:
    guard = ReplayGuard()
    for number in range(1, 201):
        assert guard.check(FAULT._replace(number=number)) is ReplayCheck.NEW

    assert guard.check(FAULT._replace(number=200 - 63)) is ReplayCheck.REPEATED
    assert guard.check(FAULT._replace(number=1)) is ReplayCheck.REPLAYED


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 100)), max_size=60))
def test_nothing_is_new_twice(said) -> None:
    guard = ReplayGuard()
    new = [pair for pair in said if guard.check(FAULT._replace(boot=pair[0], number=pair[1])) is ReplayCheck.NEW]

    assert len(new) == len(set(new))


class FakeSocket:
    """Keeps what is sent; gives what the test puts in."""

    def __init__(self):
        self.sent, self.unacknowledged = [], []

    def setsockopt(self, *_):
        pass

    bind = setsockopt

    def sendto(self, data, to):
        self.sent.append((data, to[0]))

    def recvfrom(self, _):
        if not self.unacknowledged:
            raise BlockingIOError
        return self.unacknowledged.pop(0)


@pytest.fixture
def wire(monkeypatch):
    made = FakeSocket()
    monkeypatch.setattr(peers, "socket_in", lambda *_: made)
    return made


@pytest.fixture
def link(wire):
    return PeerLink(None, "10.255.0.1", 4799, key=KEY, boot=7)


def ack(number, sender):
    return encode(PeerMessage(Kind.ACK, 7, number, sender, "10.255.0.101"), KEY, OURS), (sender, 4799)


def sent_by_us(wire):
    """What was sent, by receiver: each datagram has its receiver's tag."""
    return [(to, decode(data, OURS, KEY, receiver_tag(KEY, to))) for data, to in wire.sent]


def test_a_fault_is_told_until_each_has_acknowledged(link, wire) -> None:
    made = link.announce("10.255.0.101", ["10.255.0.2", "10.255.0.1", "10.255.0.3"], noticed_s=9.999, now_s=10)
    assert [to for _, to in wire.sent] == ["10.255.0.2", "10.255.0.3"], "not to itself"
    assert {message for _, message in sent_by_us(wire)} == {FAULT}

    wire.unacknowledged.append(ack(1, "10.255.0.2"))
    assert link.receive(10.001) == []
    wire.sent.clear()
    assert link.send_due(10 + REPEAT_S) == []
    assert [to for _, to in wire.sent] == ["10.255.0.3"]
    wire.unacknowledged.append(ack(1, "10.255.0.3"))
    link.receive(10.003)
    assert link.send_due(10.003) == [made]
    assert (made.recipients, made.unacknowledged, made.last_ack_s) == (2, {}, 10.003)
    assert link.due_s == float("inf")


def test_it_gives_up_after_eight_times(link, wire) -> None:
    made = link.announce("10.255.0.101", ["10.255.0.2"], noticed_s=10, now_s=10)
    ended, now_s = [], 10.0
    while not ended:
        now_s = link.due_s
        ended = link.send_due(now_s)

    assert len(wire.sent) == REPEATS == 8
    assert ended == [made]
    assert now_s == pytest.approx(10 + 8 * REPEAT_S)


def test_many_hosts_are_told_in_bursts(link, wire) -> None:
    hosts = [f"10.1.0.{number}" for number in range(1, 201)]
    link.announce("10.255.0.101", hosts, noticed_s=10, now_s=10)
    assert len(wire.sent) == 64
    while link.due_s <= 10:
        link.send_due(10)

    assert [to for _, to in wire.sent] == hosts


def test_more_faults_than_can_be_followed_are_told_once(link, wire) -> None:
    for _ in range(64):
        assert link.announce("10.255.0.101", ["10.255.0.2"], noticed_s=10, now_s=10).unacknowledged

    assert not link.announce("10.255.0.101", ["10.255.0.2"], noticed_s=10, now_s=10).unacknowledged
    assert len(wire.sent) == 65


def test_acknowledgements_of_others_or_of_another_start_count_nothing(link, wire) -> None:
    made = link.announce("10.255.0.101", ["10.255.0.2"], noticed_s=10, now_s=10)
    stale = encode(PeerMessage(Kind.ACK, 6, 1, "10.255.0.2", "10.255.0.101"), KEY, OURS)
    wire.unacknowledged += [(stale, ("10.255.0.2", 4799)), ack(2, "10.255.0.2"), ack(1, "10.255.0.9")]
    link.receive(10.001)

    assert made.unacknowledged == {"10.255.0.2": None}


def test_a_fault_of_another_is_given_once_and_answered_when_it_was_acted_upon(link, wire) -> None:
    theirs = FAULT._replace(sender="10.255.0.2", boot=99)
    wire.unacknowledged += [(encode(theirs, KEY, OURS), ("10.255.0.2", 4799))] * 2

    assert link.receive(10) == [PeerFault("10.255.0.2", "10.255.0.101")]
    assert wire.sent == []
    link.send_replies()
    assert sent_by_us(wire) == [("10.255.0.2", theirs._replace(kind=Kind.ACK, sender=OURS))] * 2
    assert link.counts["repeated"] == 1


def test_an_earlier_start_is_told_which_one_is_known_and_too_old_a_number_nothing(link, wire) -> None:
    theirs = FAULT._replace(sender=THEIRS, boot=9, number=100)
    for message in (theirs, theirs._replace(boot=3), theirs._replace(number=1)):
        wire.unacknowledged.append((encode(message, KEY, OURS), (THEIRS, 4799)))
    assert link.receive(10) == [PeerFault(THEIRS, "10.255.0.101")]
    link.send_replies()

    kinds = [(message.kind, message.boot, message.number) for _, message in sent_by_us(wire)]
    assert kinds == [(Kind.ACK, 9, 100), (Kind.STALE, 9, 100)]
    assert (link.counts["stale"], link.counts["replayed"]) == (1, 1)


def test_who_is_told_of_a_later_start_goes_on_as_of_one_later_still(link, wire) -> None:
    link.announce("10.255.0.101", [THEIRS, "10.255.0.3"], noticed_s=10, now_s=10)
    wire.sent.clear()

    def refusal(boot, number=1, sender=THEIRS):
        return encode(PeerMessage(Kind.STALE, boot, number, sender, "10.255.0.101"), KEY, OURS), (sender, 4799)

    # Not lower, not of a fault that nobody was told of, not from a host that was not told: recorded, or of no use.
    wire.unacknowledged += [refusal(5), refusal(70, number=2), refusal(70, sender="10.255.0.9")]
    link.receive(10)
    assert {message.boot for _, message in sent_by_us(wire)} <= {7}

    wire.sent.clear()
    wire.unacknowledged.append(refusal(70))
    link.receive(10)
    link.send_due(10 + REPEAT_S)
    boots = {message.boot for _, message in sent_by_us(wire)}
    assert [to for to, _ in sent_by_us(wire)] == [THEIRS, THEIRS, "10.255.0.3"], "at once, then the next round"
    assert len(boots) == 1
    assert boots.pop() > 70


def test_a_socket_that_cannot_send_is_no_matter(link, wire, monkeypatch) -> None:
    def fail(*_):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(wire, "sendto", fail)
    made = link.announce("10.255.0.101", ["10.255.0.2"], noticed_s=10, now_s=10)

    assert link.counts["unsent"] == 1
    assert made.unacknowledged


def test_the_real_socket_takes_an_address_that_is_not_there_yet() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = PeerLink(None, "192.0.2.77", port, key=KEY, boot=1)

    assert made.receive(0) == []
    made.close()
