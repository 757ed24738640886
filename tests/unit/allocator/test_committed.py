"""Found by the hostile network: situations in which room was once counted twice."""

import numpy as np
import pytest

from services.allocator.budget.assignment import assign
from services.allocator.budget.committed import committed_limits
from services.allocator.state.acknowledgement import Report, ack, record_updates
from services.allocator.state.rows import Rows


@pytest.fixture
def rows():
    """Two admitted containers of one application, 40 and 30 ms in the kernel."""
    table = Rows()
    table.append(2)
    table.admitted[:] = table.acked[:] = True
    table.quota_us[:] = table.quota_ordered_us[:] = [40_000, 30_000]
    table.limit_bytes[:] = table.limit_ordered_bytes[:] = 1 << 20
    return table


NOT_VIRTUAL = np.zeros(2, dtype=bool)


def committed_us(rows):
    return committed_limits(rows, NOT_VIRTUAL)[0]


def ints(*values):
    return np.array(values, dtype=np.int64)


def order(rows, row, quota_us, seq):
    rows.quota_ordered_us[row] = quota_us
    record_updates(rows, ints(row), (ints(quota_us), ints(0)), seq)


def report(rows, row, quota_us, *, report_seq, limit_update_seq, limit_bytes=1 << 20):
    message = Report(
        ints(row), ints(report_seq), ints(quota_us), ints(limit_bytes), ints(limit_update_seq), np.array([True])
    )
    ack(rows, message, 0)


def test_order_in_flight_counts_with_the_larger_value(rows):
    order(rows, 0, 60_000, seq=1)

    assert committed_us(rows).tolist() == [60_000, 30_000]


def test_cut_frees_room_only_once_it_is_reported(rows):
    order(rows, 0, 10_000, seq=1)
    before = committed_us(rows).tolist()
    report(rows, 0, 10_000, report_seq=1, limit_update_seq=1)

    assert (before, committed_us(rows).tolist()) == ([40_000, 30_000], [10_000, 30_000])


def test_out_of_order_raise_counts_until_the_newer_update_is_acknowledged(rows):
    order(rows, 0, 60_000, seq=1)
    order(rows, 0, 20_000, seq=2)
    report(rows, 0, 40_000, report_seq=1, limit_update_seq=0)

    assert committed_us(rows)[0] == 60_000

    report(rows, 0, 20_000, report_seq=2, limit_update_seq=2)

    assert committed_us(rows)[0] == 20_000


def test_ordered_value_that_is_not_sent_again_does_not_count(rows):
    """The kernel holds less than was once ordered; an order about memory must not bring the old quota back."""
    rows.quota_ordered_us[0], rows.quota_us[0] = 50_000, 10_000
    record_updates(rows, ints(0), (ints(0), ints(2 << 20)), 1)

    assert committed_us(rows)[0] == 10_000


def test_out_of_order_report_is_ignored(rows):
    report(rows, 0, 50_000, report_seq=5, limit_update_seq=0)
    report(rows, 0, 10_000, report_seq=4, limit_update_seq=0)

    assert rows.quota_us[0] == 50_000


def test_container_whose_first_order_arrived_though_its_reply_was_lost_is_counted(rows):
    """It was given up as unlimited and no longer admitted; the order acted all the same."""
    rows.quota_us[0] = rows.quota_ordered_us[0] = -1
    rows.admitted[0] = False
    report(rows, 0, 14_000, report_seq=1, limit_update_seq=0)

    assert committed_us(rows)[0] == 14_000


def test_target_below_the_ordered_value_but_above_the_committed_one_needs_capacity(rows):
    """After lost replies the kernel may hold less than was ordered: going down to the wish is a raise there."""
    rows.quota_ordered_us[0], rows.quota_us[0] = 50_000, 10_000
    result = assign(rows.app, rows.quota_ordered_us, ints(45_000, 30_000), ints(5_000), committed_us(rows))

    assert result.ordered.tolist() == [15_000, 30_000]
    assert result.deferred.tolist() == [45_000, 0]


def test_raises_share_scarce_room_in_proportion(rows):
    """Asked: 20 and 60 ms; free: 20 ms: 5 and 15 ms are granted."""
    result = assign(rows.app, rows.quota_ordered_us, ints(60_000, 90_000), ints(20_000), committed_us(rows))

    assert result.ordered.tolist() == [45_000, 45_000]


def test_externally_modified_value_is_adopted_after_five_reports(rows):
    for seq in range(1, 6):
        report(rows, 0, 90_000, report_seq=seq, limit_update_seq=0)

    assert rows.quota_ordered_us[0] == 90_000
    assert rows.admitted[0]


def test_container_that_became_unlimited_must_be_admitted_again(rows):
    report(rows, 0, -1, report_seq=1, limit_update_seq=0)

    assert not rows.admitted[0]
