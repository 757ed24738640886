"""The fold behind `turnbuckle top`."""

from __future__ import annotations

from pydantic import ByteSize
from rich.console import Console

from schemas.apps import AppSpec
from schemas.cfs import SampleFlag
from schemas.containers import ContainerChange
from schemas.leases import Members
from schemas.oom import OomKind
from services.cli.apps.live_view import plain_lines, render, sparkline, usage_bar
from services.cli.apps.view_model import ViewModel
from tests.support.app_states import app_state, container_state
from tests.support.cfs_batches import PERIOD_NS, START_NS, Row, batch, decisions
from tests.support.oom_events import MIB, drift, oom_event


def test_a_batch_is_the_truth_about_who_is_there() -> None:
    state = ViewModel()
    state.add_batch(batch(0, [Row("a-000000000000"), Row("b-000000000000")]))
    state.add_batch(batch(1, [Row("b-000000000000")]))

    assert [container.name for container in state.apps["shop"].containers] == ["b"]


def test_throttled_share_counts_periods_not_batches() -> None:
    """5 throttled of 1 + 3 + 6 = 10 periods."""
    state = ViewModel()
    for tick, (periods, throttled) in enumerate([(1, 1), (3, 2), (6, 2)]):
        state.add_batch(batch(tick, [Row(periods=periods, throttled=throttled)]))

    assert state.apps["shop"].containers[0].throttled_share == 0.5


def test_an_idle_period_counts_and_an_empty_report_does_not() -> None:
    state = ViewModel()
    state.add_batch(batch(0, [Row(used_us=9_000)]))
    state.add_batch(batch(1, [Row(periods=0, used_us=0, quota_us=30_000)]))
    container = state.apps["shop"].containers[0]

    assert (container.used_us, container.quota_us, list(container.used_history_us)) == (9_000, 30_000, [9_000])

    state.add_batch(batch(2, [Row(periods=0, used_us=0, flags=SampleFlag.IDLE)]))

    assert list(container.used_history_us) == [9_000, 0]


def test_missed_doubled_and_overtaken_batches() -> None:
    state = ViewModel()
    for tick in (0, 1, 5, 5, 4, 6):
        state.add_batch(batch(tick))
    app = state.apps["shop"]

    assert (app.batches, app.missed_batches) == (4, 3)


def test_a_restarted_agent_starts_a_new_count_and_the_old_one_is_void() -> None:
    state = ViewModel()
    state.add_batch(batch(10))
    state.add_batch(batch(11, [Row(used_us=1)], incarnation=2, report_seq=1))
    state.add_batch(batch(12, [Row(used_us=2)], incarnation=1))
    app = state.apps["shop"]

    assert (app.missed_batches, app.containers[0].used_us) == (0, 1)


def test_two_nodes_are_one_application_and_a_silent_node_is_forgotten() -> None:
    state = ViewModel()
    state.add_batch(batch(0, [Row("a-000000000000")], node="n1"))
    state.add_batch(batch(0, [Row("b-000000000000")], node="n2"))

    assert sum(container.quota_us for container in state.apps["shop"].containers) == 40_000

    for tick in range(1, 40):
        state.add_batch(batch(tick, [Row("b-000000000000")], node="n2"))

    assert [container.name for container in state.apps["shop"].containers] == ["b"]


def test_decisions_bring_pools_and_reasons() -> None:
    state = ViewModel()
    state.add_batch(batch(0))
    state.add_decisions(decisions(1))
    app = state.apps["shop"]

    assert (app.cpu_limit_us, app.cpu_allocated_us, app.decisions) == (200_000, 80_000, 1)
    assert app.containers[0].last_reason == "throttled: demand about 0.30 cores, quota was 0.20 cores"


def test_a_reason_of_a_later_version_is_shown_as_such() -> None:
    row = {"quota_to_us": 1, "quota_reason": 99, "quota_measured": 0.0, "quota_threshold": 0.0}
    from services.cli.apps.view_model import describe_row  # noqa: PLC0415 - beside what it shows

    assert describe_row(row) == "reason 99, measured 0.00 cores, threshold 0.00 cores"


def test_limits_are_known_before_any_decision() -> None:
    state = ViewModel()
    state.announce(AppSpec(name="shop", cpu_limit=2, memory_limit=ByteSize(1 << 30)))

    assert state.snapshot()["apps"][0]["cpu_free_us"] == 200_000

    state.forget("shop")

    assert state.snapshot()["apps"] == []


def test_the_snapshot_is_plain_and_tells_its_time() -> None:
    state = ViewModel()
    for tick in range(70):
        state.add_batch(batch(tick))
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
    state = ViewModel()
    state.add_batch(batch(0, [Row("web-000000000000"), Row("db-000000000000", quota_us=-1, memory_limit_bytes=-1)]))
    state.add_decisions(decisions(1, ["web-000000000000"]))
    for columns in (80, 110, 160):
        console = Console(width=columns, record=True, quiet=False, file=None, force_terminal=False)
        with console.capture() as captured:
            console.print(render(state, columns=columns))
        text = captured.get()
        assert "web" in text
        assert "unlimited" in text or columns < 160
        assert all(len(line) <= columns for line in text.splitlines())


def test_plain_lines_and_a_filter() -> None:
    state = ViewModel()
    state.add_batch(batch(0))
    state.add_batch(batch(0, app="other"))

    state.add_oom_event(oom_event(app="other"))

    lines = plain_lines(state, only="shop")

    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == ["shop"]
    assert "0.10 of      0.20" in lines[2]
    assert len(lines) == 3


def test_reserves_are_summed_over_nodes_and_a_reserve_is_never_negative() -> None:
    state = ViewModel()
    state.add_batch(batch(0, node="n1", reserve_given_bytes=96 * MIB, reserve_used_bytes=32 * MIB))
    state.add_batch(batch(0, node="n2", reserve_given_bytes=10 * MIB, reserve_used_bytes=20 * MIB))
    state.add_decisions(decisions(1, memory_reserved_bytes=106 * MIB, epoch=5))
    shop = state.snapshot()["apps"][0]

    assert (shop["reserve_left_bytes"], shop["memory_reserved_bytes"], shop["epoch"]) == (64 * MIB, 106 * MIB, 5)
    assert [reserve["left_bytes"] for reserve in shop["reserves"]] == [64 * MIB, 0]


def test_memory_events_are_counted_for_the_container_and_its_application() -> None:
    state = ViewModel()
    state.add_batch(batch(0))
    for event in (oom_event(latency_us=400), oom_event(OomKind.KILL, 1, reason="refused")):
        state.add_oom_event(event)
    state.add_oom_event(oom_event(container="gone-0123456789ab"))
    state.add_container_event(drift())
    state.add_container_event(drift(change=ContainerChange.EXITED))
    snapshot = state.snapshot()
    (shop,) = snapshot["apps"]
    (web,) = shop["containers"]

    assert (shop["memory"]["grants"], web["memory"]["grants"], web["memory"]["kills"]) == (2, 1, 1)
    assert web["last_memory_event"] == "OOM killed at its limit of 100 MiB: refused"
    assert (web["drifts"], shop["drifts"]) == (1, 1)
    assert "became 64 MiB" in web["last_drift"]
    assert [event["kind"] for event in snapshot["memory_events"]] == ["grant", "kill", "grant"]


def test_what_the_kernel_refuses_is_shown_until_it_ends() -> None:
    reason = "the kernel refuses less than 1.00 cores: cpu.cfs_burst_us is 100000"
    state = ViewModel()
    state.add_container_event(drift(change=ContainerChange.LIMIT_REFUSED, reason=reason))
    state.add_batch(batch(0))
    console = Console(width=240, force_terminal=False)
    with console.capture() as captured:
        console.print(render(state, columns=240))

    assert reason in captured.get()
    assert any(reason in line for line in plain_lines(state))
    assert state.snapshot()["apps"][0]["containers"][0]["refusal"] == reason

    state.add_container_event(drift(change=ContainerChange.LIMIT_ACCEPTED, reason=f"accepted again, after: {reason}"))
    state.add_batch(batch(1))

    assert not any(reason in line for line in plain_lines(state))


def test_what_the_kernel_has_refused_for_long_is_known_from_the_allocator() -> None:
    state = ViewModel()
    state.seed(app_state(container_state("web-0123456789ab", kernel_refusal="the kernel refuses more")))
    state.add_batch(batch(0))

    assert state.apps["shop"].containers[0].refusal == "the kernel refuses more"


def test_nodes_that_an_allocator_leaves_out_are_named() -> None:
    state = ViewModel()
    state.seed(app_state().model_copy(update={"node_warnings": ("gpu-01 is set aside",)}))

    assert state.node_warnings == ["shop: gpu-01 is set aside"]
    assert any("gpu-01 is set aside" in line for line in plain_lines(state))

    state.add_decisions(decisions(0))

    assert state.node_warnings == []


def test_what_is_known_of_a_container_survives_the_restart_of_its_agent() -> None:
    state = ViewModel()
    state.add_batch(batch(10))
    state.add_oom_event(oom_event())
    state.add_batch(batch(11, incarnation=2, report_seq=1))

    assert state.apps["shop"].containers[0].memory.grants == 1


def test_the_newest_events_are_bounded() -> None:
    state = ViewModel()
    for tick in range(200):
        state.add_oom_event(oom_event(tick=tick))

    assert (len(state.newest_events), state.apps["shop"].memory.grants) == (50, 200)


def test_an_owner_that_was_told_before_the_first_batch_is_known() -> None:
    state = ViewModel()
    state.set_members(Members(epoch=3, replicas=("r1",)))
    state.add_batch(batch(0))

    assert state.apps["shop"].owner == "r1"


def test_an_owner_is_known_whatever_comes_first() -> None:
    spec = AppSpec(name="shop", cpu_limit=2, memory_limit=ByteSize(1 << 30))
    state = ViewModel()
    state.set_members(Members(epoch=3, replicas=("r1",)))
    state.announce(spec)

    assert state.apps["shop"].owner == "r1"

    state.set_members(Members())

    assert state.apps["shop"].owner == ""


def test_the_view_tells_what_happened_to_memory() -> None:
    state = ViewModel()
    state.add_batch(batch(0, reserve_given_bytes=96 * MIB, reserve_used_bytes=32 * MIB))
    state.add_decisions(decisions(1, memory_reserved_bytes=96 * MIB))
    state.set_members(Members(epoch=3, replicas=("r1",)))
    state.add_oom_event(oom_event(latency_us=400))
    state.add_oom_event(oom_event(OomKind.GRANT_DENIED, 1, reason="0 of 512 MiB are free"))
    state.add_container_event(drift())
    console = Console(width=200, force_terminal=False)
    with console.capture() as captured:
        console.print(render(state, columns=200))
    text, lines = captured.get(), plain_lines(state)

    for expected in ("reserves 96 MiB, 64 MiB at hand", "owner r1, epoch 1", "1 grant (32 MiB), 1 denied grant"):
        assert expected in text
        assert expected in lines[1]
    assert "+32 MiB in 1" in text
    assert "drifted 1x" in text
    assert "drifted 1x" in lines[2]
    assert "shop/web on n1: denied more than 100 MiB: 0 of 512 MiB are free" in text
    assert lines[-1].endswith("shop/web on n1: denied more than 100 MiB: 0 of 512 MiB are free")


def test_an_early_batch_adds_throttling_and_nothing_else() -> None:
    """Its other rows say nothing new, and no sample is missed or doubled by it."""
    state = ViewModel()
    both = [Row("a-000000000000"), Row("b-000000000000")]
    state.add_batch(batch(0, both))
    early = [
        Row("a-000000000000", used_us=20_000, throttled=1, flags=SampleFlag.EARLY),
        Row("b-000000000000", periods=0, used_us=0),
    ]
    state.add_batch(batch(0, early, report_seq=2, time_ns=START_NS + PERIOD_NS // 2))
    state.add_batch(batch(1, both, report_seq=3))
    app = state.apps["shop"]
    first, second = app.containers

    assert (app.batches, app.missed_batches) == (2, 0)
    assert [list(container.used_history_us) for container in (first, second)] == [[10_000, 10_000]] * 2
    assert (first.throttled_share, second.throttled_share) == (0.5, 0.0)
