"""The fold behind `turnbuckle top`."""

from __future__ import annotations

from pydantic import ByteSize
from rich.console import Console

from schemas.apps import AppSpec
from schemas.cfs import SampleFlag
from services.cli.live_state import LiveState
from services.cli.live_view import plain_lines, render, sparkline, usage_bar
from tests.support.cfs_batches import PERIOD_NS, START_NS, Row, batch, decisions


def test_a_batch_is_the_truth_about_who_is_there() -> None:
    state = LiveState()
    state.observe(batch(0, [Row("a-000000000000"), Row("b-000000000000")]))
    state.observe(batch(1, [Row("b-000000000000")]))

    assert [container.name for container in state.apps["shop"].containers] == ["b"]


def test_throttled_share_counts_periods_not_batches() -> None:
    """5 throttled of 1 + 3 + 6 = 10 periods."""
    state = LiveState()
    for tick, (periods, throttled) in enumerate([(1, 1), (3, 2), (6, 2)]):
        state.observe(batch(tick, [Row(periods=periods, throttled=throttled)]))

    assert state.apps["shop"].containers[0].throttled_share == 0.5


def test_an_idle_period_counts_and_an_empty_report_does_not() -> None:
    state = LiveState()
    state.observe(batch(0, [Row(used_us=9_000)]))
    state.observe(batch(1, [Row(periods=0, used_us=0, quota_us=30_000)]))
    container = state.apps["shop"].containers[0]

    assert (container.used_us, container.quota_us, list(container.used_history_us)) == (9_000, 30_000, [9_000])

    state.observe(batch(2, [Row(periods=0, used_us=0, flags=SampleFlag.IDLE)]))

    assert list(container.used_history_us) == [9_000, 0]


def test_missed_doubled_and_overtaken_batches() -> None:
    state = LiveState()
    for tick in (0, 1, 5, 5, 4, 6):
        state.observe(batch(tick))
    app = state.apps["shop"]

    assert (app.batches, app.missed_batches) == (4, 3)


def test_a_restarted_agent_starts_a_new_count_and_the_old_one_is_void() -> None:
    state = LiveState()
    state.observe(batch(10))
    state.observe(batch(11, [Row(used_us=1)], incarnation=2, report_seq=1))
    state.observe(batch(12, [Row(used_us=2)], incarnation=1))
    app = state.apps["shop"]

    assert (app.missed_batches, app.containers[0].used_us) == (0, 1)


def test_two_nodes_are_one_application_and_a_silent_node_is_forgotten() -> None:
    state = LiveState()
    state.observe(batch(0, [Row("a-000000000000")], node="n1"))
    state.observe(batch(0, [Row("b-000000000000")], node="n2"))

    assert state.apps["shop"].quota_sum_us == 40_000

    for tick in range(1, 40):
        state.observe(batch(tick, [Row("b-000000000000")], node="n2"))

    assert [container.name for container in state.apps["shop"].containers] == ["b"]


def test_decisions_bring_pools_and_reasons() -> None:
    state = LiveState()
    state.observe(batch(0))
    state.decide(decisions(1))
    app = state.apps["shop"]

    assert (app.cpu_limit_us, app.cpu_allocated_us, app.decisions) == (200_000, 80_000, 1)
    assert app.containers[0].last_reason == "throttled: demand about 0.30 cores, quota was 0.20 cores"


def test_a_reason_of_a_later_version_is_shown_as_such() -> None:
    row = {"quota_to_us": 1, "quota_reason": 99, "quota_measured": 0.0, "quota_threshold": 0.0}
    from services.cli.live_state import describe_row  # noqa: PLC0415 - beside what it shows

    assert describe_row(row) == "reason 99, measured 0.00 cores, threshold 0.00 cores"


def test_limits_are_known_before_any_decision() -> None:
    state = LiveState()
    state.announce(AppSpec(name="shop", cpu_limit=2, memory_limit=ByteSize(1 << 30)))

    assert state.snapshot()["apps"][0]["cpu_free_us"] == 200_000

    state.forget("shop")

    assert state.snapshot()["apps"] == []


def test_the_snapshot_is_plain_and_tells_its_time() -> None:
    state = LiveState()
    for tick in range(70):
        state.observe(batch(tick))
    snapshot = state.snapshot()

    assert snapshot["time_ns"] == START_NS + 69 * PERIOD_NS
    assert len(snapshot["apps"][0]["containers"][0]["used_history_us"]) == 60


def test_sparkline_and_bar_scale_to_their_limit() -> None:
    assert sparkline([0, 50, 100], 100) == "▁▅█"
    assert sparkline([5, 5], 0) == "▁▁"
    assert usage_bar(50, 100, 10).plain == "█████░░░░░"
    assert usage_bar(500, 100, 4).plain == "████"
    assert usage_bar(1, -1, 4).plain == "····"


def test_the_view_names_every_container_at_any_width() -> None:
    state = LiveState()
    state.observe(batch(0, [Row("web-000000000000"), Row("db-000000000000", quota_us=-1, memory_limit_bytes=-1)]))
    state.decide(decisions(1, ["web-000000000000"]))
    for columns in (80, 110, 160):
        console = Console(width=columns, record=True, quiet=False, file=None, force_terminal=False)
        with console.capture() as captured:
            console.print(render(state, columns=columns))
        text = captured.get()
        assert "web" in text
        assert "unlimited" in text or columns < 160
        assert all(len(line) <= columns for line in text.splitlines())


def test_plain_lines_and_a_filter() -> None:
    state = LiveState()
    state.observe(batch(0))
    state.observe(batch(0, app="other"))

    lines = plain_lines(state, only="shop")

    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == ["shop"]
    assert "0.10 of      0.20" in lines[1]
