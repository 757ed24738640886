"""What follows from a worker's records: at most one start per attempt, whatever dies in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from schemas.scheduling import OrderAction, Preemption, WorkerChange
from services.runner.core.worker_state import Ending, Facts, Step, ending_change, next_step

FACTS = st.builds(Facts, **dict.fromkeys(Facts.__dataclass_fields__, st.booleans()))
ORDERS = st.sampled_from([None, *OrderAction])


@given(facts=FACTS, order=ORDERS)
def test_only_an_order_to_run_starts_and_only_what_nobody_has_claimed(facts: Facts, order: OrderAction | None) -> None:
    if next_step(facts, order) is Step.START:
        assert order is OrderAction.RUN
        assert (facts.claimed, facts.over, facts.shim_lives) == (False, False, False)


@given(facts=FACTS, order=ORDERS)
def test_what_is_over_stays_as_it_is(facts: Facts, order: OrderAction | None) -> None:
    if facts.over:
        assert next_step(facts, order) is (Step.FORGET if order is OrderAction.FORGET else Step.NOTHING)


@given(facts=FACTS)
def test_what_is_claimed_and_gone_is_lost_whatever_is_ordered(facts: Facts) -> None:
    if facts.claimed and not facts.shim_lives and not facts.over:
        assert {next_step(facts, order) for order in (None, *OrderAction)} == {Step.DECLARE_LOST}


@given(facts=FACTS, order=ORDERS)
def test_a_request_is_made_once(facts: Facts, order: OrderAction | None) -> None:
    step = next_step(facts, order)

    assert not (step is Step.ASK_STOP and facts.stop_asked)
    assert not (step is Step.ASK_KILL and facts.kill_asked)


class OneWorker(RuleBasedStateMachine):
    """A worker's records, shims that race for it, and runners that are killed between any two writes."""

    def __init__(self) -> None:
        super().__init__()
        self.intended = self.claimed = self.over = self.stop = self.kill = False
        self.same_boot = True
        self.spawned = 0
        """Shims that have not taken the lock yet."""
        self.holder = False
        """A shim has the lock."""
        self.processes = 0
        self.starts = 0
        self.closed = False
        """It was said that it is over."""

    def facts(self) -> Facts:
        return Facts(
            intended=self.intended,
            same_boot=self.same_boot,
            shim_lives=self.holder,
            claimed=self.claimed,
            over=self.over,
            stop_asked=self.stop,
            kill_asked=self.kill,
        )

    @rule(order=ORDERS, killed=st.booleans())
    def runner_acts(self, order: OrderAction | None, killed: bool) -> None:
        """An order, or a look; `killed`: the runner dies after the first write."""
        match next_step(self.facts(), order):
            case Step.START:
                self.intended = True
                if not killed:
                    self.spawned += 1
            case Step.ASK_STOP:
                self.stop = True
            case Step.ASK_KILL:
                self.stop = self.kill = True
            case Step.DECLARE_STOPPED | Step.DECLARE_LOST:
                if not self.holder:  # it takes the lock for that
                    self.processes = 0
                    self.over = True

    @precondition(lambda self: self.spawned and not self.holder)
    @rule()
    def shim_takes_the_lock(self) -> None:
        self.spawned -= 1
        if not (self.claimed or self.over):
            self.holder = True

    @precondition(lambda self: self.holder and not self.claimed)
    @rule()
    def shim_starts_the_worker(self) -> None:
        if self.stop:
            self.over, self.holder = True, False
            return
        self.claimed = True
        self.starts += 1
        self.processes += 1

    @precondition(lambda self: self.holder and self.claimed)
    @rule()
    def worker_ends(self) -> None:
        self.processes, self.over, self.holder = 0, True, False

    @precondition(lambda self: self.holder)
    @rule()
    def shim_is_killed(self) -> None:
        self.processes, self.holder = 0, False  # the kernel kills its worker

    @rule()
    def host_is_booted(self) -> None:
        self.same_boot = not self.intended
        self.processes, self.spawned, self.holder = 0, 0, False

    @invariant()
    def at_most_one_start(self) -> None:
        assert self.starts <= 1
        assert self.processes <= 1

    @invariant()
    def nothing_runs_after_the_end(self) -> None:
        assert not (self.over and self.processes)
        self.closed |= self.over
        assert self.over == self.closed, "an end is final"

    def teardown(self) -> None:
        """From wherever this has come to, a look and an order lead to an end, or the shim still has the worker."""
        for order in (OrderAction.KILL, None):
            self.runner_acts(order=order, killed=False)
        assert self.over or self.holder


TestOneWorker = OneWorker.TestCase


@pytest.mark.parametrize(
    ("ending", "change"),
    [
        (Ending(Preemption.CHECKPOINT, 0), WorkerChange.ENDED),
        (Ending(Preemption.CHECKPOINT, 143), WorkerChange.FAILED),
        (Ending(Preemption.NEVER, -9), WorkerChange.FAILED),
        (Ending(Preemption.CHECKPOINT, 0, asked=True), WorkerChange.STOPPED),
        (Ending(Preemption.CHECKPOINT, 143, asked=True), WorkerChange.STOPPED),
        (Ending(Preemption.CHECKPOINT, -15, asked=True), WorkerChange.STOPPED),
        (Ending(Preemption.CHECKPOINT, -9, asked=True, killed=True), WorkerChange.UNSAVED),
        (Ending(Preemption.CHECKPOINT, 1, asked=True), WorkerChange.UNSAVED),
        (Ending(Preemption.RESTART, 143, asked=True), WorkerChange.UNSAVED),
        (Ending(Preemption.NEVER, -15, asked=True), WorkerChange.UNSAVED),
        (Ending(Preemption.NEVER, 0, asked=True), WorkerChange.STOPPED),
        (Ending(Preemption.CHECKPOINT, None, asked=True), WorkerChange.STOPPED),
        (Ending(Preemption.CHECKPOINT, None, error="no such program"), WorkerChange.FAILED),
        (Ending(Preemption.CHECKPOINT, None, error="booted anew", lost=True), WorkerChange.LOST),
    ],
)
def test_what_an_end_means(ending: Ending, change: WorkerChange) -> None:
    assert ending_change(ending) is change
