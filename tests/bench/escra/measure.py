"""What the bus tells of an application, row by row, and what a policy cost; and the thesis' metrics of it (2.6.1).

`Recorder` listens, `Recording` is one run as arrays of (ticks, containers), `metrics` are pure functions of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from schemas.cfs import CfsBatch, SampleFlag
from schemas.containers import ContainerEvent
from schemas.oom import OomEvent, OomKind
from schemas.subjects import CFS, CONTAINER_EVENTS, OOM_EVENTS
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_subscriptions import NatsSubscription
from tests.bench.escra.profile import ContainerProfile, Profile

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

ABSENT: Final = -2
"""In every column: the container was not in the batch."""
UNLIMITED: Final = -1
_KEY_TAIL: Final = 13
"""A dash and the first 12 characters of the id: `FoundContainer.key`."""
_COLUMNS: Final = (
    "periods",
    "quota_us",
    "used_us",
    "unused_us",
    "throttled",
    "throttled_us",
    "memory_usage_bytes",
    "memory_limit_bytes",
    "oom_kills",
    "flags",
)


@dataclass(frozen=True, slots=True)
class Tick:
    """One batch."""

    time_ns: int
    keys: tuple[str, ...]
    columns: dict[str, Ints]


@dataclass(slots=True)
class Recorder:
    """Keeps the samples and events of one application from `begin` to `take`.

    A batch between two samples is none of its own: what it tells of throttling is added to the next sample.
    """

    app: str
    ticks: list[Tick] = field(default_factory=list)
    events: list[ContainerEvent | OomEvent] = field(default_factory=list)
    latest: Tick | None = None
    _early: list[CfsBatch] = field(default_factory=list)
    _subscriptions: list[NatsSubscription] = field(default_factory=list)

    async def listen(self, bus: NatsBus) -> Self:
        """Subscribe; `stop` ends it."""
        for template in (CFS, CONTAINER_EVENTS, OOM_EVENTS):
            self._subscriptions.append(await bus.subscribe(template.pattern(bus.root, app=self.app), self.take_message))
        return self

    async def stop(self) -> None:
        """Hear no more."""
        for subscription in self._subscriptions:
            await subscription.stop()
        self._subscriptions.clear()

    def take_message(self, delivery: Delivery) -> None:
        """A batch or an event."""
        message = delivery.message
        if isinstance(message, CfsBatch) and message.is_early:
            self._early.append(message)
        elif isinstance(message, CfsBatch):
            columns = {name: message.column(name).astype(np.int64) for name in _COLUMNS}
            columns["throttled"] += self._told_early(message)
            self.latest = Tick(message.time_ns, tuple(message.keys), columns)
            self.ticks.append(self.latest)
        elif isinstance(message, ContainerEvent | OomEvent):
            self.events.append(message)

    def _told_early(self, batch: CfsBatch) -> Ints:
        """Throttled periods by row that were told since the tick before, and are not in this one."""
        told: Counter[str] = Counter()
        for early in self._early:
            told.update(dict(zip(early.keys, early.column("throttled").tolist(), strict=True)))
        self._early.clear()
        return np.array([told[key] for key in batch.keys], dtype=np.int64)

    def begin(self) -> None:
        """Forget what came before."""
        self.ticks.clear()
        self.events.clear()

    def take(self, begin_ns: int, end_ns: int) -> Recording:
        """Everything sampled from ``begin_ns`` to ``end_ns`` (wall clock)."""
        chosen = [tick for tick in self.ticks if begin_ns <= tick.time_ns < end_ns]
        return Recording.of(chosen, kills_told(self.events))


@dataclass(frozen=True)
class Recording:
    """One run: a row per batch, a column per container; `ABSENT` where it was not there."""

    time_ns: Ints
    keys: tuple[str, ...]
    columns: dict[str, Ints]
    told_kills: dict[str, int] = field(default_factory=dict)
    """Kills by container since it was found, as events told them: of those too that died of it."""

    @classmethod
    def of(cls, ticks: Sequence[Tick], told_kills: dict[str, int] | None = None) -> Recording:
        """From batches in the order of time."""
        keys = tuple(sorted({key for tick in ticks for key in tick.keys}))
        place = {key: index for index, key in enumerate(keys)}
        columns = {name: np.full((len(ticks), len(keys)), ABSENT, dtype=np.int64) for name in _COLUMNS}
        for row, tick in enumerate(ticks):
            index = [place[key] for key in tick.keys]
            for name, values in tick.columns.items():
                columns[name][row, index] = values
        return cls(np.array([tick.time_ns for tick in ticks], dtype=np.int64), keys, columns, told_kills or {})

    @property
    def names(self) -> list[str]:
        """Label turnbuckle.name of each column."""
        return [key[:-_KEY_TAIL] for key in self.keys]

    @property
    def present(self) -> Bools:
        """Whether a container was in a batch."""
        return np.asarray(self.columns["memory_usage_bytes"] != ABSENT, dtype=np.bool_)

    @property
    def told(self) -> Bools:
        """Whether a row says something about CPU: one without a new period does not, unless it is idle."""
        idle = (self.columns["flags"] & int(SampleFlag.IDLE)) > 0
        return np.asarray(self.present & ((self.columns["periods"] > 0) | idle), dtype=np.bool_)

    def write(self, path: Path) -> None:
        """As a compact file, whole or not at all."""
        unfinished = path.with_name(f"{path.name}.part")
        stored: dict[str, Any] = {name: _small(values) for name, values in self.columns.items()}
        with unfinished.open("wb") as file:
            np.savez_compressed(file, time_ns=self.time_ns, keys=np.array(self.keys, dtype=np.str_), **stored)
        unfinished.replace(path)

    @classmethod
    def read(cls, path: Path) -> Recording:
        """What `write` wrote; the kills that were told are not in it."""
        with np.load(path) as stored:
            columns = {name: stored[name].astype(np.int64) for name in _COLUMNS}
            return cls(stored["time_ns"], tuple(str(key) for key in stored["keys"]), columns)

    def profile(self) -> Profile:
        """Use and memory per container, by name: what a run without limits is for."""
        containers: dict[str, ContainerProfile] = {}
        used_us, memory = self.filled("used_us"), self.columns["memory_usage_bytes"]
        for column, name in enumerate(self.names):
            rows = np.flatnonzero(self.present[:, column])
            if not len(rows):
                continue
            whole = slice(int(rows[0]), int(rows[-1]) + 1)
            # A tick that was missed counts as one without use.
            used, held = (tuple(np.maximum(values[whole, column], 0).tolist()) for values in (used_us, memory))
            containers[name] = ContainerProfile(used, held, first_period=int(rows[0]))
        return Profile(containers)

    def filled(self, name: str) -> Ints:
        """A column in which rows that tell nothing hold what the next row tells, as far as it covers their periods."""
        values, told, periods = self.columns[name].copy(), self.told, self.columns["periods"]
        covers = np.zeros(len(self.keys), dtype=np.int64)
        for row in range(len(values) - 1, -1, -1):
            gap = self.present[row] & ~told[row]
            taken = gap & (covers > 0)
            if row + 1 < len(values):
                values[row, taken] = values[row + 1, taken]
            covers = np.where(told[row], periods[row] - 1, covers - taken)
        return values


def kills_told(events: Sequence[ContainerEvent | OomEvent]) -> dict[str, int]:
    """The largest count of kills that an event told, per container."""
    kills: dict[str, int] = {}
    for event in events:
        if isinstance(event, ContainerEvent) or event.kind is OomKind.KILL:
            kills[event.container] = max(kills.get(event.container, 0), event.oom_kills)
    return kills


def _small(values: Ints) -> NDArray[Any]:
    fits = not values.size or (values.max() < 1 << 31 and values.min() >= -(1 << 31))
    return values.astype(np.int32) if fits else values
