"""A violation in a soak can be explained afterwards: orders, replies, batches, files and faults in order of time."""

from __future__ import annotations

import time

import pytest

from schemas.codec import encode
from schemas.leases import MEMBERS_KEY, Heartbeat, Members
from schemas.limits import LimitReply, RowStatus
from schemas.message import Message
from services._runtime.bus.nats_kv import escape_key
from tests.soak.timeline import AFTER_S, BEFORE_S, Timeline
from tests.support.cfs_batches import Row, batch
from tests.support.invariant_rules import Rules
from tests.support.limit_observer import UNLIMITED, Reading
from tests.support.limit_orders import update
from tests.unit.test_invariant_rules import APP, DIRECTORY, KEY, MIB, OTHER, rules

__all__ = ["rules"]
TOLD = f"{KEY} used_us=10000 quota_us=20000 memory_limit_bytes={100 * MIB} limit_update_seq=0"
REPLY = LimitReply.build(
    [KEY],
    {"quota_us": [30_000], "limit_bytes": [MIB], "limit_update_seq": [4], "status": [int(RowStatus.APPLIED)]},
    node="n1",
    incarnation=7,
    report_seq=9,
    epoch=3,
    seq=4,
)


def reading(quota_us: int, limit_bytes: int = MIB) -> Reading:
    return Reading(quota_us, limit_bytes, UNLIMITED, 0, 0, 0)


@pytest.mark.parametrize(
    ("message", "subject", "expected"),
    [
        (
            update({KEY: (30_000, 0)}, epoch=3, seq=4),
            "tb.cmd.limits.n1",
            f"order to n1 incarnation 7 epoch 3 seq 4 of shop: {KEY} quota_us=30000 limit_bytes=0",
        ),
        (
            update({}, epoch=3, seq=5),
            "tb.cmd.limits.n1",
            "order to n1 incarnation 7 epoch 3 seq 5 of shop: no containers",
        ),
        (
            REPLY,
            "_INBOX.x",
            f"reply of n1 report 9 to epoch 3 seq 4: {KEY} quota_us=30000 limit_bytes={MIB} limit_update_seq=4 APPLIED",
        ),
        (
            batch(0, [Row(KEY)], inventory_complete=False),
            "tb.obs.cfs.shop.n1",
            f"batch of n1 incarnation 1 report 1 of shop (inventory incomplete): {TOLD}",
        ),
        (
            Members(epoch=5, previous=3, replicas=("a", "b"), unable={"shop": ("b",)}),
            f"$KV.tb_leases.{MEMBERS_KEY}",
            "members epoch 5 after 3: a, b, shop not by b",
        ),
    ],
)
def test_messages_are_told_with_what_orders_them(message: Message, subject: str, expected: str) -> None:
    timeline = Timeline()
    timeline.message(subject, encode(message))

    [line] = timeline.around(time.monotonic(), time.monotonic())
    assert line.partition(" ")[2] == expected


def test_heartbeats_of_replicas_and_foreign_messages_are_left_out() -> None:
    timeline = Timeline()
    timeline.message(f"$KV.tb_leases.{escape_key('replica.a')}", encode(Heartbeat(replica="a", epoch=5, time_ns=1)))
    timeline.message("_INBOX.x", b"+ACK")

    assert timeline.around(time.monotonic(), time.monotonic()) == []


def test_files_are_told_as_they_change_and_only_around_the_violation(rules: Rules) -> None:
    timeline = Timeline()
    moments = [(0.0, 20_000, 20_000), (10.0, 20_000, 20_000), (20.0, 20_000, 90_000), (20.1, 20_000, 90_000)]
    for time_s, one_us, other_us in [*moments, (20.2, 20_000, 80_000), (30.0, 1_000, 1_000)]:
        groups = {DIRECTORY: reading(one_us), OTHER: reading(other_us)}
        rules.sample(time_s, {APP: groups})
        timeline.sample((time_s, {APP: groups}))
    timeline.note(20.0 - BEFORE_S - 0.1, "too early")
    timeline.note(20.1 + AFTER_S + 0.1, "too late")
    timeline.note(19.0, "FAULT kill -9 agent n1 for 1.00 s")

    [excess] = rules.excesses
    assert (excess.since_s, excess.until_s) == (20.0, 20.1)
    assert timeline.around(excess.since_s, excess.until_s) == [
        "19.000 FAULT kill -9 agent n1 for 1.00 s",
        f"20.000 files of shop: db-0123456789ab 90000 us {MIB} bytes; sum 110000 us {2 * MIB} bytes",
        f"20.200 files of shop: db-0123456789ab 80000 us {MIB} bytes; sum 100000 us {2 * MIB} bytes",
    ]


def test_all_of_it_is_written_in_the_order_of_time(tmp_path) -> None:
    timeline = Timeline()
    timeline.note(2.0, "b")
    timeline.note(1.0, "a")
    timeline.write(tmp_path / "timeline.log")

    assert (tmp_path / "timeline.log").read_text("utf-8").splitlines() == ["1.000 a", "2.000 b"]
