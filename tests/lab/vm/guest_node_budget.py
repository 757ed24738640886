"""Two applications that promise more than a small machine has, with growers in both: run by tests/lab, in a machine.

With an argument only so many MiB are available at first, as processes that no agent manages use the rest.

Agent and two owners are the real code over real control groups, in one process and without a bus: what is looked at is
the kernel, and the machine is small. Prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from schemas.apps import AppSpec
from schemas.containers import ContainerSource
from schemas.limits import LimitReply, LimitUpdate
from schemas.oom import MemoryRequest, OomKind
from services._host.cgroupfs import ManagedCgroup, detect, managed_directory
from services._host.host_load import read_available
from services.agent.backend import node_memory_budget
from services.agent.cgroup.open import open_host
from services.agent.cgroup.simulated import InMemoryReserveStore
from services.agent.memory.records import MemoryEvent, PendingRequest, RequestOutcome
from services.agent.node import NodeOptions
from services.agent.ports import FoundContainer
from services.agent.settings import AgentSettings
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import AllocationCycle
from tests.support.agent_node import Node

MIB, GIB = 1 << 20, 1 << 30
PERIOD_S = 0.1
WITHIN_S = 500.0
AFTER_S = 10.0
"""Watched for so long after the first refusal."""
ROOT = "tb-node-budget"
GROW = """
import sys, time
sys.stdin.readline()
held = []
while True:
    held.append(bytearray(2 << 20))
    time.sleep(0.05)
"""


class Grower:
    """A container with one process, which the kernel may kill; its interpreter is charged elsewhere."""

    def __init__(self, app: str) -> None:
        container_id = app.encode().hex().ljust(12, "0")[:12]
        self.directory = managed_directory(app, "grow", container_id, ROOT)
        self.group = ManagedCgroup.create(detect(), self.directory, None, None)
        self.process = subprocess.Popen([sys.executable, "-S", "-c", GROW], stdin=subprocess.PIPE, text=True)
        Path(f"/proc/{self.process.pid}/oom_score_adj").write_text("0", encoding="ascii")
        assert self.group.add_process(self.process.pid)
        self.found = FoundContainer(container_id, app, "grow", ContainerSource.EXEC, managed_directory=self.directory)
        memory = Path(detect().directories(self.directory)["memory"])
        self.limit_file = memory / "memory.max"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def limit_bytes(self) -> int:
        text = self.limit_file.read_text(encoding="ascii").strip()
        return 0 if text == "max" else int(text)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.group.kill()


class Machine:
    """The agent's node, and an owner of each application."""

    def __init__(self, apps: list[AppSpec]) -> None:
        host = open_host(detect())
        self.budget = node_memory_budget(AgentSettings.load({}), host.memory_bytes)
        options = NodeOptions(memory_budget=self.budget)
        self.book = InMemoryReserveStore()
        self.node = Node("guest", 1, host, self.book, options)
        self.owners: dict[str, AllocationCycle] = {}
        for spec in apps:
            owner = self.owners[spec.name] = AllocationCycle()
            owner.acquire(spec.name, 1, 0)
            owner.set_spec(spec.name, spec)
        self.told: list[MemoryEvent] = []
        self.ticks = 0

    def step_time(self) -> StepTime:
        return StepTime(time.monotonic_ns(), time.time_ns(), reclaim_memory=self.ticks % 50 == 49)

    def period(self) -> None:
        self.ticks += 1
        batches, _ = self.node.sample(time.monotonic_ns(), time.time_ns())
        self.node.read_back(time.monotonic_ns())
        for batch in batches:
            owner = self.owners[batch.app]
            outcome = owner.step([batch], self.step_time())
            self.send(owner, [*outcome.updates, *owner.fences_due(self.step_time())])
        self.follow_up()

    def between(self) -> None:
        now_ns = time.monotonic_ns()
        self.node.poll_decreases(now_ns)
        self.node.take_notifications(now_ns)
        self.node.memory.poll(now_ns)
        self.follow_up()

    def send(self, owner: AllocationCycle, updates: list[LimitUpdate] | tuple[LimitUpdate, ...]) -> None:
        for update in updates:

            def settled(reply: LimitReply, update: LimitUpdate = update) -> None:
                owner.replies.record(reply, update, self.step_time().now_ns)

            self.node.apply(update, time.monotonic_ns(), settled)

    def follow_up(self) -> None:
        self.told += self.node.events.take_events()
        for asked in self.node.events.take_requests():
            self.node.memory.answered(asked, self.ask(asked), time.monotonic_ns())

    def ask(self, asked: PendingRequest) -> RequestOutcome:
        if (why := self.node.budget.grant_refusal()) is not None:
            return RequestOutcome(denial=why.sentence("guest"))
        request = MemoryRequest(
            app=asked.app,
            node="guest",
            incarnation=1,
            container=asked.key,
            wanted_bytes=asked.wanted_bytes,
            usage_bytes=asked.usage_bytes,
            limit_bytes=asked.limit_bytes,
            tasks_blocked=asked.paused,
            time_ns=time.time_ns(),
        )
        owner = self.owners[asked.app]
        reply, outcome = owner.request_memory(request, self.step_time())
        self.send(owner, outcome.updates)
        return self.node.budget.outcome(reply, asked.wanted_bytes)

    def promised_bytes(self, growers: list[Grower]) -> int:
        """As the kernel and the book have it."""
        reserves = sum(reserve.left_bytes for reserve in self.book.read().values())
        return reserves + sum(grower.limit_bytes() for grower in growers)


def kernel_log() -> list[str]:
    """What the kernel said of its killer."""
    said = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if "oom-kill:" in line]


def global_kills() -> list[str]:
    return [line for line in kernel_log() if "global_oom" in line]


def use_up(left_bytes: int) -> None:
    """What no agent manages: a tmpfs is filled until no more is available than this."""
    directory = Path("/run/tb-unmanaged")
    directory.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100%", "tmpfs", str(directory)], check=True)
    with (directory / "used").open("wb") as file:
        while (read_available() or 0) > left_bytes:
            file.write(bytes(4 * MIB))
            file.flush()


def grow(left_bytes: int | None) -> dict[str, Any]:
    Path("/proc/self/oom_score_adj").write_text("-1000", encoding="ascii")
    if left_bytes is not None:
        use_up(left_bytes)
    apps = [AppSpec(name=name, cpu_limit=2, memory_limit=1 * GIB) for name in ("shop", "cache")]
    machine, growers = Machine(apps), [Grower(spec.name) for spec in apps]
    for grower in growers:
        machine.node.found(grower.found)
    begin_s, highest, refused_s = time.monotonic(), 0, None
    next_s, started = begin_s, False
    while (now_s := time.monotonic()) < begin_s + WITHIN_S and not global_kills():
        if now_s >= next_s:
            next_s = now_s + PERIOD_S
            machine.period()
            highest = max(highest, machine.promised_bytes(growers))
            limited = all(grower.limit_bytes() for grower in growers)
            if limited and not started:
                started = True
                for grower in growers:
                    grower.go()
            refusals = [line for line in machine.told if line.kind is OomKind.GRANT_DENIED]
            if refusals and refused_s is None:
                refused_s = now_s
            if refused_s is not None and now_s > refused_s + AFTER_S:
                break
        machine.between()
        time.sleep(0.004)
    alive = [grower.process.poll() is None for grower in growers]
    for grower in growers:
        grower.end()
    return {
        "memory_total": machine.budget.capacity_bytes,
        "allocatable": machine.budget.allocatable_bytes,
        "highest": highest,
        "refusals": [line.reason for line in machine.told if line.kind is OomKind.GRANT_DENIED],
        "kinds": [str(line.kind) for line in machine.told if line.kind is not OomKind.GRANT],
        "kernel": kernel_log(),
        "global": global_kills(),
        "alive": alive,
        "seconds": round(time.monotonic() - begin_s, 1),
    }


if __name__ == "__main__":
    left = int(sys.argv[1]) * MIB if sys.argv[1:] else None
    print(json.dumps(grow(left)))  # noqa: T201 - what the test reads
