"""One service per name: claimed, renewed, refused, taken over; with the failures that a bus and a host can have."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.apps import AppSpec
from schemas.network import ReconcilerInfo
from schemas.streams import NODES, RECONCILERS
from schemas.subjects import RECONCILER_DIFF, RECONCILER_STATE
from services._runtime.bus.api import BusError, BusUnavailableError, Delivery
from services._runtime.bus.name_registration import Holder, NameHolder, NameTakenError, Registration
from services._runtime.telemetry.logging import get_logger
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.examples import examples
from tests.support.manual_clock import ManualClock

TTL_S = RECONCILERS.ttl_s or 0.0
HEARTBEAT_S = 5.0


class Name:
    """Services that want the name ``n1``."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = MemoryBroker(self.clock)
        self.bus = MemoryBus(self.broker)

    def service(self, incarnation: int, holder: str | None = None) -> Service:
        info = ReconcilerInfo(
            node="n1", incarnation=incarnation, time_ns=0, version="1", holder=holder or f"holder {incarnation}"
        )
        return Service(Registration(self.bus, RECONCILERS, "n1", self.clock), info)

    async def registered(self) -> int | None:
        entry = await self.bus.bucket(RECONCILERS).get("n1")
        return entry.message.incarnation if entry and isinstance(entry.message, ReconcilerInfo) else None


@dataclass
class Service:
    """One that holds, or tries to."""

    registration: Registration
    info: ReconcilerInfo

    async def hold(self) -> bool:
        return await self.registration.hold(self.info)


async def test_a_second_one_is_refused_when_the_first_renews() -> None:
    name = Name()
    first, second = name.service(1), name.service(2)
    assert await first.hold()
    assert not await second.hold()
    assert second.registration.contested
    await name.clock.advance(HEARTBEAT_S)
    assert await first.hold()

    with pytest.raises(NameTakenError, match="incarnation 1"):
        await second.hold()
    await second.registration.release()

    assert await name.registered() == 1, "the refused one takes nothing away"


async def test_after_a_kill_the_next_one_of_the_same_lock_begins_at_once() -> None:
    name = Name()
    assert await name.service(1, holder="this host").hold()
    next_one = name.service(2, holder="this host")

    assert await next_one.hold()
    assert not next_one.registration.contested


async def test_a_dead_one_elsewhere_is_waited_for_until_it_expires() -> None:
    name = Name()
    assert await name.service(1).hold()
    other = name.service(2)
    assert not await other.hold()
    await name.clock.advance(TTL_S - 0.1)
    assert not await other.hold()
    await name.clock.advance(0.2)

    assert await other.hold()
    assert not other.registration.contested


async def test_where_nothing_expires_it_is_replaced_after_its_time_to_live() -> None:
    """A bucket that an older version, or another hand, has made without one."""
    name = Name()
    assert await name.service(1).hold()
    name.broker.bucket("tb_reconcilers").entries["n1"].expires_s = None  # type: ignore[union-attr]
    other = name.service(2)
    assert not await other.hold()
    await name.clock.advance(TTL_S)

    assert await other.hold()


async def test_one_that_was_paused_while_another_took_the_name_finds_out_and_leaves_it_alone() -> None:
    name = Name()
    paused, other = name.service(1), name.service(2)
    assert await paused.hold()
    await name.clock.advance(TTL_S + 1)
    assert await other.hold()

    with pytest.raises(NameTakenError, match="incarnation 2"):
        await paused.hold()
    await paused.registration.release()

    assert await name.registered() == 2


async def test_one_that_was_paused_and_is_missed_by_nobody_goes_on() -> None:
    name = Name()
    service = name.service(1)
    assert await service.hold()
    await name.clock.advance(10 * TTL_S)

    assert await service.hold()
    assert await name.registered() == 1


async def test_a_bucket_that_was_lost_is_filled_again() -> None:
    name = Name()
    service = name.service(1)
    assert await service.hold()
    name.broker.bucket("tb_reconcilers").entries.clear()  # type: ignore[union-attr]

    assert await service.hold()


async def test_what_is_no_registration_is_written_over() -> None:
    """A host can have the server write its answers over another's key; that takes nobody's name away."""
    name = Name()
    service, bucket = name.service(1), name.bus.bucket(RECONCILERS)
    assert await service.hold()
    await bucket.put("n1", AppSpec(name="shop", cpu_limit=1, memory_limit=1 << 30))
    assert await service.hold()
    await bucket.put("n1", AppSpec(name="shop", cpu_limit=1, memory_limit=1 << 30))

    assert await name.service(2).hold(), "nor does it keep the name from anyone"


async def test_an_acknowledgement_that_was_lost_is_no_rival() -> None:
    name = Name()
    service = name.service(1)
    assert await service.hold()
    await name.bus.bucket(RECONCILERS).put("n1", service.info)  # stored, but we never learn of it

    assert await service.hold()


async def test_while_the_server_is_away_nothing_is_decided() -> None:
    name = Name()
    first, second = name.service(1), name.service(2)
    assert await first.hold()
    assert not await second.hold()
    name.bus.disconnect()
    for service in (first, second):
        with pytest.raises(BusUnavailableError):
            await service.hold()
    name.bus.reconnect()

    assert await first.hold()
    with pytest.raises(NameTakenError):
        await second.hold()


async def test_who_signs_off_makes_room_at_once() -> None:
    name = Name()
    first = name.service(1)
    assert await first.hold()
    await first.registration.release()

    assert await name.service(2).hold()


_STEPS = st.lists(st.tuples(st.sampled_from(["first", "second", "third"]), st.floats(0.0, 4.9)), max_size=60)


@given(_STEPS)
@settings(max_examples=examples(200), deadline=None)
def test_nobody_takes_a_name_whose_owner_renews_in_time(steps: list[tuple[str, float]]) -> None:
    asyncio.run(_contend(steps))


async def _contend(steps: list[tuple[str, float]]) -> None:
    name = Name()
    owner = name.service(1)
    rivals = {"second": name.service(2), "third": name.service(3)}
    refused: set[str] = set()
    assert await owner.hold()
    renewed_s = name.clock.monotonic()
    for who, passed_s in steps:
        await name.clock.advance(passed_s)
        if who == "first" or name.clock.monotonic() - renewed_s >= HEARTBEAT_S:
            assert await owner.hold()
            renewed_s = name.clock.monotonic()
        if who in rivals and who not in refused:
            try:
                assert not await rivals[who].hold()
            except NameTakenError:
                refused.add(who)
    assert await name.registered() == 1
    assert await owner.hold()
    assert not owner.registration.contested


async def test_on_a_bus_without_the_bucket_it_is_a_bus_error() -> None:
    clock = ManualClock()
    bus = MemoryBus(MemoryBroker(clock), buckets=(NODES,))
    service = Service(Registration(bus, RECONCILERS, "n1", clock), Name().service(1).info)

    with pytest.raises(BusError):
        await service.hold()


# -- a name, and the requests under it -----------------------------------------------------------------------------


class RefusingBus(MemoryBus):
    """Serves no second subject while ``refuses``."""

    refuses = True
    served = 0

    async def serve(self, subject, responder):
        self.served += 1
        if self.refuses and self.served == 2:
            raise BusUnavailableError("between two subjects")
        return await super().serve(subject, responder)


async def test_all_requests_are_served_under_a_name_or_none() -> None:
    clock = ManualClock()
    broker = MemoryBroker(clock)
    bus, client = RefusingBus(broker), MemoryBus(broker)
    info = Name().service(1).info
    subjects = [template.subject("tb", node="n1") for template in (RECONCILER_STATE, RECONCILER_DIFF)]

    async def answer(_delivery: Delivery) -> ReconcilerInfo:
        return info

    holder = NameHolder(
        bus, RECONCILERS, "reconciler", "n1", clock, get_logger("test"), dict.fromkeys(subjects, answer)
    )
    assert not await holder.try_hold(info)
    for subject in subjects:
        with pytest.raises(BusError):
            await client.request(subject, info, timeout_s=1)

    bus.refuses = False
    assert await holder.try_hold(info)
    for subject in subjects:
        assert await client.request(subject, info, timeout_s=60) == info


# -- the token beside a lock ---------------------------------------------------------------------------------------


def test_the_token_is_kept_for_the_next_one_and_for_nobody_beside_us(tmp_path: Path) -> None:
    first = Holder(tmp_path / "holders", "agent", "n1.example")
    beside = Holder(tmp_path / "holders", "agent", "n1.example")
    other = Holder(tmp_path / "holders", "reconciler", "n1.example")
    assert len({first.token, beside.token, other.token}) == 3
    first.release()

    assert Holder(tmp_path / "holders", "agent", "n1.example").token == first.token
    (path,) = (tmp_path / "holders").glob("agent-*")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 64])
def test_a_spoiled_token_is_made_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "agent-n1").write_bytes(content)

    assert len(Holder(tmp_path, "agent", "n1").token) == 22


def test_where_no_file_can_be_made_the_token_is_a_new_one_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    tokens = {Holder(tmp_path / "file" / "holders", "agent", "n1").token for _ in range(3)}

    assert len(tokens) == 3
