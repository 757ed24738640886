"""An OOM is told before the kernel decides, and whom it chose: run by tests/lab/test_kernel_telemetry.py."""

from __future__ import annotations

import mmap
import os
import signal
import time

from tests.lab.vm.guest_kernel import Group, Loader, Oom, enable_controllers, figure

MIB = 1 << 20
LIMIT_BYTES = 24 * MIB
DECISION, VICTIM = 1, 2


def grow() -> None:
    """Until something ends it."""
    held = mmap.mmap(-1, 256 * MIB)
    for page in range(0, len(held), mmap.PAGESIZE):
        held[page] = 1


def killed_in(group: Group, loader: Loader) -> list[Oom]:
    """What was told of a task that grows in the group, in the order of time."""
    loader.ooms.clear()
    task = group.add(grow)
    group.let_go()
    _, status = os.waitpid(task, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    group.tasks.clear()
    deadline = time.monotonic() + 60
    while {oom.kind for oom in loader.ooms} != {DECISION, VICTIM}:
        assert loader.receive(60.0) is not None
        assert time.monotonic() < deadline
    told = sorted(loader.ooms, key=lambda oom: oom.time_ns)
    assert [oom.kind for oom in told] == [DECISION, VICTIM]
    assert (told[0].pid, told[1].pid) == (0, task)
    return told


def main() -> None:
    enable_controllers()
    loader = Loader("--interval-ms", "20")  # as the agent has it: what it gathers is not lost
    assert (loader.status["decisions"], loader.status["victims"]) == ("ok", "ok")
    limited = Group("limited")
    limited.write("memory.max", str(LIMIT_BYTES))
    decision, victim = killed_in(limited, loader)
    assert (decision.id, victim.id) == (limited.id, limited.id)
    assert (decision.limit_bytes, victim.limit_bytes) == (LIMIT_BYTES, LIMIT_BYTES)
    # Charges of other CPUs stand in stocks of up to 64 pages each.
    assert LIMIT_BYTES - MIB <= decision.memory_bytes <= LIMIT_BYTES
    assert limited.numbers("memory.events")["oom_kill"] == 1
    figure(f"the decision is told {(victim.time_ns - decision.time_ns) / 1e6:.1f} ms before the victim (emulated)")

    # The limit may be that of a group above: the decision is there, the victim below.
    limited.write("cgroup.subtree_control", "+memory")
    below = Group("below", parent=limited.path)
    decision, victim = killed_in(below, loader)
    assert (decision.id, victim.id) == (limited.id, below.id)
    assert (decision.limit_bytes, victim.limit_bytes) == (LIMIT_BYTES, -1)
    below.remove()
    limited.remove()
    assert loader.lost == 0
    assert loader.close() == 0


if __name__ == "__main__":
    main()
