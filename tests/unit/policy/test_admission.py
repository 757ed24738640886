"""Initial limits (equations 2.1 and 2.2) and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.apps import AppSpec
from services.allocator.budget.admission import Admission, Capacity, PendingContainer, Shortage, admit

MIB = 1 << 20
SPEC = AppSpec(name="shop", cpu_limit=4, memory_limit=1000 * MIB, sigma=0.2)
ROOM = Capacity(400_000, 400_000, 1000 * MIB, 1000 * MIB, 50 * MIB)
NEWCOMER = PendingContainer(
    name="web",
    used_us=0,
    usage_bytes=10 * MIB,
    share_us=SPEC.initial_quota_us(4),
    share_bytes=SPEC.initial_memory_bytes(4),
    min_us=1_000,
    cap_us=200_000,
    min_bytes=4 * MIB,
    max_bytes=4096 * MIB,
    floor_us=1_000,
    floor_bytes=6 * MIB,
)


def test_the_first_of_four_gets_a_quarter() -> None:
    """4 cores / 4 = 1 core (2.1); 1000 MiB * (1 - 0.2) / 4 = 200 MiB (2.2)."""
    assert admit(ROOM, NEWCOMER) == Admission(100_000, 200 * MIB)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"used_us": 150_000}, Admission(150_000, 200 * MIB)),
        ({"used_us": 350_000}, Admission(200_000, 200 * MIB)),
        ({"usage_bytes": 300 * MIB}, Admission(100_000, 350 * MIB)),
        ({"max_bytes": 120 * MIB}, Admission(100_000, 120 * MIB)),
    ],
)
def test_use_counts_when_it_exceeds_the_share(change: dict[str, Any], expected: Admission) -> None:
    assert admit(ROOM, replace(NEWCOMER, **change)) == expected


def test_what_is_free_bounds_both() -> None:
    room = replace(ROOM, cpu_free_us=30_000, memory_free_bytes=25 * MIB + 100)
    assert admit(room, NEWCOMER) == Admission(30_000, 25 * MIB)


FULL = replace(ROOM, cpu_free_us=-5_000, memory_free_bytes=-30 * MIB)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (1_000, 14 * MIB)),  # 10 MiB that it uses, and the margin of 4
        ({"usage_bytes": 0}, (1_000, 6 * MIB)),
        ({"held_us": 50_000, "held_bytes": 200 * MIB}, (1_000, 14 * MIB)),
        ({"held_us": 1_000, "held_bytes": 12 * MIB}, (1_000, 12 * MIB)),
    ],
)
def test_without_room_it_gets_its_floor_of_both_and_no_more_than_it_holds(
    change: dict[str, int], expected: tuple[int, int]
) -> None:
    admission = admit(FULL, replace(NEWCOMER, **change))
    assert (admission.quota_us, admission.limit_bytes) == expected
    assert len(admission.shortages) == 2


def test_without_room_for_one_resource_it_gets_its_share_of_the_other() -> None:
    assert admit(replace(ROOM, memory_free_bytes=0), NEWCOMER).quota_us == 100_000
    assert admit(replace(ROOM, cpu_free_us=0), NEWCOMER).limit_bytes == 200 * MIB


def test_while_others_are_decreased_it_takes_what_is_free_and_waits_for_its_share() -> None:
    room = replace(ROOM, cpu_free_us=30_000, memory_free_bytes=25 * MIB)
    admission = admit(room, replace(NEWCOMER, samples=2))
    assert (admission.quota_us, admission.limit_bytes) == (30_000, 25 * MIB)
    assert len(admission.shortages) == 2


@pytest.mark.parametrize(
    ("room", "change", "reason", "permanent"),
    [
        ({"cpu_free_us": 500}, {}, "web needs at least 0.01 cores, 0.01 cores of 4.00 cores are free", False),
        ({"cpu_free_us": -5}, {}, "web needs at least 0.01 cores, 0.00 cores of 4.00 cores are free", False),
        (
            {"memory_free_bytes": 100 * MIB},
            {"usage_bytes": 300 * MIB},
            "web needs at least 304 MiB of memory, 100 MiB of 1000 MiB are free",
            False,
        ),
        (
            {},
            {"usage_bytes": 2000 * MIB},
            "web needs at least 2004 MiB of memory, 1000 MiB of 1000 MiB are free",
            True,
        ),
        (
            {},
            {"usage_bytes": 300 * MIB, "max_bytes": 200 * MIB},
            "web uses 300 MiB and needs a limit of 304 MiB, container_max_memory is 200 MiB",
            True,
        ),
    ],
)
def test_a_refusal_says_what_is_needed_and_what_is_free(
    room: dict[str, int], change: dict[str, Any], reason: str, permanent: bool
) -> None:
    admission = admit(replace(ROOM, **room), replace(NEWCOMER, **change))
    assert admission.shortages == [Shortage(reason, permanent)]
