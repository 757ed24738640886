"""What applications held beside what they would hold without limits, by day: sums over stored accounts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple

from schemas.apps import Mode
from schemas.message import Message
from schemas.savings import Savings, SavingsPart
from schemas.subjects import SAVINGS, SubjectError

HOUR_S: Final = 3_600.0
DAY_S: Final = 86_400.0
_SUMMED: Final = tuple(
    name for name in SavingsPart.model_fields if name not in {"mode", "cpu_baseline", "memory_baseline"}
)


class Prices(NamedTuple):
    """What a core and a GiB of memory cost for an hour."""

    core_hour: float
    gib_hour: float
    currency: str


class Key(NamedTuple):
    """A row of the report."""

    day: date
    app: str
    mode: Mode


@dataclass(slots=True)
class Tally:
    """Sums over accounts."""

    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By field of `SavingsPart`."""
    cpu_baselines: set[str] = field(default_factory=set)
    memory_baselines: set[str] = field(default_factory=set)
    money: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By currency."""
    without_price: bool = False
    """Whether some of it has no price: then the money is not known."""

    def add(self, part: SavingsPart, prices: Prices | None) -> None:
        """Add one part."""
        for name in _SUMMED:
            self.sums[name] += getattr(part, name)
        self.cpu_baselines.add(part.cpu_baseline.value)
        self.memory_baselines.add(part.memory_baseline.value)
        if prices is None:
            self.without_price = True
            return
        core_h = (part.cpu_baseline_core_s - part.cpu_held_core_s) / HOUR_S
        gib_h = (part.memory_baseline_gib_s - part.memory_held_gib_s) / HOUR_S
        self.money[prices.currency] += core_h * prices.core_hour + gib_h * prices.gib_hour

    @property
    def saved_core_h(self) -> float:
        """Core-hours; negative: more was held than the baseline."""
        return (self.sums["cpu_baseline_core_s"] - self.sums["cpu_held_core_s"]) / HOUR_S

    @property
    def saved_gib_h(self) -> float:
        """GiB-hours; negative: more was held than the baseline."""
        return (self.sums["memory_baseline_gib_s"] - self.sums["memory_held_gib_s"]) / HOUR_S

    @property
    def known_money(self) -> dict[str, float] | None:
        """By currency; None: not known."""
        return None if self.without_price or not self.money else dict(self.money)

    def plain(self) -> dict[str, Any]:
        """As plain JSON types."""
        sums = self.sums
        return {
            "covered_s": sums["covered_s"],
            "cpu": {
                "baseline": sorted(self.cpu_baselines),
                "baseline_core_h": sums["cpu_baseline_core_s"] / HOUR_S,
                "held_core_h": sums["cpu_held_core_s"] / HOUR_S,
                "saved_core_h": self.saved_core_h,
            },
            "memory": {
                "baseline": sorted(self.memory_baselines),
                "baseline_gib_h": sums["memory_baseline_gib_s"] / HOUR_S,
                "held_gib_h": sums["memory_held_gib_s"] / HOUR_S,
                "saved_gib_h": self.saved_gib_h,
            },
            "money": self.known_money,
            "throttling": {
                "periods": int(sums["periods"]),
                "throttled_periods": int(sums["throttled_periods"]),
                "throttled_s": sums["throttled_s"],
                "would_throttle_periods": int(sums["excess_periods"]),
                "would_throttle_core_s": sums["excess_core_s"],
            },
        }


class SavingsReport:
    """Takes stored events; of each account the newest counts."""

    def __init__(self, root: str, first_day: date, prices: Prices | None = None) -> None:
        """Report from ``first_day`` (UTC) on; ``prices`` replace those of the events."""
        self.left_out = 0
        """Events that contradict their subject."""
        self._root = root
        self._first_day = first_day
        self._prices = prices
        self._accounts: dict[tuple[str, date, str], Savings] = {}

    def take(self, subject: str, message: Message) -> None:
        """Take one event, as it was stored."""
        if not isinstance(message, Savings) or not self._is_of(subject, message):
            self.left_out += 1
            return
        key = (message.app, message.day, message.record)
        known = self._accounts.get(key)
        if message.day >= self._first_day and (known is None or known.time_ns <= message.time_ns):
            self._accounts[key] = message

    def _is_of(self, subject: str, message: Savings) -> bool:
        """Whether it is what its subject says: a server's permissions are by subject."""
        ids = {"app": message.app, "day": message.day.isoformat(), "record": message.record}
        try:
            return SAVINGS.parse(self._root, subject) == ids
        except SubjectError:
            return False

    def _parts(self) -> Iterator[tuple[Key, SavingsPart, Prices | None]]:
        for account in self._accounts.values():
            for part in account.parts:
                yield Key(account.day, account.app, part.mode), part, self._prices or _prices_of(account)

    def rows(self) -> list[tuple[Key, Tally]]:
        """By day, application and mode."""
        tallies: defaultdict[Key, Tally] = defaultdict(Tally)
        for key, part, prices in self._parts():
            tallies[key].add(part, prices)
        return sorted(tallies.items(), key=lambda row: row[0])

    def totals(self) -> list[tuple[Mode, Tally]]:
        """By mode, over all days and applications."""
        tallies: defaultdict[Mode, Tally] = defaultdict(Tally)
        for key, part, prices in self._parts():
            tallies[key.mode].add(part, prices)
        return sorted(tallies.items(), key=lambda total: total[0])


def _prices_of(account: Savings) -> Prices | None:
    if account.core_hour_price is None or account.gib_hour_price is None or not account.currency:
        return None
    return Prices(account.core_hour_price, account.gib_hour_price, account.currency)


def covered_share(covered_s: float, day: date, now_s: float) -> float:
    """Of the day, as far as it has passed at ``now_s`` (Unix time): which share was counted."""
    begin_s = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
    passed_s = min(max(now_s - begin_s, covered_s, 1.0), DAY_S)
    return covered_s / passed_s
