"""Initial limits (equations 2.1 and 2.2) and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.apps import AppSpec
from services.allocator.state.admission import Admission, AdmissionRefusal, Capacity, PendingContainer, admit

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


def test_where_others_hold_what_cannot_be_taken_from_them_it_gets_the_minimum_and_no_more() -> None:
    """14 MiB: 10 that it uses, and the margin of 4."""
    room = replace(ROOM, cpu_free_us=-5_000, memory_free_bytes=-30 * MIB, overrun_us=6_000, overrun_bytes=44 * MIB)
    assert admit(room, NEWCOMER) == Admission(1_000, 14 * MIB)
    for less in ({"overrun_us": 5_999}, {"overrun_bytes": 44 * MIB - 1}):
        assert isinstance(admit(replace(room, **less), NEWCOMER), AdmissionRefusal)


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
    assert admit(replace(ROOM, **room), replace(NEWCOMER, **change)) == AdmissionRefusal(reason, permanent)
