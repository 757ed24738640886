"""What the watchdog does to groups of either version, on fake files, with its own loop in a thread."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.agent.cgroup.simulated import NoWatchdog
from services.agent.memory.reserve_store import FileReserveStore
from services.agent.ports import Reserve
from services.agent.state_files import FoundValues, StateDirectory, inode_of
from services.agent.watchdog import group as watchdog_group
from services.agent.watchdog import supervision as module
from services.agent.watchdog.process import WatchdogOptions, WatchdogProcess
from services.agent.watchdog.supervision import Options, Watchdog
from tests.support.cgroup_lab import wait_until
from tests.support.fake_cgroupfs import (
    APP,
    CONTAINER,
    DIRECTORY,
    ID,
    V1_TREE,
    V2_TREE,
    FakeKernel,
    materialise,
    memsw_rule,
    refuse,
)
from tests.support.memory_lab import stays_so

MIB = 1 << 20
SILENCE_S = 0.05


class Bench:
    """A fake group that is guarded, a book, and a watchdog whose agent has just died."""

    def __init__(self, base: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
        materialise(base, V1_TREE if version == 1 else V2_TREE)
        self.kernel = FakeKernel(base, monkeypatch)
        self.state = StateDirectory(base / "state")
        self.state.make()
        self.book = FileReserveStore(self.state.reserves)
        self.memory = base / ("memory" if version == 1 else "unified") / DIRECTORY
        self.found = FoundValues(
            CONTAINER.key, APP, ID, version, {"memory": str(self.memory)}, inode_of(str(self.memory)) or 0, guarded=True
        )
        self.state.save(self.found)
        self.lock = base / "exec.lock"
        read_end, self.write_end = os.pipe()
        self._read_end = read_end
        self.deadline_s = 0.1
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        options = Options(self.state, self.lock, os.getpid(), self.deadline_s, SILENCE_S)
        self.watchdog = Watchdog(options, self._read_end)
        self._thread = threading.Thread(target=self.watchdog.run)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def reports(self):
        """The first that come: they follow what was done."""
        path = self.state.reports
        wait_until(lambda: path.exists() and path.stat().st_size, what="a report")
        agent = WatchdogProcess(self.state, WatchdogOptions(self.lock, 1.0, 1.0))
        taken = agent.take_reports()
        agent.forget_reports()
        return taken

    def close(self) -> None:
        os.write(self.write_end, b"q")
        if self._thread is not None:
            self._thread.join(60)
            assert self.ended
        os.close(self.write_end)
        os.close(self._read_end)


@pytest.fixture
def v1(tmp_path, monkeypatch):
    bench = Bench(tmp_path, 1, monkeypatch)
    bench.kernel.set("memory.usage_in_bytes", str(64 * MIB))
    bench.kernel.set("memory.oom_control", "oom_kill_disable 1\nunder_oom 1\noom_kill 0")
    yield bench
    bench.close()


@pytest.fixture
def v2(tmp_path, monkeypatch):
    bench = Bench(tmp_path, 2, monkeypatch)
    bench.kernel.set("memory.high", str(56 * MIB))
    bench.kernel.set("memory.current", str(57 * MIB))
    yield bench
    bench.close()


def trap(bench) -> str:
    return bench.kernel.path("memory.oom_control").read_text().split()[1]


def test_version_1_is_given_room_out_of_half_of_the_reserve_with_swap_raised_before(v1):
    v1.book.give(APP, 100 * MIB)
    v1.kernel.set("memory.memsw.limit_in_bytes", str(64 * MIB))
    v1.start()
    wait_until(lambda: v1.kernel.value("memory.limit_in_bytes") == str(114 * MIB))
    assert v1.kernel.writes[:2] == [
        ("memory.memsw.limit_in_bytes", str(114 * MIB)),
        ("memory.limit_in_bytes", str(114 * MIB)),
    ]
    [report] = v1.reports()
    assert (report.granted, report.limit_before_bytes, report.limit_after_bytes) == (True, 64 * MIB, 114 * MIB)
    assert v1.book.read()[APP] == Reserve(100 * MIB, 50 * MIB)


def test_who_grows_is_granted_the_rest_before_it_reaches_its_limit(v1):
    """Tasks do not wait, the kernel has refused nothing: 8 MiB before the limit is near enough."""
    v1.kernel.set("memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 0")
    v1.kernel.set("memory.usage_in_bytes", str(40 * MIB))
    v1.book.give(APP, 100 * MIB)
    v1.start()
    wait_until(lambda: v1.kernel.value("memory.limit_in_bytes") == str(114 * MIB))
    v1.kernel.set("memory.usage_in_bytes", str(106 * MIB))
    wait_until(lambda: int(v1.kernel.value("memory.limit_in_bytes")) > 114 * MIB)
    wait_until(lambda: v1.book.read()[APP].used_bytes + 64 * MIB == int(v1.kernel.value("memory.limit_in_bytes")))


def test_nobody_is_granted_more_than_the_greatest_limit_of_a_container(v1):
    v1.book.give(APP, 400 * MIB)
    v1.book.set_container_max(APP, 80 * MIB)
    v1.start()
    wait_until(lambda: v1.kernel.value("memory.limit_in_bytes") == str(80 * MIB))
    v1.kernel.set("memory.usage_in_bytes", str(80 * MIB))
    wait_until(lambda: trap(v1) == "0", what="the kernel's kill back after the deadline")
    assert v1.kernel.value("memory.limit_in_bytes") == str(80 * MIB)
    assert v1.book.read()[APP] == Reserve(400 * MIB, 16 * MIB)


@pytest.mark.parametrize("refusals", [True, False])
def test_reclaim_that_goes_in_circles_at_the_limit_is_granted_but_never_released(v1, refusals, monkeypatch):
    """Seen once under load: a task that thrashed, so that the kernel never said under_oom, was left alone for ever."""
    monkeypatch.setattr(watchdog_group, "THRASHING_S", 0.05)
    is_thrashing, found = watchdog_group.Group.is_thrashing, threading.Event()

    def noted(group, memory, now_s):
        thrashes = is_thrashing(group, memory, now_s)
        if thrashes:
            found.set()
        return thrashes

    monkeypatch.setattr(watchdog_group.Group, "is_thrashing", noted)
    v1.kernel.set("memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 0")
    v1.kernel.set("memory.stat", f"total_inactive_file {20 * MIB}")
    v1.kernel.set("memory.failcnt", "7")
    v1.start()
    assert stays_so(lambda: v1.kernel.writes == [], 4 * v1.deadline_s)
    if refusals:
        v1.kernel.set("memory.failcnt", "8")
        wait_until(found.is_set, what="the refusal seen while there is no reserve")
    assert stays_so(lambda: v1.kernel.writes == [], 2 * v1.deadline_s), "there is no reserve, and nobody to be killed"
    v1.book.give(APP, 32 * MIB)
    assert stays_so(lambda: v1.kernel.writes == [], 2 * v1.deadline_s)
    if refusals:
        v1.kernel.set("memory.failcnt", "9")
        wait_until(lambda: v1.kernel.value("memory.limit_in_bytes") == str(96 * MIB))
        [report] = v1.reports()
        assert report.granted


def test_reclaim_that_goes_in_circles_is_granted_no_more_than_the_greatest_limit_of_a_container(v1, monkeypatch):
    monkeypatch.setattr(watchdog_group.Group, "is_thrashing", lambda *_: True)
    v1.kernel.set("memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 0")
    v1.kernel.set("memory.stat", f"total_inactive_file {20 * MIB}")
    v1.book.give(APP, 400 * MIB)
    v1.book.set_container_max(APP, 64 * MIB)
    v1.start()
    assert stays_so(lambda: v1.kernel.writes == [], 4 * v1.deadline_s)


def test_version_2_is_granted_with_memory_high_where_the_agent_puts_it(v2):
    """Elsewhere an agent that knows of no other one takes it for the kubelet's: 74 MiB less an eighth."""
    high = str(74 * MIB - 74 * MIB // 8)
    v2.book.give(APP, 20 * MIB)
    v2.start()
    wait_until(lambda: v2.kernel.value("memory.high") == high)
    assert v2.kernel.writes == [("memory.max", str(74 * MIB)), ("memory.high", high)]


def test_version_2_is_granted_up_to_the_kubelets_memory_high_and_no_further(v2):
    """Memory QoS: 58 MiB. A grant of 10 MiB, half of the reserve, would make 66 of the guard's 56."""
    v2.found.values["memory.high"] = str(58 * MIB)
    v2.state.save(v2.found)
    v2.book.give(APP, 20 * MIB)
    v2.start()
    wait_until(lambda: v2.kernel.value("memory.high") == str(58 * MIB))
    v2.kernel.set("memory.current", str(59 * MIB))
    assert stays_so(lambda: v2.kernel.value("memory.max") == str(74 * MIB), 4 * v2.deadline_s), "a grant would not help"
    assert v2.kernel.writes == [("memory.max", str(74 * MIB)), ("memory.high", str(58 * MIB))]


def test_version_2_is_released_to_the_kubelets_memory_high(v2):
    v2.found.values["memory.high"] = str(58 * MIB)
    v2.state.save(v2.found)
    v2.start()
    wait_until(lambda: v2.kernel.value("memory.high") == str(58 * MIB))
    [report] = v2.reports()
    assert not report.granted


def test_version_2_without_a_reserve_is_released_after_the_deadline(v2):
    v2.start()
    wait_until(lambda: v2.kernel.value("memory.high") == "max")
    [report] = v2.reports()
    assert (report.granted, report.limit_after_bytes) == (False, 64 * MIB)
    assert report.paused_us >= 100_000


def test_version_1_without_a_reserve_is_released_after_the_deadline(v1):
    v1.start()
    wait_until(lambda: trap(v1) == "0")
    assert [report.granted for report in v1.reports()] == [False]


def test_a_wait_that_the_agent_saw_begin_counts_from_there(v1):
    v1.deadline_s = 60.0
    v1.state.record_oom_wait(CONTAINER.key, time.monotonic_ns() - 59_900_000_000)
    v1.start()
    wait_until(lambda: trap(v1) == "0")
    [report] = v1.reports()
    assert 60_000_000 <= report.paused_us < 70_000_000
    wait_until(lambda: v1.state.oom_wait_since_ns(CONTAINER.key) is None, what="the note gone")


def test_a_wait_is_noted_for_the_next_agent_and_counts_from_the_agents_last_sign(v1):
    v1.deadline_s = 60.0
    start_ns = time.monotonic_ns()
    v1.start()
    wait_until(lambda: v1.state.oom_wait_since_ns(CONTAINER.key) is not None)
    noted_ns = v1.state.oom_wait_since_ns(CONTAINER.key)
    assert start_ns <= noted_ns <= time.monotonic_ns() - SILENCE_S * 1e9
    v1.kernel.set("memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 0")
    v1.kernel.set("memory.usage_in_bytes", str(10 * MIB))
    wait_until(lambda: v1.state.oom_wait_since_ns(CONTAINER.key) is None, what="the note gone")


def test_the_agent_finds_the_note_when_it_is_back(v1):
    v1.deadline_s = 60.0
    v1.start()
    wait_until(lambda: v1.state.oom_wait_since_ns(CONTAINER.key) is not None)
    for _ in range(10):
        os.write(v1.write_end, b".")
        assert not threading.Event().wait(0.01)
    assert v1.state.oom_wait_since_ns(CONTAINER.key) is not None


@pytest.mark.parametrize("text", ["", "12a", str(1 << 62)])
def test_a_note_that_is_torn_or_of_an_earlier_boot_counts_as_none(v1, text):
    (v1.state.path / "waits" / CONTAINER.key).write_text(text)
    assert v1.state.oom_wait_since_ns(CONTAINER.key) is None


def test_a_refused_grant_is_refunded(v1):
    v1.deadline_s = 60.0
    v1.book.give(APP, 40 * MIB)
    v1.kernel.rules.append(refuse("memory.limit_in_bytes", errno.EINVAL))
    v1.start()
    wait_until(lambda: len(v1.kernel.refused) > 1)
    v1.kernel.rules.clear()
    wait_until(lambda: v1.kernel.value("memory.limit_in_bytes") != str(64 * MIB))
    wait_until(lambda: v1.book.read()[APP].used_bytes + 64 * MIB == int(v1.kernel.value("memory.limit_in_bytes")))


@pytest.mark.parametrize("memsw_mib", [512, 1024])
def test_a_wait_below_the_limit_is_woken_and_granted_nothing(v1, memsw_mib):
    """Refused memory before a raise and asleep after it; or a group above is full, which is none of our business."""
    v1.book.give(APP, 100 * MIB)
    v1.kernel.rules.append(memsw_rule)
    v1.kernel.set("memory.memsw.limit_in_bytes", str(memsw_mib * MIB))
    v1.kernel.set("memory.limit_in_bytes", str(512 * MIB))
    v1.kernel.set("memory.usage_in_bytes", str(40 * MIB))
    v1.start()
    wait_until(lambda: len(v1.kernel.writes) >= 4)
    name = "memory.limit_in_bytes" if memsw_mib > 512 else "memory.memsw.limit_in_bytes"
    bytes_now = 512 * MIB
    assert v1.kernel.writes[:4] == [(name, str(bytes_now + 4096)), (name, str(bytes_now))] * 2
    assert v1.book.read()[APP].used_bytes == 0


def test_page_cache_at_memory_high_is_no_wait(v2):
    v2.kernel.set("memory.stat", f"inactive_file {30 * MIB}")
    v2.start()
    assert not threading.Event().wait(0.3)
    assert v2.kernel.writes == []


def test_page_cache_at_the_limit_is_no_wait(v1):
    v1.kernel.set("memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 0")
    v1.kernel.set("memory.stat", f"total_inactive_file {30 * MIB}")
    v1.start()
    assert not threading.Event().wait(0.3)
    assert v1.kernel.writes == []


def test_reclaim_that_spins_at_the_limit_is_a_wait_without_an_event(v1):
    v1.kernel.set("memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 0")
    v1.start()
    wait_until(lambda: trap(v1) == "0", what="the end of the wait")


def test_while_bytes_come_nothing_is_done(v1, monkeypatch):
    """By a clock of the test's own: this machine may stand still between two bytes."""
    now_s = time.monotonic()
    monkeypatch.setattr(
        module, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep, time_ns=time.time_ns)
    )
    v1.book.give(APP, 100 * MIB)
    v1.start()
    for _ in range(20):
        now_s += 0.9 * SILENCE_S
        os.write(v1.write_end, b".")
        wait_until(lambda s=now_s: v1.watchdog._last_beat_s == s, what="the byte heard")
    assert v1.kernel.writes == []
    now_s += 1.1 * SILENCE_S
    wait_until(lambda: v1.kernel.writes, what="silence")


def test_orphaned_it_gives_the_kernel_its_kill_back_and_ends(v2, monkeypatch):
    monkeypatch.setattr(module, "ORPHANED_S", 0.2)
    v2.kernel.set("memory.current", str(10 * MIB))
    v2.start()
    wait_until(lambda: v2.ended)
    assert v2.kernel.writes == [("memory.high", "max")]
    assert v2.kernel.value("memory.max") == str(64 * MIB)


def test_a_trap_that_the_container_came_with_is_left_where_nobody_waits(v1, monkeypatch):
    monkeypatch.setattr(module, "ORPHANED_S", 0.2)
    found = v1.state.load(CONTAINER.key)
    found.values["memory.oom_control"] = "1"
    v1.state.save(found)
    v1.kernel.set("memory.usage_in_bytes", str(10 * MIB))
    v1.start()
    wait_until(lambda: v1.ended)
    assert trap(v1) == "1"


def test_a_group_that_vanishes_is_dropped(v1):
    v1.deadline_s = 60.0
    v1.start()
    wait_until(lambda: v1._thread is not None and not v1.ended)
    shutil.rmtree(v1.memory)
    assert not threading.Event().wait(0.2)
    assert not v1.ended


def test_a_simulated_host_has_one_that_does_nothing():
    nobody = NoWatchdog()
    nobody.start()
    nobody.heartbeat()
    nobody.stop()
    assert nobody.take_reports() == []


def test_one_missed_beat_is_enough_where_a_wait_is_beyond_its_deadline(v1, monkeypatch):
    """Else an agent that freezes just before the deadline would lengthen the wait by the whole silence."""
    monkeypatch.setattr(f"{__name__}.SILENCE_S", 60.0)
    v1.deadline_s = 0.3
    began_s = time.monotonic()
    v1.state.record_oom_wait(CONTAINER.key, time.monotonic_ns())
    v1.start()
    wait_until(lambda: trap(v1) == "0")

    assert 0.3 <= time.monotonic() - began_s < 50
