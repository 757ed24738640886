"""What is told of overrides: every field, one record each or one for many, acknowledgements waited for."""

from __future__ import annotations

from services.fastpath.events import MAX_RECORDS, EventRecorder, Trigger
from services.fastpath.protocol import Announcement
from services.fastpath.values import (
    BackupTableChange,
    Cause,
    FrrRoute,
    Hop,
    Outcome,
    Overridden,
    RemovalReason,
    Removed,
    Status,
)

P1, P2 = Hop(1), Hop(2)
TRIGGER = Trigger("bfd", "p1", "10.255.0.101", 1_000, 10.0, 10.0005)


def outcome(**parts):
    nothing = {"writes": [], "announce": None, "overridden": [], "removed": [], "table_changes": [], "statuses": []}
    return Outcome(**nothing | parts)


def audit():
    return EventRecorder(lambda hop: f"p{hop.ifindex}")


def test_an_override_waits_for_acknowledgements() -> None:
    made = audit()
    told = Announcement(5, "10.255.0.101", b"", 10.0, {"10.255.0.2": None, "10.255.0.3": None}, 2, [], 10.0)
    made.add(outcome(overridden=[Overridden("10.255.0.2", (P1, P2), (P2,))]), TRIGGER, told)
    assert not made.ready

    del told.unacknowledged["10.255.0.2"]
    told.last_ack_s = 10.0012
    made.acknowledged(told)
    assert list(made.ready) == [
        {
            "kind": "override",
            "time_ns": 1_000,
            "destination": "10.255.0.2",
            "also": [],
            "interface": "p1",
            "cause": "bfd",
            "peer": "10.255.0.101",
            "latency_us": 500,
            "before": ["p1", "p2"],
            "after": ["p2"],
            "reason": "a failed next hop was removed for 10.255.0.2; 1 of 2 hosts have acknowledged",
            "peer_ack_us": 1_200,
        }
    ]


def test_what_follows_an_override_that_waits_is_told_after_it() -> None:
    made = audit()
    told = Announcement(5, "10.255.0.101", b"", 10.0, {"10.255.0.3": None}, 1, [], 10.0)
    made.add(outcome(overridden=[Overridden("10.255.0.2", (P1, P2), (P2,))]), TRIGGER, told)
    row = Removed("10.255.0.2", ("p1",), "bfd", RemovalReason.FRR_CONVERGED, 0.005, (P2,), (P2,))
    made.add(outcome(removed=[row]), TRIGGER, None)
    assert not made.ready

    made.acknowledged(told)
    assert [record["kind"] for record in made.ready] == ["override", "override_removed"]


def test_a_release_says_why_and_after_how_long() -> None:
    made = audit()
    row = Removed("10.255.0.2", ("p1",), "bfd", RemovalReason.FRR_CONVERGED, 0.0711, (P2,), (P2,))
    made.add(outcome(removed=[row]), TRIGGER, None)

    record = made.ready[0]
    assert (record["kind"], record["cause"], record["latency_us"]) == ("override_removed", "frr_converged", 71_100)
    assert record["reason"] == "10.255.0.2 handed back after 71.1 ms; overridden for bfd"


def test_many_at_once_share_records_of_500() -> None:
    made = audit()
    names = [f"10.1.{number // 250}.{number % 250}" for number in range(1_001)]
    made.add(outcome(overridden=[Overridden(name, (P1, P2), (P2,)) for name in names]), TRIGGER, None)

    assert [len(record["also"]) + 1 for record in made.ready] == [500, 500, 1]
    assert [name for record in made.ready for name in (record["destination"], *record["also"])] == names


def test_a_group_is_told_like_any_other() -> None:
    made = audit()
    rows, routes = {"10.255.0.2": FrrRoute((P2,))}, {"10.255.0.2": FrrRoute((P1, P2))}
    for reason in (None, RemovalReason.TIMEOUT):
        made.add(outcome(table_changes=[BackupTableChange("p1", Cause.BFD, reason, 1.5, rows, routes)]), TRIGGER, None)

    assert [(r["kind"], r["cause"], r["before"], r["after"]) for r in made.ready] == [
        ("override", "bfd", ["p1", "p2"], ["p2"]),
        ("override_removed", "timeout", ["p2"], ["p1", "p2"]),
    ]


def test_alarms_pass_on() -> None:
    made = audit()
    made.add(outcome(statuses=[Status("flap_damped", "too many", alarm=True, uplink="p1")]), TRIGGER, None)

    assert made.ready[0]["alarm"]
    assert (made.ready[0]["kind"], made.ready[0]["cause"]) == ("fast_path", "flap_damped")


def test_records_that_nobody_takes_are_dropped_and_counted() -> None:
    made = audit()
    for number in range(MAX_RECORDS + 3):
        made.status(Status("x", str(number)), 0)

    assert (len(made.ready), made.dropped) == (MAX_RECORDS, 3)
    assert made.ready[0]["reason"] == "3"
