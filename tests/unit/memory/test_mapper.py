"""A swap device is made, mapped and undone; what kill -9 leaves half done is finished or undone at the next start."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services._host.boot_records import boot_id
from services.memory.core.block_path import LayoutError
from services.memory.core.mapping import Evicted, Lost, State
from services.memory.journal import Journal, JournalError, Record
from services.memory.mapper import SwapDevice, SwapDeviceError
from tests.support.swap_host import DISK, KilledError, RefusedError, SwapHost

MIB = 1 << 20
SLAB = 4 * MIB
DAEMON = "10.0.0.2:10809"
"""The disk has room for two slabs of 4 MiB with 2 MiB of metadata each, and 1 MiB that is left."""
DISK_BYTES = 13 * MIB


def host_and_device(directory: Path) -> tuple[SwapHost, SwapDevice]:
    host = SwapHost(DISK_BYTES)
    host.export_bytes = SLAB
    return host, SwapDevice("swap", Journal(directory / "swap.json"), host.as_host)


def test_an_attached_disk_is_slabs_in_a_row(tmp_path: Path) -> None:
    host, device = host_and_device(tmp_path)

    record = device.attach(DISK, SLAB)

    assert record.attached
    # In sectors of 512 bytes: slab 8,192; metadata 2 * 2,048 before each.
    assert host.tables == {
        "swap-0-disk": "0 8192 linear /dev/vdb 4096",
        "swap-0": "0 8192 linear /dev/mapper/swap-0-disk 0",
        "swap-1-disk": "0 8192 linear /dev/vdb 16384",
        "swap-1": "0 8192 linear /dev/mapper/swap-1-disk 0",
        "swap": "0 8192 linear /dev/mapper/swap-0 0\n8192 8192 linear /dev/mapper/swap-1 0",
    }
    assert host.swapping == {"/dev/mapper/swap": 100}
    device.detach()
    assert (host.tables, host.swapping) == ({}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_mapped_slab_is_a_mirror_whose_remote_half_is_rebuilt_from_the_disk(tmp_path: Path) -> None:
    host, device = host_and_device(tmp_path)
    device.attach(DISK, SLAB)

    device.map_slab(1, DAEMON, "secret")

    assert host.tables["swap-1-meta0"] == "0 2048 linear /dev/vdb 12288"
    assert host.tables["swap-1-meta1"] == "0 2048 linear /dev/vdb 14336"
    assert host.tables["swap-1"] == (
        "0 8192 raid raid1 11 0 rebuild 0 write_mostly 1 max_write_behind 4096 region_size 8192"
        " min_recovery_rate 50000"
        " 2 /dev/mapper/swap-1-meta0 /dev/nbd0 /dev/mapper/swap-1-meta1 /dev/mapper/swap-1-disk"
    )
    assert host.nbd == {0: "TURNBUCKLE-swap:1:1"}
    assert device.slab(1).state is State.MAPPING
    host.synchronized.add("swap-1")
    assert device.wait_until_synchronized(1, 1).state is State.REMOTE
    assert "secret" not in (tmp_path / "swap.json").read_text()


def test_an_evicted_slab_uses_its_disk_before_the_connection_ends(tmp_path: Path) -> None:
    host, device = host_and_device(tmp_path)
    device.attach(DISK, SLAB)
    before = dict(host.tables)
    device.map_slab(0, DAEMON, "secret")
    host.synchronized.add("swap-0")
    device.advance()

    device.apply(0, Evicted(1))
    device.advance()

    assert device.slab(0).state is State.DISK
    assert (host.tables, host.nbd) == (before, {})


@pytest.mark.parametrize("mirrors_notice", [True, False])
def test_a_dead_daemons_slab_falls_back_and_can_be_mapped_again(tmp_path: Path, *, mirrors_notice: bool) -> None:
    """Also before the mirror has had a request, by which it would have noticed."""
    host, device = host_and_device(tmp_path)
    host.mirrors_notice = mirrors_notice
    device.attach(DISK, SLAB)
    device.map_slab(0, DAEMON, "secret")
    device.map_slab(1, DAEMON, "secret too")
    assert device.silent() == []
    host.dead_nbd.add(0)
    assert device.silent() == [device.slab(0)]
    if not mirrors_notice:
        device.apply(0, Lost(1, "silent"))
    assert device.advance() == []
    assert (device.slab(0).state, device.slab(1).state) == (State.DISK, State.MAPPING)
    assert device.slab(0).reason == ("a request to the daemon has failed" if mirrors_notice else "silent")

    device.map_slab(0, DAEMON, "another")

    assert host.nbd == {0: "TURNBUCKLE-swap:0:2", 1: "TURNBUCKLE-swap:1:1"}
    assert device.slab(0).reason == ""


def test_a_slab_that_cannot_be_taken_apart_does_not_keep_others(tmp_path: Path) -> None:
    host, device = host_and_device(tmp_path)
    device.attach(DISK, SLAB)
    for number in (0, 1):
        device.map_slab(number, DAEMON, "secret")
    host.dead_nbd |= {0, 1}
    host.stuck.add("swap-0")

    [failure] = device.advance()

    assert (failure.slab, failure.error) == (0, "swap-0 is not there")
    assert (device.slab(0).state, device.slab(1).state) == (State.DRAINING, State.DISK)
    with pytest.raises(SwapDeviceError, match="slab 0 of swap: swap-0 is not there"):
        device.wait_until_synchronized(0, 1)
    host.stuck.clear()
    assert device.advance() == []
    assert device.slab(0).state is State.DISK


@pytest.mark.parametrize("leaves_by", [Evicted(1), Lost(1, "silent")])
def test_a_slab_whose_disk_has_failed_a_write_is_not_read_from_there(tmp_path: Path, leaves_by: Evicted | Lost) -> None:
    host, device = host_and_device(tmp_path)
    device.attach(DISK, SLAB)
    device.map_slab(0, DAEMON, "secret")
    host.synchronized.add("swap-0")
    assert device.advance() == []
    host.failed_disks.add("swap-0")
    [failure] = device.advance()
    assert f"pages since then are at {DAEMON} alone" in failure.error
    device.apply(0, leaves_by)

    [failure] = device.advance()

    assert "turnbuckle swap detach swap reads them back" in failure.error
    assert " raid " in host.tables["swap-0"]
    assert host.nbd == {0: "TURNBUCKLE-swap:0:1"}
    device.detach()
    assert (host.tables, host.swapping, host.nbd) == ({}, {}, {})


class FullJournal(Journal):
    """There is no room for the record of a swap device that is all made."""

    def write(self, record: Record) -> None:
        if record.attached:
            raise JournalError("no space left")
        super().write(record)


def test_an_attachment_that_cannot_be_written_down_is_undone(tmp_path: Path) -> None:
    host = SwapHost(DISK_BYTES)
    device = SwapDevice("swap", FullJournal(tmp_path / "swap.json"), host.as_host)

    with pytest.raises(JournalError, match="no space left"):
        device.attach(DISK, SLAB)

    assert (host.tables, host.swapping, device.record) == ({}, {}, None)


@pytest.mark.parametrize("name", ["swap", "swap-1", "swap-0-meta1"])
def test_a_device_of_somebody_else_under_our_name_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    host, device = host_and_device(tmp_path)
    host.others = {name, "swapper", "swap2-1"}

    with pytest.raises(SwapDeviceError, match=f"device mapper has {name}, which is not ours: choose another name"):
        device.attach(DISK, SLAB)

    assert host.tables == {}
    assert device.record is None


def test_a_device_that_somebody_else_makes_meanwhile_is_not_removed_with_ours(tmp_path: Path) -> None:
    host, device = host_and_device(tmp_path)
    device.attach(DISK, SLAB)
    host.others.add("swap-1-meta0")

    with pytest.raises(RefusedError, match="swap-1-meta0 is there"):
        device.map_slab(1, DAEMON, "secret")

    assert device.slab(1).state is State.DISK
    assert host.nbd == {}


def test_as_many_slabs_as_hold_the_size_that_is_asked_for(tmp_path: Path) -> None:
    _, device = host_and_device(tmp_path)
    # The disk has room for two slabs of 4 MiB with their metadata.
    with pytest.raises(LayoutError, match=r"has room for 2 slabs of 4194304 bytes .* 8388609 bytes need 3"):
        device.attach(DISK, SLAB, size_bytes=2 * SLAB + 1)
    assert device.attach(DISK, SLAB, size_bytes=SLAB - 1).layout.slabs == 1


def test_a_disk_in_use_is_refused_also_where_it_may_be_overwritten(tmp_path: Path) -> None:
    host, device = host_and_device(tmp_path)
    host.disk_refusal = "is in use"

    with pytest.raises(SwapDeviceError, match="/dev/vdb is in use"):
        device.attach(DISK, SLAB, overwrite=True)

    assert host.tables == {}


@pytest.mark.parametrize(("export", "export_bytes"), [("wrong", SLAB), ("secret", SLAB + MIB)])
def test_a_slab_that_cannot_be_mapped_stays_on_its_disk(tmp_path: Path, export: str, export_bytes: int) -> None:
    host, device = host_and_device(tmp_path)
    device.attach(DISK, SLAB)
    before = dict(host.tables)
    host.export_bytes = export_bytes

    with pytest.raises((RefusedError, SwapDeviceError)):
        device.map_slab(0, DAEMON, export)

    assert device.slab(0).state is State.DISK
    assert (host.tables, host.nbd) == (before, {})


def test_a_disk_that_holds_something_is_refused(tmp_path: Path) -> None:
    host, device = host_and_device(tmp_path)
    host.found_content = "ext4"

    with pytest.raises(SwapDeviceError, match="/dev/vdb holds ext4, which would be lost"):
        device.attach(DISK, SLAB)

    assert host.tables == {}
    assert host.found_content == "ext4"
    assert device.attach(DISK, SLAB, overwrite=True).attached
    assert host.found_content == "", "after `detach` it would be found again, with pages in it"


@pytest.mark.parametrize("refusal", ["is in use", ""])
def test_nothing_is_erased_on_a_disk_that_is_refused(tmp_path: Path, refusal: str) -> None:
    host, device = host_and_device(tmp_path)
    host.found_content, host.disk_refusal = "ext4", refusal

    with pytest.raises((SwapDeviceError, LayoutError)):
        device.attach(DISK, SLAB, size_bytes=SLAB if refusal else 3 * SLAB, overwrite=True)

    assert host.found_content == "ext4"


def test_a_second_attachment_is_refused_and_devices_of_others_are_left_alone(tmp_path: Path) -> None:
    host, device = host_and_device(tmp_path)
    host.tables["swap2-0"] = host.tables["swapper"] = "0 8 linear /dev/vdc 0"
    host.nbd[0] = "TURNBUCKLE-swap2:0:1"
    device.attach(DISK, SLAB)

    with pytest.raises(SwapDeviceError, match="detach it first"):
        device.attach(DISK, SLAB)
    device.detach()

    assert set(host.tables) == {"swap2-0", "swapper"}
    assert host.nbd == {0: "TURNBUCKLE-swap2:0:1"}


def test_requests_that_do_not_fit_are_refused_in_words(tmp_path: Path) -> None:
    host, device = host_and_device(tmp_path)
    with pytest.raises(SwapDeviceError, match="attach one first"):
        device.map_slab(0, DAEMON, "secret")
    device.attach(DISK, SLAB)
    with pytest.raises(SwapDeviceError, match="has slabs 0 to 1, no slab 2"):
        device.map_slab(2, DAEMON, "secret")
    device.map_slab(0, DAEMON, "secret")
    with pytest.raises(SwapDeviceError, match="slab 0 of swap is mapping"):
        device.map_slab(0, DAEMON, "secret")
    with pytest.raises(TimeoutError, match="not synchronized within 1 s"):
        device.wait_until_synchronized(0, 1)
    with pytest.raises(SwapDeviceError, match="is no name"):
        SwapDevice("Swap!", Journal(tmp_path / "x.json"), host.as_host)


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", {"version": 2}, {"version": 1, "layout": {}}, {"version": 1, "layout": 1, "slabs": 2}]
)
def test_a_journal_that_is_none_is_said(tmp_path: Path, content: str | dict[str, object]) -> None:
    file = tmp_path / "swap.json"
    file.write_text(content if isinstance(content, str) else json.dumps({"boot_id": boot_id(), **content}))

    with pytest.raises(JournalError, match=r"swap\.json"):
        Journal(file).read()


def test_a_journal_of_another_boot_is_forgotten(tmp_path: Path) -> None:
    _, device = host_and_device(tmp_path)
    device.attach(DISK, SLAB)
    file = tmp_path / "swap.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"boot_id": "another"}))

    assert Journal(file).read() is None


class MortalJournal(Journal):
    """A process that was killed writes no journal."""

    def __init__(self, file: Path, host: SwapHost) -> None:
        super().__init__(file)
        self._host = host

    def write(self, record: Record) -> None:
        self._host.act()
        super().write(record)

    def remove(self) -> None:
        self._host.act()
        super().remove()


class Kills(RuleBasedStateMachine):
    """Every act may be the last one of the process."""

    @initialize()
    def begin(self) -> None:
        self.directory = TemporaryDirectory()
        self.host = SwapHost(DISK_BYTES)
        self.host.export_bytes = SLAB
        self.device = self.started()
        self.down = False

    def started(self) -> SwapDevice:
        return SwapDevice("swap", MortalJournal(Path(self.directory.name) / "swap.json", self.host), self.host.as_host)

    def attempt(self, act, acts_left: int | None) -> None:
        """Carry something out; the process may be killed on the way."""
        self.host.acts_left = acts_left
        try:
            act()
        except KilledError:
            self.down = True
        except (SwapDeviceError, RefusedError):
            pass
        self.host.acts_left = None

    ACTS_LEFT = st.none() | st.integers(0, 25)

    @precondition(lambda self: not self.down)
    @rule(acts_left=ACTS_LEFT)
    def attach(self, acts_left: int | None) -> None:
        self.attempt(lambda: self.device.attach(DISK, SLAB), acts_left)

    @precondition(lambda self: not self.down)
    @rule(acts_left=ACTS_LEFT)
    def detach(self, acts_left: int | None) -> None:
        self.attempt(self.device.detach, acts_left)

    @precondition(lambda self: not self.down)
    @rule(acts_left=ACTS_LEFT, number=st.integers(0, 1), export=st.sampled_from(["secret", "secret", "wrong"]))
    def map_slab(self, acts_left: int | None, number: int, export: str) -> None:
        self.attempt(lambda: self.device.map_slab(number, DAEMON, export), acts_left)

    @precondition(lambda self: not self.down and self.device.record is not None)
    @rule(acts_left=ACTS_LEFT, evicted=st.none() | st.integers(0, 1))
    def advance(self, acts_left: int | None, evicted: int | None) -> None:
        if evicted is not None:
            self.device.apply(evicted, Evicted(self.device.slab(evicted).attempt))
        self.attempt(self.device.advance, acts_left)

    @rule(number=st.integers(0, 1))
    def synchronize(self, number: int) -> None:
        self.host.synchronized.add(f"swap-{number}")

    @precondition(lambda self: self.host.nbd)
    @rule(data=st.data())
    def daemon_dies(self, data: st.DataObject) -> None:
        self.host.dead_nbd.add(data.draw(st.sampled_from(sorted(self.host.nbd))))

    @precondition(lambda self: self.down)
    @rule(acts_left=ACTS_LEFT)
    def start_again(self, acts_left: int | None) -> None:
        self.device = self.started()
        self.down = False
        self.attempt(self.device.recover, acts_left)

    @invariant()
    def the_disk_is_below_whatever_is_swapped_to(self) -> None:
        for name, table in self.host.tables.items():
            if name in {"swap-0", "swap-1"}:
                assert f"/dev/mapper/{name}-disk" in table.split()

    @invariant()
    def what_is_recorded_is_there(self) -> None:
        if self.down:
            return
        record = self.device.record
        if record is None:
            assert (self.host.tables, self.host.swapping, self.host.nbd) == ({}, {}, {})
        elif record.attached:
            assert self.host.swapping == {"/dev/mapper/swap": 100}
            in_use = {slab.number for slab in record.slabs if slab.state in {State.MAPPING, State.REMOTE}}
            assert {number for number in (0, 1) if " raid " in self.host.tables[f"swap-{number}"]} >= in_use
            assert {int(identifier.split(":")[1]) for identifier in self.host.nbd.values()} >= in_use

    def teardown(self) -> None:
        if not hasattr(self, "host"):
            return
        if self.down:
            self.start_again(None)
        self.device.detach()
        assert (self.host.tables, self.host.swapping, self.host.nbd) == ({}, {}, {})
        assert list(Path(self.directory.name).iterdir()) == []
        self.directory.cleanup()


TestKills = Kills.TestCase
