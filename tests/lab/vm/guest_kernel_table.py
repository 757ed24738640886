"""The table of control groups equals the files: run by tests/lab/test_kernel_telemetry.py inside the machine."""

from __future__ import annotations

import mmap
import time

from tests.lab.vm.guest_kernel import ROOT, Group, Loader, Row, burn, enable_controllers, figure, read_table

MIB = 1 << 20
GROUPS = 400
"""More than fit into one read of an iterator."""
HAS_CPU, HAS_MEMORY = 1, 2


def made(index: int) -> Group:
    """With limits of its own, or some of them, or none."""
    group = Group(f"row{index}", 5000 + 1000 * index if index % 3 else None, period_us=50_000 if index % 5 else 100_000)
    if index % 2:
        group.write("memory.max", str((32 + index) * MIB))
    if index % 4 == 1:
        group.write("memory.high", str((16 + index) * MIB))
    return group


def number(text: str) -> int:
    return -1 if text == "max" else int(text)


def check_row(row: Row, group: Group) -> None:
    stat, events, own = (group.numbers(name) for name in ("cpu.stat", "memory.events", "memory.events.local"))
    quota, period = group.read("cpu.max").split()
    assert row.flags == HAS_CPU | HAS_MEMORY
    assert row.level == 1
    assert row.quota_us == (-1 if quota == "max" else int(quota) * 100_000 // int(period))
    assert row.limit_bytes == number(group.read("memory.max"))
    assert row.high_bytes == number(group.read("memory.high"))
    assert row.memory_bytes == int(group.read("memory.current"))
    assert (row.kills, row.local_kills) == (events["oom_kill"], own["oom_kill"])
    assert (row.nr_periods, row.nr_throttled, row.throttled_us) == tuple(
        stat.get(name, 0) for name in ("nr_periods", "nr_throttled", "throttled_usec")
    )
    # Two accounts of the scheduler's: what a moving task had not been charged yet is in one of them only.
    assert abs(row.usage_us - stat["usage_usec"]) <= 5000 + stat["usage_usec"] // 20


def grow() -> None:
    held = mmap.mmap(-1, 200 * MIB)
    for page in range(0, len(held), mmap.PAGESIZE):
        held[page] = 1


def wait_for_rest(groups: list[Group]) -> None:
    """Until their memory stays what it is: a killed task's is given back after its end, a stopped task stops later."""
    deadline, before = time.monotonic() + 60, [-1]
    while (now := [int(group.read("memory.current")) for group in groups]) != before:
        assert time.monotonic() < deadline
        before = now
        time.sleep(1.0)


def main() -> None:
    enable_controllers()
    groups = {group.id: group for group in (made(index) for index in range(GROUPS))}
    loader = Loader()
    assert loader.status["cgroups"] == "ok"
    link, rows_of = loader.links
    some = list(groups.values())[:4]
    for group in some:
        group.add(burn)
        group.let_go()
    killed = some[3]  # it has no memory.high, at which it would crawl instead
    killed.add(grow)
    killed.let_go()
    deadline = time.monotonic() + 60
    while killed.numbers("memory.events")["oom_kill"] < 1 or some[2].numbers("cpu.stat")["nr_throttled"] < 3:
        assert loader.receive(60.0) is not None
        assert time.monotonic() < deadline
    began_ns = time.monotonic_ns()
    busy = {row.id: row for row in read_table(link, rows_of)}
    assert began_ns - 1e9 < busy[some[2].id].boundary_ns < time.monotonic_ns() + 1e8
    killed.end()  # one of its tasks is gone: whether the one that grew or the one that burns is the kernel's choice
    for group in some:
        group.stop()
    loader.drain()
    wait_for_rest(some)

    began = time.thread_time()
    rows = read_table(link, rows_of)
    spent_s = time.thread_time() - began
    assert (rows[0].id, rows[0].level) == (ROOT.stat().st_ino, 0)
    found = {row.id: row for row in rows}
    assert found.keys() >= groups.keys()
    assert len(found) == len(rows)
    for key, group in groups.items():
        check_row(found[key], group)
    assert found[killed.id].kills == 1
    assert all(found[group.id].boundary_ns == 0 for group in groups.values()), "idle"
    figure(f"{len(rows)} rows, {spent_s / len(rows) * 1e6:.0f} us each (emulated)")
    for group in groups.values():
        group.remove()
    assert read_table(link, rows_of)[0].id == rows[0].id
    assert loader.close() == 0


if __name__ == "__main__":
    main()
