"""A group that has used up its quota rings at once: run by tests/lab/test_kernel_telemetry.py inside the machine."""

from __future__ import annotations

import select
import time

from services._host.bpf.throttle_ring import ThrottleRing
from tests.lab.vm.guest_kernel import Group, Loader, burn, enable_controllers, figure

QUOTA_US = 20_000
ROUNDS = 20
PERIOD_S = 0.1


def rings(ring: ThrottleRing, within_s: float) -> bool:
    return bool(select.select([ring], [], [], within_s)[0])


def throttled_periods(group: Group) -> int:
    return group.numbers("cpu.stat")["nr_throttled"]


def records_of(group: Group, ring: ThrottleRing) -> tuple[int, int]:
    """Records, and periods that the kernel counts as throttled meanwhile: ROUNDS, or more where we are late."""
    deadline = time.monotonic() + 60
    ring.drain()
    before, records = throttled_periods(group), 0
    while (periods := throttled_periods(group) - before) < ROUNDS:
        rings(ring, PERIOD_S)
        records += ring.drain()
        assert time.monotonic() < deadline
    return records, periods


def main() -> None:
    enable_controllers()
    loader = Loader()
    assert loader.status["throttles"] == "ok"
    ring = ThrottleRing(loader.bells.pop())
    calm, busy, outer = Group("calm"), Group("busy", QUOTA_US), Group("outer", QUOTA_US)
    calm.add(burn)
    calm.let_go()
    ring.drain()
    assert not rings(ring, 1.0), "who has no quota uses none up"
    inner = Group("inner", parent=outer.path)
    for group, worker in ((busy, busy), (outer, inner)):
        worker.add(burn)
        worker.let_go()
        records, periods = records_of(group, ring)
        # At both ends one may lie between the two readings. And of periods in which the machine stood still the kernel
        # counts each as throttled, once it goes on: one record for all of them.
        assert periods / 4 <= records <= periods + 2, (records, periods)
        figure(f"{group.name}: {records} records in {periods} throttled periods")
        worker.end()
    deadline = time.monotonic() + 60
    while rings(ring, 1.0):  # those that were on their way
        ring.drain()
        assert time.monotonic() < deadline, "nobody works who has a quota"
    for group in (calm, busy, inner, outer):
        group.remove()
    assert loader.close() == 0
    assert not rings(ring, 0.2), "no record after the loader has ended"
    ring.close()


if __name__ == "__main__":
    main()
