"""Who wrote a CPU quota is known: run by tests/lab/test_kernel_telemetry.py inside the machine.

``kernel``: what the program writes down. ``namespace``: the same with the agent in a namespace of processes.
``agent``: what an agent tells of it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from schemas.containers import ContainerSource
from services._host.bpf.quota_writers import QuotaWriters
from services._host.cgroup_snapshot import QuotaWriter
from services._host.cgroupfs import ManagedCgroup, detect, managed_directory
from services.agent.cgroup.open import open_host
from services.agent.cgroup.simulated import InMemoryReserveStore
from services.agent.memory.records import Drift
from services.agent.ports import FoundContainer
from tests.lab.vm.guest_kernel import BUILD, ROOT, Group, Loader, enable_controllers, figure
from tests.support.agent_node import Node
from tests.support.agent_ticks import tick
from tests.support.limit_orders import send, update

WITHIN_S = 60.0
PR_SET_NAME = 15
MANY = 3000
NOBODY = 65534
LEVELS = 8
"""Names of groups that are kept of a writer."""
VERSION_1 = Path("/run/cpu-version-1")


def by_shell(hand: Group, quota: str, file: Path) -> int:
    """Somebody else's write from a group of theirs, by a shell's `echo`; the process that wrote, which is gone."""
    shell = subprocess.Popen(["sh", "-c", f"echo $$ >{hand.path}/cgroup.procs; echo '{quota}' >{file}"])
    assert shell.wait() == 0
    return shell.pid


def by_fork(hand: Group, work: Callable[[], object]) -> int:
    task = hand.add(work)
    hand.let_go()
    os.waitpid(task, 0)
    hand.tasks.clear()
    return task


def as_command(name: bytes, file: Path) -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, name)
    file.write_text("21000 100000")


def refused(file: Path) -> None:
    with suppress(OSError):
        file.write_text("no quota at all")


def nested(levels: int) -> list[Group]:
    groups = [Group("deep0")]
    while len(groups) < levels:
        groups.append(Group(f"deep{len(groups)}", parent=groups[-1].path))
    return groups


def what_is_written_down(writers: QuotaWriters, target: Group, hand: Group) -> None:
    file = target.path / "cpu.max"
    pid = by_shell(hand, "30000 100000", file)
    assert writers.take(target.id) == QuotaWriter(pid, "sh", hand.path.name)
    assert writers.take(target.id) is None, "taken"
    assert writers.take(hand.id) is None, "not written to"

    by_shell(hand, "40000 100000", file)
    target.write("cpu.max", "20000 100000")
    assert writers.take(target.id) is None, "written by ourselves since"

    pid = by_shell(hand, "30000 100000", file)
    by_fork(hand, lambda: refused(file))
    assert writers.take(target.id) == QuotaWriter(pid, "sh", hand.path.name), "a refused write changes nothing"

    pid = by_fork(hand, lambda: as_command(b"\x1b[2J\xff) (pid 1,", file))
    assert writers.take(target.id) == QuotaWriter(pid, "\\x1b[2J\\xff) (pid 1,", hand.path.name)


def who_looks_needs_no_rights(writers: QuotaWriters, target: Group, hand: Group) -> None:
    pid = by_shell(hand, "30000 100000", target.path / "cpu.max")
    child = os.fork()
    if not child:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os._exit(writers.take(target.id) != QuotaWriter(pid, "sh", hand.path.name))
    assert os.waitpid(child, 0)[1] == 0
    assert writers.take(target.id) is None, "taken"


def whose_group_is_deep_or_gone(writers: QuotaWriters, target: Group) -> None:
    file = target.path / "cpu.max"
    groups = nested(LEVELS + 1)
    for group, cut in ((groups[LEVELS - 1], ""), (groups[LEVELS], ".../")):
        names = [each.path.name for each in groups[: groups.index(group) + 1]][-LEVELS:]
        pid = by_shell(group, "30000 100000", file)
        assert writers.take(target.id) == QuotaWriter(pid, "sh", cut + "/".join(names))
    pid = by_shell(groups[1], "30000 100000", file)
    for group in reversed(groups):
        group.remove()
    assert writers.take(target.id) == QuotaWriter(pid, "sh", f"{groups[0].path.name}/{groups[1].path.name}")

    child = os.fork()
    if not child:
        file.write_text("22000 100000")
        os._exit(0)
    os.waitpid(child, 0)
    writer = writers.take(target.id)
    assert writer is not None
    assert (writer.pid, writer.cgroup) == (child, "/")


def who_writes_without_end_displaces_nobody(writers: QuotaWriters, target: Group, hand: Group) -> None:
    flooded = Group("flooded")
    pid = by_shell(hand, "30000 100000", target.path / "cpu.max")

    def flood() -> None:
        with (flooded.path / "cpu.max").open("wb", buffering=0) as file:
            for number in range(MANY):
                file.write(b"%d 100000" % (20_000 + number % 2))

    began_s = time.monotonic()
    last = by_fork(hand, flood)
    figure(f"{MANY} writes of a quota by somebody else, {(time.monotonic() - began_s) / MANY * 1e6:.0f} us (emulated)")
    assert writers.take(target.id) == QuotaWriter(pid, "sh", hand.path.name)
    writer = writers.take(flooded.id)
    assert writer is not None
    assert writer.pid == last
    flooded.remove()


def version_1(writers: QuotaWriters, hand: Group) -> None:
    """The cpu controller alone, while nobody has it in version 2."""
    VERSION_1.mkdir()
    (ROOT / "cgroup.subtree_control").write_text("-cpu")
    deadline = time.monotonic() + WITHIN_S
    while subprocess.run(["mount", "-t", "cgroup", "-o", "cpu", "cpu", VERSION_1], check=False).returncode:
        assert time.monotonic() < deadline, "the controller stays in version 2"
    target = VERSION_1 / "target"
    target.mkdir()
    group_id = target.stat().st_ino
    for name, value in (("cpu.cfs_quota_us", "25000"), ("cpu.cfs_period_us", "50000")):
        pid = by_shell(hand, value, target / name)
        refusal = subprocess.run(["sh", "-c", f"echo 1 >{target / name}"], stderr=subprocess.DEVNULL, check=False)
        assert refusal.returncode
        assert writers.take(group_id) == QuotaWriter(pid, "sh", hand.path.name), name
        by_shell(hand, value, target / name)
        (target / name).write_text(value)
        assert writers.take(group_id) is None, "written by ourselves since"
    # Whoever is in the root of version 2 is named by their group in the hierarchy of cpu.
    inner = VERSION_1 / "hand"
    inner.mkdir()
    shell = subprocess.Popen(["sh", "-c", f"echo $$ >{inner}/cgroup.procs; echo 30000 >{target}/cpu.cfs_quota_us"])
    assert shell.wait() == 0
    assert writers.take(group_id) == QuotaWriter(shell.pid, "sh", "hand")
    for group in (inner, target):
        group.rmdir()
    subprocess.run(["umount", VERSION_1], check=True)
    VERSION_1.rmdir()
    deadline = time.monotonic() + WITHIN_S
    while "cpu" not in (ROOT / "cgroup.controllers").read_text().split():
        assert time.monotonic() < deadline, "the controller does not come back to version 2"
    enable_controllers()


def kernel() -> None:
    enable_controllers()
    loader = Loader()
    assert loader.status["writers"] == "ok"
    writers = QuotaWriters(loader.writers.pop())
    target, hand = Group("target", 50_000), Group("hand")
    what_is_written_down(writers, target, hand)
    who_looks_needs_no_rights(writers, target, hand)
    whose_group_is_deep_or_gone(writers, target)
    who_writes_without_end_displaces_nobody(writers, target, hand)
    target.remove()
    version_1(writers, hand)
    hand.remove()
    writers.close()
    assert loader.close() == 0


def namespace() -> None:
    """The agent as a process of a container: it, too, is known, and others are numbered as the host does."""
    if os.getpid() != 1:
        command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", __spec__.name, "namespace"]
        subprocess.run(command, check=True)
        return
    enable_controllers()
    loader = Loader()
    writers = QuotaWriters(loader.writers.pop())
    target, hand = Group("target", 50_000), Group("hand")
    inner = by_shell(hand, "30000 100000", target.path / "cpu.max")
    writer = writers.take(target.id)
    assert writer is not None
    assert (writer.comm, writer.cgroup) == ("sh", hand.path.name)
    assert writer.pid > inner
    by_shell(hand, "30000 100000", target.path / "cpu.max")
    target.write("cpu.max", "20000 100000")
    assert writers.take(target.id) is None, "written by ourselves since"
    target.remove()
    hand.remove()
    writers.close()
    assert loader.close() == 0


class Agent:
    """An agent's node with one container."""

    def __init__(self, kernel_directory: Path | None) -> None:
        self.host = open_host(detect(), None, kernel_directory)
        self.node = Node("n1", 7, self.host, InMemoryReserveStore())
        self.directory = managed_directory("shop", "web", "0123456789ab", f"tb-writers-{os.getpid()}")
        self.group = ManagedCgroup.create(detect(), self.directory, None, None)
        self.file = Path(detect().directories(self.directory)["cpu"]) / "cpu.max"
        found = FoundContainer("0123456789ab", "shop", "web", ContainerSource.EXEC, managed_directory=self.directory)
        key = self.node.found(found)
        assert key is not None
        self.key = key
        self.seq = 0

    def order(self, quota_us: int) -> None:
        self.seq += 1
        replies = send(self.node, update({self.key: (quota_us, 0)}, seq=self.seq), time.monotonic_ns())
        self.until(lambda: bool(replies), "the order is settled")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, what
            tick(self.node, time.monotonic_ns(), time.time_ns())
            self.node.poll_decreases(time.monotonic_ns())

    def drift(self) -> Drift:
        """The next one."""
        drifts: list[Drift] = []

        def told() -> bool:
            drifts.extend(self.node.events.take_drifts())
            return bool(drifts)

        self.until(told, "told")
        [drift] = drifts
        return drift

    def end(self) -> None:
        self.node.release_all()
        self.host.close()
        self.group.remove()


def agent() -> None:
    """Put back, replaced by an order, and without the program."""
    enable_controllers()
    hand = Group("hand")
    known = Agent(BUILD)
    known.order(30_000)
    pid = by_shell(hand, "90000 100000", known.file)
    drift = known.drift()
    by = f"by sh (pid {pid}, {hand.path.name})"
    assert drift.reason == f"modified externally {by}: quota 30 ms became 90 ms, put back"
    assert drift.writer == QuotaWriter(pid, "sh", hand.path.name)
    assert known.file.read_text().split() == ["30000", "100000"]
    figure(drift.reason)

    pid = by_shell(hand, "max", known.file)
    known.order(40_000)
    drift = known.drift()
    by = f"by sh (pid {pid}, {hand.path.name})"
    assert (
        drift.reason == f"modified externally {by}: quota 30 ms became no limit, replaced by the limit update of 40 ms"
    )
    for _ in range(20):
        tick(known.node, time.monotonic_ns(), time.time_ns())
    assert known.node.events.take_drifts() == [], "its own writes are not told"
    known.end()

    unknown = Agent(None)
    unknown.order(30_000)
    by_shell(hand, "90000 100000", unknown.file)
    drift = unknown.drift()
    assert drift.reason == "modified externally by an unknown process: quota 30 ms became 90 ms, put back"
    assert drift.writer is None
    unknown.end()
    hand.remove()


if __name__ == "__main__":
    {"kernel": kernel, "namespace": namespace, "agent": agent}[sys.argv[1]]()
