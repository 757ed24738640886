"""When a soak may excuse a kill: only where, all through the wait, nobody could have answered."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from tests.soak.faults import TAKEOVER_S, Faults, Outage, Slot

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
