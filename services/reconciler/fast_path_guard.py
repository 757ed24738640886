"""Empties the fast path's table when the fast path gives no sign of life: a second failure domain beside its watchdog.

The watchdog dies and freezes with the hot process where a container is killed or paused. An override that is left
hides FRR's routes: when its last hop dies, nobody takes it out, and everything is lost. So the reconciler, which is
another process and may be another unit or container, listens to the hot process' heartbeat, and deletes what is in
force once that has been silent for longer than the watchdog waits. It writes nothing else of the fast path's, and
nothing at all while nothing is in force. A fast path that goes on afterwards sees the deletions as the kernel's events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from services._host.netlink.attributes import NetlinkError
from services._host.netlink.subscription import Namespace
from services._runtime.clock import Clock
from services.fastpath.heartbeat import Beat, HeartbeatReceiver
from services.fastpath.kernel import FastPathKernel
from services.fastpath.values import Ownership

MARGIN_S: Final = 0.2
"""The watchdog comes first."""
DEFAULT_SILENCE_S: Final = 0.5
"""The watchdog's, until a heartbeat says another."""
AGAIN_S: Final = 0.5
"""Between two looks while nothing is heard: a fast path may have been thawed for a moment."""


class Emptied(NamedTuple):
    """Overrides that were deleted."""

    destinations: list[str]
    silent_s: float
    """For how long nothing had been heard; since the start of the reconciler where nothing ever was."""
    own: Ownership


class Silence:
    """When to look whether anything is in force. No I/O, no clock."""

    def __init__(self, own: Ownership, now_s: float) -> None:
        """Begin as if a heartbeat had been heard just now.

        Args:
            own: what the fast path writes to, until it says so itself.
            now_s: of the monotonic clock.
        """
        self.own = own
        self._limit_s = DEFAULT_SILENCE_S + MARGIN_S
        self._heard_s = self._turn_s = now_s
        self._looked_s = float("-inf")

    @property
    def due_s(self) -> float:
        """When to look."""
        return max(self._heard_s + self._limit_s, self._looked_s + AGAIN_S)

    def silent_s(self, now_s: float) -> float:
        """Since when nothing was heard."""
        return now_s - self._heard_s

    def turn(self, beat: Beat | None, now_s: float) -> bool:
        """What has been heard since the last turn, if anything; whether to look now.

        Whoever has stood still itself cannot tell who was silent meanwhile, and begins to count anew.
        """
        stood_still = now_s - self._turn_s > self._limit_s + AGAIN_S
        self._turn_s = now_s
        if beat is not None:
            self.own, self._limit_s = beat.own, beat.silence_s + MARGIN_S
        if beat is not None or stood_still:
            self._heard_s = now_s
        if now_s < self.due_s:
            return False
        self._looked_s = now_s
        return True


class FastPathGuard:
    """Listens, and empties what nobody looks after."""

    def __init__(self, netns: str | None, own: Ownership, clock: Clock) -> None:
        """Listen.

        Raises:
            OSError: no such namespace, or no right to enter it.
        """
        self._netns, self._clock = netns, clock
        self._namespace = Namespace(netns)
        self._receiver = HeartbeatReceiver(netns)
        self._silence = Silence(own, clock.monotonic())
        self._readable = asyncio.Event()
        self.emptied_total = 0
        """Overrides deleted."""
        self.on_emptied: Callable[[Emptied], None] = lambda _emptied: None
        self.on_trouble: Callable[[str], None] = lambda _trouble: None
        """Called with each new reason for which the kernel could not be looked at, or written to."""

    async def run(self) -> None:
        """For ever; cancel to stop."""
        trouble = ""
        self._follow(self._receiver)
        try:
            while True:
                await self._rest()
                beat, now_s = self._receiver.read(), self._clock.monotonic()
                self._readable.clear()
                if not self._silence.turn(beat, now_s):
                    continue
                present = self._namespace.present()
                before, trouble = trouble, await self._look(now_s) if present else self._move(now_s)
                if trouble and trouble != before:
                    self.on_trouble(trouble)
        finally:
            self._leave()

    def _follow(self, receiver: HeartbeatReceiver) -> None:
        self._receiver = receiver
        asyncio.get_running_loop().add_reader(receiver.fileno(), self._readable.set)

    def _leave(self) -> None:
        asyncio.get_running_loop().remove_reader(self._receiver.fileno())
        self._receiver.close()

    def _move(self, now_s: float) -> str:
        """The namespace's name stands for another one now, whose fast path we have not heard: listen there."""
        try:
            namespace, receiver = Namespace(self._netns), HeartbeatReceiver(self._netns)
        except OSError as error:
            return str(error)
        self._leave()
        self._follow(receiver)
        self._namespace, self._silence = namespace, Silence(self._silence.own, now_s)
        return ""

    async def _rest(self) -> None:
        heard = asyncio.ensure_future(self._readable.wait())
        slept = asyncio.ensure_future(self._clock.sleep_until(self._silence.due_s))
        try:
            await asyncio.wait({heard, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            heard.cancel()
            slept.cancel()

    async def _look(self, now_s: float) -> str:
        """Delete what is in force. Returns why that could not be done, or nothing."""
        own = self._silence.own
        try:
            destinations = await asyncio.to_thread(empty, self._netns, own)
        except (OSError, NetlinkError) as error:
            return str(error)
        if destinations:
            self.emptied_total += len(destinations)
            self.on_emptied(Emptied(destinations, self._silence.silent_s(now_s), own))
        return ""


def empty(netns: str | None, own: Ownership) -> list[str]:
    """Delete the overrides that are in force, rule first. Returns their destinations; none: nothing was written.

    Raises:
        OSError, NetlinkError: the kernel cannot be talked to.
    """
    with FastPathKernel(netns, own) as kernel:
        destinations = kernel.in_force()
        if destinations:
            kernel.clear()
    return destinations
