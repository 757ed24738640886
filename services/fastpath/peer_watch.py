"""Reads the other hosts' datagrams when they arrive, with pauses under overload."""

from __future__ import annotations

from collections.abc import Callable

from services.fastpath.peers import PeerFault, PeerLink
from services.fastpath.poller import Poller
from services.fastpath.protocol import Announcement


class PeerWatch:
    """A `PeerLink` in a poller."""

    def __init__(self, link: PeerLink, poller: Poller, on_readable: Callable[[], None]) -> None:
        """Register the socket.

        Args:
            link: the socket.
            poller: dispatches readable sockets.
            on_readable: called when there are datagrams to `read`.
        """
        self.link = link
        self._poller, self._on_readable = poller, on_readable
        self._paused = False
        poller.watch(link, on_readable)

    @property
    def due_s(self) -> float:
        """When the next `run_timers` is due."""
        due_s = min(self.link.due_s, self.link.limit_due_s)
        return min(due_s, self.link.paused_until_s) if self._paused else due_s

    def read(self, now_s: float) -> list[PeerFault]:
        """New faults; see `PeerLink.receive`."""
        faults = self.link.receive(now_s)
        if now_s < self.link.paused_until_s and not self._paused:
            self._paused = True
            self._poller.unwatch(self.link)
        return faults

    def run_timers(self, now_s: float) -> list[Announcement]:
        """Send what is due, end expired pauses; returns announcements that have ended."""
        if self._paused and now_s >= self.link.paused_until_s:
            self._paused = False
            self._poller.watch(self.link, self._on_readable)
        self.link.lift_limits(now_s)
        return self.link.send_due(now_s)

    def state(self) -> dict[str, object]:
        """Counts of datagrams, and the denied sources."""
        self.link.count_dropped()
        return {"peers": dict(self.link.counts), "denied": self.link.denied_now}
