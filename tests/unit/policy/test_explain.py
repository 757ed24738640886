"""Decisions in words, with numbers in cores and MiB."""

import pytest

from schemas.reasons import Reason, sentence
from services.allocator.explain import explain

MIB = 1 << 20


@pytest.mark.parametrize(
    ("change", "why", "pool", "text"),
    [
        # 30,000 us per period of 100,000 us are 0.30 cores.
        (
            (30_000, 45_000),
            (Reason.THROTTLED, 41_000.0, 30_000.0),
            None,
            "raised 0.30 cores -> 0.45 cores, throttled: demand about 0.41 cores, quota was 0.30 cores",
        ),
        (
            (45_000, 20_000),
            (Reason.UNUSED, 30_000.0, 5_000.0),
            None,
            "cut 0.45 cores -> 0.20 cores, 0.30 cores unused, headroom is 0.05 cores",
        ),
        (
            (-1, 50_000),
            (Reason.ADMITTED, 50_000.0, 400_000.0),
            None,
            "cut unlimited -> 0.50 cores, admitted: requested 0.50 cores, 4.00 cores were free",
        ),
        (
            (1, 1),
            (77, 1e5, 2e5),
            None,
            "kept 0.00 cores -> 0.00 cores, reason 77, measured 1.00 cores, threshold 2.00 cores",
        ),
    ],
)
def test_cpu(change, why, pool, text):
    assert explain("cpu", change, why, pool) == text


def test_memory():
    assert explain("memory", (100 * MIB, 150 * MIB), (Reason.MEMORY_GROWTH, 90.0 * MIB, 25.0 * MIB), 20 * MIB) == (
        "raised 100.0 MiB -> 150.0 MiB, usage 90.0 MiB came within 25.0 MiB of the limit, pool 20.0 MiB"
    )


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_sentence(reason):
    assert f"reason {reason.value}" not in sentence("cpu", reason, 1.0, 2.0)
