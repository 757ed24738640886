"""Cuts are written just after the container's own period boundary, with few reads once its phase is known."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from services.agent.limits.period_boundary import (
    COALESCE_NS,
    DEADLINE_NS,
    GUARD_NS,
    LATE_NS,
    LEARN_NS,
    PERIOD_NS,
    PHASE_VALID_NS,
    BoundaryQueue,
)

MS = 1_000_000


def run_cut(queue, phase_ns, start_ns, *, jitter_ns=lambda: 0, running=True):
    """Play one cut; returns (written at, reads)."""

    def nr_periods(now_ns):
        return (now_ns - phase_ns) // PERIOD_NS if running else 0

    queue.add("web", (1, 1), nr_periods(start_ns), start_ns)
    now_ns, reads = start_ns, 0
    while (wake_ns := queue.next_wake_ns()) is not None:
        now_ns = max(now_ns, wake_ns) + jitter_ns()
        for cut in queue.due(now_ns):
            reads += 1
            if queue.read(cut, nr_periods(now_ns), now_ns):
                return now_ns, reads
    raise AssertionError("a waiting cut must wake up")


@given(phase_ns=st.integers(0, PERIOD_NS - 1), start_ns=st.integers(0, 10 * PERIOD_NS))
def test_first_cut_searches_and_is_written_within_four_milliseconds_after_the_boundary(phase_ns, start_ns):
    written_ns, reads = run_cut(BoundaryQueue(), phase_ns, start_ns + PERIOD_NS)

    assert (written_ns - phase_ns) % PERIOD_NS <= COALESCE_NS
    assert reads <= 26


@example(phase_ns=1, gaps_ns=[97 * MS + 1], jitters=[MS])
@example(phase_ns=1, gaps_ns=[1_295_333_334, 0], jitters=[666_667])  # the second cut cannot tell, and forgets
@given(
    phase_ns=st.integers(0, PERIOD_NS - 1),
    gaps_ns=st.lists(st.integers(0, 50 * PERIOD_NS), min_size=1, max_size=5),
    jitters=st.lists(st.integers(0, MS), min_size=1, max_size=7),
)
def test_later_cuts_use_the_learnt_phase(phase_ns, gaps_ns, jitters):
    """With timers up to 1 ms late: within 8 ms after the boundary, with at most ten reads while a phase is known."""
    queue, turn = BoundaryQueue(), iter(range(10**9))

    def jitter_ns():
        return jitters[next(turn) % len(jitters)]

    now_ns, _ = run_cut(queue, phase_ns, PERIOD_NS, jitter_ns=jitter_ns)
    for gap_ns in gaps_ns:
        known = "web" in queue.boundaries_ns
        now_ns, reads = run_cut(queue, phase_ns, now_ns + gap_ns, jitter_ns=jitter_ns)

        assert (now_ns - phase_ns) % PERIOD_NS <= 8 * MS
        assert reads <= (10 if known else 26)


def test_container_that_stopped_running_is_cut_at_the_deadline():
    """No boundary comes while the kernel's timer is stopped."""
    written_ns, _ = run_cut(BoundaryQueue(), 0, 5 * MS, running=False)

    assert DEADLINE_NS <= written_ns - 5 * MS <= DEADLINE_NS + COALESCE_NS


@given(first_ns=st.integers(0, PERIOD_NS - 1), moved_ns=st.integers(0, PERIOD_NS - 1))
def test_moved_phase_is_learnt_again(first_ns, moved_ns):
    """A prediction is trusted for half a minute; after that a wrong one costs one late write at most."""
    queue = BoundaryQueue()
    now_ns, _ = run_cut(queue, first_ns, PERIOD_NS)
    now_ns += PHASE_VALID_NS
    for _ in range(3):
        now_ns, _ = run_cut(queue, moved_ns, now_ns + 3 * PERIOD_NS)

    assert (now_ns - moved_ns) % PERIOD_NS <= 8 * MS


def test_newer_cut_replaces_the_waiting_one():
    queue = BoundaryQueue()
    queue.add("web", (1, 1), 0, 0)
    queue.add("web", (1, 2), 0, 0)

    assert [cut.order for cut in queue.due(PERIOD_NS)] == [(1, 2)]


@example(phase_ns=0, offset_ns=2 * MS, lates_ns=[0], timers_ns=[0])
@given(
    phase_ns=st.integers(0, PERIOD_NS - 1),
    offset_ns=st.integers(0, PERIOD_NS - 1),
    lates_ns=st.lists(st.integers(0, 3 * MS), min_size=1, max_size=7),
    timers_ns=st.lists(st.integers(0, MS), min_size=1, max_size=5),
)
def test_cuts_that_are_replaced_every_period_are_written_all_the_same(phase_ns, offset_ns, lates_ns, timers_ns):
    """Whatever the moment at which orders come: one of any four is written, within 8 ms after a boundary.

    Or just before: a phase was learnt to within half of LEARN_NS.
    """
    queue, written = BoundaryQueue(), []

    def nr_periods(now_ns):
        return (now_ns - phase_ns) // PERIOD_NS

    for number in range(1, 40):
        ordered_ns = number * PERIOD_NS + offset_ns + lates_ns[number % len(lates_ns)]
        next_ns = (number + 1) * PERIOD_NS + offset_ns + lates_ns[(number + 1) % len(lates_ns)]
        if not queue.add("web", (1, number), nr_periods(ordered_ns), ordered_ns):
            written.append((number, ordered_ns))
        while (wake_ns := queue.next_wake_ns()) is not None:
            now_ns = wake_ns + timers_ns[number % len(timers_ns)]
            if now_ns >= next_ns:
                break
            written += [(number, now_ns) for cut in queue.due(now_ns) if queue.read(cut, nr_periods(now_ns), now_ns)]
    numbers = [0, *(number for number, _ in written), 40]
    assert max(after - before for before, after in itertools.pairwise(numbers)) <= 4
    early_ns = LEARN_NS // 2
    assert all((now_ns - phase_ns + early_ns) % PERIOD_NS <= early_ns + 8 * MS for _, now_ns in written)


def test_cuts_that_fall_due_close_together_are_read_together():
    """Three containers, boundaries 1 ms apart, phases known: one waking, one read each."""
    queue = BoundaryQueue()
    for number in range(3):
        queue.boundaries_ns[f"web-{number}"] = number * MS
        queue.add(f"web-{number}", (1, 1), 0, 50 * MS)
    wake_ns = queue.next_wake_ns()
    due = queue.due(wake_ns)

    assert wake_ns % COALESCE_NS == 0
    assert len(due) == 3
    assert all(queue.read(cut, 1, wake_ns) for cut in due)


@given(
    phase_ns=st.integers(0, PERIOD_NS - 1),
    named=st.integers(-500, 5),
    start_ns=st.integers(10 * PERIOD_NS, 20 * PERIOD_NS),
    late_ns=st.integers(0, 3 * PERIOD_NS),
)
def test_a_boundary_that_the_kernel_names_needs_no_reading(phase_ns, named, start_ns, late_ns):
    """Written within 8 ms after a boundary; a wake-up that comes too late waits for the next one, once."""
    queue = BoundaryQueue()
    boundary_ns = phase_ns + (start_ns // PERIOD_NS + named) * PERIOD_NS
    if not queue.add_predicted("web", (1, 1), boundary_ns, start_ns):
        assert GUARD_NS <= (start_ns - phase_ns) % PERIOD_NS <= COALESCE_NS
        assert queue.next_wake_ns() is None
        return
    wake_ns = queue.next_wake_ns()
    assert start_ns < wake_ns <= start_ns + PERIOD_NS + GUARD_NS + COALESCE_NS
    (cut,) = queue.due(wake_ns + late_ns)
    written_ns = wake_ns + late_ns
    if not queue.boundary_passed(cut, written_ns):
        assert late_ns > 0
        written_ns = queue.next_wake_ns()
        assert queue.boundary_passed(cut, written_ns)
    assert GUARD_NS <= (written_ns - phase_ns) % PERIOD_NS <= LATE_NS
    assert queue.next_wake_ns() is None
