"""Since when tasks wait at their memory limit: one deadline, whoever looks after them.

An agent may die or be stopped while tasks wait. Its watchdog goes on, and the next agent, or the same one once it runs
again. Each writes down since when somebody waits, and takes over what the one before it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from services.agent.containers import Containers
from services.agent.memory.policy import Guarded

SILENT_NS: Final = 190_000_000
"""Who looks at nothing for this long was stopped or starved; the shortest silence that a watchdog may act upon is more.
"""
UNWATCHED_NS: Final = 700_000_000
"""After a longer silence the watchdog has looked, and has written down who waits (by its usual setting)."""


class WaitNotes:
    """The notes of one node's guarded containers."""

    def __init__(self, containers: Containers) -> None:
        self._containers = containers
        self._written: dict[str, int] = {}
        """By container, as far as anybody waits."""
        self._awake_ns: int | None = None

    def take_over(self, guarded: Guarded) -> int | None:
        """What was noted of a container while we did not look after it."""
        since_ns = self._containers.members[guarded.key].handle.waiting_since_ns
        if since_ns is not None:
            self._written[guarded.key] = since_ns
        guarded.noted_wait_ns = since_ns
        return since_ns

    def note(self, guarded: Guarded) -> None:
        """It was looked at: write down whether anybody waits, where that has changed."""
        since_ns, guarded.noted_wait_ns = guarded.paused_since_ns, None
        if since_ns == self._written.get(guarded.key):
            return
        if since_ns is None:
            del self._written[guarded.key]
        else:
            self._written[guarded.key] = since_ns
        self._containers.members[guarded.key].handle.note_wait(since_ns)

    def forget(self, key: str) -> None:
        """The container is gone."""
        self._written.pop(key, None)

    def after_silence(self, all_guarded: Iterable[Guarded], now_ns: int) -> list[Guarded]:
        """Called before any look: if there was none for long, who has to be looked at first, notes taken over."""
        before_ns, self._awake_ns = self._awake_ns, now_ns
        if before_ns is None or now_ns - before_ns < SILENT_NS:
            return []
        found = [guarded for guarded in all_guarded if guarded.paused_since_ns is None and not guarded.released]
        for guarded in found:
            if self.take_over(guarded) is None and now_ns - before_ns < UNWATCHED_NS:
                guarded.noted_wait_ns = before_ns
        return found
