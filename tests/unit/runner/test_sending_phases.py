"""Iterations in a byte counter: buckets, rendezvous, changes midway, and jobs that never fall silent."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runner.core.sampling import IDLE_EVERY_NS, next_sample_ns, next_window
from services.runner.core.sending_phases import Counted, Iteration, PhaseBegin, PhaseEnd, SendingPhases
from tests.support.simulated_link import SimulatedJob, run_jobs

MS = 1_000_000
MB = 1_000_000


class Observed:
    """A counter that grows as a test says, sampled every 10 ms."""

    def __init__(self) -> None:
        self.phases = SendingPhases()
        self.now_ns = 0
        self.sent_bytes = 0
        self.iterations: list[Iteration] = []
        self.ends_ns: list[int] = []

    def pass_time(self, ms: int, bytes_per_10_ms: int = 0) -> None:
        for _ in range(ms // 10):
            self.now_ns += 10 * MS
            self.sent_bytes += bytes_per_10_ms
            seen = self.phases.observe(Counted(self.now_ns, self.sent_bytes))
            if isinstance(seen, PhaseBegin) and seen.iteration is not None:
                self.iterations.append(seen.iteration)
            elif isinstance(seen, PhaseEnd):
                self.ends_ns.append(seen.time_ns)

    def iterate(self, count: int, silent_ms: int, sending_ms: int) -> None:
        for _ in range(count):
            self.pass_time(silent_ms)
            self.pass_time(sending_ms, 100_000)


def test_period_sending_time_and_bytes() -> None:
    """0.7 s of silence, 0.5 s of sending 0.1 MB every 10 ms."""
    seen = Observed()
    seen.iterate(6, 700, 500)

    assert len(seen.iterations) == 5
    for each in seen.iterations:
        assert each.period_ns == 1_200 * MS
        assert each.sending_ns == pytest.approx(500 * MS, abs=15 * MS)
        assert each.sent_bytes == 5 * MB
    assert seen.phases.is_known
    assert seen.phases.period_ns == 1_200 * MS


def test_without_the_kernels_times_a_phase_that_begins_between_samples_far_apart_may_go_on() -> None:
    """As after a pause of 0.3 s: what was sent in it may have been sent just now, so the job must not be paused."""
    seen = Observed()
    seen.iterate(6, 700, 500)
    seen.pass_time(300)
    seen.now_ns += 300 * MS
    seen.sent_bytes += 100_000

    begun = seen.phases.observe(Counted(seen.now_ns, seen.sent_bytes))
    assert isinstance(begun, PhaseBegin)
    assert seen.phases.end(seen.now_ns) is None
    assert seen.phases.ended_ns is None
    ended = len(seen.ends_ns)
    seen.pass_time(200, 100_000)
    assert len(seen.ends_ns) == ended
    seen.pass_time(300)
    assert seen.ends_ns[ended:] == [pytest.approx(seen.now_ns - 300 * MS, abs=10 * MS)]


@given(period_ms=st.integers(30, 300).map(lambda n: n * 10), share=st.floats(0.1, 0.75))
def test_any_job_with_a_silence(period_ms: int, share: float) -> None:
    sending_ms = max(20, int(period_ms * share) // 10 * 10)
    silent_ms = period_ms - sending_ms
    if silent_ms < max(90, period_ms // 8 + 10):
        return
    seen = Observed()
    seen.iterate(6, silent_ms, sending_ms)

    assert [each.period_ns for each in seen.iterations] == [period_ms * MS] * 5


def test_buckets_of_one_gradient_are_one_iteration() -> None:
    """Three buckets of 0.1 s, some 15 ms apart."""
    seen = Observed()
    for _ in range(6):
        seen.pass_time(600)
        for _ in range(3):
            seen.pass_time(100, 100_000)
            seen.pass_time(20)

    assert [each.sent_bytes for each in seen.iterations] == [3 * MB] * 5
    assert {each.period_ns for each in seen.iterations} == {960 * MS}


def test_phases_of_one_iteration_that_lie_further_apart_are_put_together_once_its_period_is_known() -> None:
    """Sending at 0 and 0.3 s of 2.4 s: 0.2 s of silence are below an eighth, 0.3 s."""
    seen = Observed()
    for _ in range(12):
        seen.pass_time(1_900)
        seen.pass_time(100, 100_000)
        seen.pass_time(200)
        seen.pass_time(200, 100_000)

    assert [each.period_ns for each in seen.iterations[-6:]] == [2_400 * MS] * 6
    assert [each.sent_bytes for each in seen.iterations[-6:]] == [3 * MB] * 6


def test_a_rendezvous_is_no_iteration_and_hides_none() -> None:
    """22 s with some bytes now and then, before the first gradient."""
    seen = Observed()
    for _ in range(11):
        seen.pass_time(1_900)
        seen.pass_time(10, 4_000)
    seen.iterate(5, 400, 400)

    assert {each.period_ns for each in seen.iterations[1:]} == {800 * MS}


def test_a_long_wait_between_a_broadcast_and_the_first_iteration_hides_none() -> None:
    """As of DistributedDataParallel, which sends its parameters once, and reads its data then."""
    seen = Observed()
    seen.iterate(1, 400, 400)
    seen.pass_time(45_000)
    seen.iterate(5, 400, 400)

    assert [each.period_ns for each in seen.iterations[1:]] == [800 * MS] * 4
    assert seen.phases.is_known


def test_a_stall_is_not_the_period() -> None:
    seen = Observed()
    seen.iterate(6, 400, 400)
    seen.pass_time(22_000)
    seen.iterate(6, 400, 400)

    assert max(each.period_ns for each in seen.iterations) > 20_000 * MS
    assert seen.phases.period_ns == 800 * MS
    assert [each.period_ns for each in seen.iterations[-4:]] == [800 * MS] * 4


@pytest.mark.parametrize(("silent_ms", "sending_ms"), [(300, 200), (900, 900), (150, 400), (250, 60), (3_000, 500)])
def test_a_job_that_changes_midway_is_learned_again(silent_ms: int, sending_ms: int) -> None:
    """From the 20th iteration after the change on, whatever it was before."""
    seen = Observed()
    seen.iterate(20, 1_500, 500)
    known = len(seen.iterations)
    seen.iterate(20, silent_ms, sending_ms)

    late = [each for each in seen.iterations[known:] if each.begin_ns > seen.now_ns - 8 * (silent_ms + sending_ms) * MS]
    assert len(late) >= 5
    for each in late:
        assert each.period_ns == (silent_ms + sending_ms) * MS
        assert each.sent_bytes == sending_ms // 10 * 100_000
    assert seen.phases.is_known


def test_a_job_that_never_falls_silent_has_no_iterations() -> None:
    seen = Observed()
    seen.pass_time(60_000, 100_000)

    assert seen.iterations == []
    assert seen.ends_ns == []
    assert not seen.phases.is_known
    assert next_sample_ns(seen.phases, seen.now_ns) == seen.now_ns + IDLE_EVERY_NS


def test_little_traffic_is_none() -> None:
    seen = Observed()
    seen.pass_time(1_000, 100_000)
    seen.pass_time(20_000, 2_900)

    assert seen.iterations == []
    assert len(seen.ends_ns) == 1


def test_a_begin_between_samples_that_lie_far_apart_is_not_known() -> None:
    seen = Observed()
    seen.iterate(6, 700, 500)
    seen.pass_time(400)
    known = len(seen.iterations)
    seen.now_ns += 400 * MS  # this process had no processor
    seen.pass_time(400, 100_000)
    assert seen.phases.begin_ns is None
    seen.iterate(3, 700, 500)

    assert [each.period_ns for each in seen.iterations[known:]] == [1_200 * MS] * 2


def test_sampling_that_begins_within_a_phase_sees_no_begin() -> None:
    seen = Observed()
    seen.iterate(6, 700, 500)
    seen.phases.interrupt()
    seen.now_ns += 3_000 * MS
    seen.sent_bytes += 10 * MB
    seen.pass_time(300, 100_000)
    known = len(seen.iterations)
    assert seen.phases.begin_ns is None
    seen.iterate(3, 700, 500)

    assert [each.period_ns for each in seen.iterations[known:]] == [1_200 * MS] * 2


def test_a_known_job_is_sampled_often_only_where_something_begins_or_ends() -> None:
    """T = 1.27 s, 0.54 s of sending: the begin is awaited from 80 ms before on, the end from 0.9 * 0.54 s on."""
    job = SimulatedJob(0.73, 6_750_000)
    sampled: list[int] = []
    due_ns = 0

    def note(now_s: float) -> None:
        nonlocal due_ns
        now_ns = round(now_s * 1e9)
        if now_ns >= due_ns:
            sampled.append(now_ns)
            due_ns = next_sample_ns(job.phases, now_ns)

    run_jobs([job], 20.0, note)
    begins = [each.begin_ns for each in job.iterations]
    counts = [sum(first <= each < second for each in sampled) for first, second in pairwise(begins)]

    assert counts[0] > 100
    assert all(8 <= count <= 22 for count in counts[5:]), counts


def test_iterations_are_found_by_such_samples_alone() -> None:
    phases, job = SendingPhases(), SimulatedJob(0.73, 6_750_000)
    found: list[Iteration] = []
    due_ns = 0

    def sample(now_s: float) -> None:
        nonlocal due_ns
        now_ns = round(now_s * 1e9)
        if now_ns >= due_ns:
            seen = phases.observe(Counted(now_ns, job.sent_bytes))
            if isinstance(seen, PhaseBegin) and seen.iteration is not None:
                found.append(seen.iteration)
            due_ns = next_sample_ns(phases, now_ns)

    run_jobs([job], 30.0, sample)

    assert len(found) >= 20
    for each in found[1:]:
        assert each.period_ns == pytest.approx(1_280 * MS, abs=20 * MS)
        assert each.sending_ns == pytest.approx(540 * MS, abs=30 * MS)
        assert each.sent_bytes == 6_750_000


def test_a_job_whose_iterations_become_a_third_shorter_is_followed_by_such_samples() -> None:
    """As where it takes turns: its next begin lies before all that a known job of longer iterations is looked at."""
    job = SimulatedJob(0.73, 14_600_000)  # 1.17 s at 12.5 MB/s, then 0.54 s
    phases, next_ns = SendingPhases(), 0
    found: list[Iteration] = []

    def sample(now_s: float) -> None:
        nonlocal next_ns
        job.send_bytes = 14_600_000 if now_s < 20 else 6_750_000
        now_ns = round(now_s * 1e9)
        if now_ns >= next_ns:
            seen = phases.observe(Counted(now_ns, job.sent_bytes))
            if isinstance(seen, PhaseBegin) and seen.iteration is not None:
                found.append(seen.iteration)
            next_ns = next_sample_ns(phases, now_ns)

    run_jobs([job], 40.0, sample)

    shorter = [each for each in found if each.begin_ns > 22e9]
    assert len(shorter) >= 10, "of 14"
    assert shorter[-1].period_ns == pytest.approx(1_270 * MS, abs=30 * MS)


class TimedJob:
    """Computes and sends in turn; the kernel knows when, in ticks of 4 ms."""

    def __init__(self, silent_ms: int, sending_ms: int, late: float = 1.0) -> None:
        """Make it; `late` is where within its window each sample is taken, from 0 to 1."""
        self._late = late
        self.silent_ns, self.sending_ns = silent_ms * MS, sending_ms * MS
        self.phases = SendingPhases()
        self.now_ns = 0
        self.seen: list[PhaseBegin | PhaseEnd] = []
        self._origin_ns = 0
        self._busy_ns = 0

    def sample(self, now_ns: int) -> None:
        """Read at a time."""
        whole, part_ns = divmod(now_ns - self._origin_ns, self.silent_ns + self.sending_ns)
        sent_ns = max(0, part_ns - self.silent_ns)
        quiet_ns = 0 if sent_ns else part_ns
        busy_ns = (whole * self.sending_ns + sent_ns) // (4 * MS) * (4 * MS)
        counted = Counted(now_ns, busy_ns * 10, 0, busy_ns - self._busy_ns, quiet_ns // (4 * MS) * (4 * MS))
        self.now_ns, self._busy_ns = now_ns, busy_ns
        if (seen := self.phases.observe(counted)) is not None:
            self.seen.append(seen)
        if isinstance(seen, PhaseBegin) and (ended := self.phases.end(now_ns)) is not None:
            self.seen.append(ended)

    def follow(self, until_ns: int) -> int:
        """Read when it is due until then; returns how often."""
        count = 0
        while self.now_ns < until_ns:
            due_ns, latest_ns = next_window(self.phases, self.now_ns)
            self.sample(due_ns + int(self._late * (latest_ns - due_ns)))
            count += 1
        return count


def followed_to_an_end(job: TimedJob, until_ns: int) -> int:
    """Read when it is due until then, and on to the next end of a phase; returns when that was."""
    job.follow(until_ns)
    while job.phases.ended_ns is None:
        job.follow(job.now_ns + 1)
    return job.phases.ended_ns


@given(silent_ms=st.integers(150, 2_000), sending_ms=st.integers(40, 1_000), late=st.floats(0, 1))
def test_times_of_the_kernel_tell_begin_and_end_from_few_samples(silent_ms: int, sending_ms: int, late: float) -> None:
    """Two a phase: one after it should have begun, one where the silence after it should be over. A third is spare."""
    period_ns = (silent_ms + sending_ms) * MS
    if silent_ms * 8 < sending_ms + silent_ms + 8 * 40:
        return
    job = TimedJob(silent_ms, sending_ms, late)
    job.follow(8 * period_ns)
    assert job.phases.is_known
    job.seen.clear()
    count = job.follow(job.now_ns + 10 * period_ns)

    begins = [each.time_ns for each in job.seen if isinstance(each, PhaseBegin)]
    ends = [each.time_ns for each in job.seen if isinstance(each, PhaseEnd)]
    assert 9 <= len(begins) <= 11
    assert 9 <= len(ends) <= 11
    for begin_ns in begins:
        assert begin_ns is not None
        late_ns = (begin_ns - job.silent_ns + period_ns // 2) % period_ns - period_ns // 2
        assert abs(late_ns) <= 12 * MS, "three ticks"
    for end_ns in ends:
        late_ns = (end_ns + period_ns // 2) % period_ns - period_ns // 2
        assert abs(late_ns) <= 12 * MS
    assert count <= 10 * 3 + 3


@pytest.mark.parametrize(("sending_ms", "samples"), [(40, 1), (100, 1), (200, 2)])
def test_few_samples_an_iteration_are_enough_for_a_regular_job(sending_ms: int, samples: int) -> None:
    """Some 50 iterations; 0.9 s and 40 ms as in `tests.bench.interleave.pacing_cost`. A silence lasts an eighth."""
    job = TimedJob(900, sending_ms)
    job.follow(10_000 * MS)
    known = job.follow(job.now_ns + 50 * (900 + sending_ms) * MS)

    assert samples * 49 <= known <= samples * 51


def test_a_sample_may_be_late_only_where_the_kernel_tells_the_times_of_a_known_job() -> None:
    """Of 0.9 s and 0.2 s: by 2 % of the period for a begin, for an end by an eighth of 0.9 s less the silence, 138 ms.

    Of 0.9 s and 40 ms: by a quarter of 0.9 s less the silence, 118 ms, less 2 % of the period.
    """
    unknown = TimedJob(900, 40)
    assert next_window(unknown.phases, 61 * MS) == (80 * MS, 80 * MS), "10 ms later, on the grid of such jobs"
    for sending_ms, expected in ((200, {22, 95}), (40, {176, 177})):
        known = TimedJob(900, sending_ms)
        known.follow(20_000 * MS)
        slacks = set()
        for _ in range(4):
            due_ns, latest_ns = next_window(known.phases, known.now_ns)
            slacks.add(round((latest_ns - due_ns) / MS))
            known.sample(due_ns)
        assert slacks == expected


def test_a_begin_that_is_seen_long_after_is_known_if_only_one_phase_can_lie_before_it() -> None:
    """Looked at once a period, as where the runner had no processor: twice the bytes are two phases, or another job."""
    job = TimedJob(900, 40)
    ended_ns = followed_to_an_end(job, 10_000 * MS)
    job.sample(ended_ns + 1_000 * MS)
    seen = job.seen[-1]
    assert isinstance(seen, PhaseBegin)
    assert seen.time_ns == pytest.approx(ended_ns + 900 * MS, abs=12 * MS)
    assert job.phases.is_known

    ended_ns = followed_to_an_end(job, job.now_ns)
    job.sample(ended_ns + 1_960 * MS)
    seen = job.seen[-1]
    assert isinstance(seen, PhaseBegin)
    assert seen.time_ns is None
    assert not job.phases.is_known
    every_ns = job.phases.silence_ns // 2
    assert next_window(job.phases, job.now_ns) == (job.now_ns + every_ns, job.now_ns + every_ns + every_ns // 2)


def test_heartbeats_in_a_long_computation_are_no_begin() -> None:
    """4 kB in the 3 s in which a known job computes, the last of them 0.5 s ago; an iteration has 2 GB."""
    job = TimedJob(3_000, 200)
    followed_to_an_end(job, 20_000 * MS)
    phases, sent_bytes = job.phases, job._busy_ns * 10
    ended_ns, at_ns = phases.ended_ns, job.now_ns + 2_900 * MS
    assert phases.observe(Counted(at_ns, sent_bytes + 4_000, 0, 2 * MS, 500 * MS)) is None

    assert phases.ended_ns == ended_ns
    assert phases.is_silent
    assert phases.is_known
    begun = phases.observe(Counted(at_ns + 100 * MS, sent_bytes + 500_004_000, 0, 48 * MS, 0))
    assert isinstance(begun, PhaseBegin)
    assert begun.time_ns == at_ns + 52 * MS
