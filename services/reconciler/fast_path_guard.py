"""Deletes the overrides of an unresponsive fast path: a second failure domain beside its watchdog.

The watchdog dies and freezes with the data-plane process where a container is killed or paused. A stale override hides
FRR's routes: when its last hop dies, all packets are lost. So the reconciler, which is another process and may be
another unit or container, receives the data-plane process's heartbeat, and deletes the active overrides once it has
been missing for longer than the watchdog's timeout. It writes nothing else of the fast path's. A fast path that resumes
afterwards sees the deletions as kernel events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from services._edge.fast_path_heartbeat import Beat, HeartbeatReceiver
from services._edge.override_tables import OverrideSocket, OverrideTables
from services._host.netlink.attributes import NetlinkError
from services._host.netlink.subscription import Namespace
from services._runtime.clock import Clock

MARGIN_S: Final = 0.2
"""Added to the watchdog's timeout, so that the watchdog acts first."""
DEFAULT_TIMEOUT_S: Final = 0.5
"""The watchdog's default, until a heartbeat carries another."""
RETRY_S: Final = 0.5
"""Between two checks without a heartbeat: a fast path may have run for a moment."""


class RemovedOverrides(NamedTuple):
    """Overrides that the guard has deleted."""

    destinations: list[str]
    silent_s: float
    """Since the last heartbeat; since the start of the reconciler if there was none."""
    tables: OverrideTables


class HeartbeatTimeout:
    """Heartbeat timeout: when to check for active overrides. No I/O, no clock."""

    def __init__(self, tables: OverrideTables, now_s: float) -> None:
        """Begin as if a heartbeat had just been received.

        Args:
            own: the fast path's tables, until a heartbeat carries them.
            now_s: of the monotonic clock.
        """
        self.tables = tables
        self._limit_s = DEFAULT_TIMEOUT_S + MARGIN_S
        self._received_s = self._updated_s = now_s
        self._checked_s = float("-inf")

    @property
    def due_s(self) -> float:
        """When the next check is due."""
        return max(self._received_s + self._limit_s, self._checked_s + RETRY_S)

    def silent_s(self, now_s: float) -> float:
        """Time since the last heartbeat."""
        return now_s - self._received_s

    def update(self, beat: Beat | None, now_s: float) -> bool:
        """Process the last heartbeat, if any; returns whether to check now.

        A process that was itself stopped cannot know whether heartbeats were sent: the timeout restarts.
        """
        stalled = now_s - self._updated_s > self._limit_s + RETRY_S
        self._updated_s = now_s
        if beat is not None:
            self.tables, self._limit_s = beat.tables, beat.silence_s + MARGIN_S
        if beat is not None or stalled:
            self._received_s = now_s
        if now_s < self.due_s:
            return False
        self._checked_s = now_s
        return True


class FastPathGuard:
    """Receives heartbeats, and deletes the overrides of a fast path that sends none."""

    def __init__(self, netns: str | None, tables: OverrideTables, clock: Clock) -> None:
        """Open the sockets.

        Raises:
            OSError: no such namespace, or no right to enter it.
        """
        self._netns, self._clock = netns, clock
        self._namespace = Namespace(netns)
        self._receiver = HeartbeatReceiver(netns)
        self._timeout = HeartbeatTimeout(tables, clock.monotonic())
        self._readable = asyncio.Event()
        self.removed_total = 0
        """Number of deleted overrides."""
        self.on_removed: Callable[[RemovedOverrides], None] = lambda _removed: None
        self.on_error: Callable[[str], None] = lambda _error: None
        """Called with each new error of reading or writing the kernel."""

    async def run(self) -> None:
        """Run until cancelled."""
        error = ""
        self._listen(self._receiver)
        try:
            while True:
                await self._wait()
                beat, now_s = self._receiver.read(), self._clock.monotonic()
                self._readable.clear()
                if not self._timeout.update(beat, now_s):
                    continue
                present = self._namespace.present()
                before, error = error, await self._check(now_s) if present else self._move(now_s)
                if error and error != before:
                    self.on_error(error)
        finally:
            self._stop_listening()

    def _listen(self, receiver: HeartbeatReceiver) -> None:
        self._receiver = receiver
        asyncio.get_running_loop().add_reader(receiver.fileno(), self._readable.set)

    def _stop_listening(self) -> None:
        asyncio.get_running_loop().remove_reader(self._receiver.fileno())
        self._receiver.close()

    def _move(self, now_s: float) -> str:
        """The namespace was recreated under its name: receive heartbeats of the new one."""
        try:
            namespace, receiver = Namespace(self._netns), HeartbeatReceiver(self._netns)
        except OSError as error:
            return str(error)
        self._stop_listening()
        self._listen(receiver)
        self._namespace, self._timeout = namespace, HeartbeatTimeout(self._timeout.tables, now_s)
        return ""

    async def _wait(self) -> None:
        received = asyncio.ensure_future(self._readable.wait())
        slept = asyncio.ensure_future(self._clock.sleep_until(self._timeout.due_s))
        try:
            await asyncio.wait({received, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            received.cancel()
            slept.cancel()

    async def _check(self, now_s: float) -> str:
        """Delete active overrides. Returns the error, or an empty string."""
        tables = self._timeout.tables
        try:
            destinations = await asyncio.to_thread(remove_active, self._netns, tables)
        except (OSError, NetlinkError) as error:
            return str(error)
        if destinations:
            self.removed_total += len(destinations)
            self.on_removed(RemovedOverrides(destinations, self._timeout.silent_s(now_s), tables))
        return ""


def remove_active(netns: str | None, tables: OverrideTables) -> list[str]:
    """Delete the active overrides, rule first. Returns their destinations; empty: nothing was written.

    Raises:
        OSError, NetlinkError: the kernel cannot be talked to.
    """
    with OverrideSocket(netns, tables) as kernel:
        destinations = kernel.active_destinations()
        if destinations:
            kernel.clear()
    return destinations
