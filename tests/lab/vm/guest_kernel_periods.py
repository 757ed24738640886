"""Every CFS period is reported once and exactly: run by tests/lab/test_kernel_telemetry.py inside the machine.

The truth is what the scheduler adds to the sum_exec_runtime of a group's tasks, summed up by a program of the test
(kernel/test/periods.bpf.c) and read when the period ends, as the record itself is.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from functools import partial
from typing import NamedTuple

from tests.lab.vm.guest_kernel import BUILD, Group, Loader, Period, burn, enable_controllers, figure

MS = 1_000_000
PERIODS = 1_100
TORN = 0.02
"""Emulated, a CPU may stand still for long between two lines of the scheduler, in the middle of charging what has run:
then one of the two accounts has it in this period and the other one in the next. So much of them may be like that."""


PAID_BACK = 10
"""Periods after which an idle group is silent at the latest: two, and as many as pay back what its tasks used beyond
the quota. That is more where an emulated CPU stands still. `Loader.drain` has waited for the silence."""


class Case(NamedTuple):
    """A load."""

    name: str
    quota_ms: int
    tasks: int
    burst_ms: float = 0
    pause_ms: float = 0


CASES = (
    Case("one", 10, 1),
    Case("four", 60, 4),
    Case("four-little", 20, 4),
    Case("four-in-bursts", 60, 4, 5, 30),
    Case("one-in-bursts", 30, 1, 8, 20),
    Case("rarely", 10, 1, 6, 40),
    Case("often", 20, 1, 1, 20),
    Case("two-in-short-bursts", 15, 2, 1, 9),
    Case("written", 15, 1),
)


WRITTEN_MS = (15, 40, 40, 40, 12, 30, 30)
"""Each write refills the quota, the same value too: a period of which the quota's account knows only a part."""


class Accounts(NamedTuple):
    """Of one group: what was used by the quota's account and by the tasks', period by period."""

    used_ns: list[int]
    truth_ns: list[int]


def accounts(records: list[Period], truths: dict[tuple[int, int], int]) -> Accounts:
    used, truth = [], []
    for before, record in itertools.pairwise(records):
        assert record.nr_periods > before.nr_periods, "reported twice"
        assert record.time_ns > before.time_ns
        used.append(record.quota_ns - record.unused_ns)
        truth.append(truths[record.id, record.nr_periods] - truths[before.id, before.nr_periods])
    return Accounts(used, truth)


def check_each(name: str, found: Accounts) -> int:
    """How many differ by more than 1 ms and are made good by their neighbour; no others may."""
    errors = [used - truth for used, truth in zip(*found, strict=True)]
    far = [index for index, error in enumerate(errors) if abs(error) > MS]
    for index in far:
        beside = [errors[index] + errors[other] for other in (index - 1, index + 1) if 0 <= other < len(errors)]
        assert min(map(abs, beside)) <= MS, f"{name}: {errors[max(0, index - 2) : index + 3]} ns at {index}"
    return len(far)


def check_whole(group: Group, records: list[Period], found: Accounts, before_us: int) -> None:
    """Against the kernel's own files, over all of it."""
    stat = group.numbers("cpu.stat")
    last = records[-1]
    assert (last.nr_periods, last.nr_throttled) == (stat["nr_periods"], stat["nr_throttled"])
    assert last.throttled_ns // 1000 == stat["throttled_usec"]
    spent_us = stat["usage_usec"] - before_us
    assert abs(sum(found.used_ns) // 1000 - spent_us) <= 1000, f"{group.name}: {found.used_ns}, {spent_us}"
    # The scheduler's time of a group is a little more than its tasks': it also has some of what choosing the next task
    # takes, which is long where CPUs are emulated.
    assert abs((last.usage_ns - records[0].usage_ns) // 1000 - spent_us) <= 1000 + spent_us // 20


def run(ours: Loader, truth: Loader, groups: dict[int, Group]) -> int:
    """Let the tasks burn until there are enough periods; when they stood still, as the records tell time."""
    for group in groups.values():
        group.let_go()
    written = next(group for group in groups.values() if group.name == "written")
    deadline = time.monotonic() + 300
    quotas = dict(zip(range(PERIODS // 8, PERIODS, PERIODS // 8), WRITTEN_MS, strict=False))
    while len(ours.periods) < PERIODS + 2 * len(groups):
        assert ours.receive(60.0) is not None
        assert time.monotonic() < deadline
        while quotas and len(ours.periods) > min(quotas):
            written.write("cpu.max", f"{quotas.pop(min(quotas))}000 100000")
    for group in groups.values():
        group.stop()
    stopped_ns = time.monotonic_ns()
    ours.drain()
    truth.drain()
    return stopped_ns


def prepared(*loaders: Loader) -> dict[int, Group]:
    """The groups by id, with tasks that wait; coming there has begun their first period."""
    groups: dict[int, Group] = {}
    for case in CASES:
        group = Group(case.name, case.quota_ms * 1000)
        groups[group.id] = group
        for _ in range(case.tasks):
            group.add(partial(burn, case.burst_ms, case.pause_ms))
    for loader in loaders:
        loader.drain()
    return groups


def main() -> None:
    enable_controllers()
    ours, truth = Loader(), Loader(objects=BUILD / "test")
    assert (ours.status["periods"], truth.status["periods"]) == ("ok", "ok")
    groups = prepared(ours, truth)
    first = {record.id: record for record in ours.periods}
    assert first.keys() >= groups.keys()
    before_us = {key: group.numbers("cpu.stat")["usage_usec"] for key, group in groups.items()}
    ours.periods.clear()
    stopped_ns = run(ours, truth, groups)

    by_group: dict[int, list[Period]] = defaultdict(list)
    for record in ours.periods:
        by_group[record.id].append(record)
    truths = {(record.id, record.nr_periods): record.usage_ns for record in truth.periods}
    compared = torn = exact = 0
    for key, group in groups.items():
        records = [first[key], *by_group[key]]
        found = accounts(records, truths)
        torn += check_each(group.name, found)
        check_whole(group, records, found, before_us[key])
        after = sum(record.time_ns > stopped_ns for record in records)
        assert after <= PAID_BACK, f"{group.name}: {after} records after its tasks stood still"
        compared += len(found.used_ns)
        exact += sum(used == spent for used, spent in zip(*found, strict=True))
    assert compared >= 1000
    assert torn <= TORN * compared
    assert (ours.lost, truth.lost) == (0, 0)
    throttled = sum(by_group[key][-1].nr_throttled for key in groups)
    figure(f"{compared} periods, {throttled} throttled: {exact} exact to the ns, {torn} more than 1 ms off, made good")
    for group in groups.values():
        group.remove()
    assert (ours.close(), truth.close()) == (0, 0)


if __name__ == "__main__":
    main()
