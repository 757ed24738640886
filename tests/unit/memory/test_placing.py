"""Slabs that swap go to daemons with room, to few slabs per host, and evenly with two choices."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.memory.core.placing import Activity, Choice, Daemon, NoRoom, choose, slabs_to_map

MIB = 1 << 20
SLAB = 64 * MIB
DRAWS = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4)


@st.composite
def daemons(draw: st.DrawFn) -> list[Daemon]:
    offers = draw(st.lists(st.integers(0, 4 * SLAB), max_size=6))
    return [Daemon(f"10.0.0.{n}:1", f"host{n % 4}", offered) for n, offered in enumerate(offers)]


def test_activity_is_a_moving_average_of_pages_per_second() -> None:
    # 0.2 * 100 + 0.8 * 0 = 20; 0.2 * 200 + 0.8 * 20 = 56
    first = Activity().after(100, 1.0)
    assert first.pages_per_s == pytest.approx(20)
    assert first.after(200, 1.0).pages_per_s == pytest.approx(56)


@given(st.integers(0, 10_000), st.integers(1, 20), st.floats(0, 1_000))
def test_a_steady_rate_counts_the_same_however_often_it_is_read(rate: int, reads: int, before: float) -> None:
    often = Activity(before)
    for _ in range(reads):
        often = often.after(rate, 1.0)

    assert often.pages_per_s == pytest.approx(Activity(before).after(rate * reads, float(reads)).pages_per_s)


def test_a_count_that_goes_back_is_refused() -> None:
    for pages, elapsed_s in ((-1, 1.0), (1, 0.0), (1, -1.0)):
        with pytest.raises(ValueError, match="a count of a later time was due"):
            Activity().after(pages, elapsed_s)


def test_slabs_above_20_pages_per_second_are_mapped_the_most_active_first() -> None:
    rates = {0: 20.0, 1: 20.1, 2: 500.0, 3: 400.0, 4: 0.0}

    assert slabs_to_map({slab: Activity(rate) for slab, rate in rates.items()}, {3}) == [2, 1]


def test_hosts_without_a_slab_come_first_even_with_less_memory() -> None:
    known = [Daemon("a:1", "a", 10 * SLAB), Daemon("b:1", "b", 2 * SLAB), Daemon("c:1", "c", 3 * SLAB)]

    found = choose(known, {"a"}, SLAB, (0.0, 0.0))

    assert found == Choice(known[2], (known[1], known[2]), new_host=True)


def test_where_every_host_with_room_has_a_slab_any_is_drawn() -> None:
    known = [Daemon("a:1", "a", SLAB), Daemon("b:1", "b", 2 * SLAB), Daemon("c:1", "c", SLAB - 1)]

    assert choose(known, {"a", "b"}, SLAB, (0.0, 0.0)) == Choice(known[1], (known[0], known[1]), new_host=False)


def test_without_room_the_most_that_one_offers_is_said() -> None:
    assert choose([Daemon("a:1", "a", 3), Daemon("b:1", "b", 7)], set(), 8, (0.5,)) == NoRoom(8, 7)
    assert choose([], set(), 8, (0.5,)) == NoRoom(8, 0)


def test_draws_have_to_be_shares() -> None:
    for draws in ((), (1.0,), (-0.1,)):
        with pytest.raises(ValueError, match="draws have to be"):
            choose([Daemon("a:1", "a", SLAB)], set(), SLAB, draws)


@given(daemons(), st.sets(st.sampled_from([f"host{n}" for n in range(4)])), DRAWS, st.randoms(use_true_random=False))
def test_the_choice_has_room_and_the_most_of_what_was_drawn_in_any_order(
    known: list[Daemon], used: set[str], draws: list[float], shuffle: random.Random
) -> None:
    found = choose(known, used, SLAB, draws)
    shuffled = list(known)
    shuffle.shuffle(shuffled)

    assert choose(shuffled, used, SLAB, draws) == found
    roomy = [daemon for daemon in known if daemon.offered_bytes >= SLAB]
    if isinstance(found, NoRoom):
        assert roomy == []
        return
    assert found.daemon in roomy
    assert len(set(found.drawn)) == len(found.drawn)
    assert found.daemon.offered_bytes == max(daemon.offered_bytes for daemon in found.drawn)
    assert found.new_host == any(daemon.host not in used for daemon in roomy)
    assert not found.new_host or not {daemon.host for daemon in found.drawn} & used


def test_two_choices_are_more_even_than_one() -> None:
    """Balls into bins: with one choice the fullest has some standard deviations more, with two hardly any."""
    fullest = {}
    for choices in (1, 2):
        generator = random.Random(2026)
        loads = [0] * 32
        for _ in range(640):
            known = [Daemon(f"{n:02}", f"{n:02}", (640 - load) * SLAB) for n, load in enumerate(loads)]
            found = choose(known, set(), SLAB, [generator.random() for _ in range(choices)])
            assert isinstance(found, Choice)
            loads[int(found.daemon.address)] += 1
        fullest[choices] = max(loads)
    # The mean is 20. One choice: two standard deviations (4.4 each) more, at least; two: ln ln 32 / ln 2 = 1.8 more.
    assert fullest[2] <= 23
    assert fullest[1] >= 27
