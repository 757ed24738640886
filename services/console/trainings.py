"""Trainings as they are now, beside their plans: a fold over what they say, sent once a second. Pure: no clock, no I/O.

A training's key is its job and its node, both from the subject, for which the server checks permissions. It is
listed while its messages arrive; where nothing trains, the list is empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import numpy as np

from schemas.plans import Plan
from schemas.trainings import StepBatch, TrainingChange, TrainingEvent
from services.console.history import History, Series
from services.console.messages import console_message

MOST_TRAININGS: Final = 100
"""That are known at once: for another one that is silent is forgotten. Their histories take 0.8 MB."""
MOST_DEVICES: Final = 64
"""Of a training, by rank."""
HISTORY_COLUMNS: Final = ("step_us", "predicted_step_us")
SILENT_AFTER_S: Final = 30.0
"""Or ten steps, if these are longer: then it is not shown any more."""
ENDED_FOR_S: Final = 60.0
"""So long an ended one is shown."""
_SILENT_STEPS: Final = 10
_POINT_BYTES: Final = 960 * 4
"""Of one column of one training."""

Place = tuple[str, str]
"""Job and node."""


@dataclass(slots=True)
class _Training:
    """One start of a job on a node."""

    job: str
    node: str
    training: str = ""
    received_s: float = -math.inf
    began_ns: int = 0
    plan: Plan | None = None
    generation: int = 0
    step: int = 0
    total: int = 0
    step_us: float = 0.0
    drift: str = ""
    end: str = ""
    """Why it has ended, and by which exit code; empty: it goes on."""
    memory_bytes: dict[int, int] = field(default_factory=dict)
    """By rank: the most that it has used."""
    new_us: dict[int, list[int]] = field(default_factory=dict)
    """By rank: times of this second's steps."""
    is_shown: bool = False

    @property
    def shown_until_s(self) -> float:
        """On the clock of `received_s`."""
        if self.end:
            return self.received_s + ENDED_FOR_S
        return self.received_s + max(SILENT_AFTER_S, _SILENT_STEPS * self.step_us / 1e6)


class Trainings:
    """All that are known."""

    def __init__(self) -> None:
        self._trainings: dict[Place, _Training] = {}
        self._history = History(len(HISTORY_COLUMNS), MOST_TRAININGS * len(HISTORY_COLUMNS) * _POINT_BYTES)

    def add_steps(self, place: Place, batch: StepBatch, now_s: float) -> None:
        """Add a rank's steps; ``now_s`` as of `tick`."""
        found = self._of(place, batch.training, batch.time_ns)
        if found is None or not batch.step:
            return
        found.received_s, found.generation = now_s, batch.generation
        found.step = max(found.step, batch.step[-1] + 1)
        if batch.rank < MOST_DEVICES:
            found.memory_bytes[batch.rank] = max(batch.memory_bytes)
            found.new_us.setdefault(batch.rank, []).extend(batch.step_us)

    def add_event(self, place: Place, event: TrainingEvent, now_s: float, age_s: float) -> None:
        """Add an event; ``age_s``: of one that was stored, before now."""
        found = self._of(place, event.training, event.time_ns)
        if found is None:
            return
        found.received_s = max(found.received_s, now_s - age_s)
        found.generation, found.total = event.generation, event.total
        found.step = max(found.step, event.step)
        if event.plan is not None:
            found.plan = event.plan
        if event.change is TrainingChange.DRIFT:
            found.drift = event.cause
        if event.change is TrainingChange.ENDED:
            found.end = f"exit code {event.exit_code}: {event.cause}" if event.exit_code else event.cause or "ended"

    def tick(self, time_s: float, now_s: float, *, connected: bool) -> Iterator[tuple[str, bytes, bool]]:
        """End a second: what changes for the pages, by key, and whether it has gone.

        Args:
            time_s: since the epoch, for the history.
            now_s: on the clock of `add_steps`.
            connected: while nothing can be heard, nothing has gone.
        """
        self._history.advance(time_s)
        for place, training in list(self._trainings.items()):
            key = f"training/{training.job}/{training.node}"
            if now_s <= training.shown_until_s:
                training.is_shown = True
                self._measure(place, training)
                yield key, _message(training), False
            elif connected:
                if training.end:
                    self._forget(place)
                if training.is_shown:
                    yield key, console_message("TrainingGone", job=training.job, node=training.node), True
                training.is_shown = False

    def history(self, place: Place) -> Series | None:
        """The last hour of a training; columns as `HISTORY_COLUMNS` says."""
        return self._history.read(place)

    def _of(self, place: Place, training: str, time_ns: int) -> _Training | None:
        """Whose message it is; None: of an earlier start, or of one too many."""
        known = self._trainings.get(place)
        if known is not None and known.training == training:
            return known
        if known is not None and time_ns < known.began_ns:
            return None
        if known is None and len(self._trainings) >= MOST_TRAININGS and not self._make_room():
            return None
        was_shown = known is not None and known.is_shown
        made = _Training(*place, training=training, began_ns=time_ns, is_shown=was_shown)
        self._trainings[place] = made
        return made

    def _make_room(self) -> bool:
        """Forget the one that is silent for longest, of which only the plan is kept; False: all are shown."""
        silent = [place for place, training in self._trainings.items() if not training.is_shown]
        if not silent:
            return False
        self._forget(min(silent, key=lambda place: self._trainings[place].received_s))
        return True

    def _forget(self, place: Place) -> None:
        del self._trainings[place]
        self._history.release([place])

    def _measure(self, place: Place, training: _Training) -> None:
        """A second's step time: of the slowest rank, the median of its steps."""
        if not training.new_us:
            return
        training.step_us = max(median(times) for times in training.new_us.values())
        training.new_us.clear()
        predicted_us = np.nan if training.plan is None else training.plan.step_us
        self._history.write(
            self._history.claim([place]), np.array([[training.step_us], [predicted_us]], dtype=np.float32)
        )


def _message(training: _Training) -> bytes:
    plan = training.plan
    predicted = [0.0, 0.0, 0.0] if plan is None else [plan.step_us, plan.step_low_us, plan.step_high_us]
    return console_message(
        "Training",
        job=training.job,
        node=training.node,
        generation=training.generation,
        step=training.step,
        total=training.total,
        step_us=training.step_us,
        predicted_us=predicted,
        batch=0 if plan is None else plan.batch,
        engine="" if plan is None else str(plan.engine),
        drift=training.drift,
        end=training.end,
        devices=_devices(plan, training.memory_bytes),
    )


def _devices(plan: Plan | None, memory_bytes: dict[int, int]) -> Sequence[dict[str, Any]]:
    """What each has by the plan, and the memory that it has used; 0: it has not said so yet."""
    if plan is None:
        return []
    return [
        {
            "rank": device.rank,
            "samples": device.samples,
            "microbatches": device.microbatches,
            "state_share": device.state_share,
            "planned_bytes": device.planned_bytes,
            "allowed_bytes": device.allowed_bytes,
            "memory_bytes": memory_bytes.get(device.rank, 0),
        }
        for device in plan.devices[:MOST_DEVICES]
    ]
