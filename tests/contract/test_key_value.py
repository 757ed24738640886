"""KV buckets: revisions, compare and swap, expiry, watches that miss nothing."""

from __future__ import annotations

import asyncio

import pytest

from schemas.streams import APPS, NODES
from services._runtime.bus.api import Bus, BusError, Entry, RevisionConflictError
from tests.support.bus_lab import SHORT_LIVED, BusLab, node_info, number_of
from tests.support.deadline import until


class Seen:
    """What a watch reported."""

    def __init__(self) -> None:
        self.live: dict[str, int] = {}
        self.log: list[tuple[str, int | None]] = []

    def __call__(self, key: str, entry: Entry | None) -> None:
        if entry is None or entry.message is None:
            self.live.pop(key, None)
            self.log.append((key, None))
        else:
            self.live[key] = number_of(entry.message)
            self.log.append((key, self.live[key]))


async def test_put_and_get(lab: BusLab) -> None:
    """Any text is a key; revisions rise; a missing key is None."""
    bucket = (await lab.bus()).bucket(APPS)
    key = "gpu01.rack2/ä *>"

    first = await bucket.put(key, node_info(1))
    second = await bucket.put(key, node_info(2))
    entry = await bucket.get(key)

    assert entry is not None
    assert (entry.key, entry.revision, number_of(entry.message)) == (key, second, 2)
    assert second > first
    assert await bucket.get("nothing") is None
    assert set(await bucket.entries()) == {key}


async def test_an_empty_key_is_refused(lab: BusLab) -> None:
    """Not a crash deep inside."""
    bucket = (await lab.bus()).bucket(APPS)

    with pytest.raises(BusError):
        await bucket.put("", node_info(1))


async def test_create_and_update_conflict(lab: BusLab) -> None:
    """One of two who create or update wins; a deleted key can be created again."""
    first, second = (await lab.bus()).bucket(APPS), (await lab.bus()).bucket(APPS)

    revision = await first.create("a", node_info(1))
    with pytest.raises(RevisionConflictError):
        await second.create("a", node_info(2))
    newer = await second.update("a", node_info(3), revision)
    with pytest.raises(RevisionConflictError):
        await first.update("a", node_info(4), revision)
    entry = await first.get("a")
    assert entry is not None
    assert (entry.revision, number_of(entry.message)) == (newer, 3)

    await first.delete("a")
    await first.delete("a")
    assert await second.get("a") is None
    assert await second.entries() == {}
    await second.create("a", node_info(5))
    assert set(await first.entries()) == {"a"}


async def test_of_many_creators_one_wins(lab: BusLab) -> None:
    """The base of every lease."""
    buckets = [(await lab.bus()).bucket(APPS) for _ in range(5)]

    outcomes = await asyncio.gather(
        *(bucket.create("lease", node_info(n)) for n, bucket in enumerate(buckets)), return_exceptions=True
    )

    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, RevisionConflictError) for outcome in outcomes) == 4


async def test_undecodable_entry(lab: BusLab) -> None:
    """Garbage under a key is an entry without a message, and counted."""
    bus = await lab.bus()
    bucket = bus.bucket(APPS)
    await lab.put_raw(APPS, "junk", b"\xff\x00")
    await bucket.put("fine", node_info(1))

    entry = await bucket.get("junk")

    assert entry is not None
    assert entry.message is None
    assert set(await bucket.entries()) == {"junk", "fine"}
    assert bus.counters["undecodable_malformed"] >= 2


async def test_watch(lab: BusLab) -> None:
    """What exists is reported before the block begins, then every change, once, and deletions."""
    writer, bus = (await lab.bus()).bucket(NODES), await lab.bus()
    await writer.put("a", node_info(1))
    await writer.put("gone", node_info(1))
    await writer.delete("gone")
    seen = Seen()

    async with bus.bucket(NODES).watch(seen):
        assert seen.log == [("a", 1)]
        await writer.put("b", node_info(2))
        await until(lambda: "b" in seen.live)
        await writer.put("a", node_info(3))
        await until(lambda: seen.live["a"] == 3)
        await writer.delete("b")
        await until(lambda: "b" not in seen.live)
    await writer.put("c", node_info(4))
    await bus.flush(60)

    assert seen.log == [("a", 1), ("b", 2), ("a", 3), ("b", None)]


async def test_watch_callback_that_raises(lab: BusLab) -> None:
    """Is counted, and the next change is reported."""
    bus = await lab.bus()
    bucket = bus.bucket(NODES)
    keys: list[str] = []

    def report(key: str, _entry: Entry | None) -> None:
        keys.append(key)
        raise ValueError("bug")

    async with bucket.watch(report):
        await bucket.put("a", node_info(1))
        await bucket.put("b", node_info(1))
        await until(lambda: keys == ["a", "b"])

    assert bus.counters["handler_errors"] == 2


async def test_entries_expire(lab: BusLab) -> None:
    """An entry that is not renewed disappears, from lists and from watches."""
    bucket = (await lab.bus()).bucket(SHORT_LIVED)
    seen = Seen()

    async with bucket.watch(seen):
        await bucket.put("a", node_info(1))
        await until(lambda: "a" in seen.live)
        await until(lambda: "a" not in seen.live)

    assert await bucket.get("a") is None
    assert await bucket.entries() == {}


async def test_watch_survives_a_server_restart(lab: BusLab) -> None:
    """Within seconds, where a plain NATS watch stays silent for 14 to 37."""
    bus, other = await lab.bus(), await lab.bus()
    bucket = bus.bucket(NODES)
    await bucket.put("a", node_info(1))
    seen = Seen()

    async with bucket.watch(seen):
        await restart(lab, bus, other)
        await other.bucket(NODES).put("b", node_info(2))
        await until(lambda: "b" in seen.live)
        await other.bucket(NODES).delete("a")
        await until(lambda: "a" not in seen.live)

    assert seen.live == {"b": 2}
    assert seen.log.count(("a", 1)) == 1


async def test_watch_may_begin_while_disconnected(lab: BusLab) -> None:
    """It reports as soon as there is something to report."""
    bus = await lab.bus()
    bucket = bus.bucket(NODES)
    await bucket.put("a", node_info(1))
    seen = Seen()
    await lab.stop_server()
    await until(lambda: not bus.connected)

    async with bucket.watch(seen):
        await lab.start_server()
        await until(lambda: seen.live == {"a": 1})


async def restart(lab: BusLab, *buses: Bus) -> None:
    """Stop the server, wait until everyone noticed, start it, wait until everyone is back."""
    await lab.stop_server()
    await until(lambda: not any(bus.connected for bus in buses))
    await lab.start_server()
    await until(lambda: all(bus.connected for bus in buses))
