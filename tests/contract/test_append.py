"""Compare-and-append: of several writers one goes on, and a replay tells everyone the same history."""

from __future__ import annotations

import asyncio

import pytest

from services._runtime.bus.api import Bus, BusUnavailableError, Delivery, RevisionConflictError
from tests.support.bus_lab import CONTAINER_STREAM, BusLab, container_event, event_subject, number_of
from tests.support.deadline import until

WRITERS = 3
ENTRIES_EACH = 10
UNDECODABLE = -1


async def append(bus: Bus, number: int, last_sequence: int, message_id: str | None = None) -> int:
    return await bus.append(
        CONTAINER_STREAM, event_subject(bus.root), container_event(number), last_sequence, message_id
    )


async def stored(lab: BusLab) -> list[tuple[int, int]]:
    """Sequence and number of each event; what cannot be decoded has the number `UNDECODABLE`."""
    got: list[tuple[int, int]] = []

    async def handle(delivery: Delivery) -> None:
        got.append((delivery.sequence, number_of(delivery.message)))

    replay = await (await lab.bus()).replay(
        CONTAINER_STREAM, handle, lambda sequence: got.append((sequence, UNDECODABLE))
    )
    async with asyncio.timeout(60):
        await replay.caught_up()
    return got


async def test_the_first_event_follows_sequence_zero(lab: BusLab) -> None:
    bus = await lab.bus()

    assert await append(bus, 10, 0) == 1
    assert await append(bus, 11, 1) == 2
    assert await stored(lab) == [(1, 10), (2, 11)], "a replay tells the same sequences"


@pytest.mark.parametrize("stale", [0, 1, 3])
async def test_another_sequence_than_the_last_is_refused(lab: BusLab, stale: int) -> None:
    """An older one, and one that is yet to come."""
    bus = await lab.bus()
    await append(bus, 10, 0)
    await append(bus, 11, 1)

    with pytest.raises(RevisionConflictError):
        await append(bus, 12, stale)

    assert await stored(lab) == [(1, 10), (2, 11)]


async def test_two_writers_never_get_the_same_sequence(lab: BusLab) -> None:
    """Who is refused reads on and tries at the next one; each event of each writer is stored once, none is lost."""
    got: dict[int, int] = {}
    last = 0

    async def write(bus: Bus, writer: int) -> None:
        nonlocal last
        for entry in range(ENTRIES_EACH):
            while True:
                expected = last
                try:
                    sequence = await append(bus, writer * ENTRIES_EACH + entry, expected)
                except RevisionConflictError:
                    await asyncio.sleep(0)
                    continue
                assert sequence == expected + 1
                assert sequence not in got
                got[sequence] = writer * ENTRIES_EACH + entry
                last = max(last, sequence)
                break

    buses = [await lab.bus() for _ in range(WRITERS)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(write(bus, writer) for writer, bus in enumerate(buses)))

    assert sorted(got) == list(range(1, WRITERS * ENTRIES_EACH + 1))
    assert await stored(lab) == sorted(got.items())


async def test_an_append_whose_acknowledgement_was_lost_is_repeated(lab: BusLab) -> None:
    """With the same id: it returns the sequence of then, even if another event has followed, and stores nothing."""
    bus, other = await lab.bus(), await lab.bus()
    first = await append(bus, 10, 0, "leader-1")

    assert await append(bus, 10, 0, "leader-1") == first
    assert await append(other, 11, first) == 2
    assert await append(bus, 10, 0, "leader-1") == first
    assert await stored(lab) == [(1, 10), (2, 11)]


async def test_a_refused_append_may_be_made_again_with_its_id(lab: BusLab) -> None:
    """The id of what was not stored is not taken."""
    bus = await lab.bus()
    await append(bus, 10, 0)
    with pytest.raises(RevisionConflictError):
        await append(bus, 11, 0, "leader-2")

    assert await append(bus, 11, 1, "leader-2") == 2


async def test_without_a_server_it_is_not_known_whether_it_was_stored(lab: BusLab) -> None:
    bus = await lab.bus()
    await lab.stop_server()
    await until(lambda: not bus.connected)

    with pytest.raises(BusUnavailableError):
        await append(bus, 10, 0, "leader-1")

    await lab.start_server()
    await until(lambda: bus.connected)
    assert await append(bus, 10, 0, "leader-1") == 1


async def test_garbage_takes_a_sequence_that_writers_hear_of(lab: BusLab) -> None:
    """Else none of them could ever append again."""
    bus = await lab.bus()
    await append(bus, 10, 0)
    await lab.publish_raw(event_subject(lab.root).text, b"\xff\xff")

    await until_stored(lab, 2)
    assert await append(bus, 11, 2) == 3
    assert await stored(lab) == [(1, 10), (2, UNDECODABLE), (3, 11)]


async def until_stored(lab: BusLab, count: int) -> None:
    async with asyncio.timeout(60):
        while len(await stored(lab)) < count:
            pass


async def test_an_event_that_no_stream_holds_has_no_sequence(lab: BusLab) -> None:
    """Observations are not replayed."""
    bus = await lab.bus()
    got: list[Delivery] = []
    await bus.subscribe(event_subject(lab.root), got.append)

    await append(bus, 10, 0)

    await until(lambda: len(got) == 1)
    assert got[0].sequence == 0
