"""What agents tell between two samples reaches peers with the next sample."""

from schemas.cfs import CfsBatch, SampleFlag
from tests.bench.escra.peers.whole_periods import WholePeriods
from tests.support.cfs_batches import Row, batch

A, B = "a-000000000000", "b-000000000000"


def early(tick: int, *keys: str, **fields) -> CfsBatch:
    rows = [
        Row(key, throttled=1, flags=SampleFlag.EARLY) if key in keys else Row(key, periods=0, used_us=0)
        for key in (A, B)
    ]
    return batch(tick, rows, **fields)


def throttled(batches: list[CfsBatch]) -> list[list[int]]:
    return [one.column("throttled").tolist() for one in batches]


def test_early_throttling_is_counted_once_in_the_sample_after_it() -> None:
    periods = WholePeriods()
    sample = batch(1, [Row(A), Row(B, throttled=1)])
    assert periods.of([early(0, A)]) == []
    [seen] = periods.of([sample])
    assert seen.column("throttled").tolist() == [1, 1]
    assert seen.model_copy(update={"throttled": sample.throttled}) == sample, "nothing else was changed"
    assert throttled(periods.of([sample])) == [[0, 1]]


def test_several_looks_add_up_and_rows_are_found_by_their_names() -> None:
    periods = WholePeriods()
    seen = periods.of([early(0, A), early(0, B), early(0, A), batch(1, [Row(B), Row("c-000000000000"), Row(A)])])
    assert throttled(seen) == [[1, 0, 2]]


def test_nodes_applications_and_agents_are_told_apart() -> None:
    periods = WholePeriods()
    periods.of([early(0, A, node="n2"), early(0, A, app="media"), early(0, A, incarnation=7)])
    assert throttled(periods.of([batch(1, [Row(A), Row(B)])])) == [[0, 0]]
    assert throttled(periods.of([batch(1, [Row(A), Row(B)], node="n2")])) == [[1, 0]]


def test_a_new_policy_begins_without_what_was_told_before() -> None:
    periods = WholePeriods()
    periods.of([early(0, A)])
    periods.forget()
    assert throttled(periods.of([batch(1, [Row(A), Row(B)])])) == [[0, 0]]
