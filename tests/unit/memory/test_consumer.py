"""Slabs that swap go to remote memory and come back, round by round; the kernel is made of dictionaries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.remote_memory import SlabChange, SlabReply
from services._runtime.telemetry.logging import get_logger
from services.memory.consumer import AVOID_S, PROBE_S, RETRY_S, Cause, Consumer, PeersError, Report
from services.memory.core.mapping import Slab, State, export_label
from services.memory.core.nbd import NbdError
from services.memory.core.placing import Daemon
from services.memory.swap_devices import SwapDevices
from tests.support.deadline import until
from tests.support.manual_clock import ManualClock
from tests.support.swap_host import DISK, KilledError, SwapHost

MIB = 1 << 20
SLAB = 4 * MIB
FIRST, SECOND = "10.0.0.2:1", "10.0.0.3:1"
FIRST_HOST, SECOND_HOST = "10.0.0.2", "10.0.0.3"


class FakePeers:
    """Other hosts, as a test says."""

    def __init__(self) -> None:
        self.offers = {FIRST: 64 * MIB}
        self.refusal = ""
        self.taken: list[str] = []
        self.said: list[tuple[SlabChange, int, str]] = []
        """Change, slab and reason."""
        self.reports: list[Report] = []

    async def daemons(self) -> Sequence[Daemon]:
        return [Daemon(address, address.partition(":")[0], offered) for address, offered in self.offers.items()]

    async def take(self, daemon: Daemon, device: str, slab_bytes: int) -> SlabReply:
        assert (device, slab_bytes) == ("swap", SLAB)
        if self.refusal:
            raise PeersError(self.refusal, Cause.REFUSED)
        self.taken.append(daemon.address)
        return SlabReply(address=daemon.address, export=f"{len(self.taken):064x}")

    def publish(self, device: str, change: SlabChange, slab: Slab, report: Report) -> None:
        assert device == "swap"
        self.said.append((change, slab.number, report.reason))
        self.reports.append(report)


class Lab:
    """A host with a swap device of two slabs, and its consumer."""

    def __init__(self, directory: Path) -> None:
        self.host = SwapHost(13 * MIB)
        self.host.export_bytes = SLAB
        self.clock = ManualClock()
        self.peers = FakePeers()
        self.files = SwapDevices(directory, lambda: self.host.as_host)
        self.start()

    def start(self) -> None:
        """A new process, without memory of the one before."""
        self.consumer = Consumer(self.files, self.peers, self.clock, get_logger("memory"), 20.0)

    def attach(self) -> None:
        with self.files.locked("swap") as device:
            device.attach(DISK, SLAB)

    def swaps(self, slab: int, pages: int = 1_000) -> None:
        name = f"swap-{slab}"
        self.host.pages[name] = self.host.pages.get(name, 0) + pages

    async def rounds(self, count: int = 1, seconds: float = 1.0) -> None:
        for _ in range(count):
            await self.clock.advance(seconds)
            await self.consumer.round()

    async def mapped(self, slab: int = 0) -> None:
        """Until this slab is read from remote memory."""
        await self.rounds()
        self.swaps(slab)
        await self.rounds()
        assert self.slab(slab).state is State.MAPPING
        self.host.synchronized.add(f"swap-{slab}")
        await self.rounds()
        assert self.slab(slab).state is State.REMOTE

    def slab(self, number: int) -> Slab:
        record = self.files.record("swap")
        assert record is not None
        return record.slabs[number]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path)
    made.attach()
    return made


async def test_a_slab_that_swaps_is_mapped_and_the_rate_is_said(lab: Lab) -> None:
    await lab.mapped(1)

    assert lab.slab(0).state is State.UNMAPPED
    assert lab.slab(1) == Slab(1, State.REMOTE, 1, FIRST, export_label(f"{1:064x}"), host=FIRST_HOST)
    assert lab.peers.said == [(SlabChange.MAPPED, 1, "")]
    # 0.2 * 1,000 pages in the one second, and 0.8 of that after the next one.
    assert lab.peers.reports[0].pages_per_s == pytest.approx(160.0)
    assert lab.consumer.by_state() == {"unmapped": 1, "mapping": 0, "remote": 1, "draining": 0, "disk": 0}


async def test_a_quiet_slab_stays_on_its_disk(lab: Lab) -> None:
    for _ in range(10):
        lab.swaps(0, 19)
        await lab.rounds()

    assert lab.peers.taken == []
    assert lab.slab(0).state is State.UNMAPPED


async def test_one_slab_is_copied_at_a_time_and_hosts_without_one_come_first(lab: Lab) -> None:
    lab.peers.offers[SECOND] = 8 * MIB
    await lab.rounds()
    lab.swaps(0)
    lab.swaps(1, 2_000)
    await lab.rounds(2)
    assert [lab.slab(number).state for number in (0, 1)] == [State.UNMAPPED, State.MAPPING]

    lab.host.synchronized.add("swap-1")
    await lab.rounds(2)

    assert lab.slab(0).state is State.MAPPING
    assert {lab.slab(0).daemon, lab.slab(1).daemon} == {FIRST, SECOND}


async def test_an_evicted_slab_falls_back_with_the_reason_and_its_daemon_is_avoided(lab: Lab) -> None:
    await lab.mapped()
    lab.consumer.evict(FIRST_HOST, lab.slab(0).label, "it needs its memory")
    lab.swaps(0)
    await lab.rounds()

    assert lab.host.nbd == {}
    none = f"no daemon offers {SLAB} bytes; the most that one of 0 offers are 0"
    assert lab.peers.said[1:] == [
        (SlabChange.FALLEN_BACK, 0, "it needs its memory"),
        (
            SlabChange.NOT_MAPPED,
            0,
            f"{none}, 1 more wanted memory back, were lost or gave none that can be used just now",
        ),
    ]
    for _ in range(round(AVOID_S + RETRY_S)):
        lab.swaps(0)
        await lab.rounds()
    assert lab.slab(0).state is State.MAPPING
    assert lab.slab(0).attempt == 2


@pytest.mark.parametrize(("host", "label"), [(SECOND_HOST, None), (FIRST_HOST, "0" * 16)])
async def test_an_eviction_of_another_daemon_or_slab_changes_nothing(lab: Lab, host: str, label: str | None) -> None:
    await lab.mapped()

    lab.consumer.evict(host, label or lab.slab(0).label, "forged")
    await lab.rounds(2)

    assert lab.slab(0).state is State.REMOTE


async def test_an_eviction_that_is_said_again_and_again_takes_no_memory(lab: Lab) -> None:
    await lab.mapped()
    for number in range(1_000):
        lab.consumer.evict(FIRST_HOST, lab.slab(0).label, f"reason {number}")
    assert len(lab.consumer._devices["swap"].events) == 1
    await lab.rounds()
    assert lab.slab(0).reason == "reason 0"


async def test_a_daemon_that_does_not_answer_is_left_before_a_page_waits_for_it(lab: Lab) -> None:
    lab.host.mirrors_notice = False
    await lab.mapped()
    lab.host.dead_nbd.add(0)
    await lab.rounds(1, PROBE_S)
    await until(lambda: all(device.probing.done() for device in lab.consumer._devices.values()), what="the answers")
    await lab.rounds()

    assert lab.slab(0).state is State.DISK
    assert lab.peers.said[1] == (SlabChange.FALLEN_BACK, 0, f"{FIRST} does not answer")


async def test_what_no_daemon_takes_stays_on_the_disk_and_is_said_once(lab: Lab) -> None:
    lab.peers.refusal = "10.0.0.2 gives no slab: 1 bytes are offered"
    for _ in range(round(3 * RETRY_S)):
        lab.swaps(0)
        await lab.rounds()

    assert lab.peers.said == [(SlabChange.NOT_MAPPED, 0, lab.peers.refusal)]
    assert lab.slab(0).state is State.UNMAPPED
    lab.peers.refusal = ""
    for _ in range(round(RETRY_S)):
        lab.swaps(0)
        await lab.rounds()
    assert lab.slab(0).state is State.MAPPING


async def test_a_daemon_that_names_another_address_gets_no_pages(lab: Lab) -> None:
    """Who has one host's key could otherwise lead pages to any address."""

    async def take(daemon: Daemon, _device: str, _slab_bytes: int) -> SlabReply:
        return SlabReply(address=SECOND, export="0" * 64)

    lab.peers.take = take  # type: ignore[method-assign]
    await lab.rounds()
    lab.swaps(0)
    await lab.rounds()

    assert lab.host.nbd == {}
    assert lab.peers.said == [(SlabChange.NOT_MAPPED, 0, f"10.0.0.2 is registered at {FIRST}, and says {SECOND}")]


async def test_a_daemon_that_gives_what_cannot_be_used_is_not_asked_again_before_others(lab: Lab) -> None:
    """It offers most: of two that are drawn it would be chosen each time."""
    lab.peers.offers = {FIRST: 1 << 40, SECOND: 64 * MIB}
    await lab.rounds()
    lab.swaps(0)
    lab.host.export_bytes = 2 * SLAB
    await lab.rounds()
    assert lab.peers.said == [(SlabChange.NOT_MAPPED, 0, f"the export has {2 * SLAB} bytes, a slab of swap {SLAB}")]
    lab.host.export_bytes = SLAB
    for _ in range(round(RETRY_S)):
        lab.swaps(0)
        await lab.rounds()

    assert lab.peers.taken == [FIRST, SECOND]
    assert lab.slab(0).daemon == SECOND


async def test_a_daemon_that_refuses_is_asked_again_once_no_other_one_has_room(lab: Lab) -> None:
    lab.peers.offers = {FIRST: 1 << 40, SECOND: SLAB}
    asked, take = [], lab.peers.take

    async def refuse_first(daemon: Daemon, device: str, slab_bytes: int) -> SlabReply:
        asked.append(daemon.address)
        if daemon.address == FIRST:
            raise PeersError("no answer", Cause.REFUSED)
        return await take(daemon, device, slab_bytes)

    lab.peers.take = refuse_first  # type: ignore[method-assign]
    await lab.rounds()
    for _ in range(1 + round(RETRY_S)):
        lab.swaps(0)
        await lab.rounds()
    assert asked == [FIRST, SECOND]
    assert lab.slab(0).state is State.MAPPING
    lab.host.synchronized.add("swap-0")
    lab.peers.offers[SECOND] = 0
    for _ in range(2):
        lab.swaps(1)
        await lab.rounds()

    assert asked == [FIRST, SECOND, FIRST]


async def test_a_host_at_another_ones_address_does_not_have_that_one_avoided(lab: Lab) -> None:
    """Each host registers whatever address it likes: what it gives there counts against it alone."""
    connect = lab.host.connect

    async def daemons() -> Sequence[Daemon]:
        return [Daemon(FIRST, "evil", 1 << 40), Daemon(FIRST, FIRST_HOST, 64 * MIB)]

    def only_second(address: str, export: str, identifier: str) -> tuple[str, int]:
        if export == f"{1:064x}":
            raise NbdError("no such export")
        return connect(address, export, identifier)

    lab.peers.daemons = daemons  # type: ignore[method-assign]
    lab.host.connect = only_second  # type: ignore[method-assign]
    await lab.rounds()
    for _ in range(1 + round(RETRY_S)):
        lab.swaps(0)
        await lab.rounds()

    assert lab.peers.said == [(SlabChange.NOT_MAPPED, 0, f"{FIRST}: no such export")]
    assert (lab.slab(0).state, lab.slab(0).host) == (State.MAPPING, FIRST_HOST)


async def test_a_copy_that_its_daemon_does_not_let_end_is_given_up(lab: Lab) -> None:
    """Each request is answered just in time: the kernel finds nothing wrong. A second slab waits for the copy."""
    lab.peers.offers[SECOND] = 64 * MIB
    await lab.rounds()
    lab.swaps(0)
    await lab.rounds()
    copied_by = lab.slab(0).daemon
    assert lab.slab(0).state is State.MAPPING
    await lab.rounds(59)
    assert lab.slab(0).state is State.MAPPING
    lab.swaps(1)
    await lab.rounds(4)

    reason = f"{copied_by} has not taken its {SLAB} bytes within 60 s"
    assert lab.peers.said == [(SlabChange.FALLEN_BACK, 0, reason)]
    assert lab.slab(0).state is State.DISK
    assert lab.slab(1).state is State.MAPPING
    assert {lab.slab(1).daemon, copied_by} == {FIRST, SECOND}
    # The next one has a minute of its own.
    await lab.rounds(55)
    assert lab.slab(1).state is State.MAPPING


async def test_a_probe_beside_a_mapping_does_not_undo_it(lab: Lab) -> None:
    """The attempt stands in the journal, and has no connection yet."""
    loop, connect, mapping = asyncio.get_running_loop(), lab.host.connect, []

    def probe_first(address: str, export: str, identifier: str) -> tuple[str, int]:
        mapping.append(lab.slab(0).state)
        probe = lab.consumer._find_silent("swap", lab.consumer._devices["swap"])
        asyncio.run_coroutine_threadsafe(probe, loop).result(60)
        return connect(address, export, identifier)

    lab.host.connect = probe_first  # type: ignore[method-assign]
    await lab.mapped()

    assert mapping == [State.MAPPING]
    assert lab.peers.said == [(SlabChange.MAPPED, 0, "")]


async def test_why_a_slab_is_not_mapped_is_said_once_and_counted_each_time(lab: Lab) -> None:
    """What daemons offer differs each time, and so do the figures in the text."""
    await lab.rounds()
    for second in range(round(3 * RETRY_S)):
        lab.peers.offers[FIRST] = MIB + second
        lab.swaps(0)
        await lab.rounds()
    assert [change for change, _, _ in lab.peers.said] == [SlabChange.NOT_MAPPED]
    assert lab.consumer.not_mapped == dict.fromkeys(Cause, 0) | {Cause.NO_ROOM: 3}

    # Another cause is said, too; after a mapping all are again.
    lab.peers.offers[FIRST], lab.peers.refusal = SLAB, "it offers less now"
    for _ in range(round(RETRY_S)):
        lab.swaps(0)
        await lab.rounds()
    lab.peers.refusal = ""
    for _ in range(round(RETRY_S)):
        lab.swaps(0)
        await lab.rounds()
    assert lab.slab(0).state is State.MAPPING
    lab.host.synchronized.add("swap-0")
    lab.peers.offers[FIRST] = 0
    for _ in range(round(RETRY_S)):
        lab.swaps(1)
        await lab.rounds()
    changes = [(change, slab) for change, slab, _ in lab.peers.said]
    not_mapped = SlabChange.NOT_MAPPED
    assert changes == [(not_mapped, 0), (not_mapped, 0), (SlabChange.MAPPED, 0), (not_mapped, 1)]
    assert (lab.consumer.not_mapped[Cause.REFUSED], lab.consumer.not_mapped[Cause.NO_ROOM]) == (1, 4)


async def test_a_new_process_goes_on_with_remote_slabs_and_undoes_a_half_mapped_one(lab: Lab) -> None:
    await lab.mapped(0)
    lab.swaps(1)
    await lab.rounds()
    assert lab.slab(1).state is State.MAPPING
    lab.start()
    await lab.rounds()

    assert [lab.slab(number).state for number in (0, 1)] == [State.REMOTE, State.DISK]
    assert lab.peers.said[-1] == (SlabChange.FALLEN_BACK, 1, "the mapper was started anew")
    assert lab.host.swapping == {"/dev/mapper/swap": 100}
    # Its daemon has done nothing wrong.
    lab.swaps(1)
    await lab.rounds()
    assert lab.slab(1).state is State.MAPPING


async def test_a_device_that_a_command_acts_on_is_left_to_it(lab: Lab) -> None:
    await lab.rounds()
    with lab.files.locked("swap") as device:
        lab.swaps(0)
        await lab.rounds(2)
        assert lab.peers.taken == []
        device.detach()
    await lab.rounds()
    assert set(lab.consumer.by_state().values()) == {0}
    assert lab.consumer.failed_steps == 0


async def test_a_device_that_is_half_made_is_left_to_whoever_makes_it(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host.acts_left = 5
    with pytest.raises(KilledError):
        lab.attach()
    lab.host.acts_left = None
    before = dict(lab.host.tables)

    await lab.rounds(3)

    assert lab.host.tables == before != {}
    assert set(lab.consumer.by_state().values()) == {0}


async def test_a_device_that_fails_does_not_keep_the_others(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "another.json").write_text("{")

    await lab.mapped()

    assert lab.consumer.failed_steps == 3


async def _act(lab: Lab, action: str) -> None:
    match action:
        case "swap 0" | "swap 1":
            lab.swaps(int(action[-1]))
        case "sync":
            lab.host.synchronized |= {"swap-0", "swap-1"}
        case "evict":
            for number in (0, 1):
                lab.consumer.evict(lab.slab(number).host, lab.slab(number).label, "wanted")
        case "die":
            lab.host.dead_nbd |= set(lab.host.nbd)
        case "restart":
            lab.start()
        case "wait":
            await lab.rounds(1, AVOID_S)
    await lab.rounds()


@given(st.lists(st.sampled_from(["swap 0", "swap 1", "sync", "evict", "die", "restart", "wait"]), max_size=30))
def test_whatever_happens_every_page_is_on_the_disk_and_rounds_go_on(actions: list[str]) -> None:
    async def run(directory: Path) -> None:
        lab = Lab(directory)
        lab.attach()
        for action in actions:
            await _act(lab, action)
            for number in (0, 1):
                slab, table = lab.slab(number), lab.host.tables[f"swap-{number}"]
                assert f"/dev/mapper/swap-{number}-disk" in table.split()
                assert (slab.state in {State.MAPPING, State.REMOTE}) == bool(slab.daemon) == (" raid " in table)
        assert lab.consumer.failed_steps == 0
        assert lab.host.swapping == {"/dev/mapper/swap": 100}

    with TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))
