"""Requests for a job's aggregation against what is known of the job, and where its vector is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.aggregations import MAX_RANGES, AggregatedRange, Aggregation
from services.aggregator.core.ranges import cut
from services.aggregator.core.requests import Action, Refusal, decide, digest, next_version
from tests.support.local_aggregators import ADAMW, CLAIM, OTHER_CLAIM, asked


def known(attempt: int, lost: str = "", version: int = 1) -> Aggregation:
    return Aggregation(
        job="job",
        attempt=attempt,
        claim_sha256=digest(CLAIM),
        ranks=2,
        values=1_500,
        optimizer=ADAMW,
        ranges=(AggregatedRange(first=0, last=1_500, version=version, address="a:1"),),
        incarnation=1,
        lost=lost,
        time_ns=1,
    )


@given(
    attempt=st.integers(1, 4),
    before=st.none() | st.integers(1, 4),
    lost=st.sampled_from(["", "it has died"]),
    claim=st.sampled_from([CLAIM, OTHER_CLAIM]),
)
def test_a_later_attempt_with_the_claim_is_placed_and_the_present_one_answered(
    attempt: int, before: int | None, lost: str, claim: str
) -> None:
    present = known(before, lost) if before is not None else None
    decided = decide(present, asked(attempt=attempt, claim=claim))

    if present is None:
        assert decided is Action.PLACE
    elif claim != CLAIM:
        assert isinstance(decided, Refusal)
        assert decided.code == 403
    elif attempt > present.attempt:
        assert decided is Action.PLACE
    elif attempt == present.attempt and not lost:
        assert decided is Action.ANSWER
    else:
        assert isinstance(decided, Refusal)
        assert decided.code == (410 if attempt == present.attempt else 409)


def test_versions_rise_with_each_attempt() -> None:
    assert next_version(None) == 1
    assert next_version(known(1, version=6)) == 7


@given(values=st.integers(1, 1 << 36), range_values=st.integers(1, 1 << 30))
def test_ranges_cover_the_vector_without_gaps(values: int, range_values: int) -> None:
    bounds = cut(values, range_values)

    assert 1 <= len(bounds) <= MAX_RANGES
    assert [first for first, _ in bounds] == [0, *(last for _, last in bounds[:-1])]
    assert bounds[-1][1] == values
    assert all(first < last for first, last in bounds)
    assert len(bounds) == MAX_RANGES or all(
        last - first <= max(range_values, -(-values // MAX_RANGES)) for first, last in bounds
    )
