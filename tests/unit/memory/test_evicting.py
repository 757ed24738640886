"""A daemon gives up as few and as little used slabs as bring its host's free memory back."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.memory.core.evicting import FreeMemory, HeldSlab, evict, offered_bytes

GIB = 1 << 30
SLABS = st.lists(
    st.builds(
        HeldSlab,
        st.uuids().map(str),
        st.sampled_from(["gpu-07", "gpu-08", "gpu-09"]),
        st.integers(1, GIB),
        st.booleans(),
        st.floats(0, 1e6),
    ),
    max_size=12,
    unique_by=lambda slab: slab.name,
)
FREE = st.builds(FreeMemory, st.integers(0, 16 * GIB), st.integers(0, 16 * GIB))


def held(name: str, pages_per_s: float, *, connected: bool = True, owner: str = "gpu-07") -> HeldSlab:
    return HeldSlab(name, owner, GIB, connected, pages_per_s)


def test_free_memory_is_seven_tenths_of_the_newest_reading() -> None:
    # 0.7 * 1,000 + 0.3 * 3,000 = 1,600; then 0.7 * 0 + 0.3 * 1,000 = 300
    free = FreeMemory(1_000, 3_000)
    assert free.smoothed_bytes == 1_600
    assert free.then(0).smoothed_bytes == 300


def test_what_nobody_uses_goes_first_then_the_least_active() -> None:
    slabs = [held("hot", 900), held("cold", 3), held("warm", 40), held("unused", 0, connected=False)]

    # 4 GiB have to stay free, 1.5 are: 2.5 are missing, three slabs of 1 GiB.
    decision = evict(slabs, FreeMemory(3 * GIB // 2, 3 * GIB // 2), 4 * GIB)

    assert decision.names == ("unused", "cold", "warm")
    assert (decision.smoothed_bytes, decision.headroom_bytes, decision.missing_bytes) == (3 * GIB // 2, 4 * GIB, 0)


def test_what_stays_missing_is_said() -> None:
    assert evict([held("only", 1)], FreeMemory(0, 0), 3 * GIB).missing_bytes == 2 * GIB
    assert evict([], FreeMemory(5, 5), 5).names == ()


@given(SLABS, FREE, st.integers(0, 16 * GIB))
def test_no_slab_too_many_goes_and_no_busier_one_before_another(
    slabs: list[HeldSlab], free: FreeMemory, headroom_bytes: int
) -> None:
    decision = evict(slabs, free, headroom_bytes)

    gone = [next(slab for slab in slabs if slab.name == name) for name in decision.names]
    left = [slab for slab in slabs if slab.name not in decision.names]
    missing = headroom_bytes - free.smoothed_bytes
    assert decision.missing_bytes == max(0, missing - sum(slab.slab_bytes for slab in gone))
    assert not left or decision.missing_bytes == 0
    if gone:
        assert missing - sum(slab.slab_bytes for slab in gone[:-1]) > 0, "the last one was needed"
    for taken in gone:
        assert all(
            (taken.connected, taken.pages_per_s) <= (kept.connected, kept.pages_per_s)
            for kept in left
            if kept.owner == taken.owner or kept.connected < taken.connected
        )


def test_an_owner_that_reads_its_pages_to_look_active_does_not_drive_the_others_out() -> None:
    busy = [held(f"busy-{number}", 9_000 + number, owner="gpu-07") for number in range(6)]
    quiet = [held(f"quiet-{number}", number, owner="gpu-08") for number in range(4)]

    # 10 GiB are held: an equal share are 5, the floor of each 2.5. 6 GiB are missing: two quiet slabs go, until that
    # owner has no more than 2.5; then four of the busy ones, until the other one has.
    decision = evict(busy + quiet, FreeMemory(0, 0), 6 * GIB)

    assert decision.names == ("quiet-0", "quiet-1", "busy-0", "busy-1", "busy-2", "busy-3")
    # Of the four that are left an equal share are 2, the floor of each 1: each owner gives one, the quiet one first.
    assert evict(busy + quiet, FreeMemory(0, 0), 8 * GIB).names[6:] == ("quiet-2", "busy-4")


def test_slabs_without_a_connection_do_not_lend_their_owner_a_higher_floor() -> None:
    """Of 12 GiB the floor of each owner would be 3: none of those in use above it, and activity alone would decide."""
    unused = [held(f"unused-{number}", 0, connected=False, owner="gpu-07") for number in range(8)]
    busy = [held(f"busy-{number}", 9_000 + number, owner="gpu-07") for number in range(2)]
    quiet = [held(f"quiet-{number}", number, owner="gpu-08") for number in range(2)]

    decision = evict(unused + busy + quiet, FreeMemory(0, 0), 10 * GIB)

    # 4 GiB are in use: an equal share are 2, the floor of each 1.
    assert decision.names[8:] == ("quiet-0", "busy-0")


@given(SLABS, FREE, st.integers(0, 16 * GIB))
def test_no_owner_gives_below_half_an_equal_share_while_another_one_holds_more(
    slabs: list[HeldSlab], free: FreeMemory, headroom_bytes: int
) -> None:
    holds = Counter[str]()
    for slab in slabs:
        holds[slab.owner] += slab.slab_bytes
    floor_bytes = holds.total() / (2 * max(1, len(holds)))
    left = {slab.name: slab for slab in slabs}

    for name in evict(slabs, free, headroom_bytes).names:
        slab = left.pop(name)
        if slab.connected and holds[slab.owner] <= floor_bytes - 1:  # the floor is a whole number of bytes
            assert all(holds[other.owner] <= floor_bytes for other in left.values())
        holds[slab.owner] -= slab.slab_bytes


@given(FREE, st.integers(0, 16 * GIB))
def test_what_is_offered_evicts_nothing_when_it_is_taken(free: FreeMemory, headroom_bytes: int) -> None:
    offered = offered_bytes(free, headroom_bytes)

    taken = FreeMemory(free.newest_bytes - offered, free.before_bytes - offered)
    assert offered >= 0
    if offered:
        assert evict([held("new", 1)], taken, headroom_bytes).names == ()
        assert taken.newest_bytes >= headroom_bytes
