"""Every step of a range is made of one content of each rank, whatever is lost, doubled, late or moved meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.aggregator.core.versions import UNSTARTED, Outcome, Push, RangeOwnership

RANKS = 3
OWNERS = ("a:1", "b:1", "c:1")


def started() -> RangeOwnership:
    owned = RangeOwnership(2, 1)
    for rank in range(2):
        owned, outcome = owned.push(Push(rank, 0, 1))
        assert outcome is Outcome.KEEP
    return owned.finish()


def test_a_push_counts_once() -> None:
    owned, first = started().push(Push(0, 1, 1))
    again, second = owned.push(Push(0, 1, 1))

    assert (first, second, again) == (Outcome.KEEP, Outcome.DUPLICATE, owned)
    assert not owned.complete


def test_a_copy_of_an_answered_push_is_answered_again_or_dropped() -> None:
    owned = started()
    for rank in range(2):
        owned, _ = owned.push(Push(rank, 1, 1))
    owned = owned.finish()

    assert owned.push(Push(0, 1, 1)) == (owned, Outcome.RESULT)
    assert owned.push(Push(0, 0, 1)) == (owned, Outcome.STALE)


def test_what_no_worker_can_have_sent_is_refused() -> None:
    owned = started()

    for push in (Push(0, 2, 1), Push(2, 1, 1), Push(-1, 1, 1), Push(0, -1, 1), Push(0, 1, 2)):
        assert owned.push(push) == (owned, Outcome.REFUSED)


def test_a_moved_range_is_at_its_next_owner() -> None:
    half, _ = started().push(Push(0, 1, 1))

    left = half.leave(2, "b:1")

    assert left is not None
    assert left.gone_to == "b:1"
    assert left.push(Push(0, 1, 1)) == (left, Outcome.MOVED)
    assert left.kept == {}
    back = left.expect(3)
    assert back is not None
    assert back.push(Push(0, 1, 1)) == (back, Outcome.MOVED), "an old copy"
    assert back.push(Push(0, 1, 3))[1] is Outcome.KEEP
    assert left.expect(2) is None, "the next owner's version"
    assert half.expect(2) is None, "it is here"
    assert left.leave(3, "c:1") is None, "it is not here"
    assert half.leave(1, "b:1") is None, "no later version"


def test_pushes_wait_for_the_state() -> None:
    coming = RangeOwnership(2, 2, None)
    coming, early = coming.push(Push(0, 4, 2))
    coming, late = coming.push(Push(1, 3, 2))
    assert (early, late) == (Outcome.KEEP, Outcome.KEEP)
    assert coming.push(Push(0, 4, 2))[1] is Outcome.DUPLICATE
    assert not coming.complete

    arrived = coming.arrive(2, 3)

    assert arrived is not None
    assert arrived[1] == {0: Outcome.KEEP, 1: Outcome.RESULT}
    assert dict(arrived[0].kept) == {0: 4}
    assert arrived[0].arrive(2, 3) is None, "the second copy"
    assert arrived[0].has_arrived(2)
    assert coming.arrive(3, 3) is None, "another version"


@dataclass(frozen=True)
class PushSent:
    owner: str
    push: Push


@dataclass(frozen=True)
class Answer:
    rank: int
    step: int
    moved: tuple[int, str] | None


@dataclass(frozen=True)
class StateSent:
    owner: str
    version: int
    done: int


class LossyNetwork(RuleBasedStateMachine):
    """Workers, owners, and messages that are delivered in any order, any number of times, or never."""

    @initialize()
    def begin(self) -> None:
        self.owners: dict[str, RangeOwnership] = {OWNERS[0]: RangeOwnership(RANKS, 1)}
        self.version = 1
        self.place = OWNERS[0]
        self.leaving: StateSent | None = None
        self.messages: list[PushSent | Answer | StateSent] = []
        self.known = [(1, OWNERS[0])] * RANKS
        """By rank: version and owner as this worker knows them."""
        self.steps = [0] * RANKS
        """By rank: the step that it waits for."""
        self.made: list[int] = []
        """Steps in the order in which they were made, at whichever owner."""
        self.contents: dict[str, dict[int, int]] = {owner: {} for owner in OWNERS}
        """Steps of the contents that a process would hold, by owner and rank."""

    @rule(rank=st.integers(0, RANKS - 1))
    def push(self, rank: int) -> None:
        """Also again: a worker that waits may always send again."""
        version, owner = self.known[rank]
        self.messages.append(PushSent(owner, Push(rank, self.steps[rank], version)))

    @rule(target_owner=st.sampled_from(OWNERS))
    def move(self, target_owner: str) -> None:
        if target_owner == self.place or self.leaving is not None:
            return
        before = self.owners[self.place]
        left = before.leave(self.version + 1, target_owner)
        if left is None:
            return  # its state has not come yet
        assert before.done is not None
        self.version += 1
        known = self.owners.get(target_owner)
        expected = RangeOwnership(RANKS, self.version, None) if known is None else known.expect(self.version)
        assert expected is not None
        self.owners |= {target_owner: expected, self.place: left}
        self.contents[self.place] = {}
        self.leaving = StateSent(target_owner, self.version, before.done)
        self.messages.append(self.leaving)
        self.place = target_owner

    @precondition(lambda self: self.leaving is not None)
    @rule()
    def send_state_again(self) -> None:
        self.messages.append(self.leaving)

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), copies=st.integers(0, 2))
    def deliver(self, data: st.DataObject, copies: int) -> None:
        """One of the messages; copies of it stay under way."""
        index = data.draw(st.integers(0, len(self.messages) - 1))
        message = self.messages.pop(index)
        self.messages += [message] * min(copies, 1)
        self.take(message)

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.messages.pop(data.draw(st.integers(0, len(self.messages) - 1)))

    def take(self, message: PushSent | Answer | StateSent) -> None:
        match message:
            case PushSent(owner, push):
                self.take_push(owner, push)
            case StateSent():
                self.take_state(message)
            case Answer(rank, step, None):
                if step == self.steps[rank]:
                    self.steps[rank] += 1
            case Answer(rank, _, (version, owner)):
                self.known[rank] = max(self.known[rank], (version, owner))

    def take_push(self, owner: str, push: Push) -> None:
        owned, outcome = self.owners[owner].push(push)
        self.owners[owner] = owned
        assert outcome is not Outcome.REFUSED, (owned, push)
        if outcome is Outcome.KEEP:
            self.contents[owner][push.rank] = push.step
        elif outcome is Outcome.MOVED:
            self.messages.append(Answer(push.rank, push.step, (owned.version, owned.gone_to or owner)))
        elif outcome is Outcome.RESULT:
            self.messages.append(Answer(push.rank, push.step, None))
        self.make_step(owner)

    def take_state(self, state: StateSent) -> None:
        owned = self.owners[state.owner]
        if not owned.has_arrived(state.version):
            arrived = owned.arrive(state.version, state.done)
            assert arrived is not None, (owned, state)
            self.owners[state.owner], outcomes = arrived
            assert Outcome.REFUSED not in outcomes.values()
            for rank, outcome in outcomes.items():
                if outcome is not Outcome.KEEP:
                    del self.contents[state.owner][rank]
                if outcome is Outcome.RESULT:
                    self.messages.append(Answer(rank, state.done, None))
        if self.leaving == state:
            self.leaving = None
        self.make_step(state.owner)

    def make_step(self, owner: str) -> None:
        owned = self.owners[owner]
        if not owned.complete:
            return
        assert owned.done is not None
        assert dict(owned.kept) == dict.fromkeys(range(RANKS), owned.done + 1), "one content of each rank, of one step"
        self.owners[owner], self.contents[owner] = owned.finish(), {}
        self.made.append(owned.done + 1)
        self.messages += [Answer(rank, owned.done + 1, None) for rank in range(RANKS)]

    @invariant()
    def every_step_is_made_once_and_in_order(self) -> None:
        assert self.made == list(range(len(self.made)))

    @invariant()
    def what_is_kept_is_there(self) -> None:
        assert {owner: dict(owned.kept) for owner, owned in self.owners.items()} == {
            owner: self.contents[owner] for owner in self.owners
        }

    @invariant()
    def no_worker_is_ahead(self) -> None:
        assert all(step <= len(self.made) for step in self.steps)

    @invariant()
    def one_owner_has_the_state(self) -> None:
        here = [owned.done for owned in self.owners.values() if owned.done is not None]
        assert len(here) + (self.leaving is not None and self.owners[self.place].done is None) == 1
        assert all(done == len(self.made) + UNSTARTED for done in here)

    def teardown(self) -> None:
        """Once the network delivers, the next two steps are made."""
        if not hasattr(self, "steps"):
            return
        wanted = max(self.steps) + 2
        for _ in range(20):
            if self.leaving is not None:
                self.send_state_again()
            for rank in range(RANKS):
                self.push(rank)
            while self.messages:
                self.take(self.messages.pop(0))
        assert min(self.steps) >= wanted, (self.steps, self.owners)


TestLossyNetwork = LossyNetwork.TestCase
