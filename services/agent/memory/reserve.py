"""What this node holds in reserve: the book that outlives the agent, and what was last reported of it.

The allocator frees what a lower `left` sets free, so a report may only say what is also true of the limits beside it:
what the watchdog has spent in our absence counts as used only once the limits that it raised have been read again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from services.agent.limits.update_log import ReserveOrder
from services.agent.memory.fair_share import UNKNOWN, FairShare
from services.agent.ports import Reserve, ReserveBook

CONFIRM_LOOKS: Final = 10
"""A difference that others made is believed after so many looks (one per tick): the watchdog may be in between."""
NO_MAXIMUM: Final = 1 << 62


class ReserveReport(NamedTuple):
    """As batches and replies carry it."""

    given_bytes: int
    used_bytes: int


@dataclass(slots=True)
class _Held:
    """What was last reported."""

    given_bytes: int = 0
    used_bytes: int = 0
    container_max_bytes: int = NO_MAXIMUM
    """As ordered, also of the agent before us."""
    fair: FairShare = UNKNOWN
    """Unknown until it is ordered."""
    differs: Reserve | None = None
    looks: int = 0
    """So many looks in a row have seen `differs`."""


class Reserves:
    """One node's reserves by application."""

    def __init__(self, book: ReserveBook) -> None:
        self._book = book
        self._held: dict[str, _Held] = {}
        self.may_spend: Callable[[], bool] = lambda: True
        """False while nothing is granted, whatever is left."""
        self._adopt(book.read())
        for app, most_bytes in book.read_container_max().items():
            self._held.setdefault(app, _Held()).container_max_bytes = most_bytes

    @property
    def apps(self) -> list[str]:
        """Applications that anything is known of."""
        return list(self._held)

    @property
    def left_bytes(self) -> int:
        """What all of them hold."""
        return sum(self.left_of(app) for app in self._held)

    def report(self, app: str) -> ReserveReport:
        """What to tell the allocator."""
        held = self._held.get(app)
        return ReserveReport(held.given_bytes, held.used_bytes) if held else ReserveReport(0, 0)

    def left_of(self, app: str) -> int:
        """What can still be granted, as reported."""
        given_bytes, used_bytes = self.report(app)
        return given_bytes - used_bytes

    def container_max_of(self, app: str) -> int:
        """Greatest limit of a container, bytes."""
        held = self._held.get(app)
        return held.container_max_bytes if held else NO_MAXIMUM

    def fair_of(self, app: str) -> FairShare:
        """Of an application's containers."""
        held = self._held.get(app)
        return held.fair if held else UNKNOWN

    def order(self, order: ReserveOrder) -> None:
        """Carry an order out; what could not be written down is not reported either."""
        held = self._held.setdefault(order.app, _Held())
        held.container_max_bytes = order.container_max_bytes or NO_MAXIMUM
        held.fair = order.fair
        self._book.set_container_max(order.app, order.container_max_bytes or None)
        self._give(order.app, held, max(order.given_bytes, held.used_bytes))

    def _give(self, app: str, held: _Held, given_bytes: int) -> None:
        now = self._book.give(app, given_bytes)
        if now.given_bytes < given_bytes:
            return
        if now.used_bytes < held.used_bytes:  # the book was lost meanwhile: what was spent must not be spent again
            self._book.spend(app, held.used_bytes - now.used_bytes)
        held.given_bytes = now.given_bytes

    def spend(self, app: str, wanted_bytes: int) -> int:
        """Take up to so much out; returns how much."""
        held = self._held.get(app)
        wanted_bytes = min(wanted_bytes, self.left_of(app))
        if held is None or wanted_bytes <= 0 or not self.may_spend():
            return 0
        got = self._book.spend(app, wanted_bytes)
        held.used_bytes += got
        return got

    def refund(self, app: str, unspent_bytes: int) -> None:
        """The kernel refused the grant."""
        if unspent_bytes:
            self._book.refund(app, unspent_bytes)
            self._held[app].used_bytes -= unspent_bytes

    def void(self, app: str) -> None:
        """No container of it is here any more, or its order came too late."""
        held = self._held.get(app)
        if held is not None:
            self._book.void(app)
            held.used_bytes = held.given_bytes

    def is_doubtful(self, app: str) -> bool:
        """Whether the watchdog may have granted something that is not reported yet."""
        held = self._held.get(app)
        return held is not None and held.differs is not None and held.differs.used_bytes > held.used_bytes

    def look(self) -> list[str]:
        """Compare with the book, once per tick; returns applications to `confirm` once their limits are read again."""
        seen = self._book.read()
        self._adopt({app: reserve for app, reserve in seen.items() if app not in self._held})
        due = []
        for app, held in self._held.items():
            reserve = seen.get(app, Reserve(0, 0))
            if reserve == (held.given_bytes, held.used_bytes) or not (held.given_bytes or reserve.given_bytes):
                held.differs, held.looks = None, 0
                continue
            held.looks = held.looks + 1 if reserve == held.differs else 1
            held.differs = reserve
            if held.looks >= CONFIRM_LOOKS:
                due.append(app)
        return due

    def confirm(self, app: str) -> None:
        """The limits have been read again: what the watchdog spent is reported; a book that was lost is mended."""
        held = self._held[app]
        if held.differs is None:
            return
        if held.differs.used_bytes > held.used_bytes:
            held.used_bytes = min(held.differs.used_bytes, held.given_bytes)
        held.differs, held.looks = None, 0
        self._give(app, held, held.given_bytes)

    def _adopt(self, reserves: dict[str, Reserve]) -> None:
        for app, reserve in reserves.items():
            self._held[app] = _Held(reserve.given_bytes, min(reserve.used_bytes, reserve.given_bytes))
