"""How much is read of each node: all that an agent sends, little of a flood, and of other nodes as much as before."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from services.allocator.flood_guard import (
    BUDGETS,
    FIRST_QUARANTINE_S,
    LONGEST_QUARANTINE_S,
    TOLERATED_S,
    WINDOW_S,
    FloodGuard,
    Kind,
)

FLOODER, HONEST = "gpu-01", "gpu-02"
BATCH_BYTES = 400
MANY_APPS = [f"app{number}" for number in range(200)]


def flood(guard: FloodGuard, at_s: float, seconds: float, *, per_s: int = 20_000, size_bytes: int = 200) -> int:
    """Messages of one application that were admitted."""
    times = [at_s + number / per_s for number in range(round(seconds * per_s))]
    return sum(guard.admit(Kind.BATCH, "shop", FLOODER, size_bytes, now_s) for now_s in times)


def test_an_agent_of_two_hundred_applications_keeps_within_its_budget() -> None:
    """Ten batches a second of each, and two early ones for each of those."""
    guard = FloodGuard()
    for tick in range(30 * 10):
        for early in range(3):
            for app in MANY_APPS:
                assert guard.admit(Kind.BATCH, app, HONEST, BATCH_BYTES, tick / 10 + early / 30)


def test_a_node_of_ten_thousand_containers_keeps_within_its_budget() -> None:
    guard = FloodGuard()
    for tick in range(30 * 10):
        assert guard.admit(Kind.BATCH, "shop", HONEST, 1_100_000, tick / 10)


def test_what_waited_while_this_process_was_stopped_quarantines_no_agent() -> None:
    """Five seconds of batches of two hundred applications at once, and then as always."""
    guard = FloodGuard()
    for tick in range(50):
        for app in MANY_APPS:
            guard.admit(Kind.BATCH, app, HONEST, BATCH_BYTES, 5.0 + tick / 1_000)
    for tick in range(51, 100):
        admitted = [guard.admit(Kind.BATCH, app, HONEST, BATCH_BYTES, tick / 10) for app in MANY_APPS]
        assert all(admitted)

    assert guard.quarantined == {}


def test_a_flood_is_read_in_small_part_and_then_not_at_all() -> None:
    guard = FloodGuard()

    admitted = flood(guard, 0.0, 1.0)

    assert admitted <= BUDGETS[Kind.BATCH].app_burst + BUDGETS[Kind.BATCH].app_per_s
    [quarantine] = guard.newly_quarantined
    assert (quarantine.node, quarantine.kind, quarantine.seconds) == (FLOODER, Kind.BATCH, FIRST_QUARANTINE_S)
    assert guard.dropped[Kind.BATCH] == 20_000 - admitted
    assert guard.admit(Kind.BATCH, "shop", HONEST, BATCH_BYTES, 1.0)


def test_large_messages_count_by_their_size() -> None:
    """A gigabyte a second, in a thousand messages, is a flood though an agent may send as many small ones."""
    guard = FloodGuard()

    admitted = flood(guard, 0.0, 1.0, per_s=1_000, size_bytes=1_000_000)

    assert admitted <= 20
    assert FLOODER in guard.quarantined


def test_a_flood_over_many_applications_counts_together() -> None:
    guard = FloodGuard()
    admitted = 0
    for number in range(30_000):
        admitted += guard.admit(Kind.BATCH, MANY_APPS[number % 200], FLOODER, 200, number / 30_000)

    assert admitted <= BUDGETS[Kind.BATCH].node_burst + BUDGETS[Kind.BATCH].node_per_s
    assert FLOODER in guard.quarantined


def test_a_flood_of_memory_requests_leaves_batches_of_other_nodes() -> None:
    guard = FloodGuard()
    admitted = sum(guard.admit(Kind.REQUEST, "shop", FLOODER, 200, number / 10_000) for number in range(10_000))

    assert admitted <= BUDGETS[Kind.REQUEST].app_burst + BUDGETS[Kind.REQUEST].app_per_s
    assert FLOODER in guard.quarantined
    assert guard.admit(Kind.BATCH, "shop", HONEST, BATCH_BYTES, 1.0)


def test_a_quarantine_ends_and_the_next_one_is_longer_as_long_as_the_flood_goes_on() -> None:
    guard, now_s, lengths = FloodGuard(), 0.0, []
    for _ in range(8):
        flood(guard, now_s, 0.5)
        [quarantine] = guard.newly_quarantined
        guard.newly_quarantined.clear()
        lengths.append(quarantine.seconds)
        now_s = guard.quarantined[FLOODER]
        assert guard.expire(now_s - 0.01) == []
        assert guard.expire(now_s) == [FLOODER]

    assert lengths[:3] == [FIRST_QUARANTINE_S, 2 * FIRST_QUARANTINE_S, 4 * FIRST_QUARANTINE_S]
    assert lengths[-1] == LONGEST_QUARANTINE_S


def test_a_node_that_kept_within_its_budget_since_is_quarantined_for_as_short_as_at_first() -> None:
    guard = FloodGuard()
    flood(guard, 0.0, 0.5)
    guard.newly_quarantined.clear()
    end_s = guard.quarantined[FLOODER]
    guard.expire(end_s)
    guard.expire(end_s + FIRST_QUARANTINE_S)

    flood(guard, end_s + FIRST_QUARANTINE_S, 0.5)

    assert [each.seconds for each in guard.newly_quarantined] == [FIRST_QUARANTINE_S]


def test_what_has_been_quiet_is_forgotten() -> None:
    guard = FloodGuard()
    flood(guard, 0.0, TOLERATED_S / 2)
    for node in range(100):
        guard.admit(Kind.BATCH, "shop", f"n{node}", 200, 1.0)
    guard.expire(1.0 + 2 * WINDOW_S)

    assert (guard._buckets, guard._excess, guard._last) == ({}, {}, {})


@given(
    st.lists(
        st.tuples(
            st.floats(0, 0.5),
            st.sampled_from(Kind),
            st.sampled_from([FLOODER, HONEST]),
            st.integers(1, 3_000),
            st.integers(0, 1 << 20),
        ),
        max_size=15,
    )
)
def test_no_node_is_read_beyond_its_budget(history: list[tuple[float, Kind, str, int, int]]) -> None:
    guard, now_s, units = (
        FloodGuard(),
        0.0,
        dict.fromkeys([(kind, node) for kind in Kind for node in (FLOODER, HONEST)], 0.0),
    )
    for pause_s, kind, node, count, size_bytes in history:
        now_s += pause_s
        for _ in range(count):
            if guard.admit(kind, "shop", node, size_bytes, now_s):
                units[kind, node] += 1 + size_bytes / 4096

    for (kind, _), read in units.items():
        assert read <= BUDGETS[kind].node_burst + BUDGETS[kind].node_per_s * now_s + 1e-6
