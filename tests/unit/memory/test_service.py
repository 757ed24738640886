"""Two hosts on one bus: one has memory, the other one swaps. Requests, registrations, events, and what stays secret."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from schemas.codec import to_plain
from schemas.message import Message
from schemas.remote_memory import MemoryHostInfo, SlabChange, SlabEvent, SlabReply, SlabRequest
from schemas.streams import MEMORY_HOSTS
from schemas.subjects import SLAB_EVENTS, SLAB_REQUESTS
from services._runtime.bus.api import Delivery, Entry, RequestRefusedError
from services._runtime.service.settings import SettingsError
from services._runtime.settings_error import UnusableSettingsError
from services.memory.core.mapping import State, export_label
from services.memory.daemon import Daemon, DaemonLostError, TakeRefusedError
from services.memory.service import MemoryService
from services.memory.settings import MemorySettings
from services.memory.swap_devices import SwapDevices
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.memory_hosts import GIB, LocalDaemon, local_daemon, service_on
from tests.support.service_in_process import run_in_process
from tests.support.swap_host import DISK, SwapHost

MIB = 1 << 20
SLAB = 4 * MIB


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("consumer.ROUND_S", "service.READ_S", "service.HEARTBEAT_S", "service.RETRY_S"):
        monkeypatch.setattr(f"services.memory.{name}", 0.02)


class Hosts:
    """A lender `big` and a swapping host `small`."""

    def __init__(self, directory: Path) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self.directory = directory
        self.kernel = SwapHost(13 * MIB)
        self.kernel.export_bytes = SLAB
        self.devices = SwapDevices(directory / "small", lambda: self.kernel.as_host)
        self.events: list[SlabEvent] = []
        self.daemon: LocalDaemon | None = None

    def settings(self, node: str, trusted_hosts: tuple[str, ...] = ("big",)) -> MemorySettings:
        return MemorySettings.load(
            {},
            node=node,
            state_directory=self.directory / node,
            map_above_pages_per_s=1.0,
            trusted_hosts=trusted_hosts,
        )

    def heard(self, delivery: Delivery) -> None:
        assert isinstance(delivery.message, SlabEvent)
        self.events.append(delivery.message)

    def changes(self) -> list[SlabChange]:
        return [event.change for event in self.events]

    def state(self) -> State:
        record = self.devices.record("swap")
        assert record is not None
        return record.slabs[0].state

    async def mapped(self) -> None:
        """Slab 0 of the small host is read from the big one."""

        def swaps() -> bool:
            self.kernel.pages["swap-0"] = self.kernel.pages.get("swap-0", 0) + 100
            self.kernel.synchronized.add("swap-0")
            return self.state() is State.REMOTE

        await until(swaps, what="the slab mapped")

    @asynccontextmanager
    async def lender(self) -> AsyncIterator[LocalDaemon]:
        bus, settings = MemoryBus(self.broker), self.settings("big")
        async with local_daemon() as daemon, run_in_process(service_on(SwapHost(0), daemon), settings, bus):
            yield daemon

    @asynccontextmanager
    async def consumer(self) -> AsyncIterator[MemoryService]:
        bus = MemoryBus(self.broker)
        async with run_in_process(service_on(self.kernel), self.settings("small"), bus) as service:
            yield service


@pytest.fixture
async def hosts(tmp_path: Path) -> Hosts:
    made = Hosts(tmp_path)
    await made.bus.subscribe(SLAB_EVENTS.pattern("tb"), made.heard)
    with made.devices.locked("swap") as device:
        device.attach(DISK, SLAB)
    return made


async def test_a_busy_slab_goes_to_the_host_that_offers_memory_and_back_when_that_wants_it(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    async with hosts.lender() as daemon, hosts.consumer():
        await hosts.mapped()
        [name] = daemon.taken
        await until(lambda: SlabChange.MAPPED in hosts.changes(), what="the event")
        mapped = hosts.events[-1]
        assert (mapped.node, mapped.device, mapped.slab, mapped.attempt) == ("small", "swap", 0, 1)
        assert (mapped.address, mapped.label) == (daemon.state.address, export_label(name))
        assert mapped.pages_per_s > mapped.map_above_pages_per_s == 1.0

        # A slab without a connection goes at once; the event names it, too.
        daemon.free[0] = GIB - MIB
        for _ in range(2):
            daemon.offering.read(1.0)
        daemon.offering._slabs.clear()  # the fake kernel opens no connection: what was taken counts as gone
    async with hosts.consumer():
        await until(lambda: hosts.state() is State.REMOTE, what="the swap device as it was")
    registered = await hosts.bus.bucket(MEMORY_HOSTS).entries()
    said = json.dumps(
        [to_plain(event) for event in hosts.events] + [to_plain(one.message) for one in registered.values()]
    )
    logged = capsys.readouterr()
    assert name not in said + logged.out + logged.err
    assert name not in (hosts.directory / "small" / "swap.json").read_text()


async def test_an_eviction_reaches_the_owner_by_the_bus_with_figures(hosts: Hosts) -> None:
    async with hosts.lender() as daemon, hosts.consumer():
        await hosts.mapped()
        [name] = daemon.taken
        # As a connected owner's: it has five seconds, in which the event comes.
        daemon.offering._slabs[export_label(name)].export.connected = True
        daemon.free[0] = GIB - 3 * MIB
        for _ in range(2):
            daemon.offering.read(1.0)
        await until(lambda: hosts.state() is not State.REMOTE, what="the slab on its disk")
        await until(lambda: SlabChange.FALLEN_BACK in hosts.changes(), what="the event")

    evicted = next(event for event in hosts.events if event.change is SlabChange.EVICTED)
    fallen_back = next(event for event in hosts.events if event.change is SlabChange.FALLEN_BACK)
    assert (evicted.node, evicted.free_bytes, evicted.headroom_bytes) == ("big", GIB - 3 * MIB, GIB)
    assert evicted.label == fallen_back.label == export_label(name)
    assert fallen_back.reason == (f"big needs its memory: {GIB - 3 * MIB} bytes of big are free, {GIB} have to be")
    assert hosts.kernel.nbd == {}


@pytest.mark.parametrize("claimed", ["big", "evil"])
async def test_a_host_cannot_evict_slabs_of_another_daemon(hosts: Hosts, claimed: str) -> None:
    """Neither under that one's name, nor by registering itself at its address."""
    async with hosts.lender() as daemon, hosts.consumer() as service:
        await hosts.mapped()
        [name] = daemon.taken
        forged = SlabEvent(
            node="evil", change=SlabChange.EVICTED, label=export_label(name), address=daemon.state.address, time_ns=1
        )
        hosts.bus.publish_event(SLAB_EVENTS.subject("tb", node="evil"), forged, message_id="1")
        await hosts.bus.bucket(MEMORY_HOSTS).create(
            "evil", MemoryHostInfo(node=claimed, address=daemon.state.address, incarnation=1, time_ns=1)
        )
        await until(lambda: SlabChange.EVICTED in hosts.changes(), what="the forged event")
        service._hosts_read_s = -1e9
        await service.daemons()
        hosts.bus.publish_event(SLAB_EVENTS.subject("tb", node="evil"), forged, message_id="2")
        await until(lambda: hosts.changes().count(SlabChange.EVICTED) == 2, what="the second one")
        for _ in range(3):
            await service.consumer.round()
        assert hosts.state() is State.REMOTE


async def ask(bus: MemoryBus, request: Message, node: str = "small") -> Message:
    return await bus.request(SLAB_REQUESTS.subject("tb", daemon="big", node=node), request, timeout_s=60)


async def test_requests_are_answered_or_refused_with_figures(hosts: Hosts) -> None:
    async with hosts.lender() as daemon:
        await until(lambda: daemon.state.address, what="the daemon's address")
        await until_registered(hosts, "big")
        reply = await ask(hosts.bus, SlabRequest(node="small", device="swap", slab_bytes=SLAB))
        assert isinstance(reply, SlabReply)
        assert reply.address == daemon.state.address
        assert reply.export not in repr(reply)
        for request, code, words in (
            (SlabRequest(node="other", device="swap", slab_bytes=SLAB), 400, "another node than its subject"),
            (MemoryHostInfo(node="small", incarnation=1, time_ns=1), 400, "expected a SlabRequest"),
            (SlabRequest(node="small", device="swap", slab_bytes=GIB), 409, f"{GIB} bytes are asked; {60 * MIB} are"),
        ):
            with pytest.raises(RequestRefusedError, match=words) as refused:
                await ask(hosts.bus, request)
            assert refused.value.code == code


async def test_one_hosts_flood_of_requests_reaches_the_daemon_one_at_a_time(hosts: Hosts) -> None:
    """Others are answered, and readings of the daemon, which announce evictions, come in between."""
    request = SlabRequest(node="small", device="swap", slab_bytes=MIB)
    async with hosts.lender() as daemon:
        await until(lambda: daemon.state.address, what="the daemon's address")
        await until_registered(hosts, "big")
        may_give, take, asked = asyncio.Event(), daemon.take, []

        async def slow_take(slab_bytes: int, owner: str) -> str:
            asked.append(owner)
            if owner == "small":
                async with asyncio.timeout(60):
                    await may_give.wait()
            return await take(slab_bytes, owner)

        daemon.take = slow_take  # type: ignore[method-assign]
        flood = [asyncio.create_task(ask(hosts.bus, request)) for _ in range(50)]
        answers = []
        for answer in asyncio.as_completed(flood, timeout=60):
            with pytest.raises(RequestRefusedError, match="a request of small is under way") as refused:
                await answer
            answers.append(refused.value.code)
            if len(answers) == 49:
                break
        assert answers == [429] * 49
        other = await ask(hosts.bus, SlabRequest(node="third", device="swap", slab_bytes=MIB), node="third")
        assert isinstance(other, SlabReply)
        assert asked == ["small", "third"]
        may_give.set()
        [first] = [task for task in flood if not task.done() or task.exception() is None]
        assert isinstance(await first, SlabReply)
        assert isinstance(await ask(hosts.bus, request), SlabReply)


async def test_no_page_goes_to_this_hosts_own_daemon_by_way_of_another_host(hosts: Hosts) -> None:
    """It would wait for memory that it has to free first. The other host has taken the slab, and says this address."""
    taken = asyncio.Event()
    async with local_daemon() as daemon:

        async def lead_back(_delivery: Delivery) -> Message:
            name = await daemon.take(SLAB, "evil")
            taken.set()
            return SlabReply(address=daemon.state.address, export=name)

        await hosts.bus.serve(SLAB_REQUESTS.pattern("tb", daemon="evil"), lead_back)
        await daemon.read()
        info = MemoryHostInfo(
            node="evil", address=daemon.state.address, offered_bytes=GIB, incarnation=1, time_ns=1, holder="evil"
        )
        await hosts.bus.bucket(MEMORY_HOSTS).create("evil", info)
        bus, settings = MemoryBus(hosts.broker), hosts.settings("small", ("evil",))
        async with run_in_process(service_on(hosts.kernel, daemon), settings, bus) as service:
            await until(lambda: any(service.consumer.by_state().values()), what="the first round")
            hosts.kernel.pages["swap-0"] = 10_000
            await until(lambda: SlabChange.NOT_MAPPED in hosts.changes(), what="the event")
            assert taken.is_set()
            assert hosts.events[-1].reason.startswith("evil gives a slab of small's own daemon")
            assert hosts.kernel.nbd == {}


async def until_registered(hosts: Hosts, node: str) -> None:
    """A watch, as the allocator's of nodes."""
    there = asyncio.Event()

    def on_entry(key: str, entry: Entry | None) -> None:
        if key == node and entry is not None:
            there.set()

    async with asyncio.timeout(60), hosts.bus.bucket(MEMORY_HOSTS).watch(on_entry):
        await there.wait()


async def test_a_host_that_offers_nothing_says_so(hosts: Hosts) -> None:
    async with run_in_process(service_on(SwapHost(0)), hosts.settings("big"), MemoryBus(hosts.broker)):
        await until_registered(hosts, "big")
        with pytest.raises(RequestRefusedError, match="offers no memory"):
            await ask(hosts.bus, SlabRequest(node="small", device="swap", slab_bytes=SLAB))


async def test_a_swap_device_is_watched_without_a_bus_and_without_other_hosts(hosts: Hosts) -> None:
    hosts.broker.stop()
    async with hosts.consumer() as service:
        hosts.kernel.pages["swap-0"] = 10_000
        await until(lambda: any(service.consumer.by_state().values()), what="the first round")
        hosts.kernel.pages["swap-0"] = 20_000
        await until(lambda: hosts.devices.service_runs, what="the lock")
        hosts.broker.start()
        await until(lambda: SlabChange.NOT_MAPPED in hosts.changes(), what="the event")
        assert "no daemon offers" in hosts.events[-1].reason or "not known" in hosts.events[-1].reason
    assert hosts.devices.service_runs is False
    assert hosts.kernel.swapping == {"/dev/mapper/swap": 100}


@pytest.mark.parametrize(
    ("trusted", "words"),
    [((), "no host is trusted with pages of small: set TURNBUCKLE_MEMORY__TRUSTED_HOSTS"), (("other",), "no daemon")],
)
async def test_no_page_goes_to_a_host_that_is_not_trusted(hosts: Hosts, trusted: tuple[str, ...], words: str) -> None:
    """Whoever has one host's key may offer memory, and would read what others swap to it."""
    bus, settings = MemoryBus(hosts.broker), hosts.settings("small", trusted)
    async with hosts.lender() as daemon, run_in_process(service_on(hosts.kernel), settings, bus) as service:
        await until_registered(hosts, "big")
        await until(lambda: any(service.consumer.by_state().values()), what="the first round")
        hosts.kernel.pages["swap-0"] = 10_000
        await until(lambda: SlabChange.NOT_MAPPED in hosts.changes(), what="the event")
        assert hosts.events[-1].reason.startswith(words)
        assert daemon.taken == []


async def test_a_second_service_of_a_host_is_refused(hosts: Hosts) -> None:
    async with hosts.consumer():
        with pytest.raises(
            UnusableSettingsError, match="this host's swap devices are managed by another memory service"
        ):
            async with hosts.consumer():
                pass


def test_memory_is_offered_at_an_address_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="offer_bytes needs address"):
        MemorySettings.load({"TURNBUCKLE_MEMORY__OFFER_BYTES": "1GiB"})
    with pytest.raises(SettingsError, match="others cannot connect to it"):
        MemorySettings.load({"TURNBUCKLE_MEMORY__OFFER_BYTES": "1GiB", "TURNBUCKLE_MEMORY__ADDRESS": "::"})
    settings = MemorySettings.load(
        {"TURNBUCKLE_MEMORY__OFFER_BYTES": "1GiB", "TURNBUCKLE_MEMORY__ADDRESS": "::1"}, state_directory=tmp_path
    )
    assert settings.most_per_host_bytes == 512 * MIB


async def test_a_daemons_process_gives_slabs_and_is_started_anew_after_its_death() -> None:
    settings = MemorySettings.load({}, offer_bytes=8 * MIB, address="127.0.0.1", headroom_bytes=0, node="big")
    daemon = Daemon(settings)
    try:
        first = await daemon.read()
        assert (first.offered_bytes, first.held_bytes) == (8 * MIB, 0)
        assert len(await daemon.take(MIB, "small")) == 64
        with pytest.raises(
            TakeRefusedError, match=f"small holds {MIB} bytes and asks for {4 * MIB}; one host may hold"
        ):
            await daemon.take(4 * MIB, "small")
        assert (await daemon.read()).held_bytes == MIB
        assert daemon._child is not None
        os.kill(daemon._child.process.pid, signal.SIGKILL)
        with pytest.raises(DaemonLostError, match="has ended with -9"):
            await daemon.read()
        assert daemon.state.address == ""
        with pytest.raises(DaemonLostError, match="is being started"):
            await daemon.take(MIB, "small")
        again = await daemon.read()
        assert again.held_bytes == 0
    finally:
        await daemon.stop()
