"""Congestion control of workers' connections: MLTCP where this kernel takes it, a job's choice, and what MLTCP sees.

A worker's connections are known by its control group of version 2, which the shim moves it into before its program
starts. Where there are no such groups, and workers have a network namespace of their own, its routes give MLTCP to all
of them. Whatever is missing, the worker's connections are as the host has it, and the job runs.
"""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from schemas.scheduling import AUTOMATIC, MLTCP
from services._host.bpf.congestion import DEFAULT, CongestionCounters, CongestionPrograms
from services._host.bpf.loader_process import KernelProgramsError
from services._host.cgroupfs import CgroupLayout, CgroupUnavailableError, with_unified
from services._host.kernel_programs import kernel_directory
from services._runtime.telemetry.logging import Logger
from services.runner.core.flow_records import FlowRecord, merge_records, parse_records
from services.runner.core.iterations import FlowIteration
from services.runner.settings import RunnerSettings
from services.runner.worker import WorkerKey
from services.runner.worker_routes import RoutesUnavailableError, WorkerRoutes

MOST_ITERATIONS: Final = 10_000
"""That wait to be taken; the oldest go first."""


class _Given(NamedTuple):
    """To the connections of one worker."""

    cgroup_id: int
    link: int | None
    """None: as the host has it; watched all the same."""


class CongestionControl:
    """Of one runner's workers."""

    def __init__(
        self, programs: CongestionPrograms | None, why_not: str, log: Logger, routes: WorkerRoutes | None = None
    ) -> None:
        self._programs = programs
        self._log = log
        self._routes = routes
        """That give MLTCP to all workers; None: each has what its job asks for."""
        self.why_not = why_not
        """Why workers cannot have MLTCP; empty: they can."""
        self._given: dict[WorkerKey, _Given] = {}
        self._pending: list[FlowRecord] = []
        self._iterations: deque[FlowIteration] = deque(maxlen=MOST_ITERATIONS)

    @property
    def names(self) -> tuple[str, ...]:
        """Congestion controls that a worker can have; the host's default first."""
        if self._routes is not None:
            return (MLTCP,)
        default = DEFAULT.read_text(encoding="ascii").strip()
        others = self._programs.sockops if self._programs is not None else {}
        return (default, *sorted(set(others) - {default}))

    @property
    def loaded(self) -> bool:
        """Whether workers can have MLTCP."""
        return self._programs is not None and MLTCP in self._programs.sockops

    @property
    def counters(self) -> CongestionCounters:
        """Of all connections under this runner's MLTCP."""
        return self._programs.counters if self._programs is not None else CongestionCounters()

    @property
    def descriptor(self) -> int | None:
        """Readable where there is something for `poll`; None: there never is."""
        return self._programs.fileno() if self._programs is not None else None

    # -- workers ---------------------------------------------------------------------------------------------------

    def choose(self, worker: WorkerKey, directory: str | None, wanted: str) -> str:
        """Give a congestion control to all connections that a worker makes from now on.

        Args:
            worker: whose.
            directory: its control group of version 2; None: it has none.
            wanted: a name, `AUTOMATIC`, or empty for the host's default.

        Returns:
            The name; empty: as the host has it.
        """
        self.release(worker)
        if directory is None or self._routes is not None:
            given = MLTCP if self._routes is not None else ""
            if wanted not in {AUTOMATIC, given}:
                self._not_here(worker, wanted)
            return given
        name = (MLTCP if self.loaded else "") if wanted == AUTOMATIC else wanted
        try:
            group_id = Path(directory).stat().st_ino
            link = self._attach(directory, name, worker)
        except OSError as error:
            self._log.warning("congestion_control_not_given", job=worker.job, wanted=name, error=error.strerror)
            return ""
        self._given[worker] = _Given(group_id, link)
        return name if link is not None else ""

    def _attach(self, directory: str, name: str, worker: WorkerKey) -> int | None:
        if not name or self._programs is None:
            return None
        if name not in self._programs.sockops:
            self._not_here(worker, name)
            return None
        return self._programs.attach(directory, name)

    def _not_here(self, worker: WorkerKey, wanted: str) -> None:
        self._log.warning("congestion_control_not_here", job=worker.job, wanted=wanted, here=" ".join(self.names))

    def release(self, worker: WorkerKey) -> None:
        """Forget a worker; its group, if it is there still, has the host's default from now on."""
        given = self._given.pop(worker, None)
        if given is not None and given.link is not None:
            os.close(given.link)

    # -- what MLTCP sees -------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take what the kernel has recorded since the last call."""
        if self._programs is None:
            return
        try:
            records = parse_records(self._programs.take_iterations())
        except OSError as error:
            self._log.warning("congestion_loader_ended", error=error.strerror, effect="workers have the host's default")
            self.why_not = error.strerror or "its loader has ended"
            self._end()
            return
        done, self._pending = merge_records([*self._pending, *records], time.monotonic_ns())
        workers = {given.cgroup_id: worker for worker, given in self._given.items()}
        since_epoch_ns = time.time_ns() - time.monotonic_ns()
        for record in done:
            if (worker := workers.get(record.cgroup_id)) is not None:
                self._iterations.append(_iteration(worker, record, since_epoch_ns))

    def iterations(self) -> list[FlowIteration]:
        """Those of workers since the last call, in the order of time."""
        taken = list(self._iterations)
        self._iterations.clear()
        return taken

    def close(self) -> None:
        """MLTCP is gone from this host, but for connections that are open."""
        for worker in list(self._given):
            self.release(worker)
        self._end()

    def _end(self) -> None:
        if self._routes is not None:
            self._routes.put_back()
            self._routes = None
        if self._programs is not None:
            self._programs.close()
            self._programs = None


def _iteration(worker: WorkerKey, record: FlowRecord, since_epoch_ns: int) -> FlowIteration:
    return FlowIteration(
        time_ns=record.time_ns + since_epoch_ns,
        job=worker.job,
        attempt=worker.attempt,
        rank=worker.rank,
        period_us=record.period_ns // 1_000,
        sending_us=record.sending_ns // 1_000,
        sent_bytes=record.sent_bytes,
        drops=record.retransmissions,
        congestion_control=record.congestion_control,
    )


def load_congestion_control(
    settings: RunnerSettings, layout: CgroupLayout | None, routes: WorkerRoutes, log: Logger
) -> tuple[CongestionControl, CgroupLayout | None]:
    """Load what this host takes; and its control groups, with those of version 2 if workers need them."""
    routes.put_back()  # a runner before this one may have been killed
    routed, without = routes.network is not None and settings.mltcp != "off", "workers have no control groups"
    if layout is None and not routed:
        return CongestionControl(None, without, log), None
    try:
        programs = CongestionPrograms(kernel_directory(settings.kernel_directory), settings.mltcp)
    except KernelProgramsError as error:
        return CongestionControl(None, str(error), log), layout
    if settings.mltcp == "off":
        why_not = f"{settings.variable('mltcp')} is off"
    else:
        why_not = programs.status.get(MLTCP, "") or programs.status.get("sockops", "")
    try:
        if layout is not None:
            return CongestionControl(programs, why_not, log), with_unified(layout)
    except CgroupUnavailableError as error:
        without = str(error)
    if routed:
        return _by_routes(programs, why_not, routes, log), layout
    programs.close()
    return CongestionControl(None, without, log), layout


def _by_routes(programs: CongestionPrograms, why_not: str, routes: WorkerRoutes, log: Logger) -> CongestionControl:
    try:
        if MLTCP in programs.registered:
            routes.give(programs.registered[MLTCP])
            return CongestionControl(programs, why_not, log, routes)
    except RoutesUnavailableError as error:
        why_not = str(error)
    programs.close()
    return CongestionControl(None, why_not, log)
