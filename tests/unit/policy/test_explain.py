"""Sentences for people."""

from __future__ import annotations

import pytest

from schemas.limits import Reason
from services.allocator.core.explain import explain_cpu, explain_memory

MIB = 1 << 20


@pytest.mark.parametrize(
    ("change", "reason", "numbers", "pool", "sentence"),
    [
        (
            (30_000, 45_000),
            Reason.THROTTLED,
            (41_000.0, 30_000.0),
            50_000,
            "raised 0.30 -> 0.45 cores: throttled, demand estimated 0.41, quota was 0.30, pool 0.50",
        ),
        (
            (100_000, 50_000),
            Reason.SHARED_SCARCITY,
            (500_000.0, 400_000.0),
            None,
            "cut 1.00 -> 0.50 cores: shared scarcity, the application asks for 5.00 and may have 4.00",
        ),
        (
            (-1, 50_000),
            Reason.ADMITTED,
            (50_000.0, 400_000.0),
            None,
            "cut unlimited -> 0.50 cores: joined the application, asked for 0.50, 4.00 were free",
        ),
        ((1, 1), 77, (1e5, 2e5), None, "kept 0.00 -> 0.00 cores: reason 77, measured 1.00, threshold 2.00"),
    ],
)
def test_cpu(
    change: tuple[int, int], reason: int, numbers: tuple[float, float], pool: int | None, sentence: str
) -> None:
    assert explain_cpu(change, reason, numbers, pool) == sentence


def test_memory() -> None:
    assert explain_memory((100 * MIB, 150 * MIB), Reason.MEMORY_GROWTH, (90.0 * MIB, 25.0 * MIB), 20 * MIB) == (
        "raised 100.0 -> 150.0 MiB: usage of 90.0 MiB came within 25.0 MiB of the limit, pool 20.0 MiB"
    )
    assert explain_memory((-1, 150 * MIB), Reason.THROTTLED, (0.0, 0.0)) == (
        "cut unlimited -> 150.0 MiB: reason 2, measured 0.0 MiB, threshold 0.0 MiB"
    )


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_sentence_for_what_it_is_about(reason: Reason) -> None:
    memory_only, cpu_only = (
        {Reason.MEMORY_GROWTH, Reason.MEMORY_RECLAIM},
        {
            Reason.THROTTLED,
            Reason.UNUSED,
            Reason.DEMAND_ROSE,
            Reason.SHARED_SCARCITY,
        },
    )
    if reason not in memory_only:
        assert f"reason {reason.value}" not in explain_cpu((1, 2), reason, (1.0, 2.0))
    if reason not in cpu_only:
        assert f"reason {reason.value}" not in explain_memory((1, 2), reason, (1.0, 2.0))
