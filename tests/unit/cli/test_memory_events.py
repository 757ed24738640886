"""Memory events in numbers and in words, and the history that `explain` shows."""

from __future__ import annotations

import pytest

from schemas.containers import ContainerChange, LimitWriter
from schemas.oom import OomCause, OomKind
from services._runtime.command.output import format_duration
from services.cli.apps.event_history import EventHistory
from services.cli.apps.memory_events import MemoryCounters, describe_event, plain_event
from tests.support.cfs_batches import batch
from tests.support.oom_events import MIB, drift, oom_event


def test_a_tally_counts_each_kind_and_keeps_the_longest_wait() -> None:
    tally = MemoryCounters()
    for event in (
        oom_event(OomKind.NEAR_LIMIT),
        oom_event(OomKind.GRANT, latency_us=120, blocked_us=700),
        oom_event(OomKind.GRANT, latency_us=90),
        oom_event(OomKind.OOM_WAIT),
        oom_event(OomKind.GRANT_DENIED, blocked_us=3_000),
        oom_event(OomKind.OOM_KILLER_ENABLED),
        oom_event(OomKind.KILL),
        oom_event(OomKind.LIMIT_HITS, limit_hits=40),
    ):
        tally.add(event)

    assert tally.plain() == {
        "near_limit": 1,
        "grants": 2,
        "granted_bytes": 64 * MIB,
        "slowest_grant_us": 120,
        "oom_waits": 1,
        "longest_pause_us": 3_000,
        "grants_denied": 1,
        "oom_killer_enabled": 1,
        "kills": 1,
        "limit_hits": 40,
    }
    assert tally.in_words() == (
        "2 grants (64 MiB), 1 OOM wait (longest 3 ms), 1 denied grant, 1 wait ended by the OOM killer, 1 kill, "
        "40 limit hits"
    )


def test_nothing_is_said_of_nothing() -> None:
    assert MemoryCounters().in_words() == ""


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (oom_event(OomKind.NEAR_LIMIT), "near its limit with 95 MiB of 100 MiB"),
        (
            oom_event(OomKind.OOM_WAIT, reason="usage 100 MiB: tasks wait"),
            "blocked at its limit: usage 100 MiB: tasks wait",
        ),
        (
            oom_event(latency_us=1_200, blocked_us=850),
            "granted 32 MiB in 1.2 ms (100 MiB → 132 MiB) after a wait of 850 us",
        ),
        (oom_event(cause=OomCause.WATCHDOG), "granted 32 MiB (100 MiB → 132 MiB) by the watchdog"),
        (oom_event(limit_before_bytes=-1), "granted 0 B (unlimited → 132 MiB)"),
        (
            oom_event(OomKind.GRANT_DENIED, reason="0 of 512 MiB are free"),
            "denied more than 100 MiB: 0 of 512 MiB are free",
        ),
        (
            oom_event(OomKind.OOM_KILLER_ENABLED, blocked_us=2_000_000, cause=OomCause.DEADLINE),
            "OOM killer enabled with 95 MiB of 100 MiB after a wait of 2 s at the deadline",
        ),
        (
            oom_event(OomKind.KILL, reason="it was refused"),
            "OOM killed at its limit of 100 MiB: it was refused",
        ),
        (
            oom_event(
                OomKind.LIMIT_HITS, cause=OomCause.LIMIT, limit_hits=3, reason="the kernel hit the limit 3 times"
            ),
            "calls can have failed at its limit of 100 MiB: the kernel hit the limit 3 times",
        ),
    ],
)
def test_every_kind_is_a_sentence(event: object, sentence: str) -> None:
    assert describe_event(event) == sentence  # type: ignore[arg-type]


def test_the_plain_form_has_everything_and_the_sentence() -> None:
    plain = plain_event(oom_event(latency_us=300))

    assert (plain["kind"], plain["cause"], plain["limit_after_bytes"], plain["latency_us"]) == (
        "grant",
        "sample",
        132 * MIB,
        300,
    )
    assert plain["sentence"].startswith("granted 32 MiB in 300 us")


def test_durations_have_a_fitting_unit() -> None:
    assert [format_duration(us) for us in (0, 999, 1_000, 12_345, 999_400, 999_600, 2_100_000)] == [
        "0 us",
        "999 us",
        "1 ms",
        "12.3 ms",
        "999 ms",
        "1 s",
        "2.1 s",
    ]


def test_many_grants_do_not_hide_the_kill_before_them() -> None:
    history = EventHistory(None, last=2)
    history.take(oom_event(OomKind.KILL, 0))
    for tick in range(1, 1_000):
        history.take(oom_event(OomKind.GRANT, tick))
    history.take(drift(5))

    assert [event.plain.get("kind", "drift") for event in history.events] == ["kill", "drift", "grant", "grant"]
    assert [event.severe for event in history.events] == [True, False, False, False]
    assert history.total.grants == 999
    assert history.plain()["containers"]["web-0123456789ab"]["kills"] == 1
    assert "999 grants" in history.summary("24h")
    assert "1 limits modified externally" in history.summary("24h")
    assert "web-0123456789ab on n1  OOM killed" in history.events[0].line()


def test_a_kill_that_another_host_tells_of_is_not_the_container_s() -> None:
    """A host may name any container, on its own subject only."""
    history = EventHistory(None, last=2)
    history.take(oom_event(OomKind.GRANT, 0))
    history.take(oom_event(OomKind.KILL, 1, node="n2"))

    containers = history.plain()["containers"]
    assert containers["web-0123456789ab on n1"]["kills"] == 0
    assert containers["web-0123456789ab on n2"]["kills"] == 1
    assert [event.line().partition("  ")[0] for event in history.events] == [
        "web-0123456789ab on n1",
        "web-0123456789ab on n2",
    ]


def test_who_changed_a_quota_is_in_the_history_and_its_json() -> None:
    history = EventHistory(None, last=2)
    writer = LimitWriter(pid=4711, comm="runc", cgroup="system.slice/docker.service")
    reason = "modified externally by runc (pid 4711, system.slice/docker.service): quota 30 ms became 90 ms, put back"
    history.take(drift(writer=writer, reason=reason))

    [event] = history.events
    assert event.line().endswith(f"web-0123456789ab on n1  limits drifted: {reason}")
    assert event.plain["writer"] == {"pid": 4711, "comm": "runc", "cgroup": "system.slice/docker.service"}


def test_cpu_that_a_node_refused_is_in_the_history_and_is_no_drift() -> None:
    history = EventHistory(None, last=2)
    reason = "the CPU budget of node n1 is used up: CPU limits of its containers add up to 2.50 of 3.00 cores (1.5 x 2)"
    history.take(drift(change=ContainerChange.CPU_REFUSED, reason=reason))
    history.take(drift(change=ContainerChange.EXITED, reason="of no interest here"))

    [event] = history.events
    assert event.line().endswith(f"web-0123456789ab on n1  more CPU refused: {reason}")
    assert history.drifts == 0


def test_what_the_kernel_refused_is_in_the_history() -> None:
    history = EventHistory(None, last=2)
    reason = "the kernel refuses less than 1.00 cores: cpu.cfs_burst_us is 100000"
    history.take(drift(1, change=ContainerChange.LIMIT_REFUSED, reason=reason))
    history.take(drift(2, change=ContainerChange.LIMIT_ACCEPTED, reason="the kernel accepts it again"))

    assert [event.sentence for event in history.events] == [
        f"limit refused: {reason}",
        "limit no longer refused: the kernel accepts it again",
    ]


def test_a_history_of_one_container_leaves_the_others_out() -> None:
    history = EventHistory("web", last=5)
    for name in ("web-0123456789ab", "db-0123456789ab"):
        history.take(oom_event(container=name))
        history.take(drift(container=name))
    history.take(batch(0))

    assert {event.container for event in history.events} == {"web-0123456789ab"}
    assert (history.total.grants, history.drifts) == (1, 1)
    assert EventHistory(None, 1).summary("1h") == "Memory in the last 1h: nothing happened near or at a limit"
