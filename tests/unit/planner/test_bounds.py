"""What is too large to be planned is refused at once, in a sentence."""

from __future__ import annotations

from services.planner.core.bounds import Bounds, too_large
from tests.support.layer_profiles import cluster, profile, request

LIMITS = Bounds(devices=8, work=1_000)


def test_within_the_bounds() -> None:
    # 7 devices, a batch of 1,024 in 128 parts of 8: 7 x 128 = 896.
    assert too_large(request(cluster(*[("fast", "a", 8)] * 7), (profile(),), batch=1_024), LIMITS) == ""


def test_too_many_devices() -> None:
    why = too_large(request(cluster(*[("fast", "a", 8)] * 9), (profile(),), batch=9), LIMITS)

    assert why == "9 devices are more than the 8 that this planner takes"


def test_a_batch_of_too_many_parts() -> None:
    # 251 is a prime: as many parts as samples, times 4 devices.
    why = too_large(request(cluster(*[("fast", "a", 8)] * 4), (profile(),), batch=251), LIMITS)

    assert why.startswith("4 devices times a batch of 251, which divides into 251 parts, are 1004, more than the 1000")


def test_what_cannot_be_divided_costs_nothing() -> None:
    # 521 is a prime above the 512 parts that are tried: the core refuses it without a table.
    assert too_large(request(cluster(*[("fast", "a", 8)] * 4), (profile(),), batch=521), LIMITS) == ""
