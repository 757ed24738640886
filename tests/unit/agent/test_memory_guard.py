"""Decisions of the memory guard: when a container is near its limit, what it gets, and how its waits end."""

from copy import deepcopy

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas.oom import OomCause
from services._host.cgroup_snapshot import UNLIMITED, MemoryState
from services.agent.memory.growth import (
    HALF_LIFE_S,
    MAX_RATE,
    MIB,
    NEAR_BYTES,
    PAGE_BYTES,
    SPAN_NS,
    Growth,
    near_bytes,
    need_of,
)
from services.agent.memory.policy import (
    DECREASE_MARGIN_BYTES,
    REFUSED_RETRY_NS,
    RETRY_NS,
    ContainerMemory,
    Observation,
    RequestState,
    by_urgency,
    decide,
    decrease_is_unsafe,
    needs_inspection,
)

MS = 1_000_000
sizes = st.integers(0, 1 << 42)
pages = st.integers(0, 1 << 30).map(lambda count: count * PAGE_BYTES)
rates = st.floats(0, MAX_RATE)


def state_of(usage_bytes, limit_bytes, *, paused=False, oom_kills=0):
    return MemoryState(usage_bytes, limit_bytes, paused, oom_kills)


def test_near_is_an_eighth_of_a_small_limit_32_mib_of_a_large_one_and_more_while_growing():
    assert near_bytes(64 * MIB, 0) == 8 * MIB
    assert near_bytes(4096 * MIB, 0) == NEAR_BYTES
    assert near_bytes(4096 * MIB, 1000 * MIB) == 60 * MIB


def test_idle_container_near_its_limit_gets_twice_what_near_means():
    assert need_of(state_of(250 * MIB, 256 * MIB), 0, 1 << 40) == (58 * MIB, False)


def test_growing_container_gets_what_it_will_have_used_in_100_ms():
    need = need_of(state_of(900 * MIB, 960 * MIB), 2000.0 * MIB, 1 << 40)

    assert need.added_bytes == (900 + 2 * 120 - 960) * MIB


@given(usage=sizes, limit=pages, rate=rates, most=sizes, paused=st.booleans())
def test_no_need_goes_beyond_the_maximum_and_none_lowers_a_limit(usage, limit, rate, most, paused):
    need = need_of(state_of(usage, limit, paused=paused), rate, most)

    assert need.added_bytes >= 0
    assert need.added_bytes % PAGE_BYTES == 0
    assert limit + need.added_bytes <= max(most, limit)


@given(usage=pages, limit=pages, rate=rates)
def test_a_need_that_was_met_is_gone(usage, limit, rate):
    """One grant is enough: right after it nothing more is wanted."""
    assume(usage <= limit)
    need = need_of(state_of(usage, limit), rate, 1 << 62)

    assert need_of(state_of(usage, limit + need.added_bytes), rate, 1 << 62).added_bytes == 0


@given(usage=sizes, rate=rates)
def test_unlimited_container_needs_nothing(usage, rate):
    assert need_of(state_of(usage, UNLIMITED), rate, 1 << 62).added_bytes == 0


@given(rows=st.lists(st.tuples(sizes, st.one_of(pages, st.just(UNLIMITED)), rates), min_size=1, max_size=8))
def test_the_sample_of_all_containers_sees_whoever_has_a_need(rows):
    usage, limit, rate = zip(*rows, strict=True)
    looks = needs_inspection(np.array(usage), np.array(limit), np.array(rate))

    for row, look in zip(rows, looks.tolist(), strict=True):
        if need_of(state_of(row[0], row[1]), row[2], 1 << 62).added_bytes:
            assert look


readings = st.lists(st.tuples(st.integers(0, 200 * MS), sizes), min_size=1, max_size=20)


@given(readings=readings)
def test_the_rate_is_never_negative_nor_absurd_and_doubled_readings_change_nothing(readings):
    growth, now_ns = Growth(), 0
    for step_ns, usage in readings:
        now_ns += step_ns
        rate = growth.read(usage, now_ns)

        assert 0 <= rate <= MAX_RATE
        assert growth.read(usage, now_ns) == rate


@given(rate=st.integers(1, 4 << 30), steps=st.lists(st.integers(SPAN_NS, 200 * MS), min_size=2, max_size=20))
def test_steady_growth_is_believed_by_half_each_half_life_whatever_the_steps(rate, steps):
    growth, now_ns = Growth(), 0
    growth.read(0, 0)
    for step_ns in steps:
        now_ns += step_ns
        measured = growth.read(rate * now_ns // 10**9, now_ns)

        believed = rate * (1 - 0.5 ** (now_ns / 1e9 / HALF_LIFE_S))
        assert abs(measured - believed) <= rate * 0.001 + 2e9 / SPAN_NS


def test_a_process_that_starts_is_granted_about_as_much_again_and_not_what_its_rate_would_be_for_a_tenth_of_a_second():
    growth = Growth()
    growth.read(2 * MIB, 0)
    rate = growth.read(12 * MIB, 5 * MS)

    state = state_of(12 * MIB, 16 * MIB)
    believed = need_of(state, rate, 1 << 40).added_bytes
    assert 10 * MIB <= believed <= 16 * MIB
    assert need_of(state, rate, 1 << 40, growth.fastest, 40 * MIB).added_bytes == believed + 10 * MIB
    assert need_of(state, rate, 1 << 40, growth.fastest, 1 << 40).added_bytes == 196 * MIB  # 2000 MiB/s for 100 ms


def test_rate_is_forgotten_half_a_second_after_growth_has_stopped():
    growth = Growth()
    growth.read(0, 0)
    growth.read(100 * MIB, 100 * MS)

    assert growth.read(100 * MIB, 600 * MS) < 1 * MIB


@given(limit=sizes, usage=sizes, reclaimable=sizes)
def test_a_cut_leaves_room_above_what_cannot_be_reclaimed(limit, usage, reclaimable):
    if not decrease_is_unsafe(limit, usage, reclaimable):
        assert limit >= max(usage - reclaimable, 0) + min(DECREASE_MARGIN_BYTES, limit // 8)


def test_an_idle_container_may_have_the_smallest_limit():
    assert not decrease_is_unsafe(4 * MIB, MIB, 0)
    assert decrease_is_unsafe(100 * MIB, 97 * MIB, 0)


@given(
    events=st.lists(
        st.tuples(st.integers(0, 300 * MS), st.sampled_from(["want", "pause", "refused", "answered", "lost"])),
        max_size=40,
    )
)
def test_one_request_at_a_time_and_none_too_soon(events):
    asking, now_ns, oom_wait_since_ns, under_way = RequestState(), 0, None, 0
    not_before_ns = 0
    for step_ns, event in events:
        now_ns += step_ns
        if event == "pause":
            oom_wait_since_ns = now_ns
        if event in {"want", "pause"} and asking.may_request(now_ns, oom_wait_since_ns):
            assert under_way == 0
            assert now_ns >= not_before_ns or oom_wait_since_ns > asking.sent_ns
            asking.sent(now_ns)
            under_way = 1
        elif event in {"refused", "answered", "lost"} and under_way:
            under_way = 0
            asking.answered(now_ns, refused=event == "refused")
            not_before_ns = now_ns + (REFUSED_RETRY_NS if event == "refused" else RETRY_NS)


def test_who_waits_comes_before_who_is_near():
    waits, waits_longer, near = (ContainerMemory(name, "shop") for name in "abc")
    near.note_shortage(1, 0)
    for guarded, since_ns in ((waits, 20), (waits_longer, 10)):
        guarded.note_shortage(1, since_ns)
        guarded.oom_wait_since_ns = since_ns

    assert by_urgency([near, waits, waits_longer]) == [waits_longer, waits, near]


def seen_of(state, now_ns, *, reserve_bytes=0, most_bytes=1 << 40, oom_kills=0):
    return Observation(state, now_ns, oom_kills, most_bytes, reserve_bytes, 100 * MS)


def test_a_pause_that_is_seen_twice_keeps_its_deadline():
    container, full = ContainerMemory("web", "shop"), state_of(64 * MIB, 64 * MIB, paused=True)

    assert container.inspect(seen_of(full, 0)).wait_reason
    again = container.inspect(seen_of(full, 50 * MS))
    assert (again.wait_reason, again.killer_reason, again.deadline_ns) == ("", "", 100 * MS)
    assert container.inspect(seen_of(full, 100 * MS)).killer_cause is OomCause.DEADLINE
    assert container.overdue(100 * MS)


states = st.builds(
    state_of,
    st.integers(0, 1 << 33),
    st.just(-1) | st.integers(0, 1 << 33),
    paused=st.booleans(),
    oom_kills=st.integers(0, 2),
)
observations = st.builds(
    Observation,
    states,
    st.integers(0, 10**10),
    st.integers(0, 2),
    st.integers(1 << 20, 1 << 40),
    st.integers(0, 1 << 34),
    st.integers(1, 10**10),
)
remembered = st.builds(
    ContainerMemory,
    st.just("web"),
    st.just("shop"),
    growth=st.builds(Growth, rate=st.floats(0, 1e10), fastest=st.floats(0, 1e10)),
    oom_wait_since_ns=st.none() | st.integers(0, 10**10),
    recorded_wait_ns=st.none() | st.integers(0, 10**10),
    deadline_ns=st.integers(0, 2 * 10**10),
    woken_ns=st.integers(0, 10**10),
    killer_reason=st.just("") | st.just("out of memory"),
    kills_before=st.integers(0, 2),
)


@given(remembered, observations)
def test_a_decision_ends_waits_in_time_and_kills_only_tasks_that_wait_for_too_long_or_for_too_much(container, seen):
    container.state = seen.state
    before = deepcopy(container)
    rate, fastest = container.growth.rate, container.growth.fastest
    need = need_of(seen.state, rate, seen.container_max_bytes, fastest, seen.reserve_bytes)
    decision = decide(container, seen, need, 3)

    assert container == before, "it changes nothing"
    assert decision.limit_hits == 3
    assert bool(decision.kill_reason) == (seen.state.oom_kills > seen.oom_kills)
    if container.killer_reason:  # the kernel decides: only whether that is over
        assert (decision.need.added_bytes, decision.killer_reason, decision.wait_reason) == (0, "", "")
        return
    assert not decision.control_again
    assert (decision.oom_wait_since_ns is not None) == seen.state.paused
    if decision.need.added_bytes:
        assert seen.state.limit_bytes + decision.need.added_bytes <= seen.container_max_bytes
    if not seen.state.paused:
        assert (decision.wait_reason, decision.killer_reason, decision.wake) == ("", "", False)
        return
    assert bool(decision.wait_reason) == (before.oom_wait_since_ns is None)
    assert decision.oom_wait_since_ns <= max(seen.now_ns, before.oom_wait_since_ns or 0)
    overdue, too_much = seen.now_ns >= decision.deadline_ns, decision.need.capped and not decision.need.added_bytes
    assert bool(decision.killer_reason) == (overdue or too_much)
    assert not decision.wake or not (decision.need.added_bytes or decision.killer_reason)


@given(remembered, observations)
def test_an_inspection_remembers_what_was_decided(container, seen):
    was_short = container.short_since_ns = 7
    woken_ns = container.woken_ns
    decision = container.inspect(seen)

    assert container.state == seen.state
    assert container.oom_wait_since_ns == decision.oom_wait_since_ns
    assert container.deadline_ns == decision.deadline_ns
    assert container.woken_ns == (seen.now_ns if decision.wake else woken_ns)
    assert not (decision.control_again and container.killer_reason)
    ended = not (container.killer_reason or decision.need.added_bytes)
    assert container.short_since_ns == (None if ended else was_short)


def test_after_a_release_it_is_armed_again_once_the_kernel_has_killed_or_there_is_room():
    guarded = ContainerMemory("web", "shop")
    guarded.read(state_of(64 * MIB, 64 * MIB, paused=True), 0)
    guarded.oom_killer_enabled("nothing left", 0, oom_kills=0)

    assert not guarded.may_be_controlled_again(10 * MS)
    guarded.read(state_of(64 * MIB, 64 * MIB, oom_kills=1), 20 * MS)
    assert guarded.may_be_controlled_again(20 * MS)

    guarded.read(state_of(10 * MIB, 64 * MIB), 30 * MS)
    assert not guarded.may_be_controlled_again(30 * MS)
    assert guarded.may_be_controlled_again(1000 * MS)
