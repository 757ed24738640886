"""Memory notifications of all containers behind one epoll descriptor, edge-triggered: taking one costs no second call.

Sources: epoll(7), eventfd(2); a nested epoll is readable while any of its own has an event.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import Final

from services._host.cgroup_snapshot import Notification, NotificationKind

_AT_ONCE: Final = 1024


class Notifications:
    """Containers by the descriptor that notifies."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._notifications: dict[int, Notification] = {}

    def fileno(self) -> int:
        """Readable while a notification waits."""
        return self._epoll.fileno()

    def watch(self, descriptor: int, key: str, kind: NotificationKind, events: int = select.EPOLLIN) -> None:
        """Report this notification whenever the descriptor signals from now on, and now if it has. Raises OSError."""
        self._epoll.register(descriptor, events | select.EPOLLET)
        self._notifications[descriptor] = Notification(key, kind)

    def forget(self, descriptor: int) -> None:
        """Before it is closed: the number may soon name something else. Not watched: nothing."""
        if self._notifications.pop(descriptor, None) is not None:
            with suppress(OSError, ValueError):  # ValueError: the epoll is closed itself
                self._epoll.unregister(descriptor)

    def take(self) -> list[Notification]:
        """Notifications that wait, each once."""
        if self._epoll.closed:
            return []
        taken: dict[Notification, None] = {}
        while ready := self._epoll.poll(0, _AT_ONCE):
            for descriptor, _ in ready:
                alarm = self._notifications.get(descriptor)
                if alarm is not None:
                    taken[alarm] = None
            if len(ready) < _AT_ONCE:
                break
        return list(taken)

    def close(self) -> None:
        """Close the epoll; what it watches is closed by its owners."""
        self._epoll.close()
        self._notifications.clear()
