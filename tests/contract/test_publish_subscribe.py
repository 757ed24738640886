"""Observations: order, wildcards, queue groups, and what garbage does (nothing)."""

from __future__ import annotations

import pytest

from schemas.subjects import CFS, LIMIT_DECISIONS, LIMIT_UPDATES, wildcard
from services._runtime.bus.api import BusError, Delivery
from tests.support.bus_lab import BusLab, node_info, number_of
from tests.support.deadline import until

GARBAGE = (b"", b"\xc1\xff\xfe", b"{not json", b"[]", b"\x81\xa4type\xa3foo", b'{"type": 7}', b"\x80" * 50)


async def test_messages_arrive_in_order(lab: BusLab) -> None:
    """Two thousand messages on one subject arrive complete and in order."""
    sender, receiver = await lab.bus(), await lab.bus()
    got: list[int] = []
    await receiver.subscribe(CFS.pattern(lab.root), lambda delivery: got.append(number_of(delivery.message)))
    await receiver.flush(60)
    subject = CFS.subject(lab.root, app="shop", node="n1")

    for number in range(2_000):
        sender.publish(subject, node_info(number))
    await sender.flush(60)
    await until(lambda: len(got) == 2_000)

    assert got == list(range(2_000))
    assert sender.counters["published"] == 2_000
    assert receiver.counters["received"] == 2_000


async def test_delivery_tells_subject_and_size(lab: BusLab) -> None:
    """A handler learns the concrete subject with its escaped ids."""
    bus = await lab.bus()
    got: list[Delivery] = []
    await bus.subscribe(wildcard(lab.root), got.append)
    await bus.flush(60)

    message = node_info(1, "gpu01.rack2")
    bus.publish(CFS.subject(lab.root, app="shop", node="gpu01.rack2"), message)
    await until(lambda: got)

    assert CFS.parse(lab.root, got[0].subject) == {"app": "shop", "node": "gpu01.rack2"}
    assert got[0].size_bytes > 20


async def test_wildcards_select(lab: BusLab) -> None:
    """`*` covers one token, `>` the rest, a plain subject itself."""
    bus = await lab.bus()
    by_app: list[int] = []
    everything: list[int] = []
    exact: list[int] = []
    await bus.subscribe(CFS.pattern(lab.root, app="shop"), lambda d: by_app.append(number_of(d.message)))
    await bus.subscribe(wildcard(lab.root, "obs.>"), lambda d: everything.append(number_of(d.message)))
    await bus.subscribe(CFS.subject(lab.root, app="shop", node="n1"), lambda d: exact.append(number_of(d.message)))
    await bus.flush(60)

    bus.publish(CFS.subject(lab.root, app="shop", node="n1"), node_info(1))
    bus.publish(CFS.subject(lab.root, app="shop", node="n2"), node_info(2, "n2"))
    bus.publish(CFS.subject(lab.root, app="blog", node="n1"), node_info(3))
    bus.publish(LIMIT_DECISIONS.subject(lab.root, app="shop"), node_info(4))
    await until(lambda: len(everything) == 4)
    await until(lambda: len(by_app) == 2)

    assert everything == [1, 2, 3, 4]
    assert by_app == [1, 2]
    assert exact == [1]


async def test_queue_group_shares(lab: BusLab) -> None:
    """Each message reaches one member of the group, and every plain subscriber."""
    sender, first, second = await lab.bus(), await lab.bus(), await lab.bus()
    shares: list[list[int]] = [[], []]
    everything: list[int] = []
    await first.subscribe(CFS.pattern(lab.root), lambda d: shares[0].append(number_of(d.message)), queue="workers")
    await second.subscribe(CFS.pattern(lab.root), lambda d: shares[1].append(number_of(d.message)), queue="workers")
    await second.subscribe(CFS.pattern(lab.root), lambda d: everything.append(number_of(d.message)))
    for bus in (first, second):
        await bus.flush(60)

    for number in range(200):
        sender.publish(CFS.subject(lab.root, app="shop", node="n1"), node_info(number))
    await until(lambda: len(shares[0]) + len(shares[1]) == 200 and len(everything) == 200)

    assert sorted(shares[0] + shares[1]) == list(range(200))
    assert shares[0]
    assert shares[1]


async def test_garbage_is_counted_and_never_fatal(lab: BusLab) -> None:
    """Bytes that are no message never reach a handler, on no kind of subject, and what follows is handled."""
    bus = await lab.bus()
    got: list[int] = []
    subjects = [
        CFS.subject(lab.root, app="shop", node="n1"),
        LIMIT_DECISIONS.subject(lab.root, app="shop"),
        LIMIT_UPDATES.subject(lab.root, node="n1"),
    ]
    await bus.subscribe(wildcard(lab.root), lambda delivery: got.append(number_of(delivery.message)))
    await bus.flush(60)

    for subject in subjects:
        for data in GARBAGE:
            await lab.publish_raw(subject.text, data)
    bus.publish(subjects[0], node_info(7))
    await until(lambda: got)

    undecodable = sum(count for name, count in bus.counters.items() if name.startswith("undecodable_"))
    assert undecodable == len(subjects) * len(GARBAGE)
    assert got == [7]


async def test_handler_exception_stops_nothing(lab: BusLab) -> None:
    """A handler that raises is counted; the messages behind are handled."""
    bus = await lab.bus()
    got: list[int] = []

    def handle(delivery: Delivery) -> None:
        got.append(number_of(delivery.message))
        if got[-1] % 2:
            raise ValueError("odd")

    await bus.subscribe(CFS.pattern(lab.root), handle)
    await bus.flush(60)
    for number in range(10):
        bus.publish(CFS.subject(lab.root, app="shop", node="n1"), node_info(number))
    await until(lambda: len(got) == 10)

    assert bus.counters["handler_errors"] == 5


async def test_stopped_subscription_is_silent(lab: BusLab) -> None:
    """After stop returned nothing is delivered; stopping twice is harmless."""
    bus = await lab.bus()
    stopped: list[int] = []
    live: list[int] = []
    subscription = await bus.subscribe(CFS.pattern(lab.root), lambda d: stopped.append(number_of(d.message)))
    await bus.subscribe(CFS.pattern(lab.root), lambda d: live.append(number_of(d.message)))
    await bus.flush(60)
    subject = CFS.subject(lab.root, app="shop", node="n1")

    bus.publish(subject, node_info(1))
    await subscription.stop()
    await subscription.stop()
    bus.publish(subject, node_info(2))
    await until(lambda: len(live) == 2)

    assert stopped == [1]


async def test_a_pattern_cannot_be_published_to(lab: BusLab) -> None:
    """NATS would take `*` literally and nobody would receive it."""
    bus = await lab.bus()

    with pytest.raises(BusError, match="pattern"):
        bus.publish(CFS.pattern(lab.root), node_info(1))
    with pytest.raises(BusError, match="pattern"):
        bus.publish_event(wildcard(lab.root), node_info(1), message_id="x")
