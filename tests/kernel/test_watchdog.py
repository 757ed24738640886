"""The watchdog's process against real groups whose agent is killed, stopped, or ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from services.agent.host_lock import HostLock, exec_lock
from services.agent.memory.reserve_store import FileReserveStore
from services.agent.ports import Reserve
from services.agent.state_files import FoundValues, StateDirectory
from services.agent.watchdog.group import Group
from services.agent.watchdog.process import WatchdogOptions, WatchdogProcess
from tests.support import stand_in_agent
from tests.support.cgroup_lab import CgroupLab, wait_until
from tests.support.memory_lab import MIB, grow, limit_files, memory_directory, stays_so

pytestmark = pytest.mark.root
APP = "lab"
SLOW_S = 300.0
SYSTEM_CALLS = """
import json, mmap, os, sys, time
failures, block = [], bytes(1 << 20)
source, target = os.open({source!r}, os.O_RDONLY), os.open({target!r}, os.O_RDWR | os.O_CREAT, 0o600)
held = mmap.mmap(-1, {mib} << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
view = memoryview(held)
print("ready", flush=True)
sys.stdin.readline()
for at in range({mib}):
    try:
        if {kind!r} == "read":
            done = os.preadv(source, [view[at << 20 : (at + 1) << 20]], 0)
        else:
            done = os.write(target, block)
        if done != 1 << 20:
            failures.append(f"{{done}} bytes at {{at}} MiB")
    except OSError as error:
        failures.append(f"{{error.strerror}} at {{at}} MiB")
    time.sleep(0.006)
print(json.dumps(failures), flush=True)
sys.stdin.readline()
"""
"""Fills memory through system calls, 1 MiB at a time, and says which of them failed."""


def state_letter(pid: int) -> str:
    """R, S, D, T, Z, as in /proc/<pid>/stat; X if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "X"


def open_files(pid: int) -> list[str]:
    """Of a process, by name."""
    found = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found.append(str(file.readlink()))
    return found


class StandIn:
    """An agent's process, and the watchdog that it has started."""

    def __init__(self, lab: CgroupLab, directory: Path) -> None:
        self._lab = lab
        self.directory = directory
        self.state = StateDirectory(directory / lab.root)
        self.book = FileReserveStore(self.state.reserves)
        # Longer than a busy machine stands still; one with version 2 is emulated here, and is slower still
        self.silence_s = 5.0 if lab.layout.version == 1 else 15.0
        self.options = WatchdogOptions(exec_lock(directory, lab.root), 0.5, self.silence_s)
        self._processes: list[ForkProcess] = []
        self.watchdogs: list[int] = []

    def start(self, *groups, deadline_s: float = 0.5) -> ForkProcess:
        """A fork of this process, which has imported everything: in the emulated machine that takes seconds."""
        context = multiprocessing.get_context("fork")
        options = replace(self.options, oom_wait_timeout_s=deadline_s)
        receiver, sender = context.Pipe(duplex=False)
        directories = [group.directory for group in groups]
        arguments = (sender, self.directory, self._lab.root, directories, options)
        process = context.Process(target=stand_in_agent.main, args=arguments, daemon=True)
        process.start()
        self._processes.append(process)
        sender.close()
        self.watchdogs.append(receiver.recv())
        receiver.close()
        return process

    @property
    def watchdog(self) -> int:
        return self.watchdogs[-1]

    def reports(self):
        agent = WatchdogProcess(self.state, self.options)
        taken = agent.take_reports()
        agent.forget_reports()
        return taken

    def reports_until(self, enough):
        """All until then: what it does is done, and seen, before it is reported."""
        told = []
        wait_until(lambda: told.extend(self.reports()) or enough(told), what="its reports")
        return told

    def watches(self, directory: Path) -> bool:
        """Whether the watchdog has files of a group open: it acts, then, instead of the agent."""
        return any(link.startswith(f"{directory}/") for link in open_files(self.watchdog))

    def errors(self) -> str:
        return self.state.watchdog_errors.read_text()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
            process.close()
        for pid in self.watchdogs:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def agent(lab, tmp_path):
    stand_in = StandIn(lab, tmp_path)
    yield stand_in
    stand_in.close()


def limit_bytes(lab, group) -> int:
    file = "memory.limit_in_bytes" if lab.layout.version == 1 else "memory.max"
    return int((memory_directory(lab, group) / file).read_text())


def waits(lab, group) -> bool:
    handle = lab.handle(group)
    try:
        return handle.read_memory().paused
    finally:
        handle.close()


def test_after_kill_9_growth_is_paid_out_of_the_reserve(lab, agent):
    group = lab.group(limit_bytes=64 * MIB)
    process = agent.start(group, deadline_s=SLOW_S)
    agent.book.give(APP, 400 * MIB)
    child = grow(lab, group, 200, stay_s=1000)
    wait_until(lambda: waits(lab, group), within_s=SLOW_S, what="the wait")
    process.kill()
    assert child.stdout.read(5) == "grown"

    reports = []

    def all_is_told() -> bool:
        """It may be in the middle of one more grant: first spent, then raised, then reported."""
        reports.extend(agent.reports())
        spent = agent.book.read()[APP].used_bytes
        told = sum(report.limit_after_bytes - report.limit_before_bytes for report in reports)
        return limit_bytes(lab, group) == 64 * MIB + spent == 64 * MIB + told

    wait_until(all_is_told, what="spent = raised = told")
    assert {(report.key, report.app, report.granted) for report in reports} == {(lab.found(group).key, APP, True)}
    assert agent.reports() == []
    assert agent.errors() == ""


@pytest.mark.parametrize("kind", ["tmpfs", "read"])
def test_after_kill_9_a_growing_container_sees_no_failed_system_call(lab, agent, kind, tmp_path):
    """By 256 MiB at a tenth of what memory gives, from 64 MiB; at its limit, version 1 answers ENOMEM and EFAULT."""
    group = lab.group(limit_bytes=64 * MIB)
    process = agent.start(group, deadline_s=SLOW_S)
    agent.book.give(APP, 800 * MIB)
    source, target = tmp_path / "source", Path(f"/dev/shm/turnbuckle-watchdog-{os.getpid()}")
    source.write_bytes(bytes(MIB))
    child = lab.start(group, SYSTEM_CALLS.format(kind=kind, source=str(source), target=str(target), mib=256))
    assert child.stdout.readline() == "ready\n"
    process.kill()
    wait_until(lambda: agent.watches(memory_directory(lab, group)), within_s=SLOW_S, what="the watchdog in charge")
    child.stdin.write("\n")
    child.stdin.flush()
    failures = json.loads(child.stdout.readline())
    target.unlink(missing_ok=True)

    assert failures == []
    assert limit_bytes(lab, group) > 256 * MIB
    assert agent.errors() == ""


def test_waking_lets_sleepers_try_again_and_leaves_the_limit(lab):
    """Whom a raise did not wake is hard to make; who sleeps because a group above is full is as deaf to it."""
    if lab.layout.version != 1:
        pytest.skip("version 2 slows tasks down, none sleeps")
    group = lab.group(limit_bytes=256 * MIB)
    directory = memory_directory(lab, group)
    above = directory.parent
    (above / "memory.oom_control").write_text("1")
    (above / "memory.limit_in_bytes").write_text(str(32 * MIB))
    found = FoundValues("key", APP, "id", 1, {"memory": str(directory)}, 0, guarded=True)
    watched = Group(found, None, 0.0)
    try:
        grow(lab, group, 200)
        wait_until(lambda: watched.read(time.monotonic()).blocked, within_s=SLOW_S, what="the wait")
        assert not watched.read(time.monotonic()).near
        refused = int((above / "memory.failcnt").read_text())
        watched.wake()
        wait_until(lambda: int((above / "memory.failcnt").read_text()) > refused, what="another try")
        assert limit_bytes(lab, group) == 256 * MIB
    finally:
        watched.close()
        (above / "memory.oom_control").write_text("0")


@pytest.mark.machine
def test_after_kill_9_without_a_reserve_the_kernel_kills_after_the_deadline(lab, agent):
    groups = [lab.group(name, limit_bytes=32 * MIB) for name in ("a", "b", "c")]
    idle = lab.group("idle", limit_bytes=32 * MIB)
    process = agent.start(*groups, idle)
    sleeper = lab.hold(idle, 10 * MIB)
    children = [grow(lab, group, 60, stay_s=1000) for group in groups]
    wait_until(lambda: all(waits(lab, group) for group in groups), within_s=SLOW_S, what="the waits")
    killed_s = time.monotonic()
    process.kill()
    assert [child.wait(timeout=SLOW_S) for child in children] == [-signal.SIGKILL] * 3
    assert time.monotonic() - killed_s > 0.4
    assert sleeper.poll() is None
    keys = {lab.found(group).key for group in groups}
    reports = agent.reports_until(lambda told: {report.key for report in told} >= keys)
    assert {report.key for report in reports} == keys
    assert not any(report.granted for report in reports)
    assert all(report.paused_us >= 500_000 for report in reports)
    assert agent.errors() == ""


def test_what_is_left_of_a_reserve_is_granted_and_then_the_deadline_counts(lab, agent):
    group = lab.group(limit_bytes=32 * MIB)
    process = agent.start(group)
    agent.book.give(APP, 40 * MIB)
    child = grow(lab, group, 200, stay_s=1000)
    wait_until(lambda: waits(lab, group), within_s=SLOW_S, what="the wait")
    process.kill()
    assert child.wait(timeout=SLOW_S) == -signal.SIGKILL
    assert agent.book.read()[APP] == Reserve(40 * MIB, 40 * MIB)
    assert limit_bytes(lab, group) == 72 * MIB
    granted = [report.granted for report in agent.reports_until(lambda told: told and not told[-1].granted)]
    assert granted == [True] * (len(granted) - 1) + [False]


def test_a_stopped_agent_is_stood_in_for_until_it_goes_on(lab, agent):
    group = lab.group(limit_bytes=64 * MIB)
    process = agent.start(group, deadline_s=SLOW_S)
    agent.book.give(APP, 200 * MIB)
    os.kill(process.pid, signal.SIGSTOP)
    # Not before: version 2 slows tasks down, and within the silence one has crawled on to its limit, and is killed.
    wait_until(lambda: agent.watches(memory_directory(lab, group)), within_s=SLOW_S, what="the watchdog in charge")
    child = grow(lab, group, 120, stay_s=1000)
    assert child.stdout.read(5) == "grown"
    assert agent.book.read()[APP].used_bytes >= 56 * MIB

    os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: not agent.watches(memory_directory(lab, group)), within_s=SLOW_S, what="the agent in charge")
    assert state_letter(agent.watchdog) not in "XZ"
    held = limit_bytes(lab, group)
    again = grow(lab, group, 200, stay_s=1000)
    wait_until(lambda: waits(lab, group), within_s=SLOW_S, what="the wait")
    lives_s = agent.silence_s + 0.5
    assert stays_so(lambda: limit_bytes(lab, group) == held, lives_s), "the agent lives: its watchdog does nothing"
    again.kill()
    assert process.is_alive()


def test_while_the_agent_lives_the_watchdog_does_nothing_at_all(lab, agent):
    group = lab.group(limit_bytes=32 * MIB)
    agent.start(group, deadline_s=0.1)
    agent.book.give(APP, 100 * MIB)
    child = grow(lab, group, 60, stay_s=1000)
    wait_until(lambda: waits(lab, group), within_s=SLOW_S, what="the wait")
    # Version 2 slows tasks down, and does not stop them: after some seconds one has crawled on to its limit.
    for_s = agent.silence_s + 0.5 if lab.layout.version == 1 else 0.7
    assert stays_so(lambda: waits(lab, group) and child.poll() is None, for_s)
    assert agent.reports() == []


def test_told_bye_it_ends_at_once(lab, agent):
    process = agent.start(lab.group(limit_bytes=32 * MIB))
    assert state_letter(agent.watchdog) != "X"
    (agent.directory / "bye").touch()
    process.join(SLOW_S)
    assert process.exitcode == 0
    assert state_letter(agent.watchdog) == "X"
    assert agent.errors() == ""


def test_it_ends_when_its_agent_is_dead_and_nothing_is_guarded(agent):
    process = agent.start()
    process.kill()
    wait_until(lambda: state_letter(agent.watchdog) == "X", within_s=SLOW_S, what="its end")


def test_it_ends_when_another_agent_has_taken_over(lab, agent):
    group = lab.group(limit_bytes=32 * MIB)
    process = agent.start(group, deadline_s=SLOW_S)
    process.kill()
    process.join()
    assert stays_so(lambda: state_letter(agent.watchdog) != "X", 0.5), "something is guarded: it stays"
    lock = HostLock(agent.options.lock, node="second", what="groups", remedy="none")
    wait_until(lambda: state_letter(agent.watchdog) == "X", within_s=SLOW_S, what="its end")
    lock.release()
    agent.book.give(APP, 100 * MIB)
    child = grow(lab, group, 60, stay_s=1000)
    wait_until(lambda: waits(lab, group), within_s=SLOW_S, what="the wait")
    assert child.poll() is None
    assert limit_files(lab, group)["memory.limit_in_bytes" if lab.layout.version == 1 else "memory.max"] == str(
        32 * MIB
    )


def test_signals_to_its_whole_group_do_not_end_it_and_a_killed_one_is_started_again(lab, agent):
    agent.start(lab.group(limit_bytes=32 * MIB))
    os.kill(agent.watchdog, signal.SIGTERM)
    assert stays_so(lambda: state_letter(agent.watchdog) not in "XZ", 0.5)
    os.kill(agent.watchdog, signal.SIGKILL)

    def successors() -> list[int]:
        wanted = f"services.agent.watchdog.supervision\0{agent.state.path}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if wanted in path.read_bytes():
                    found.append(int(path.parts[2]))
        return [pid for pid in found if pid != agent.watchdog]

    wait_until(successors, within_s=SLOW_S, what="another watchdog")
    agent.watchdogs += successors()
