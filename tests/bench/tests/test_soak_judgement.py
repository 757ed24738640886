"""When a soak may excuse a kill: only where, all through the wait, nobody could have answered."""

from __future__ import annotations

import random
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from schemas.oom import OomKind
from tests.soak.faults import TAKEOVER_S, Faults, Outage, Slot
from tests.soak.soak import AMPLE, SCARCE, Soak
from tests.support.invariant_rules import Kill

WAIT = (100.0, 102.0)


def faults(outages: Iterable[Outage]) -> Faults:
    slots = [Slot(name, lambda: None, None) for name in ("agent n1", "allocator 0", "allocator 1")]
    return Faults(None, random.Random(0), slots=slots, outages=list(outages))


@pytest.mark.parametrize(
    ("outages", "expected"),
    [
        ([], True),
        ([Outage("agent n1", 99, 103)], True),
        ([Outage("nats-server", 99, 103)], False),
        ([Outage("nats-server", 99, 101.5)], True),
        ([Outage("allocator 0", 99, 103)], True),
        ([Outage("allocator 0", 99, 103), Outage("allocator 1", 96, 97.5)], False),
        ([Outage("allocator 0", 99, 103), Outage("allocator 1", 95, 101.5 - TAKEOVER_S)], True),
        ([Outage("allocator 0", 99, 103), Outage("allocator 1", 101, 103)], True),
    ],
)
def test_a_kill_is_excused_only_where_nobody_could_have_answered_during_the_whole_wait(outages, expected):
    assert faults(outages).somebody_could_answer(*WAIT) is expected


def judged(outages, *, app=AMPLE.name, reserve_bytes=0, reasons=("waited for 2 s",)):
    soak = Soak(SimpleNamespace(root="r"), 1)
    soak.faults.slots, soak.faults.outages = faults([]).slots, list(outages)
    release = SimpleNamespace(
        container="c1", kind=OomKind.OOM_KILLER_ENABLED, blocked_us=2_000_000, reserve_bytes=reserve_bytes
    )
    rules = SimpleNamespace(
        events=[(102.0, release)],
        kills=[Kill(102.0, app, "c1", 0, exhausted=False)],
        reasons_of=lambda _: list(reasons),
        **dict.fromkeys(("pauses", "longest_pause_s", "samples", "batches"), 0),
        finish=list,
    )
    soak._judge(SimpleNamespace(rules=rules))
    report = soak.report
    return len(report.wrongly_killed), len(report.killed_at_deadline), len(report.killed_with_reason)


def test_kills_are_judged_by_who_could_have_helped():
    away = [Outage("nats-server", 99, 103)]
    assert judged(away) == (0, 1, 0)
    assert judged([]) == (1, 0, 0), "somebody could have answered"
    assert judged(away, reserve_bytes=1) == (1, 0, 0), "there was a reserve"
    assert judged(away, reasons=()) == (1, 0, 0), "nobody said why"
    assert judged([], app=SCARCE.name) == (0, 0, 1)
