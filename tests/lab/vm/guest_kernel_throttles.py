"""A group that has used up its quota rings at once: run by tests/lab/test_kernel_telemetry.py inside the machine."""

from __future__ import annotations

import select
import time

from services.agent.bpf.throttle_ring import ThrottleRing
from tests.lab.vm.guest_kernel import Group, Loader, burn, enable_controllers, figure

QUOTA_US = 20_000
ROUNDS = 20
PERIOD_S = 0.1


def rings(ring: ThrottleRing, within_s: float) -> bool:
    return bool(select.select([ring], [], [], within_s)[0])


def throttled_periods(group: Group) -> int:
    return group.numbers("cpu.stat")["nr_throttled"]


def rung_by(group: Group, ring: ThrottleRing) -> int:
    """Rings for as long as the kernel counts ROUNDS throttled periods."""
    before, count, deadline = throttled_periods(group), 0, time.monotonic() + 60
    ring.drain()
    while throttled_periods(group) < before + ROUNDS:
        count += rings(ring, PERIOD_S)
        ring.drain()
        assert time.monotonic() < deadline
    return count


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
        count = rung_by(group, ring)
        # One that comes while the last one is being answered is the same to whoever listens.
        assert ROUNDS - 2 <= count <= ROUNDS + 2, count
        figure(f"{group.name}: {count} rings in {ROUNDS} throttled periods")
        worker.end()
    deadline = time.monotonic() + 10
    while rings(ring, 1.0):  # those that were on their way
        ring.drain()
        assert time.monotonic() < deadline, "nobody works who has a quota"
    for group in (calm, busy, inner, outer):
        group.remove()
    assert loader.close() == 0
    assert not rings(ring, 0.2), "the loader has ended: nobody rings"
    ring.close()


if __name__ == "__main__":
    main()
