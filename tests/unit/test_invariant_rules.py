"""The checker of the fault suite sees what it is there for: each rule broken once, and each exception to it."""

from __future__ import annotations

import pytest

from schemas.apps import AppSpec
from schemas.oom import OomKind
from tests.support.cfs_batches import Row, batch, decisions
from tests.support.invariant_rules import GRACE_S, ROOM_BYTES, Rules
from tests.support.limit_observer import UNLIMITED, Reading
from tests.support.oom_events import oom_event

MIB = 1 << 20
APP, KEY = "shop", "web-0123456789ab"
DIRECTORY = f"root/{APP}/{KEY}"
OTHER = f"root/{APP}/db-0123456789ab"


@pytest.fixture
def rules() -> Rules:
    made = Rules(deadline_s=2.0)
    made.specs[APP] = AppSpec(name=APP, cpu_limit=1, memory_limit=256 * MIB)
    return made


def reading(limit_mib: int = 100, quota_us: int = 10_000, **more: int | bool) -> Reading:
    return Reading(quota_us, limit_mib * MIB, UNLIMITED, 0, 0, 0, **more)  # type: ignore[arg-type]


def see(rules: Rules, time_s: float, *readings: Reading) -> None:
    rules.sample(time_s, {APP: dict(zip((DIRECTORY, OTHER), readings, strict=False))})


def test_a_sum_of_files_up_to_the_limit_is_right_and_above_it_is_not(rules):
    see(rules, 1.0, reading(128, 50_000), reading(128, 50_000))
    assert rules.finish() == []
    see(rules, 2.0, reading(128, 50_000), reading(129, 50_001))
    assert len(rules.finish()) == 2


def test_successive_samples_above_the_limit_are_one_violation(rules):
    for time_s, limit_mib in ((1.0, 129), (1.02, 140), (1.04, 130), (1.06, 128), (1.08, 129)):
        see(rules, time_s, reading(128), reading(limit_mib))
    first, second = rules.finish()
    assert first == f"1.00 s: shop: files hold up to {268 * MIB} of {256 * MIB} bytes for 0.04 s"
    assert second.startswith("1.08 s")


def test_what_is_not_limited_is_not_managed_yet(rules):
    see(rules, 1.0, Reading(UNLIMITED, UNLIMITED, UNLIMITED, 0, 0, 0), reading(256, 100_000))
    assert rules.finish() == []


def test_other_applications_are_ignored(rules):
    rules.sample(1.0, {"other": {"root/other/x-0123456789ab": reading(9_999, 9_999_999, waiting=True, kills=7)}})
    assert rules.finish() == []


@pytest.mark.parametrize(("until_s", "wrong"), [(2.0 + GRACE_S - 0.1, False), (2.0 + GRACE_S + 0.2, True)])
def test_a_wait_longer_than_the_deadline(rules, until_s, wrong):
    for step in range(1 + round(until_s / 0.1)):
        see(rules, step * 0.1, reading(waiting=True))
    see(rules, until_s + 0.1, reading())
    assert bool(rules.finish()) is wrong
    assert rules.longest_pause_s == pytest.approx(until_s)


def test_a_wait_that_never_ends_is_noticed_at_the_end(rules):
    see(rules, 0.0, reading(waiting=True))
    see(rules, 3.0 + GRACE_S, reading(waiting=True))
    assert len(rules.finish()) == 1


@pytest.mark.parametrize("change", [{"limit_mib": 110}, {"kills": 1}])
def test_a_wait_that_a_grant_or_a_kill_ends_between_two_samples_is_two(rules, change):
    see(rules, 0.0, reading(waiting=True, usage_bytes=250 * MIB))
    see(rules, 1.5, reading(waiting=True, usage_bytes=250 * MIB))
    see(rules, 1.6, reading(waiting=True, **change))
    see(rules, 3.0, reading(waiting=True, **change))
    assert rules.finish() == []
    assert (rules.pauses, rules.longest_pause_s) == (2, 1.5)


def kill(rules: Rules, usage_mib: int) -> None:
    see(rules, 1.0, reading(usage_bytes=usage_mib * MIB), reading())
    see(rules, 1.1, reading(kills=1), reading())


def test_a_kill_while_memory_was_left_is_wrong_unless_it_was_explained(rules):
    kill(rules, 100)
    assert len(rules.killed_while_available) == 1
    rules.oom(1.0, oom_event(OomKind.OOM_KILLER_ENABLED, app=APP, container=KEY, reason="tasks waited for 2 s"))
    assert rules.finish() == []
    assert rules.reasons_of(rules.kills[0]) == ["tasks waited for 2 s"]


@pytest.mark.parametrize(
    "other",
    [
        oom_event(OomKind.OOM_KILLER_ENABLED, app=APP, container="db-0123456789ab", reason="another one"),
        oom_event(OomKind.GRANT, app=APP, container=KEY, reason="no explanation"),
        oom_event(OomKind.KILL, app=APP, container=KEY, reason=""),
    ],
)
def test_what_does_not_explain_a_kill(rules, other):
    kill(rules, 100)
    rules.oom(1.0, other)
    assert len(rules.finish()) == 1


def test_a_kill_with_nothing_left_is_right(rules):
    kill(rules, 256 - 2 * (ROOM_BYTES // MIB) + 1)
    assert rules.finish() == []
    assert rules.killed_while_available == []


def test_a_batch_with_its_reserve_above_the_limit_and_one_that_was_overtaken(rules):
    rows = [Row(KEY, memory_limit_bytes=200 * MIB)]
    rules.batch(1.0, batch(1, rows, app=APP, reserve_given_bytes=100 * MIB, reserve_used_bytes=44 * MIB))
    assert rules.finish() == []
    rules.batch(2.0, batch(2, rows, app=APP, reserve_given_bytes=100 * MIB, reserve_used_bytes=43 * MIB))
    assert len(rules.finish()) == 1
    rules.batch(3.0, batch(1, rows, app=APP, reserve_given_bytes=500 * MIB))
    assert len(rules.finish()) == 1


def test_an_epoch_that_falls(rules):
    for epoch in (1, 3, 3):
        rules.decisions(1.0, decisions(1, epoch=epoch))
    assert rules.finish() == []
    rules.decisions(2.0, decisions(2, epoch=2))
    assert len(rules.finish()) == 1
