"""One local run: started, sampled at equal intervals, its output read, stopped; published as events and on the bus."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas.runs import MachineSpeed, RunEnd, RunProfile, RunSample
from schemas.subjects import RUN_SAMPLES
from services._runtime.bus.api import Bus
from services._runtime.command.tool_events import emit
from services.collector.profiler.contention import ContentionCounters, contention_between
from services.collector.profiler.options import LocalRunPlan
from services.collector.profiler.progress.choice import Choice
from services.collector.profiler.progress.reader import ProgressReader
from services.collector.profiler.progress.text import lines_of
from services.collector.profiler.rate import with_estimates
from services.collector.profiler.secrets import mask_command
from services.collector.profiler.series import Recording, Usage, series_of
from services.collector.profiler.worker_environment import MASTER
from services.collector.profiler.workers import LocalWorkers, Worker, progress_file

MOST_BYTES: Final = 1 << 18
"""Of one reading of one file. Of more that was written since the last one only the end is read: a line that is read
later than it was written would have the wrong time."""


@dataclass(slots=True)
class OutputFile:
    """One file that grows."""

    path: Path
    skipped_bytes: int = 0
    """Written faster than it was read, and left out."""
    _read: int = 0
    _rest: bytes = b""

    def new_lines(self) -> Sequence[str]:
        """Return the whole lines since the last call; none where there is no such file (yet)."""
        try:
            with self.path.open("rb") as file:
                skip = max(0, os.fstat(file.fileno()).st_size - self._read - MOST_BYTES)
                file.seek(self._read + skip)
                new = file.read(MOST_BYTES)
        except OSError:
            return ()
        self._read += skip + len(new)
        if skip:
            # The first line has lost its beginning.
            self.skipped_bytes += skip
            self._rest, new = b"", re.sub(rb"^[^\r\n]*", b"", new)
        lines, self._rest = lines_of(self._rest + new)
        return lines


_STOPPERS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LocalRun:
    """One run, from its first process to its last."""

    def __init__(
        self, plan: LocalRunPlan, workers: LocalWorkers, bus: Bus | None, speed: MachineSpeed | None = None
    ) -> None:
        self._plan = plan
        self._workers = workers
        self._bus = bus
        self._speed = speed
        self._changed = asyncio.Event()
        self._interrupts = 0
        self._recordings: list[Recording] = []
        self._progress = ProgressReader(plan.interval_s, plan.known_progress, plan.progress_pattern)
        self._records = OutputFile(progress_file(plan.logs, MASTER))
        self._output = [OutputFile(plan.logs / f"{MASTER}.{kind}") for kind in ("out", "err")]
        self.load_average = 0.0
        self._contention: list[ContentionCounters] = []
        """The first and the last one."""
        self.started_ns = 0
        self.duration_s = 0.0
        self.end = RunEnd.FINISHED
        self.reason = ""

    async def live(self) -> None:
        """Start, record until the end, stop what still runs.

        Raises:
            SandboxUnavailableError, OSError: as `LocalWorkers.start`.
        """
        loop = asyncio.get_running_loop()
        for number in _STOPPERS:
            loop.add_signal_handler(number, self._interrupt)
        try:
            self._workers.prepare()
            self._recordings = [Recording(name, self._plan.interval_s) for name in self._workers.names]
            self.load_average, self.started_ns = os.getloadavg()[0], time.time_ns()
            start_s = loop.time()
            self._take(0.0)
            self._workers.start()
            self._workers.watch(loop, self._changed.set)
            self._emit_started()
            self.end = await self._record(start_s)
            self.duration_s = loop.time() - start_s
            self._read_output(self.duration_s)
            await self._stop()
            self.reason = self._reason()
        finally:
            self._workers.kill()
            for number in _STOPPERS:
                loop.remove_signal_handler(number)

    def _interrupt(self) -> None:
        self._interrupts += 1
        self._changed.set()

    def _emit(self, event: str, **fields: object) -> None:
        """Emit an event. If standard output is closed the run ends, and its samples are kept."""
        try:
            emit(event, **fields)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
            self._interrupt()

    def _emit_started(self) -> None:
        workers = [
            {"worker": worker.name, "address": worker.sandbox.address, "pid": worker.process.pid}
            for worker in self._workers.workers
        ]
        self._emit(
            "started", run=self._plan.run, logs=str(self._plan.logs), limit_s=self._plan.limit_s, workers=workers
        )

    async def _record(self, start_s: float) -> RunEnd:
        """Sample on a grid that starts with the workers, so that no delay adds up."""
        interval_s, limit_s = self._plan.interval_s, self._plan.limit_s
        loop = asyncio.get_running_loop()
        tick = 0
        while True:
            # A timer may fire some nanoseconds early, and a late one misses ticks: neither makes a tick twice.
            tick = max(tick + 1, int((loop.time() - start_s) / interval_s) + 1)
            due_s = min(tick * interval_s, limit_s)
            if (end := await self._ended_before(start_s + due_s)) is not None:
                return end
            if due_s == tick * interval_s:
                self._take(loop.time() - start_s)
            if due_s >= limit_s:
                return RunEnd.TIMED_OUT

    async def _ended_before(self, deadline_s: float) -> RunEnd | None:
        """Why the run has ended; None: it still runs at the deadline."""
        while True:
            if self._interrupts:
                return RunEnd.INTERRUPTED
            if self._workers.failed is not None:
                return RunEnd.FAILED
            if self._workers.all_ended:
                return RunEnd.FINISHED
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._changed.wait()
            except TimeoutError:
                return None

    def _read_output(self, elapsed_s: float) -> None:
        for file in self._output:
            for line in file.new_lines():
                self._progress.take(line, elapsed_s)
            if file.skipped_bytes:
                self._progress.skip()
        for line in self._records.new_lines():
            self._progress.take_record(line, elapsed_s)

    @property
    def choice(self) -> Choice:
        """The rate by the progress file or the command's output, or why there is none."""
        return self._progress.choice()

    def _take(self, elapsed_s: float) -> None:
        self._read_output(elapsed_s)
        counters = self._workers.counters(elapsed_s)
        self._contention[1:] = [self._workers.contention(elapsed_s)]
        usages = [recording.add(now) for recording, now in zip(self._recordings, counters, strict=True)]
        rows = {
            recording.worker: usage
            for recording, usage in zip(self._recordings, usages, strict=True)
            if usage is not None
        }
        if rows:
            self._emit_sample(elapsed_s, rows)

    def _emit_sample(self, elapsed_s: float, rows: dict[str, Usage]) -> None:
        workers = [{"worker": name, **usage._asdict()} for name, usage in rows.items()]
        samples = len(self._recordings[0].rows)
        self._emit("sample", sample=samples, elapsed_s=elapsed_s, limit_s=self._plan.limit_s, workers=workers)
        if self._bus is not None:
            subject = RUN_SAMPLES.subject(self._bus.root, run=self._plan.run)
            for name, usage in rows.items():
                values = usage._asdict() | {"memory_bytes": int(usage.memory_bytes)}
                self._bus.publish(subject, RunSample(run=self._plan.run, worker=name, elapsed_s=elapsed_s, **values))

    async def _stop(self) -> None:
        """SIGTERM, and SIGKILL after the grace or at a second interrupt; returns when all have ended."""
        loop = asyncio.get_running_loop()
        if not self._workers.all_ended:
            self._emit("stopping", reason=self.end.value, grace_s=self._plan.grace_s)
            self._workers.terminate()
        before = self._interrupts
        deadline_s = loop.time() + self._plan.grace_s
        while not self._workers.all_ended:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline_s):
                    await self._changed.wait()
            if self._interrupts > before or loop.time() >= deadline_s:
                self._workers.kill()
                before, deadline_s = self._interrupts, loop.time() + 1.0

    def profile(self) -> RunProfile:
        """What was recorded, and why it ended."""
        plan = self._plan
        recorded = RunProfile(
            run=plan.run,
            task=plan.task,
            configuration=plan.configuration,
            command=mask_command(plan.argv),
            started_ns=self.started_ns,
            interval_s=plan.interval_s,
            duration_s=self.duration_s,
            end=self.end,
            exit_codes=tuple(worker.exit_code or 0 for worker in self._workers.workers),
            workers=series_of(self._recordings),
            load_average=self.load_average,
            reason=self.reason,
            speed=self._speed,
            contention=contention_between(
                self._contention[0], self._contention[-1], os.cpu_count() or 1, plan.cpu_cores
            ),
        )
        return with_estimates(recorded, self.choice.pace)

    def _reason(self) -> str:
        """Why it failed, as text; empty if it has not. Reads the sandboxes, which must still exist."""
        worker = self._workers.failed if self.end is RunEnd.FAILED else None
        if worker is None:
            return ""
        if self._workers.out_of_memory(worker):
            limit = self._plan.limits.memory_bytes
            return f"{worker.name} ran out of memory" + (f" (its limit: {limit / (1 << 20):.0f} MiB)" if limit else "")
        return f"{worker.name} ended {describe_exit(worker.exit_code or 0)}"

    @property
    def dead_worker(self) -> Worker | None:
        """The worker whose failure ended the run."""
        return self._workers.failed if self.end is RunEnd.FAILED else None


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"with exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
