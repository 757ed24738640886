"""Polls bgpd for drained uplinks: its configuration is their only record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services._edge.frr import FrrError
from services._edge.frr_drain import RUNNING, drained
from services._runtime.clock import Clock
from services.reconciler.ports import FrrDaemons

POLL_INTERVAL_S: Final = 2.0
REPUBLISH_INTERVAL_S: Final = 600.0
"""A lasting drain is published again, for readers that have started since."""


class DrainWatch:
    """Calls back for each uplink that is drained, and undrained."""

    def __init__(self, daemons: FrrDaemons, clock: Clock, on_change: Callable[[str, bool], None]) -> None:
        self._daemons = daemons
        self._clock = clock
        self._on_change = on_change
        self._published_s: dict[str, float] = {}

    @property
    def drained(self) -> tuple[str, ...]:
        """Drained neighbours as of bgpd's last answer."""
        return tuple(sorted(self._published_s))

    async def run(self, known: Callable[[], object | None]) -> None:
        """Run until cancelled.

        Args:
            known: returns None while this host's VTEP is unknown: nothing is published then.
        """
        while True:
            if known() is not None:
                await self.poll()
            await self._clock.sleep_until(self._clock.monotonic() + POLL_INTERVAL_S)

    async def poll(self) -> None:
        """Query bgpd once."""
        try:
            found = drained(await self._daemons.ask("bgpd", RUNNING))
        except FrrError:
            return  # the path auditor reports that FRR is unavailable; the last known drains stay
        now_s = self._clock.monotonic()
        for uplink in [known for known in self._published_s if known not in found]:
            del self._published_s[uplink]
            self._on_change(uplink, False)  # noqa: FBT003 - drained: no
        for uplink in sorted(found):
            published_s = self._published_s.get(uplink)
            if published_s is None or now_s - published_s >= REPUBLISH_INTERVAL_S:
                self._published_s[uplink] = now_s
                self._on_change(uplink, True)  # noqa: FBT003 - drained: yes
