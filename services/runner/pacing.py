"""Jobs that share a link send one after another: each is paused for a part of an iteration where it begins too early.

A job is paced on the node of its rank 0; its workers elsewhere follow, as they wait for it in their collective
operations. Its iterations are found in the kernel's counters of its connections, and are published; only in the
silence between two sending phases all its workers here are frozen, and thawed again. A shim thaws its worker where
this process does not (`worker_pause`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.scheduling import IterationSample, IterationSource, Pace
from services._host.netlink.attributes import NetlinkError
from services._runtime.clock import Clock
from services._runtime.telemetry.logging import Logger
from services._runtime.telemetry.telemetry import Telemetry
from services.runner.core.iterations import FlowIteration
from services.runner.core.phase import PhaseControl
from services.runner.core.sampling import EVERY_NS, REST_AFTER, REST_NS, SampleWindow, next_window
from services.runner.core.sending_phases import Counted, Iteration, PhaseBegin, PhaseEnd, SendingPhases
from services.runner.node_workers import NodeWorkers
from services.runner.tcp_counters import JobKey, JobTraffic, Processes, Sent
from services.runner.worker import Worker
from services.runner.worker_files import boot_s

SEARCH_NS: Final = 1_000_000_000
"""Between two searches for new jobs and new connections."""
_SEARCH_SLACK_NS: Final = 250_000_000
"""Until then a search waits for a turn in which something else is done."""
_KNOWN_SEARCHES: Final = 5
"""So much rarer where all jobs are known and have connections."""
_RETRY_NS: Final = 10_000_000_000
"""After counters could not be read."""
_TIMEOUT_SHARE: Final = 5
"""No pause is longer than a job's timeout divided by this."""
_SPARE_NS: Final = 1_000_000_000
"""A shim thaws its worker so long after the pause should have ended, or two periods after its begin if that is less."""
_SOON_NS: Final = 2_000_000
_BEGINS: Final = 8

Publish = Callable[[IterationSample], None]
Flows = Callable[[], Sequence[FlowIteration]]


class CannotPaceError(Exception):
    """A job cannot be paced; the text says why."""


@dataclass(frozen=True, slots=True)
class _ProcessIds:
    """All processes of a worker, found at each iteration over them: that takes dozens of system calls."""

    worker: Worker

    def __iter__(self) -> Iterator[int]:
        return iter(self.worker.process_ids())


@dataclass(frozen=True, slots=True)
class _Begin:
    """A begin of a paced job's sending phase."""

    time_ns: int
    error_us: int
    frozen_us: int = 0


class _Job:
    """One attempt of a job whose rank 0 is on this node."""

    def __init__(self, key: JobKey, now_ns: int) -> None:
        self.key = key
        self.workers: list[Worker] = []
        self.phases = SendingPhases()
        self.pace: Pace | None = None
        self.control: PhaseControl | None = None
        self.frozen_until_ns: int | None = None
        self.window = SampleWindow(now_ns, now_ns)
        """When its counters are to be read next."""
        self.since_rest = 0
        """Iterations."""
        self.flows_ns = 0
        """When the kernel program reported its flows last."""
        self.begins: deque[_Begin] = deque(maxlen=_BEGINS)
        self.refused = ""
        self.sample: IterationSample | None = None
        """The latest, of rank 0."""

    @property
    def error_us(self) -> int:
        """Of the latest begin."""
        return self.begins[-1].error_us if self.begins else 0

    def begin_at(self, time_ns: int, period_us: int) -> _Begin:
        """What is known of the begin of an iteration that was measured by another counter."""
        near = [each for each in self.begins if 4_000 * abs(each.time_ns - time_ns) < 1_000_000 * period_us]
        return near[-1] if near else _Begin(time_ns, 0)


@dataclass(frozen=True, slots=True)
class PacingSetup:
    """What pacing needs."""

    node: str
    collective_timeout_s: float
    publish: Publish
    flows: Flows = tuple
    """Iterations since the last call, by the kernel program that counts them for each flow."""


def _at(time_ns: int) -> SampleWindow:
    return SampleWindow(time_ns, time_ns)


class Pacing:
    """Measures the iterations of the jobs of one node, and paces them."""

    def __init__(self, setup: PacingSetup, workers: NodeWorkers, clock: Clock, log: Logger) -> None:
        self._setup = setup
        self._workers = workers
        self._clock, self._log = clock, log
        self._traffic = JobTraffic()
        self._jobs: dict[JobKey, _Job] = {}
        self._next_search_ns = self._next_find_ns = 0
        self._pauses, self._paused_ns, self._refused = 0, 0, 0
        self._timer: asyncio.TimerHandle | None = None
        """Of the next turn."""
        self._failed: asyncio.Future[None] | None = None
        """With what a turn has raised; None: `run` was not called."""
        self._closed = False

    def observe(self, telemetry: Telemetry) -> None:
        """Register metrics."""
        telemetry.observe("turnbuckle_runner_paced_jobs", lambda: len(list(self._paced())))
        telemetry.observe("turnbuckle_runner_pauses_total", lambda: self._pauses)
        telemetry.observe("turnbuckle_runner_paused_seconds_total", lambda: self._paused_ns / 1e9)
        telemetry.observe("turnbuckle_runner_refused_pauses_total", lambda: self._refused)
        telemetry.observe_by_label(
            "turnbuckle_runner_phase_error_seconds",
            "job",
            lambda: {job.key.job: job.error_us / 1e6 for job in self._paced()},
        )

    def _paced(self) -> Iterator[_Job]:
        return (job for job in self._jobs.values() if job.control is not None)

    # -- orders ----------------------------------------------------------------------------------------------------

    def pace(self, key: JobKey, pace: Pace | None) -> None:
        """Pace a job from now on; None: no more. The same pace again changes nothing.

        Raises:
            CannotPaceError: it cannot be.
        """
        job = self._jobs.get(key)
        if pace is not None and (job is None or job.pace != pace):
            self._find_jobs(self._clock.time_ns())  # all that run now are paused, also those of the last second
            job = self._jobs.get(key)
        if pace is None:
            if job is not None:
                self._thaw(job)
                job.pace = job.control = None
                job.begins.clear()
            return
        if reason := self._obstacle(key, job):
            raise CannotPaceError(reason)
        assert job is not None
        if job.pace == pace:
            return
        job.pace, job.refused = pace, ""
        begin_ns, period_ns = pace.begin_ns, pace.period_us * 1_000
        if job.control is None:
            longest_ns = int(self._setup.collective_timeout_s * 1e9) // _TIMEOUT_SHARE
            job.control = PhaseControl(begin_ns, period_ns, longest_ns)
        else:
            job.control.move(begin_ns, period_ns)
        now_ns = self._clock.time_ns()
        if job.frozen_until_ns is None and now_ns - job.phases.sampled_ns > EVERY_NS:
            job.window = _at(now_ns)
            self._sample(now_ns)  # it may have begun to send since the latest one
        if job.frozen_until_ns is not None or job.phases.ended_ns is not None:  # else it may send
            self._wait(job, now_ns)
        self._set_timer()

    def _obstacle(self, key: JobKey, job: _Job | None) -> str:
        """Why a job cannot be paced; empty: it can."""
        first = self._workers.find(key.job, key.attempt, 0)
        if first is None or first.intent is None:
            return "its rank 0 is not on this node"
        if not first.intent.interleave:
            return "its job file says interleave: false"
        if not first.intent.spread:
            return "all its workers are on one node"
        return "" if job is not None else "its rank 0 does not run"

    # -- loop ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sample and pause until cancelled; then nothing is left frozen."""
        self._failed = asyncio.get_running_loop().create_future()
        self._on_timer()
        try:
            await self._failed
        finally:
            self.close()

    def _on_timer(self) -> None:
        # To wake a task for each turn would take as long as the turn.
        assert self._failed is not None
        try:
            self._turn(self._clock.time_ns())
            self._set_timer()
        except Exception as error:  # noqa: BLE001 - raised by `run`
            if not self._failed.done():
                self._failed.set_exception(error)

    def _set_timer(self) -> None:
        """For the next turn."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._failed is not None and not self._closed:
            left_ns = self.next_turn_ns() - self._clock.time_ns()
            self._timer = self._failed.get_loop().call_later(max(0, left_ns) / 1e9, self._on_timer)

    def close(self) -> None:
        """Pace no more; every job that is paused goes on."""
        self._closed = True
        self._set_timer()
        for job in self._jobs.values():
            self._thaw(job)
        self._jobs.clear()
        self._traffic.close()

    def search(self) -> None:
        """Find new jobs, and publish what the kernel program has counted, if the last search is a while ago.

        For who wakes this process up anyway; else it is done a little later, in a turn.
        """
        now_ns = self._clock.time_ns()
        if now_ns >= self._next_search_ns:
            self._search(now_ns)
            self._set_timer()

    def next_turn_ns(self) -> int:
        """When something has to be done next; what may be done before is done then as well."""
        jobs = self._jobs.values()
        frozen = [job.frozen_until_ns for job in jobs if job.frozen_until_ns is not None]
        return min([self._next_search_ns + _SEARCH_SLACK_NS, *frozen, *(job.window.latest_ns for job in jobs)])

    def _turn(self, now_ns: int) -> None:
        """Do what is due."""
        for job in self._jobs.values():
            if job.frozen_until_ns is not None and job.frozen_until_ns <= now_ns:
                self._thaw(job)
        if now_ns >= self._next_search_ns:
            self._search(now_ns)
        if self._jobs:
            self._sample(now_ns)

    def _search(self, now_ns: int) -> None:
        self._next_search_ns = now_ns + SEARCH_NS
        self._find_jobs(now_ns)
        self._publish_flows(now_ns)

    def _find_jobs(self, now_ns: int) -> None:
        """Jobs that run on several nodes, with rank 0 on this one."""
        found: dict[JobKey, list[Worker]] = defaultdict(list)
        for worker in self._workers.living():
            if worker.started is not None and worker.intent is not None and worker.intent.spread:
                found[JobKey(worker.key.job, worker.key.attempt)].append(worker)
        found = {key: workers for key, workers in found.items() if any(each.key.rank == 0 for each in workers)}
        for key in [key for key in self._jobs if key not in found]:
            self._thaw(self._jobs.pop(key))
        for key, workers in found.items():
            if key not in self._jobs:
                self._jobs[key], self._next_find_ns = _Job(key, now_ns), 0
            self._jobs[key].workers = workers

    # -- samples ---------------------------------------------------------------------------------------------------

    def _sample(self, now_ns: int) -> None:
        try:
            if now_ns >= self._next_find_ns:
                self._find_connections(now_ns)
            due = {key: job for key, job in self._jobs.items() if job.window.due_ns <= now_ns + _SOON_NS}
            counted = self._traffic.read(due)
        except (OSError, NetlinkError) as error:
            self._log.warning("traffic_not_measured", error=str(error), effect="jobs are not paced meanwhile")
            self._next_find_ns = now_ns + _RETRY_NS
            for job in self._jobs.values():
                job.phases.interrupt()
                job.window = _at(now_ns + _RETRY_NS)
            return
        for key, job in due.items():
            if key in counted:
                self._observe(job, counted[key])
            else:
                job.phases.interrupt()
                job.window = _at(max(self._next_find_ns, now_ns + EVERY_NS))

    def _find_connections(self, now_ns: int) -> None:
        jobs = {
            key: [Processes(each.pid, _ProcessIds(each)) for each in job.workers] for key, job in self._jobs.items()
        }
        self._traffic.find(jobs)
        known = all(job.phases.is_known and self._traffic.has_connections(key) for key, job in self._jobs.items())
        self._next_find_ns = now_ns + (_KNOWN_SEARCHES if known else 1) * SEARCH_NS

    def _observe(self, job: _Job, sent: Sent) -> None:
        now_ns = self._clock.time_ns()
        seen = job.phases.observe(Counted(now_ns, sent.sent_bytes, sent.drops, sent.busy_ns, sent.quiet_ns))
        begun = seen if isinstance(seen, PhaseBegin) else None
        ended = seen if begun is None else job.phases.end(now_ns)
        sample = self._begun(job, begun, sent) if begun is not None else None
        due_ns = self._due(job, ended.time_ns) if isinstance(ended, PhaseEnd) else None
        if due_ns is not None and ended is not None and job.sample is not None:  # of this begin, or the one before
            sample = job.sample.model_copy(update={"due_ns": due_ns, "ended_ns": ended.time_ns})
        if sample is not None:
            self._setup.publish(sample)
        if due_ns is not None:
            self._wait(job, now_ns)
        job.window = self._next_window(job, now_ns)

    def _next_window(self, job: _Job, now_ns: int) -> SampleWindow:
        if job.control is None:
            reported = now_ns - job.flows_ns < REST_NS
            if reported or (job.since_rest >= REST_AFTER and job.phases.is_known):
                job.since_rest = 0
                job.phases.interrupt()
                return _at(now_ns + REST_NS)
        return next_window(job.phases, now_ns, job.frozen_until_ns or 0)

    def _begun(self, job: _Job, seen: PhaseBegin, sent: Sent) -> IterationSample | None:
        """A sending phase has begun, and an iteration is over by that: its sample, unless the kernel program counts."""
        sample = None
        if seen.iteration is not None:
            job.since_rest += 1
            self._paused_ns += seen.iteration.paused_ns
            self._note_paused(job, seen.iteration)
            if self._clock.time_ns() - job.flows_ns > REST_NS:
                sample = self._counted(job, seen.iteration, sent.congestion_control)
        if job.control is not None:
            if seen.time_ns is None:
                job.control.missed()
            else:
                job.begins.append(_Begin(seen.time_ns, job.control.began(seen.time_ns) // 1_000))
        return sample

    @staticmethod
    def _note_paused(job: _Job, iteration: Iteration) -> None:
        if job.begins and job.begins[-1].time_ns == iteration.begin_ns:
            last = job.begins.pop()
            job.begins.append(_Begin(last.time_ns, last.error_us, iteration.paused_ns // 1_000))

    def _counted(self, job: _Job, iteration: Iteration, congestion_control: str) -> IterationSample:
        counted = FlowIteration(
            time_ns=iteration.begin_ns,
            job=job.key.job,
            attempt=job.key.attempt,
            rank=0,
            period_us=iteration.period_ns // 1_000,
            sending_us=iteration.sending_ns // 1_000,
            sent_bytes=iteration.sent_bytes,
            drops=iteration.drops,
            congestion_control=congestion_control,
        )
        begin = job.begin_at(counted.time_ns, counted.period_us)
        return self._sampled(job, counted, IterationSource.SOCKETS, begin.error_us, iteration.paused_ns // 1_000)

    def _publish_flows(self, now_ns: int) -> None:
        """What the kernel program has counted, instead of what follows from counters."""
        for flow in self._setup.flows():
            job = self._jobs.get(JobKey(flow.job, flow.attempt))
            if job is not None:
                job.flows_ns = now_ns
                begin = job.begin_at(flow.time_ns, flow.period_us)
                self._setup.publish(self._sampled(job, flow, IterationSource.MLTCP, begin.error_us, begin.frozen_us))

    def _sampled(
        self, job: _Job, seen: FlowIteration, source: IterationSource, error_us: int, frozen_us: int
    ) -> IterationSample:
        sample = IterationSample(
            job=seen.job,
            attempt=seen.attempt,
            rank=seen.rank,
            time_ns=seen.time_ns,
            period_us=seen.period_us,
            sending_us=seen.sending_us,
            sent_bytes=seen.sent_bytes,
            drops=seen.drops,
            congestion_control=seen.congestion_control,
            node=self._setup.node,
            source=source,
            phase_error_us=error_us,
            frozen_us=frozen_us,
        )
        job.sample = sample if sample.rank == 0 else job.sample
        return sample

    # -- pauses ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _due(job: _Job, end_ns: int) -> int | None:
        """A sending phase is over: when the next one is due, if the job is paced; then it may have to wait."""
        if job.control is None or not job.phases.computing_ns:
            return None
        return job.control.ended(end_ns, job.phases.computing_ns)

    def _wait(self, job: _Job, now_ns: int) -> None:
        """Pause a job until its turn."""
        if job.control is None or job.pace is None or self._closed:
            return
        decision = job.control.wait(now_ns, job.frozen_until_ns or 0)
        if decision.refused:
            self._refused += 1
            if not job.refused:
                self._log.warning("pause_refused", job=job.key.job, reason=decision.refused)
            job.refused = decision.refused
        if not decision.pause_ns:
            return
        is_new = job.frozen_until_ns is None
        job.frozen_until_ns = max(now_ns, job.frozen_until_ns or 0) + decision.pause_ns
        lasts_ns = min(job.frozen_until_ns - now_ns + _SPARE_NS, 2 * job.pace.period_us * 1_000)
        if decision.pause_ns > 0 and not self._freeze(job, boot_s() + lasts_ns / 1e9):
            self._thaw(job)
            job.control.missed()
            return
        job.phases.note_pause(decision.pause_ns)
        job.window = self._next_window(job, now_ns)
        self._pauses += is_new

    def _freeze(self, job: _Job, until_s: float) -> bool:
        """Whether all its workers here are stopped."""
        try:
            return all(worker.pause(until_s) for worker in job.workers)
        except OSError as error:
            self._log.warning("job_not_paused", job=job.key.job, error=str(error))
            return False

    @staticmethod
    def _thaw(job: _Job) -> None:
        if job.frozen_until_ns is not None:
            job.frozen_until_ns = None
            for worker in job.workers:
                worker.thaw()
