"""Layer profiles from the bus: found by task, model or digest, of one model at a time, and of bounded size."""

from __future__ import annotations

import pytest

from schemas.layers import Dtype
from services.planner.known_profiles import KnownProfiles
from tests.support.layer_profiles import profile


def known(*profiles: object, max_bytes: int = 1_000) -> KnownProfiles:
    found = KnownProfiles(max_bytes)
    for one in profiles:
        found.add(one, 100)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("name", ["tiny", "m1", "slow-1"])
def test_a_model_is_found_by_task_digest_or_the_digest_of_one_profile(name: str) -> None:
    fast, slow = profile("fast"), profile("slow")

    assert known(fast, slow).of(name, ("slow", "fast", "slow")) == (slow, fast)
    assert known(fast, slow).of(name, ("fast", "p40")) == (fast,)


def test_an_unknown_name_finds_nothing() -> None:
    assert known(profile()).of("other", ("fast",)) == ()


def test_only_profiles_of_the_newest_model_of_a_task_are_taken() -> None:
    old = [profile(kind, profile=f"{kind}-old", model="m0", measured_ns=1) for kind in ("fast", "slow")]
    new = profile("fast", measured_ns=2)

    assert known(*old, new).of("tiny", ("fast", "slow")) == (new,)
    assert known(new, *old).of("m0", ("fast", "slow")) == tuple(old)


def test_another_type_of_elements_is_another_model() -> None:
    half = profile("fast", profile="half", dtype=Dtype.FLOAT16, measured_ns=2)

    assert known(half, profile("slow")).of("tiny", ("fast", "slow")) == (half,)


def test_a_profile_measured_again_replaces_the_one_before_in_whatever_order_they_come() -> None:
    before, after = profile(measured_ns=1), profile(ms_per_sample=9, measured_ns=2)

    assert known(before, after).of("tiny", ("fast",)) == known(after, before).of("tiny", ("fast",)) == (after,)
    assert len(known(before, after)) == 1


def test_the_oldest_are_forgotten_where_they_are_too_large() -> None:
    many = [profile(f"kind{number}", profile=f"p{number}") for number in range(12)]
    found = known(*many)

    assert len(found) == 10
    assert found.of("tiny", (one.kind for one in many)) == tuple(many[2:])
