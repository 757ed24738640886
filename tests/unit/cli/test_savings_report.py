"""`turnbuckle savings`: stored accounts added up, each counted once, and money only where a price is known."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.oom import OomKind
from schemas.savings import Baseline, Savings
from schemas.subjects import SAVINGS
from services._runtime.command.errors import UsageError
from services.cli.apps.savings import _baseline, _money, _prices, _throttled
from services.cli.apps.savings_report import Prices, SavingsReport, Tally, covered_share
from tests.support.oom_events import oom_event
from tests.support.savings_events import savings, savings_part

DAY = date(2026, 11, 25)
NOON_S = datetime(2026, 11, 25, 12, tzinfo=UTC).timestamp()
EUR = Prices(0.03, 0.004, "EUR")


def report_of(*events: Savings, prices: Prices | None = None, first_day: date = DAY) -> SavingsReport:
    report = SavingsReport("tb", first_day, prices)
    for event in events:
        report.take(subject(event), event)
    return report


def subject(event: Savings) -> str:
    return SAVINGS.subject("tb", app=event.app, day=event.day.isoformat(), record=event.record).text


def test_an_hour_of_two_cores_and_four_gib_of_which_half_is_held() -> None:
    ((key, tally),) = report_of(savings(), prices=EUR).rows()
    plain = tally.plain()

    assert key == (DAY, "shop", "observe")
    # One hour: 2 cores less 1, 4 GiB less 2
    assert plain["cpu"] == {
        "baseline": ["configured"],
        "baseline_core_h": 2.0,
        "held_core_h": 1.0,
        "saved_core_h": 1.0,
    }
    assert (plain["memory"]["baseline"], plain["memory"]["saved_gib_h"]) == (["configured"], 2.0)
    # 1 x 0.03 + 2 x 0.004
    assert plain["money"] == {"EUR": pytest.approx(0.038)}
    assert plain["throttling"]["would_throttle_periods"] == 36
    assert covered_share(tally.sums["covered_s"], DAY, NOON_S) == pytest.approx(1 / 12)
    assert covered_share(tally.sums["covered_s"], DAY, NOON_S + 10 * 86_400) == pytest.approx(1 / 24)


def test_a_later_event_of_an_account_replaces_it_and_other_accounts_add_up() -> None:
    first, second = savings(time_ns=1), savings(time_ns=2, parts=(savings_part(covered_s=7_200.0),))
    other = savings(record="b-1")

    for events in ((first, second, other), (second, first, other, second)):
        ((_, tally),) = report_of(*events).rows()
        assert tally.sums["covered_s"] == 7_200 + 3_600


def test_more_held_than_the_baseline_is_negative_and_so_is_its_money() -> None:
    ((_, tally),) = report_of(savings(parts=(savings_part(cpu_held_core_s=3 * 7_200.0),)), prices=EUR).rows()

    # 2 - 6 core-hours; 2 GiB-hours: -4 x 0.03 + 2 x 0.004
    assert tally.saved_core_h == -4
    assert tally.known_money == {"EUR": pytest.approx(-0.112)}


def test_without_a_price_money_is_not_known_also_where_only_a_part_has_none() -> None:
    priced = savings(core_hour_price=1.0, gib_hour_price=0.0, currency="USD")
    ((_, tally),) = report_of(priced).rows()
    assert tally.known_money == {"USD": 1.0}

    ((_, tally),) = report_of(priced, savings(record="b-1")).rows()

    assert tally.known_money is None
    assert _money(tally.known_money) == "not known"
    assert _money({"USD": 1.0, "EUR": -0.5}) == "-0.50 EUR + 1.00 USD"


def test_given_prices_replace_those_of_events() -> None:
    ((_, tally),) = report_of(savings(core_hour_price=1.0, gib_hour_price=0.0, currency="USD"), prices=EUR).rows()

    assert set(tally.money) == {"EUR"}


def test_modes_are_rows_of_their_own_and_have_totals() -> None:
    enforced = savings_part(mode="enforce", memory_baseline=Baseline.APPLICATION_LIMIT, throttled_periods=9)
    event = savings(parts=(savings_part(), enforced))
    report = report_of(event, savings(app="web", record="c-1"), savings(day=date(2026, 11, 24), record="d-1"))

    assert [(key.app, key.mode) for key, _ in report.rows()] == [
        ("shop", "enforce"),
        ("shop", "observe"),
        ("web", "observe"),
    ]
    assert {mode: tally.sums["covered_s"] for mode, tally in report.totals()} == {"enforce": 3_600, "observe": 7_200}
    shown = {mode: (_throttled(tally, mode), _baseline(tally)) for mode, tally in report.totals()}
    assert shown["enforce"] == ("0.1 % of periods", "configured; memory: application limit")
    # 36 of 9,000 periods each of two applications
    assert shown["observe"] == ("would be: 0.4 % of periods, 3 core-s", "configured")


def test_an_event_that_contradicts_its_subject_and_every_other_type_are_left_out() -> None:
    report = report_of()
    report.take(subject(savings()), savings(app="other"))
    report.take(subject(savings()), savings(record="x-1"))
    report.take(subject(savings()), oom_event(OomKind.KILL))
    report.take("tb.evt.savings.shop.2026-11-25", savings())
    report.take("tb.evt.savings.shop.=.x", savings())

    assert (report.left_out, report.rows()) == (5, [])


def test_prices_are_all_given_or_none() -> None:
    assert _prices(None, None, None) is None
    assert _prices(0.03, 0.004, "EUR") == EUR
    for given_prices in ((1.0, None, None), (1.0, 1.0, None), (None, None, "EUR"), (float("nan"), 1.0, "EUR")):
        with pytest.raises(UsageError, match="all three, or none"):
            _prices(*given_prices)


def test_no_periods_are_no_share() -> None:
    assert _throttled(Tally(), "observe") == "-"


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.floats(0, 1e5), st.floats(0, 1e5)), min_size=1, max_size=20
    ),
    st.randoms(use_true_random=False),
)
def test_neither_order_nor_repetition_of_events_matters(drawn, random) -> None:
    amounts = {(record, at): {"cpu_baseline_core_s": base, "cpu_held_core_s": held} for record, at, base, held in drawn}
    events = [
        savings(record=f"r-{record}", time_ns=at, parts=(savings_part(**fields),))
        for (record, at), fields in amounts.items()
    ]
    shuffled = [*events, *events]
    random.shuffle(shuffled)

    ((_, tally),) = report_of(*events).rows()
    ((_, other),) = report_of(*shuffled).rows()

    assert dict(tally.sums) == pytest.approx(dict(other.sums))
    newest = {event.record: event.parts[0] for event in sorted(events, key=lambda event: event.time_ns)}
    expected = sum(part.cpu_baseline_core_s - part.cpu_held_core_s for part in newest.values()) / 3_600
    assert tally.saved_core_h == pytest.approx(expected, abs=1e-6)
