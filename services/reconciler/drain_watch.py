"""Which uplinks somebody has drained: asked of bgpd, which alone knows, also after its restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services._host.frr import FrrError
from services._host.frr_drain import RUNNING, drained
from services._runtime.clock import Clock
from services.reconciler.ports import Daemons

ASK_EVERY_S: Final = 2.0
SAY_AGAIN_S: Final = 600.0
"""A drain that lasts is told again, for those who have started since."""


class DrainWatch:
    """Tells of each uplink that is drained, and that carries again."""

    def __init__(self, daemons: Daemons, clock: Clock, on_change: Callable[[str, bool], None]) -> None:
        self._daemons = daemons
        self._clock = clock
        self._on_change = on_change
        self._told_s: dict[str, float] = {}

    @property
    def drained(self) -> tuple[str, ...]:
        """Neighbours that are drained now, as far as bgpd could be asked."""
        return tuple(sorted(self._told_s))

    async def run(self, known: Callable[[], object | None]) -> None:
        """For ever; cancel to stop.

        Args:
            known: None while nothing is known of this host, so nothing could be said in its VTEP's name.
        """
        while True:
            if known() is not None:
                await self.look()
            await self._clock.sleep_until(self._clock.monotonic() + ASK_EVERY_S)

    async def look(self) -> None:
        """Ask once."""
        try:
            found = drained(await self._daemons.ask("bgpd", RUNNING))
        except FrrError:
            return  # the path auditor tells that FRR is away; what it does not say is not taken back
        now_s = self._clock.monotonic()
        for uplink in [known for known in self._told_s if known not in found]:
            del self._told_s[uplink]
            self._on_change(uplink, False)  # noqa: FBT003 - drained: no
        for uplink in sorted(found):
            told_s = self._told_s.get(uplink)
            if told_s is None or now_s - told_s >= SAY_AGAIN_S:
                self._told_s[uplink] = now_s
                self._on_change(uplink, True)  # noqa: FBT003 - drained: yes
