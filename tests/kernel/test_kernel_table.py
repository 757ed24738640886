"""The kernel's table of control groups shows what its files do, for real groups of this host's version."""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services._host.cgroup_snapshot import MEMORY_COLUMN, Counters, WriteOutcome
from services.agent.cgroup.host import CgroupHost
from services.agent.cgroup.open import open_host
from tests.support.cgroup_lab import BURN, CgroupLab, wait_until

pytestmark = pytest.mark.root
KERNEL = Path(__file__).resolve().parents[2] / "kernel"
MIB = 1 << 20
GROUPS = 100
CROWD = 400
"""A read of an iterator returns 32 KiB, 315 rows, and cannot be continued."""


@pytest.fixture(scope="module")
def programs() -> Path:
    """The directory of the loader and its objects."""
    made = subprocess.run(["make", "-C", str(KERNEL)], capture_output=True, text=True, check=False)
    if "kernel: needs" in made.stderr or "kernel: no " in made.stderr:
        pytest.skip(made.stderr.strip().splitlines()[0])
    assert made.returncode == 0, made.stderr
    return KERNEL / "build"


@pytest.fixture
def table(lab: CgroupLab, programs: Path) -> Iterator[CgroupHost]:
    """A host that reads by the table."""
    host = open_host(lab.layout, None, programs)
    if not host.telemetry_source.startswith("bpf"):
        reason = host.telemetry_note
        host.close()
        pytest.skip(f"this kernel does not let its programs be loaded: {reason}")
    yield host
    assert host.telemetry_source.startswith("bpf"), host.telemetry_note
    host.close()


@pytest.fixture
def crowd(lab: CgroupLab) -> Iterator[None]:
    """Groups that are nobody's."""
    directories = {path for path in lab.layout.directories(lab.group("crowd").directory).values() if path}
    children = [Path(directory, f"nobodys{index}") for directory in directories for index in range(CROWD)]
    for child in children:
        child.mkdir(exist_ok=True)
    yield
    for child in children:
        child.rmdir()


@pytest.mark.usefixtures("crowd")
def test_the_table_shows_what_the_files_do(lab: CgroupLab, table: CgroupHost) -> None:
    groups = [
        lab.group(f"row{index}", 2_000 + 100 * index if index % 3 else None, (32 + index) * MIB if index % 2 else None)
        for index in range(GROUPS)
    ]
    handles = [lab.handle(group) for group in groups]
    burners = [lab.start(groups[index], BURN) for index in (0, 1, 2)]
    for index in (3, 6, 9):  # without a quota: they shall get there soon
        lab.hold(groups[index], index * MIB)
    wait_until(lambda: handles[1].read().nr_throttled >= 3, what="throttling")
    # Beside other work the burner may not run for a whole period: then none is under way.
    ends_ns: list[tuple[int, int]] = []

    def period() -> int:
        began_ns = time.monotonic_ns()
        ends_ns.append((began_ns, int(table.read(handles).kernel.boundary_ns[1])))
        return ends_ns[-1][1]

    wait_until(period, what="a period")
    began_ns, end_ns = ends_ns[-1]
    assert began_ns - 1e9 < end_ns < time.monotonic_ns() + 1e8 + 1e6, "the end of the period under way"
    for burner in burners:
        burner.kill()
        burner.wait()
    wait_until(lambda: table.read(handles).kernel.boundary_ns.max() == 0, what="idleness")

    def files_now() -> np.ndarray:
        return np.array([handle.read() for handle in handles])

    # A processor may give back at any time what it has charged a group for in advance: then all of it is read again.
    seen = []
    wait_until(
        lambda: seen.append((files_now(), table.read(handles), files_now())) or (seen[-1][0] == seen[-1][2]).all(),
        what="counters that stand still",
    )
    files, readings, _ = seen[-1]
    assert readings.vanished == ()
    exact = [column for column, name in enumerate(Counters._fields) if name != "usage_us"]
    np.testing.assert_array_equal(readings.counters[:, exact], files[:, exact])
    assert (files[3:10:3, MEMORY_COLUMN] >= np.array([3, 6, 9]) * MIB).all()
    # Two accounts of the scheduler's: time of the group, and time of its tasks.
    usage = Counters._fields.index("usage_us")
    np.testing.assert_allclose(readings.counters[:, usage], files[:, usage], rtol=0.05, atol=5_000)
    limits = [tuple(handle.read_limits()) for handle in handles]
    assert list(map(tuple, readings.kernel.limits[:, :2].tolist())) == limits
    assert not readings.kernel.guarded.any()


def test_a_vanished_group_is_a_row_that_is_gone(lab: CgroupLab, table: CgroupHost) -> None:
    groups = [lab.group(f"row{index}", 10_000) for index in range(3)]
    handles = [lab.handle(group) for group in groups]
    assert table.read(handles).vanished == ()
    wait_until(groups[1].remove, what="removal")
    readings = table.read(handles)
    assert readings.vanished == (1,)
    assert readings.without_vanished().kernel.limits[:, 0].tolist() == [10_000, 10_000]


def test_a_group_is_seen_throttled_before_the_kernel_counts_it(lab: CgroupLab, table: CgroupHost) -> None:
    """And no more once it is let go: a write of its quota refills the pool in the middle of the period."""
    busy, still = lab.group("busy", 10_000), lab.group("still", 10_000)
    handles = [lab.handle(busy), lab.handle(still)]
    assert table.read(handles).kernel.throttled.tolist() == [False, False]
    assert table.throttle_snapshot(handles[:1]) is None, "not those that were read last"
    lab.start(busy, BURN)
    seen: list[tuple[int, int]] = []

    def seen_before_it_counted() -> bool:
        before, look, after = handles[0].read(), table.throttle_snapshot(handles), handles[0].read()
        assert not look.throttled[1]
        if look.throttled[0] and before.nr_periods == after.nr_periods:
            assert (look.nr_periods[0], look.quota_us[0]) == (before.nr_periods, 10_000)
            seen.append((before.nr_periods, before.nr_throttled))
        ended = dict(seen).get(after.nr_periods - 1)
        return ended is not None and after.nr_throttled == ended + 1

    wait_until(seen_before_it_counted, what="a period that was seen throttled and counted afterwards")
    wait_until(lambda: table.throttle_snapshot(handles).throttled[0], what="throttling")
    # More than one process can use up until it is looked at, however late
    assert handles[0].write_quota(150_000) is WriteOutcome.WRITTEN
    assert not table.throttle_snapshot(handles).throttled[0]


@pytest.mark.machine
def test_a_bell_rings_when_a_group_has_used_up_its_quota_and_not_before(lab: CgroupLab, table: CgroupHost) -> None:
    """Once a period: whoever has answered is not called again for what he has seen."""
    ring = table.throttle_notifier
    if ring is None:
        pytest.skip(f"this kernel does not tell of throttling: {table.telemetry_note}")

    def rings(within_s: float) -> bool:
        return bool(select.select([ring], [], [], within_s)[0])

    calm, busy = lab.group("calm"), lab.group("busy", 10_000)
    handles = [lab.handle(calm), lab.handle(busy)]
    table.read(handles)
    lab.start(calm, BURN)
    ring.drain()
    assert not rings(0.5), "nobody has a quota who works"
    lab.start(busy, BURN)
    seen = 0

    def answered_and_seen() -> bool:
        nonlocal seen
        assert rings(60.0)
        before = table.throttle_snapshot(handles).nr_periods[1]
        ring.drain()
        look = table.throttle_snapshot(handles)
        assert not look.throttled[0]
        seen += bool(look.throttled[1]) and before == look.nr_periods[1]
        return seen >= 5

    periods, began_s = handles[1].read().nr_periods, time.monotonic()
    wait_until(answered_and_seen, what="five rings of periods that were throttled then")
    took_s = time.monotonic() - began_s
    ended = handles[1].read().nr_periods - periods
    assert ended >= 4
    # Five times as long: where a hypervisor takes the processors away, a whole period may pass in which nothing runs.
    assert took_s < 5 * 0.1 * (ended + 2), "and it waits for the next period"
