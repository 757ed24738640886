"""A recorded datagram acts at most once, and never locks out its sender, in whatever order everything comes."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.fastpath import peers
from services.fastpath.peers import REPEAT_S, PeerLink
from services.fastpath.protocol import Kind, PeerMessage, ReplayCheck, ReplayGuard

KEY = b"sixteen bytes or more"
SENDER, RECEIVER, TOR = "10.255.0.1", "10.255.0.2", "10.255.0.101"


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), max_size=30), st.integers(1, 4))
def test_whatever_was_recorded_of_earlier_starts_the_latest_is_heard(recorded, latest) -> None:
    """The true sender is at its latest start; everything of earlier ones may come at any time, known or not."""
    guard = ReplayGuard()
    fault = PeerMessage(Kind.FAULT, 10 + latest, 0, SENDER, TOR)
    for number, (boot, replayed) in enumerate(recorded, 1):
        guard.check(fault._replace(boot=min(boot, latest - 1), number=replayed))
        assert guard.check(fault._replace(number=number)) is ReplayCheck.NEW


class Wire:
    """A datagram socket of one address; a test carries what it sends."""

    def __init__(self):
        self.outgoing, self.incoming = [], []

    def setsockopt(self, *_):
        pass

    bind = setsockopt

    def sendto(self, data, to):
        self.outgoing.append((data, to[0]))

    def recvfrom(self, _):
        if not self.incoming:
            raise BlockingIOError
        return self.incoming.pop(0)


class Interleavings(RuleBasedStateMachine):
    """One host that tells, starts again at any time of its clock, and one that hears; between them who records all."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.recorded = []
        """(datagram, its sender), everything that ever was on the wire."""
        self.acted = 0
        """Recorded datagrams that the receiver acted upon."""

    def link(self, address, boot):
        """A link over a wire of its own."""
        wire, before = Wire(), peers.socket_in
        peers.socket_in = lambda *_: wire
        try:
            return PeerLink(None, address, 4799, key=KEY, boot=boot), wire
        finally:
            peers.socket_in = before

    @initialize(boot=st.integers(1, 1_000))
    def begin(self, boot):
        self.starts = {boot}
        self.sender, self.sender_wire = self.link(SENDER, boot)
        self.receiver, self.receiver_wire = self.link(RECEIVER, 500)

    @rule(boot=st.integers(1, 1_000))
    def sender_starts_again(self, boot):
        """Its clock may have gone backwards, but is not the same to the nanosecond."""
        while boot in self.starts:
            boot += 1
        self.starts.add(boot)
        self.sender, self.sender_wire = self.link(SENDER, boot)

    def carry(self):
        """Deliver everything both ways until nothing is on its way; what was acted upon."""
        found = 0
        while self.sender_wire.outgoing or self.receiver_wire.outgoing:
            for one, address, other in (
                (self.sender_wire, SENDER, self.receiver_wire),
                (self.receiver_wire, RECEIVER, self.sender_wire),
            ):
                sent, one.outgoing = one.outgoing, []
                self.recorded += [(data, address) for data, _ in sent]
                other.incoming += [(data, (address, 4799)) for data, _ in sent]
            found += self.hear()
        return found

    def hear(self):
        self.now_s += 0.1  # what comes is far from any limit of rate
        self.sender.receive(self.now_s)
        self.sender.send_replies()
        found = len(self.receiver.receive(self.now_s))
        self.receiver.send_replies()
        return found

    @rule(lost=st.integers(0, 6))
    def a_true_fault_is_acted_upon(self, lost):
        """Even where the first datagrams are lost: there are eight, and a refusal needs two."""
        self.now_s += 1
        self.sender.announce(TOR, [RECEIVER], noticed_s=self.now_s, now_s=self.now_s)
        found = 0
        while self.sender.due_s < float("inf"):
            if lost:
                lost -= 1
                self.recorded += [(data, SENDER) for data, _ in self.sender_wire.outgoing]
                self.sender_wire.outgoing.clear()
            found += self.carry()
            self.now_s = max(self.now_s, self.sender.due_s) + REPEAT_S
            self.sender.send_due(self.now_s)
        assert found >= 1, "the true sender is not heard"

    @precondition(lambda self: self.recorded)
    @rule(data=st.data(), to_sender=st.booleans(), times=st.integers(1, 3))
    def something_recorded_comes_again(self, data, to_sender, times):
        """From the right address, whenever; the receiver knows the sender's latest fault."""
        index = data.draw(st.integers(0, len(self.recorded) - 1))
        datagram, address = self.recorded[index]
        wire = self.sender_wire if to_sender else self.receiver_wire
        wire.incoming += [(datagram, (address, 4799))] * times
        self.acted += self.hear()
        self.acted += self.carry()

    @invariant()
    def nothing_recorded_has_acted(self):
        """All that is recorded had its chance: the fault that followed it was heard, or it was heard itself."""
        assert self.acted == 0


TestInterleavings = Interleavings.TestCase


def test_what_a_receiver_that_has_just_started_takes() -> None:
    """Each start's recorded datagram once, in rising order, until it hears the sender itself: then none."""
    guard = ReplayGuard()
    fault = PeerMessage(Kind.FAULT, 3, 1, SENDER, TOR)
    recorded = [fault._replace(boot=boot) for boot in (1, 3, 2, 3)]

    assert [guard.check(message) for message in recorded] == [
        ReplayCheck.NEW,
        ReplayCheck.NEW,
        ReplayCheck.STALE,
        ReplayCheck.REPEATED,
    ]
    assert guard.check(fault._replace(boot=4)) is ReplayCheck.NEW, "the sender itself"
    assert {guard.check(message) for message in recorded} == {ReplayCheck.STALE}
