"""All workers of this node: found again after a restart, started together, watched."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from schemas.apps import MIN_MEMORY_BYTES, MIN_QUOTA_US, PERIOD_US
from schemas.scheduling import JobSpec, Preemption, WorkOrder
from services._host.boot_records import boot_id
from services._host.cgroupfs import (
    MANAGED_ID_LENGTH,
    UNIFIED,
    CgroupLayout,
    CgroupUnavailableError,
    ManagedCgroup,
    managed_directory,
)
from services._host.moved_files import MovedFiles
from services._runtime.telemetry.logging import Logger, LogLimiter, log_once
from services.runner.congestion import CongestionControl
from services.runner.core.environment import WorkerPlace, worker_environment
from services.runner.core.node_slots import NodeSlots
from services.runner.core.worker_state import Step, next_step
from services.runner.host import WorkerUser
from services.runner.settings import RunnerSettings
from services.runner.worker import Origin, Worker, WorkerKey
from services.runner.worker_files import End, IllegibleRecordError, Intent, boot_s
from services.runner.worker_network import WorkerNetwork

JOBS: Final = "jobs"
BUS_FILE: Final = "bus"
ORDER_FILE: Final = "order.json"
"""Of a job: the sequence of the last order obeyed."""
DIRECTORY_MODE: Final = 0o711
"""Others may pass, to the directory that is theirs, and list nothing."""
_JOB: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,6}")
_PROCESSES_S: Final = 1.0
"""Between two looks whether shims live; the records are read at each poll."""
_LOG_EVERY_S: Final = 3_600.0
_DAY_S: Final = 86_400.0
_UNFORGOTTEN_DAYS: Final = 30.0
_MAX_APP: Final = 63
"""Characters of an application's name (`schemas.apps.NAME_PATTERN`)."""


class NotRecordedError(Exception):
    """Workers cannot be recorded, so none of them was started; the text says why."""


@dataclass(frozen=True, slots=True)
class HostSetup:
    """What workers are started on."""

    settings: RunnerSettings
    directory: Path
    """Of this node's records."""
    slots: NodeSlots
    layout: CgroupLayout | None
    """None: no control groups."""
    user: WorkerUser | None
    """None: as the runner."""
    congestion: CongestionControl
    network: WorkerNetwork | None = None
    """None: this host's own."""


class NodeWorkers:
    """The workers of one node, by job, attempt and rank."""

    def __init__(self, setup: HostSetup, origin: Origin, log: Logger) -> None:
        self._setup = setup
        self._origin = origin
        self._log = log
        self._workers: dict[WorkerKey, Worker] = {}
        self._open: dict[WorkerKey, Worker] = {}
        """Of these, those of which something may happen, or has to be published."""
        self._illegible: dict[WorkerKey, str] = {}
        self._limiter = LogLimiter()
        self._moved = self._open_watches()
        self._watches: dict[WorkerKey, int] = {}
        """Of the directories of these workers."""
        self._next_processes_s = 0.0
        self.starts = 0
        """Workers that were started since the runner's start."""

    # -- finding ---------------------------------------------------------------------------------------------------

    def adopt(self) -> int:
        """Find the workers that an earlier runner has recorded; returns how many have not ended."""
        for key, directory in self._directories():
            worker = Worker(key, directory, self._origin)
            self._watch(worker)
            try:
                worker.refresh()
            except IllegibleRecordError as error:
                self._set_aside(key, error)
                continue
            self._workers[key] = worker
            worker.thaw()  # an earlier runner may have been killed while it was paused
            if worker.files.forgotten.exists():
                self._unwatch(key)
            else:
                self._open[key] = worker
        self.poll()
        living = self.living()
        for worker in living:
            self._choose_congestion_control(worker)
        return len(living)

    def _set_aside(self, key: WorkerKey, error: IllegibleRecordError) -> None:
        self._workers.pop(key, None)
        self._open.pop(key, None)
        self._unwatch(key)
        self._illegible[key] = str(error)
        self._log.error("worker_record_illegible", job=key.job, attempt=key.attempt, rank=key.rank, error=str(error))

    def _directories(self) -> Iterator[tuple[WorkerKey, Path]]:
        for job in _named(self._setup.directory / JOBS, _JOB):
            for attempt in _named(job, _NUMBER):
                for rank in _named(attempt, _NUMBER):
                    yield WorkerKey(job.name, int(attempt.name), int(rank.name)), rank

    def job_directory(self, job: str) -> Path:
        """Where a job's records lie."""
        return self._setup.directory / JOBS / job

    def get(self, key: WorkerKey) -> Worker:
        """A worker; a new one where nothing is recorded of it.

        Raises:
            NotRecordedError: its records are not legible.
        """
        if key in self._illegible:
            raise NotRecordedError(f"{self._illegible[key]}: remove its directory")
        worker = self._workers.get(key)
        if worker is None:
            directory = self.job_directory(key.job) / str(key.attempt) / str(key.rank)
            worker = self._workers[key] = self._open[key] = Worker(key, directory, self._origin)
        return worker

    def find(self, job: str, attempt: int, rank: int) -> Worker | None:
        """A worker that is recorded; attempt 0: of the latest attempt."""
        attempts = [key.attempt for key in self._workers if key.job == job and key.rank == rank]
        key = WorkerKey(job, attempt or max(attempts, default=0), rank)
        return self._workers.get(key)

    def living(self) -> list[Worker]:
        """Those that are recorded and have not ended, or are about to be started."""
        return [worker for worker in self._open.values() if worker.intent is not None and not worker.over]

    def unpublished(self) -> list[Worker]:
        """Those with events that are not handed to the bus; the others that have ended are not polled any more."""
        done = [k for k, worker in self._open.items() if worker.over and not worker.unpublished and worker.is_reaped()]
        for key in done:
            del self._open[key]
            self._unwatch(key)
            self._setup.congestion.release(key)
        return [worker for worker in self._open.values() if worker.unpublished]

    def taken_slots(self) -> set[int]:
        """Places that workers hold until their end."""
        return {place for worker in self.living() if worker.intent is not None for place in worker.intent.slots}

    def by_state(self) -> dict[str, float]:
        """How many workers are being started, run, or are to stop."""
        counts = dict.fromkeys(("starting", "running", "stopping"), 0.0)
        for worker in self.living():
            counts[worker.state] += 1
        return counts

    # -- starting --------------------------------------------------------------------------------------------------

    def start(self, order: WorkOrder, workers: Sequence[Worker]) -> None:
        """Start some workers of an order: all of them, or none.

        One that cannot be started for a reason of its own has failed then.

        Raises:
            NotRecordedError: there is no room for their records: nothing is started.
        """
        fresh = [worker for worker in workers if worker.intent is None]
        taken = self.taken_slots()
        assert order.spec is not None
        places = self._setup.slots.find(order.spec.slots, len(fresh), taken)
        try:
            if places is None:
                reason = self._no_room(order, len(fresh), len(taken))
                for worker in fresh:
                    worker.declare(End(time.time_ns(), error=reason))
                return
            for worker in workers:
                if worker.intent is not None:  # of an order whose shim never came to it
                    worker.renew(boot_s())
            for worker, slots in zip(fresh, places, strict=True):
                self._record(worker, self._intent(order, worker, slots), order.plan)
        except OSError as error:
            for worker in fresh:
                self._undo(worker)
            raise NotRecordedError(f"the workers cannot be recorded in {self._setup.directory}: {error}") from error
        for worker in workers:
            self._spawn(worker)

    def _no_room(self, order: WorkOrder, workers: int, taken: int) -> str:
        assert order.spec is not None
        slots = self._setup.slots.slots
        wanted = workers * order.spec.slots
        return f"no room: {wanted} slots are needed, {max(0, slots - taken)} of {slots} are free on {self._origin.node}"

    def _record(self, worker: Worker, intent: Intent, plan: str) -> None:
        directory = worker.files.directory
        for path in (directory.parent.parent, directory.parent, directory):
            path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        self._watch(worker)
        worker.files.own.mkdir(mode=0o700, exist_ok=True)
        user = self._setup.user
        if user is not None:
            os.chown(worker.files.own, user.uid, user.gid)
        if plan:
            worker.files.write_plan(plan)
        worker.files.reserve()
        worker.files.write(intent)
        worker.refresh()

    def _undo(self, worker: Worker) -> None:
        self._unwatch(worker.key)
        shutil.rmtree(worker.files.directory, ignore_errors=True)
        worker.intent = None

    def _intent(self, order: WorkOrder, worker: Worker, slots: list[int]) -> Intent:
        spec, settings, user, network = order.spec, self._setup.settings, self._setup.user, self._setup.network
        assert spec is not None
        checkpoints = self._checkpoints(spec)
        place = WorkerPlace(
            worker.key.rank,
            self._setup.slots.gpus_of(slots),
            str(checkpoints),
            str(worker.files.ready_file),
            *((user.home, user.name) if user is not None else ("", "")),
            training_socket=str(worker.files.training_socket),
            plan_file=str(worker.files.plan) if order.plan else "",
            device=network.device if network is not None else "",
        )
        group = self._group(worker.key)
        may_be_preempted = spec.preemption is not Preemption.NEVER
        saves = spec.preemption is Preemption.CHECKPOINT
        return Intent(
            *worker.key,
            boot=boot_id(),
            preemption=str(spec.preemption),
            grace_s=spec.grace_s,
            slots=slots,
            cpu_cores=spec.cpu_cores or self._setup.slots.share_cores(spec.slots),
            memory_bytes=spec.memory_bytes or self._setup.slots.share_memory(spec.slots),
            command=list(spec.command),
            directory=spec.directory,
            environment=worker_environment(order, place, os.environ),
            network_namespace=network.namespace if network is not None else "",
            checkpoint_directory=str(checkpoints) if saves else "",
            user=[user.name, user.uid, user.gid, list(user.groups)] if user is not None else None,
            group=group.place if group is not None else None,
            ordered_s=boot_s(),
            bus_file=str(self._setup.directory / BUS_FILE),
            fence_after_s=settings.fence_after_s if may_be_preempted else 0.0,
            ready_within_s=settings.ready_within_s if saves else 0.0,
            log_bytes=settings.log_bytes,
            congestion_control=spec.congestion_control,
            interleave=spec.interleave,
            spread=len(set(order.nodes)) > 1,
        )

    def _checkpoints(self, spec: JobSpec) -> Path:
        root = self._setup.settings.checkpoint_root
        if root is not None and not spec.checkpoint_directory:
            return root / spec.job
        return Path(spec.directory, spec.checkpoint_directory or f"turnbuckle-checkpoints/{spec.job}")

    def _group(self, key: WorkerKey) -> ManagedCgroup | None:
        """Its control group, by whose name the agent manages it as a container of the job's application."""
        if self._setup.layout is None:
            return None
        names = f"{self._origin.node}/{key.job}/{key.attempt}/{key.rank}"
        number = sha256(names.encode()).hexdigest()[:MANAGED_ID_LENGTH]
        root = self._setup.settings.managed_root
        directory = managed_directory(f"job-{key.job}"[:_MAX_APP], f"worker-{key.rank}", number, root)
        return ManagedCgroup(self._setup.layout, directory, freezer=True)

    def _spawn(self, worker: Worker) -> None:
        assert worker.intent is not None
        try:
            group = self._group(worker.key)
            if group is not None:
                quota_us = max(MIN_QUOTA_US, int(worker.intent.cpu_cores * PERIOD_US))
                limit_bytes = max(MIN_MEMORY_BYTES, worker.intent.memory_bytes)
                group.make(quota_us, limit_bytes)
            self._choose_congestion_control(worker)
            worker.start_shim()
        except (OSError, CgroupUnavailableError) as error:
            worker.declare(End(time.time_ns(), error=f"it cannot be started: {error}"))
            return
        self.starts += 1

    def _choose_congestion_control(self, worker: Worker) -> None:
        """Of the connections that it makes from now on, by its control group of version 2."""
        if worker.intent is None:
            return
        group, layout = self._group(worker.key), self._setup.layout
        known = layout.directories(group.directory) if group is not None and layout is not None else {}
        self._setup.congestion.choose(worker.key, known.get(UNIFIED), worker.intent.congestion_control)

    # -- watching --------------------------------------------------------------------------------------------------

    def _open_watches(self) -> MovedFiles | None:
        try:
            return MovedFiles()
        except OSError as error:
            self._log.warning("records_not_watched", error=str(error), effect="they are read ten times a second")
            return None

    def _watch(self, worker: Worker) -> None:
        """Have `descriptor` notify of its records from now on; its directory is there."""
        if self._moved is None or worker.key in self._watches:
            return
        try:
            self._watches[worker.key] = self._moved.watch(str(worker.files.directory))
        except OSError as error:
            effect = "records are read ten times a second"
            log_once(
                self._log.warning,
                self._limiter,
                "records_not_watched",
                _LOG_EVERY_S,
                job=worker.key.job,
                error=str(error),
                effect=effect,
            )

    def _unwatch(self, key: WorkerKey) -> None:
        watch = self._watches.pop(key, None)
        if self._moved is not None and watch is not None:
            self._moved.forget(watch)

    @property
    def descriptor(self) -> int | None:
        """Readable where there may be something for `poll`; None: this host has no such thing to give."""
        return self._moved.fileno() if self._moved is not None else None

    @property
    def watched(self) -> bool:
        """Whether `descriptor` notifies of each worker's records; of a shim that was killed it never does."""
        return self._moved is not None and all(worker.key in self._watches for worker in self.living())

    def close(self) -> None:
        """Watch no more."""
        if self._moved is not None:
            self._moved.close()
            self._moved = None

    def poll(self) -> None:
        """Read what is new of those that have not ended, and do what has to be done without an order."""
        if self._moved is not None:
            self._moved.drain()  # first: what comes later is an event again
        now_s = time.monotonic()
        processes = now_s >= self._next_processes_s
        if processes:
            self._next_processes_s = now_s + _PROCESSES_S
        for worker in self.living():
            try:
                worker.refresh()
                if processes and not worker.over:
                    self._check_processes(worker)
            except IllegibleRecordError as error:
                self._set_aside(worker.key, error)

    def _check_processes(self, worker: Worker) -> None:
        facts = worker.facts()
        if next_step(facts, None) is Step.DECLARE_LOST:
            self.declare_lost(worker)
        elif (failure := worker.shim_failure) is not None:
            worker.declare(End(time.time_ns(), error=failure))

    def declare_lost(self, worker: Worker) -> None:
        """Record that it is gone, once nothing of it is left."""
        if worker.intent is None:
            reason = "nothing is known of it on this node"
        elif worker.intent.boot != boot_id():
            reason = "the host was booted anew"
        elif worker.claim is None:
            reason = "it had not been started when its runner ended"
        else:
            reason = "its shim was killed"
        worker.declare(End(time.time_ns(), error=reason, lost=True))

    # -- age -------------------------------------------------------------------------------------------------------

    def remove_old(self, now_s: float) -> int:
        """Remove logs and ends of workers that were forgotten `log_days` ago; returns of how many.

        Those that no scheduler has told to forget go after a month.
        """
        kept_s = self._setup.settings.log_days * _DAY_S
        removed = 0
        for key, worker in list(self._workers.items()):
            if worker.end is None:
                continue
            try:
                since_s, most_s = worker.files.forgotten.stat().st_mtime, kept_s
            except OSError:
                since_s, most_s = worker.end.time_ns / 1e9, max(kept_s, _UNFORGOTTEN_DAYS * _DAY_S)
            if now_s - since_s < most_s:
                continue
            directory = worker.files.directory
            shutil.rmtree(directory, ignore_errors=True)
            del self._workers[key]
            removed += 1
            with suppress(OSError):  # other ranks are there, or other attempts
                directory.parent.rmdir()
                self._remove_job(key.job)
        return removed

    def _remove_job(self, job: str) -> None:
        directory = self.job_directory(job)
        if [path.name for path in directory.iterdir()] == [ORDER_FILE]:
            shutil.rmtree(directory)


def _named(directory: Path, name: re.Pattern[str]) -> list[Path]:
    """The directories in a directory whose names fit; none where it cannot be read."""
    try:
        with os.scandir(directory) as entries:
            fit = [
                entry.name for entry in entries if name.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []
    return [directory / each for each in sorted(fit)]
