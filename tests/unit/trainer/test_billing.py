"""What workers cost: each second that has begun, from the start of each to its end."""

from __future__ import annotations

import pytest

from services.trainer.core.billing import Bill

S = 1_000_000_000


def test_each_worker_is_paid_by_the_second_from_its_start_to_its_end() -> None:
    bill = Bill(usd_per_hour=7.2)  # 0.002 USD a second
    bill.start("a", 10 * S)
    bill.start("b", 12 * S)
    bill.end("a", 20 * S)
    bill.end("b", 14 * S + 1)

    # a: 10 s; b: 2 s and a nanosecond, which are 3
    assert bill.seconds(100 * S) == 13
    assert bill.usd(100 * S) == pytest.approx(0.026)


def test_what_has_not_ended_is_paid_until_now() -> None:
    bill = Bill(usd_per_hour=3_600)
    bill.start("a", 5 * S)

    assert bill.seconds(5 * S) == 0
    assert bill.usd(5 * S + 1) == 1.0
    bill.end("a", 6 * S)
    bill.start("a", 50 * S)
    assert bill.seconds(52 * S) == 1 + 2


def test_a_worker_is_not_started_twice() -> None:
    bill = Bill(0.0)
    bill.start("a", 0)
    with pytest.raises(ValueError, match="a has been started"):
        bill.start("a", 1)


def test_a_clock_that_is_set_back_costs_no_less_than_nothing() -> None:
    bill = Bill(3_600)
    bill.start("a", 50 * S)

    assert bill.seconds(40 * S) == 0
    bill.end("a", 40 * S)
    assert bill.usd(40 * S) == 0
