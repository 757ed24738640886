"""What a container is granted while only the watchdog is there: room first, then as it grows."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from services.agent.memory.growth import (
    FAST_RATE,
    INITIAL_FREE_BYTES,
    INITIAL_SHARE,
    LEAST_POLL_S,
    MIB,
    MOST_POLL_S,
    PAGE_BYTES,
    FreeMemory,
    Growth,
    initial_grants,
    need_of,
    next_poll_s,
)

NO_MAXIMUM = 1 << 62
free_sizes = st.integers(0, 1 << 30)


def test_the_only_container_is_brought_to_256_mib():
    assert initial_grants([FreeMemory(50 * MIB, NO_MAXIMUM)], 2400 * MIB) == [206 * MIB]


def test_a_small_reserve_goes_to_the_least_free_and_half_of_it_stays():
    rooms = [FreeMemory(10 * MIB, NO_MAXIMUM), FreeMemory(50 * MIB, NO_MAXIMUM), FreeMemory(300 * MIB, NO_MAXIMUM)]
    assert initial_grants(rooms, 60 * MIB) == [30 * MIB, 0, 0]
    assert initial_grants(rooms, 120 * MIB) == [50 * MIB, 10 * MIB, 0]


@given(st.lists(st.builds(FreeMemory, free_sizes, st.integers(0, 1 << 30)), max_size=20), st.integers(0, 1 << 32))
def test_room_is_max_min_fair_and_never_more_than_its_share_of_the_reserve(rooms, reserve_bytes):
    added = initial_grants(rooms, reserve_bytes)
    rows = list(zip(rooms, added, strict=True))
    assert sum(added) <= reserve_bytes // INITIAL_SHARE
    assert all(size % PAGE_BYTES == 0 and 0 <= size <= room.most_added_bytes for room, size in rows)
    wanting = [
        room.free_bytes + size
        for room, size in rows
        if room.free_bytes + size < INITIAL_FREE_BYTES and size + PAGE_BYTES <= room.most_added_bytes
    ]
    given_bytes = [room.free_bytes + size for room, size in rows if size]
    assert all(level <= INITIAL_FREE_BYTES for level in given_bytes)
    assert all(level <= other + PAGE_BYTES for level in given_bytes for other in wanting), "one level for all who want"


def test_who_has_room_is_read_less_often():
    assert next_poll_s(0) == next_poll_s(-MIB) == LEAST_POLL_S
    assert next_poll_s(64 * MIB) == 64 * MIB / (2 * FAST_RATE)
    assert next_poll_s(INITIAL_FREE_BYTES) == MOST_POLL_S


@dataclass
class Level:
    usage_bytes: int
    limit_bytes: int
    paused: bool = False


@given(
    st.floats(0.05e9, 2.0e9),
    st.integers(50 * MIB, 400 * MIB),
    st.lists(st.floats(0, 0.015), min_size=1, max_size=50),
    st.floats(0, 0.4),
)
def test_growth_of_up_to_2_gb_per_second_never_reaches_the_limit(rate, free_bytes, late_s, begins_s):
    """By 1 GiB out of a reserve of 2.4 GiB, each poll up to 15 ms late."""
    reserve_bytes, usage_bytes, now_s, poll = 2400 * MIB, 100 * MIB, 0.0, 0
    growth = Growth()
    [room] = initial_grants([FreeMemory(free_bytes, NO_MAXIMUM)], reserve_bytes)
    limit_bytes, reserve_bytes = usage_bytes + free_bytes + room, reserve_bytes - room
    while usage_bytes < 1124 * MIB:
        growth.read(usage_bytes, int(now_s * 1e9))
        level = Level(usage_bytes, limit_bytes)
        need = need_of(level, growth.rate, NO_MAXIMUM, growth.fastest, reserve_bytes).added_bytes
        granted = min(need, reserve_bytes)
        limit_bytes, reserve_bytes = limit_bytes + granted, reserve_bytes - granted
        now_s += next_poll_s(limit_bytes - usage_bytes) + late_s[poll % len(late_s)]
        poll += 1
        usage_bytes = 100 * MIB + int(max(now_s - begins_s, 0) * rate)
        assert usage_bytes < limit_bytes
