"""A bell is answered at once, and then not more often than looks are affordable."""

import asyncio
import os
from itertools import pairwise
from types import SimpleNamespace

import pytest

from services._runtime.clock import SystemClock
from services.agent.sampling.ticker import PERIOD_S, ThrottlePoller

SPACING_S = PERIOD_S / 5
"""Of four looks a period."""


class EventBell:
    """A bell that a test rings."""

    def __init__(self):
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self):
        return self.descriptor

    def ring(self):
        os.eventfd_write(self.descriptor, 1)

    def drain(self):
        os.eventfd_read(self.descriptor)


@pytest.fixture
def bell():
    """One that rings only when it is told to."""
    made = EventBell()
    yield made
    os.close(made.descriptor)


class Seen:
    """Moments of looks."""

    def __init__(self):
        self.moments = []
        self._more = asyncio.Event()

    def look(self):
        self.moments.append(asyncio.get_running_loop().time())
        self._more.set()

    async def wait_for(self, count):
        async with asyncio.timeout(60):
            while len(self.moments) < count:
                self._more.clear()
                await self._more.wait()


async def settle():
    """Everything that is due has been done."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_ring_is_answered_at_once_and_those_that_follow_a_spacing_later(bell) -> None:
    seen, host = Seen(), SimpleNamespace(throttle_notifier=bell)
    looks = ThrottlePoller(SystemClock(), host, seen.look, 4)
    assert looks.attach()
    try:
        began_s = asyncio.get_running_loop().time()
        bell.ring()
        await settle()
        assert len(seen.moments) == 1
        for _ in range(5):
            bell.ring()
            await settle()
        rung_s = asyncio.get_running_loop().time() - began_s
        await seen.wait_for(2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(PERIOD_S):
                await seen.wait_for(100)
        assert all(later - s >= 0.9 * SPACING_S for s, later in pairwise(seen.moments))
        assert len(seen.moments) <= 2 + rung_s / (0.9 * SPACING_S), "several rings are answered by one look"
    finally:
        looks.stop()


async def test_a_bell_that_is_gone_is_not_listened_to_and_another_one_is(bell) -> None:
    seen, host, other = Seen(), SimpleNamespace(throttle_notifier=bell), EventBell()
    looks = ThrottlePoller(SystemClock(), host, seen.look, 4)
    assert looks.attach()
    host.throttle_notifier = None
    assert not looks.attach(), "now looks have to be spaced evenly"
    bell.ring()
    await settle()
    assert not seen.moments
    host.throttle_notifier = other
    assert looks.attach()
    other.ring()
    await seen.wait_for(1)
    looks.stop()
    os.close(other.descriptor)


async def test_who_wants_no_looks_hears_no_bell(bell) -> None:
    seen = Seen()
    looks = ThrottlePoller(SystemClock(), SimpleNamespace(throttle_notifier=bell), seen.look, 0)
    assert not looks.attach()
    bell.ring()
    await settle()
    assert not seen.moments
    looks.stop()


async def test_a_look_that_waits_is_not_made_after_the_end(bell) -> None:
    seen = Seen()
    looks = ThrottlePoller(SystemClock(), SimpleNamespace(throttle_notifier=bell), seen.look, 4)
    looks.attach()
    bell.ring()
    await seen.wait_for(1)
    bell.ring()
    await settle()
    looks.stop()
    count = len(seen.moments)  # two, where this machine has stood still for a spacing
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5 * PERIOD_S):
            await seen.wait_for(count + 1)
