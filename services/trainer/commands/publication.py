"""One training as it is published: batches of steps, and events with the plan and what was measured beside it."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from schemas.measured_runs import MeasuredRun
from schemas.plans import Plan, PlanReason
from schemas.trainings import TrainingChange, TrainingEvent
from services.trainer.commands.publishing import Publisher
from services.trainer.core.pauses import Pause
from services.trainer.core.progress import Progress
from services.trainer.core.publication import Start, published_plan, published_run, step_batches

_ID_BYTES: Final = 6
_MAX_CAUSE: Final = 1_000


class Publication:
    """Publishes it where there is a publisher."""

    def __init__(self, plan: Plan, total: int, checkpoint: str, publisher: Publisher | None) -> None:
        self._plan = plan
        self._total = total
        self._checkpoint = checkpoint
        self._publisher = publisher
        # In a job its runner says whose it is, in place of this.
        self._start = Start(plan.job, socket.gethostname(), secrets.token_hex(_ID_BYTES))
        self._sequence = 0
        self._step = 0
        self._step_us = 0.0
        self.changes: Mapping[str, Callable[[int], None]] = {"resumed": self._resumed, "saved": self._saved}
        """By rank 0's event: takes the step after which it was."""

    def started(self) -> None:
        """Its ranks are being started."""
        self._publish(TrainingChange.STARTED, plan=published_plan(self._plan))

    def steps(self, report: Mapping[str, Any]) -> None:
        """Of one rank."""
        if self._publisher is not None:
            for batch in step_batches(self._start, report, time.time_ns()):
                self._publisher.publish(batch)

    def progress(self, progress: Progress) -> None:
        """What the next events say of steps."""
        self._step, self._step_us = progress.done, progress.step_us

    def drift(self, reason: PlanReason) -> None:
        """The plan's prediction does not hold."""
        self._step_us = reason.measured
        self._publish(TrainingChange.DRIFT, cause=reason.sentence)

    def worker(
        self, change: TrainingChange, *, worker: str = "", workers: int = 0, usd: float, cause: str = ""
    ) -> None:
        """Something has become of an elastic training's workers."""
        self._publish(change, worker=worker, workers=workers, usd=usd, cause=cause[:_MAX_CAUSE])

    def continued(self, pause: Pause, *, workers: int, usd: float, cause: str) -> None:
        """An elastic training's steps go on in another generation."""
        rest = {"workers": workers, "usd": usd, "cause": cause[:_MAX_CAUSE], "pause_us": pause.pause_us}
        self._publish(TrainingChange.CONTINUED, **rest)

    def ended(self, code: int, cause: str, run: MeasuredRun | None) -> None:
        """It has ended, or was stopped; ``run``: what its steps took."""
        self._publish(TrainingChange.ENDED, exit_code=code, cause=cause[:_MAX_CAUSE], run=published_run(run))

    def _resumed(self, step: int) -> None:
        self._step = step
        self._publish(TrainingChange.RESUMED)

    def _saved(self, step: int) -> None:
        self._step = step
        self._publish(TrainingChange.SAVED)

    def _publish(self, change: TrainingChange, **rest: Any) -> None:
        if self._publisher is None:
            return
        event = TrainingEvent(
            job=self._start.job,
            node=self._start.node,
            training=self._start.training,
            sequence=self._sequence,
            change=change,
            time_ns=time.time_ns(),
            step=self._step,
            total=self._total,
            measured_step_us=self._step_us,
            predicted_step_us=self._plan.step_us,
            checkpoint=self._checkpoint,
            **rest,
        )
        self._sequence += 1
        self._publisher.publish(event)
