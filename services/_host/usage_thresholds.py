"""Version 1: many thresholds on the memory usage of a group, ahead of it, registered in the background.

A registration waits for an RCU grace period (11 to 20 ms, Documentation/admin-guide/cgroup-v1/memory.rst section 9 and
mm/memcontrol-v1.c, __mem_cgroup_usage_register_event) while it holds a lock of that group, so they are made by a few
threads, one at a time for each group and the next one above usage first. A threshold signals when usage passes it, in
either direction, and stays until its eventfd is closed; then the kernel removes all of that eventfd in the background.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Final

from services._host.control_file import CLOSED, is_gone

SPACING_BYTES: Final = 8 << 20
THRESHOLDS_AHEAD: Final = 16
"""128 MiB: at 1 GB/s a tenth of a second, in which a growing container is polled anyway."""
MAX_THRESHOLDS: Final = 512
"""Beyond, new thresholds are registered with a new eventfd instead."""
THREADS: Final = 8
"""They share grace periods, so eight register eight times as fast, in as many groups."""


class UsageThresholds:
    """One eventfd at many thresholds of one group's usage. To be used by one thread, and by the registrar's."""

    def __init__(self, directory: str, registrar: ThresholdRegistrar) -> None:
        """Raises OSError: no descriptor is left."""
        self.directory = directory
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.registered: set[int] = set()
        """Multiples of `SPACING_BYTES`."""
        self.waiting: list[int] = []
        """Those to be registered, the farthest first; guarded by the registrar's lock."""
        self.busy = False
        """Whether it is queued or worked upon; guarded by the registrar's lock."""
        self.closed = False
        self._registrar = registrar
        self._followed: int | None = None

    def follow(self, usage_bytes: int) -> None:
        """Keep the thresholds ahead of usage registered. Costs next to nothing while usage is between two of them."""
        first = usage_bytes // SPACING_BYTES + 1
        if first != self._followed:
            self._followed = first
            missing = [
                threshold
                for threshold in range(first + THRESHOLDS_AHEAD - 1, first - 1, -1)
                if threshold not in self.registered
            ]
            self._registrar.request(self, missing)

    def repeat(self) -> None:
        """A registration has failed: the next `follow` requests it again."""
        self._followed = None

    @property
    def full(self) -> bool:
        """Whether it has become too long."""
        return len(self.registered) >= MAX_THRESHOLDS

    def register(self, threshold: int) -> None:
        """Blocks for an RCU grace period. Raises OSError."""
        usage = os.open(f"{self.directory}/memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
        try:
            write_event(self.directory, self.eventfd, usage, f" {threshold * SPACING_BYTES}")
        finally:
            os.close(usage)

    def close(self) -> None:
        """Close the eventfd, and with it all registrations: after the one that is being made, without waiting here."""
        self._registrar.close_thresholds(self)


def write_event(directory: str, eventfd: int, watched: int, arguments: str = "") -> None:
    """Register an eventfd (cgroup.event_control); the watched file may be closed afterwards. Raises OSError."""
    control = os.open(f"{directory}/cgroup.event_control", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(control, f"{eventfd} {watched}{arguments}".encode())
    finally:
        os.close(control)


class ThresholdRegistrar:
    """A few threads that register thresholds; started when first needed."""

    def __init__(self, threads: int = THREADS) -> None:
        self._most_threads = threads
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._queue: deque[UsageThresholds] = deque()
        self._idle = 0
        self._closing = False
        self.registrations = 0
        """Made so far."""
        self.failures = 0
        """Refused by the kernel."""

    def request(self, thresholds_of_group: UsageThresholds, thresholds: list[int]) -> None:
        """Register these thresholds, the last one first, instead of those requested before."""
        with self._changed:
            if thresholds_of_group.closed or self._closing:
                return
            thresholds_of_group.waiting = thresholds
            if thresholds and not thresholds_of_group.busy:
                thresholds_of_group.busy = True
                self._queue.append(thresholds_of_group)
                self._wake()

    def _wake(self) -> None:
        if self._idle >= len(self._queue):
            self._changed.notify()
        elif len(self._threads) < self._most_threads:
            thread = threading.Thread(target=self._work, name="thresholds", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close_thresholds(self, thresholds_of_group: UsageThresholds) -> None:
        """Close it now, or when the registration that is under way has been made."""
        with self._changed:
            already, thresholds_of_group.closed, thresholds_of_group.waiting = thresholds_of_group.closed, True, []
            if not already and not thresholds_of_group.busy:
                self._close_eventfd(thresholds_of_group)

    @staticmethod
    def _close_eventfd(thresholds_of_group: UsageThresholds) -> None:
        os.close(thresholds_of_group.eventfd)
        thresholds_of_group.eventfd = CLOSED

    def _work(self) -> None:
        while (job := self._next()) is not None:
            thresholds_of_group, threshold = job
            error: OSError | None = None
            try:
                thresholds_of_group.register(threshold)
            except OSError as refusal:
                error = refusal
            self._done(thresholds_of_group, threshold, error)

    def _next(self) -> tuple[UsageThresholds, int] | None:
        with self._changed:
            while not self._closing:
                if not self._queue:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                    continue
                thresholds_of_group = self._queue.popleft()
                if thresholds_of_group.waiting:
                    return thresholds_of_group, thresholds_of_group.waiting.pop()
                thresholds_of_group.busy = False
                if thresholds_of_group.closed:
                    self._close_eventfd(thresholds_of_group)
            return None

    def _done(self, thresholds_of_group: UsageThresholds, threshold: int, error: OSError | None) -> None:
        with self._changed:
            if error is None:
                self.registrations += 1
                thresholds_of_group.registered.add(threshold)
                if threshold in thresholds_of_group.waiting:  # requested again meanwhile
                    thresholds_of_group.waiting.remove(threshold)
            else:
                thresholds_of_group.repeat()
                thresholds_of_group.waiting = []
                self.failures += not is_gone(error)
            if thresholds_of_group.waiting and not self._closing:
                self._queue.append(thresholds_of_group)  # behind the others: nearest thresholds of all groups first
                return
            thresholds_of_group.busy = False
            if thresholds_of_group.closed:
                self._close_eventfd(thresholds_of_group)

    def close(self) -> None:
        """End the threads; a registration that is being made is waited for."""
        with self._changed:
            self._closing = True
            queued = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for thresholds_of_group in queued:
            thresholds_of_group.busy = False
            if thresholds_of_group.closed:
                self._close_eventfd(thresholds_of_group)
