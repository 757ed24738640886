"""A slab's pages are never lost, whatever events are lost, doubled or late, and whoever dies in between."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.memory.core.mapping import (
    Chosen,
    Event,
    Evicted,
    Lost,
    Restarted,
    Slab,
    State,
    Step,
    Switched,
    Synchronized,
    apply,
)

PAGES = 3
DAEMON = "10.0.0.2:10809"


def after(*events: Event) -> Slab:
    slab = Slab(0)
    for event in events:
        slab = apply(slab, event)
    return slab


def test_a_slab_goes_to_remote_memory_and_back() -> None:
    assert after().step is Step.NOTHING
    mapping = after(Chosen(DAEMON))
    assert (mapping.state, mapping.attempt, mapping.daemon, mapping.step) == (State.MAPPING, 1, DAEMON, Step.BUILD)
    remote = apply(mapping, Synchronized(1))
    assert (remote.state, remote.step) == (State.REMOTE, Step.NOTHING)
    draining = apply(remote, Evicted(1))
    assert (draining.state, draining.step, draining.daemon) == (State.DRAINING, Step.TAKE_APART, DAEMON)
    disk = apply(draining, Switched(1))
    assert (disk.state, disk.daemon, disk.step) == (State.DISK, "", Step.NOTHING)
    assert apply(disk, Chosen("other:1")).attempt == 2


def test_a_lost_daemon_leads_to_the_disk() -> None:
    assert after(Chosen(DAEMON), Lost(1)).state is State.DRAINING
    assert after(Chosen(DAEMON), Synchronized(1), Lost(1)).state is State.DRAINING


def test_a_half_built_mirror_is_taken_apart_after_a_restart_and_a_whole_one_stays() -> None:
    assert after(Chosen(DAEMON), Restarted()).step is Step.TAKE_APART
    assert after(Chosen(DAEMON), Synchronized(1), Restarted()).state is State.REMOTE


def test_events_of_an_earlier_attempt_change_nothing() -> None:
    again = after(Chosen(DAEMON), Lost(1), Switched(1), Chosen(DAEMON))

    for late in (Synchronized(1), Evicted(1), Lost(1), Switched(1), Switched(2), Chosen("other:1")):
        assert apply(again, late) is again


class Kernel:
    """The block path of one slab as the kernel has it: it outlives the mapper."""

    def __init__(self) -> None:
        self.disk = [0] * PAGES
        self.attempt: int | None = None
        """Of the mirror's remote half."""
        self.remote: list[int] | None = None
        """Contents of the connected export; None: not connected, or the connection has ended."""
        self.synchronized = False

    def write(self, page: int, value: int) -> None:
        self.disk[page] = value
        if self.remote is not None:
            self.remote[page] = value

    def read(self, page: int) -> int:
        return self.remote[page] if self.remote is not None and self.synchronized else self.disk[page]


class Slabs(RuleBasedStateMachine):
    """One slab, a mapper that crashes, a daemon that dies, and events that come in any order, often, or never."""

    @initialize()
    def begin(self) -> None:
        self.kernel = Kernel()
        self.exports: dict[int, list[int]] = {}
        """What the daemon holds, by attempt."""
        self.journal = self.slab = Slab(0)
        self.events: list[Event] = []
        self.written = [0] * PAGES
        self.writes = 0
        self.attempts: set[int] = set()

    def take(self, event: Event) -> None:
        """The mapper: what it has decided is written before it is carried out."""
        self.journal = self.slab = apply(self.slab, event)

    @rule(page=st.integers(0, PAGES - 1))
    def write(self, page: int) -> None:
        self.writes += 1
        self.written[page] = self.writes
        self.kernel.write(page, self.writes)

    @rule()
    def choose(self) -> None:
        self.take(Chosen(DAEMON))

    @precondition(lambda self: self.slab.step is Step.BUILD)
    @rule()
    def take_at_the_daemon(self) -> None:
        """Once per attempt: its name is new, and its one connection comes after it."""
        if self.slab.attempt not in self.attempts:
            self.attempts.add(self.slab.attempt)
            self.exports[self.slab.attempt] = [-1] * PAGES

    @precondition(lambda self: self.slab.step is Step.BUILD and self.slab.attempt in self.exports)
    @rule()
    def connect(self) -> None:
        if self.kernel.attempt is None:
            self.kernel.attempt, self.kernel.synchronized = self.slab.attempt, False
            self.kernel.remote = self.exports[self.slab.attempt]

    @precondition(lambda self: self.kernel.remote is not None)
    @rule()
    def synchronize(self) -> None:
        """The kernel has copied the disk; where the mapper runs, it is told."""
        assert self.kernel.remote is not None
        assert self.kernel.attempt is not None
        if not self.kernel.synchronized:
            self.kernel.remote[:] = self.kernel.disk
            self.kernel.synchronized = True
        self.events.append(Synchronized(self.kernel.attempt))

    @precondition(lambda self: self.slab.step is Step.TAKE_APART)
    @rule()
    def take_apart(self) -> None:
        self.kernel.attempt, self.kernel.remote, self.kernel.synchronized = None, None, False
        self.exports.pop(self.slab.attempt, None)
        self.events.append(Switched(self.slab.attempt))

    @precondition(lambda self: self.exports)
    @rule()
    def evict(self) -> None:
        self.events += [Evicted(attempt) for attempt in self.exports]

    @precondition(lambda self: self.exports)
    @rule()
    def daemon_dies(self) -> None:
        self.exports.clear()
        self.kernel.remote = None
        if self.kernel.attempt is not None:
            self.events.append(Lost(self.kernel.attempt))

    @precondition(lambda self: self.events)
    @rule(data=st.data(), lost=st.booleans(), doubled=st.booleans())
    def deliver(self, data: st.DataObject, lost: bool, doubled: bool) -> None:
        index = data.draw(st.integers(0, len(self.events) - 1))
        event = self.events[index] if doubled else self.events.pop(index)
        if not lost:
            self.take(event)

    @rule()
    def mapper_restarts(self) -> None:
        self.slab = self.journal
        self.take(Restarted())

    @rule()
    def mapper_compares(self) -> None:
        """It asks the kernel from time to time: events may have been lost."""
        if self.slab.state in {State.MAPPING, State.REMOTE} and self.kernel.attempt == self.slab.attempt:
            if self.kernel.remote is None:
                self.take(Lost(self.slab.attempt))
            elif self.kernel.synchronized:
                self.take(Synchronized(self.slab.attempt))

    @invariant()
    def every_page_is_read_as_it_was_written(self) -> None:
        assert [self.kernel.read(page) for page in range(PAGES)] == self.written

    @invariant()
    def what_the_kernel_has_is_known(self) -> None:
        """A mirror is of the present attempt, which is not finished; a finished slab is without."""
        if self.kernel.attempt is not None:
            assert self.slab.attempt == self.kernel.attempt
            assert self.slab.state in {State.MAPPING, State.REMOTE, State.DRAINING}
        if self.slab.state is State.REMOTE:
            assert self.kernel.attempt == self.slab.attempt
            assert self.kernel.synchronized

    def teardown(self) -> None:
        """Without further faults it comes to rest, and the daemon holds nothing that is not used."""
        if not hasattr(self, "kernel"):
            return
        for _ in range(3):
            self.mapper_compares()
            if self.slab.step is Step.BUILD:
                self.take(Lost(self.slab.attempt))
            if self.slab.step is Step.TAKE_APART:
                self.take_apart()
                self.take(Switched(self.slab.attempt))
        assert self.slab.step is Step.NOTHING
        if self.slab.state is State.REMOTE:
            assert set(self.exports) == {self.slab.attempt}
        else:
            assert not self.exports
            assert self.kernel.attempt is None


TestSlabs = Slabs.TestCase
