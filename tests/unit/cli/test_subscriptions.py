"""What the bus tells reaches every watcher, each fact once."""

from __future__ import annotations

from schemas.leases import MEMBERS_KEY, Heartbeat, Members
from schemas.streams import LEASES
from schemas.subjects import CFS, CONTAINER_EVENTS, LIMIT_DECISIONS, OOM_EVENTS
from services.cli.apps.subscriptions import DEDUPLICATION_WINDOW, Deduplicator, members_watcher, subscribe_sinks
from services.cli.apps.view_model import ViewModel
from services.cli.up.recording import Recording
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.cfs_batches import batch, decisions
from tests.support.deadline import until
from tests.support.oom_events import drift, oom_event


async def test_all_watchers_hear_all_kinds_and_a_repeated_fact_once() -> None:
    bus = MemoryBus(MemoryBroker(), "tb")
    state, recording = ViewModel(), Recording()
    await subscribe_sinks(bus, lambda: (state, recording))
    ids = {"app": "shop", "node": "n1"}
    bus.publish(CFS.subject("tb", **ids), batch(0))
    bus.publish(LIMIT_DECISIONS.subject("tb", app="shop"), decisions(0))
    for message_id in ("a", "b"):  # as after a lost acknowledgement, past the window of duplicates
        bus.publish_event(OOM_EVENTS.subject("tb", **ids), oom_event(), message_id=message_id)
        bus.publish_event(CONTAINER_EVENTS.subject("tb", **ids), drift(), message_id=message_id)
    bus.publish_event(OOM_EVENTS.subject("tb", **ids), oom_event(tick=1), message_id="c")
    await until(lambda: "shop" in recording.apps and recording.apps["shop"].memory.grants == 2)

    for app in (state.apps["shop"], recording.apps["shop"]):
        assert (app.batches, app.decisions, app.memory.grants, app.drifts) == (1, 1, 2, 1)
    await bus.close(1.0)


async def test_one_application_may_be_asked_for() -> None:
    bus = MemoryBus(MemoryBroker(), "tb")
    state = ViewModel()
    await subscribe_sinks(bus, lambda: (state,), "shop")
    for name in ("other", "shop"):
        bus.publish_event(OOM_EVENTS.subject("tb", app=name, node="n1"), oom_event(app=name), message_id=name)
    await until(lambda: "shop" in state.apps)

    assert set(state.apps) == {"shop"}
    await bus.close(1.0)


async def test_owners_follow_from_the_members() -> None:
    bus = MemoryBus(MemoryBroker(), "tb")
    state = ViewModel()
    state.add_batch(batch(0))
    bucket = bus.bucket(LEASES)
    await bucket.put(MEMBERS_KEY, Members(epoch=7, replicas=("r1",)))
    await bucket.put("replica.r1", Heartbeat(replica="r1", epoch=7, time_ns=0))
    async with bucket.watch(members_watcher(state)):
        await until(lambda: state.apps["shop"].owner == "r1")
        await bucket.put(MEMBERS_KEY, Members(epoch=8))
        await until(lambda: state.apps["shop"].owner == "")

    await bus.close(1.0)


def test_what_was_seen_is_forgotten_in_the_end() -> None:
    seen = Deduplicator()

    assert [seen.is_new(key) for key in (0, 0, 1)] == [True, False, True]

    for key in range(2, DEDUPLICATION_WINDOW + 1):
        seen.is_new(key)

    assert seen.is_new(0)
    assert not seen.is_new(DEDUPLICATION_WINDOW)
