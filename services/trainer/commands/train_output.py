"""What `turnbuckle train` prints: a line a second for people, or an event a line for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from schemas.measured_runs import MeasuredRun
from schemas.plans import PlanReason
from services._runtime.command.output import format_duration
from services._runtime.stdout import discard
from services.trainer.core.pauses import Pause, PauseSummary
from services.trainer.core.progress import Progress


class TrainOutput:
    """Either form."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def launch(self, lines: Sequence[str]) -> None:
        """What is, or would be, run on each machine."""
        if self._as_json:
            _emit("launch", lines=list(lines))
            return
        for line in lines:
            _print(sys.stdout, line)

    def progress(self, progress: Progress) -> None:
        """A second of steps."""
        if self._as_json:
            _emit("progress", **asdict(progress))
            return
        loss = "not finite" if progress.loss is None else f"{progress.loss:.6g}"
        step, planned = format_duration(progress.step_us), format_duration(progress.predicted_step_us)
        rate = f"{progress.samples_per_s:,.0f}" if progress.samples_per_s >= 100 else f"{progress.samples_per_s:.3g}"
        _print(
            sys.stdout,
            f"step {progress.done} of {progress.total}  {step} (planned {planned})  {rate} samples/s  loss {loss}",
        )

    def elastic_progress(self, progress: Progress, workers: int, usd: float) -> None:
        """A second of an elastic training's steps."""
        if self._as_json:
            fields = {key: value for key, value in asdict(progress).items() if key != "predicted_step_us"}
            _emit("progress", **fields, workers=workers, usd=usd)
            return
        loss = "not finite" if progress.loss is None else f"{progress.loss:.6g}"
        rate = f"{progress.samples_per_s:,.0f}" if progress.samples_per_s >= 100 else f"{progress.samples_per_s:.3g}"
        cost = f"  {usd:.4f} USD" if usd else ""
        _print(
            sys.stdout,
            f"step {progress.done} of {progress.total}  {workers} worker{'s' * (workers != 1)}  "
            f"{format_duration(progress.step_us)}  {rate} samples/s  loss {loss}{cost}",
        )

    def workers(self, event: str, text: str, **fields: object) -> None:
        """What becomes of an elastic training's workers, or is decided about them, and why."""
        if self._as_json:
            _emit(event, **fields, sentence=text)
        else:
            _print(sys.stderr, text)

    def continued(self, pause: Pause) -> None:
        """Steps go on in another generation: for programs, as people read the sum at the end."""
        if self._as_json:
            _emit("continued", **asdict(pause))

    def pauses(self, changes: PauseSummary, failures: PauseSummary) -> None:
        """How long steps rested at changes of an elastic training's workers, and where its group had failed."""
        if self._as_json:
            _emit("pauses", changes=asdict(changes), failures=asdict(failures))
            return
        for what, found in (("change of workers", changes), ("failure", failures)):
            if found.p50_us is not None and found.p95_us is not None:
                median, high = format_duration(found.p50_us), format_duration(found.p95_us)
                _print(sys.stderr, f"steps paused at each {what}: {median} (p50), {high} (p95) of {found.count}")

    def drift(self, reason: PlanReason) -> None:
        """The plan's prediction does not hold."""
        if self._as_json:
            _emit("drift", **reason.model_dump(mode="json", exclude={"rank"}))
        else:
            _print(sys.stderr, f"warning: {reason.sentence}")

    def from_ranks(self, line: str, *, stream: str) -> None:
        """A line that the user's code or a rank has printed; ``stream``: ``stdout`` or ``stderr``."""
        if self._as_json:
            _emit("output", stream=stream, text=line)
        else:
            _print(sys.stderr, line)

    def from_torchrun(self, line: str) -> None:
        """A line of its report of a failure: for programs only, as the last error says the cause."""
        if self._as_json:
            self.from_ranks(line, stream="stderr")

    def recorded(self, run: MeasuredRun | str, file: Path) -> None:
        """What later plans learn from this training, or why they learn nothing."""
        learned = None if isinstance(run, str) else run
        if self._as_json:
            plain = None if learned is None else learned.model_dump(mode="json")
            _emit("recorded", run=plain, file=str(file), refused=run if learned is None else "")
        elif learned is None:
            _print(sys.stderr, f"not recorded for later plans: {run}")
        else:
            step, planned = format_duration(learned.step_us), format_duration(learned.predicted_step_us)
            _print(sys.stderr, f"recorded in {file}: {step} a step, the layer profiles predict {planned}")

    def result(self, result: Mapping[str, Any], total: int, checkpoint: str) -> None:
        """The end of a training that has not failed."""
        if self._as_json:
            _emit("result", step=result["step"], total=total, loss=result["loss"], stopped=result["stopped"])
            return
        loss = "" if result["loss"] is None else f", loss {result['loss']:.6g}"
        _print(sys.stdout, f"{'stopped' if result['stopped'] else 'done'} after step {result['step']} of {total}{loss}")
        if result["stopped"] and checkpoint:
            _print(sys.stderr, f"the same command goes on at the last checkpoint in {checkpoint}")


def _emit(event: str, **fields: object) -> None:
    _print(sys.stdout, json.dumps({"event": event, **fields}, allow_nan=False))


def _print(stream: TextIO, line: str) -> None:
    """A training does not end because the program that reads its lines has."""
    try:
        stream.write(line + "\n")
        stream.flush()
    except BrokenPipeError:
        discard(stream)
