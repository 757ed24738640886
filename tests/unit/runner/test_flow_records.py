"""Records of connections as iterations of workers."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runner.core.flow_records import RECORD, SETTLE_NS, FlowRecord, merge_records, parse_records
from tests.support.flow_records import MS, packed, record

counts = st.integers(0, 2**63)


@given(
    st.lists(st.builds(FlowRecord, counts, counts, counts, counts, counts, st.integers(0, 2**32 - 1), st.just("bbr")))
)
def test_what_the_kernel_wrote_is_read(records: list[FlowRecord]) -> None:
    assert parse_records(b"".join(map(packed, records))) == records


@given(st.binary(min_size=RECORD.size, max_size=3 * RECORD.size))
def test_rubbish_is_refused_or_read(content: bytes) -> None:
    if len(content) % RECORD.size:
        with pytest.raises(ValueError, match=r"\d+ bytes are no records of 96 bytes each"):
            parse_records(content)
    else:
        assert len(parse_records(content)) == len(content) // RECORD.size


def test_connections_of_one_worker_add_up() -> None:
    """It sends from 5 ms on, and the later one until 20 + 400 ms: 415 ms."""
    done, pending = merge_records([record(20, sending_ms=400, sent=2_000), record(5, 1_010)], 2_000 * MS)
    assert done == [FlowRecord(5 * MS, 1_000 * MS, 415 * MS, 3_000, 7, 2, "mltcp")]
    assert pending == []


def test_another_worker_and_the_next_iteration_are_apart() -> None:
    found, _ = merge_records([record(), record(1_000), record(30, group=8)], 10_000 * MS)
    assert [(one.time_ns // MS, one.cgroup_id) for one in found] == [(0, 7), (30, 8), (1_000, 7)]


def test_others_of_the_same_iteration_are_waited_for() -> None:
    """The first says at 1,000 ms that its next iteration has begun; the second one 40 ms later."""
    first, second = record(), record(40)
    done, pending = merge_records([first], first.end_ns + MS)
    assert (done, pending) == ([], [first])
    done, pending = merge_records([*pending, second], second.end_ns + SETTLE_NS)
    assert [one.sent_bytes for one in done] == [2_000]
    assert pending == []


records = st.builds(
    record,
    st.integers(0, 20_000),
    st.integers(1, 3_000),
    st.integers(0, 3_000),
    st.integers(0, 10**9),
    st.integers(1, 3),
)


@given(st.lists(records, max_size=40), st.integers(0, 30_000))
def test_nothing_is_lost_or_counted_twice(given_records: list[FlowRecord], now_ms: int) -> None:
    done, pending = merge_records(given_records, now_ms * MS)
    for field in ("sent_bytes", "retransmissions"):
        assert sum(getattr(one, field) for one in [*done, *pending]) == sum(
            getattr(one, field) for one in given_records
        )
    for _, of_group in groupby(
        sorted(done, key=lambda one: (one.cgroup_id, one.time_ns)), key=lambda one: one.cgroup_id
    ):
        times = [one.time_ns for one in of_group]
        assert times == sorted(set(times)), "one record per worker and iteration"
    assert merge_records(pending, 10**18)[1] == []
