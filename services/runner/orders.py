"""Orders of the leading scheduler, obeyed: idempotent, all ranks of an order or none, never an old one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from schemas.scheduling import MAX_REASON_CHARACTERS, OrderAction, Preemption, WorkerState, WorkOrder, WorkReply
from services._runtime.atomic_file import write_atomically
from services._runtime.telemetry.tracing import Carrier
from services.runner.core.worker_state import Step, next_step
from services.runner.node_workers import DIRECTORY_MODE, ORDER_FILE, NodeWorkers, NotRecordedError
from services.runner.pacing import CannotPaceError, Pacing
from services.runner.tcp_counters import JobKey
from services.runner.worker import Worker, WorkerKey
from services.runner.worker_files import End, IllegibleRecordError


class RefusedError(Exception):
    """An order that is not obeyed; the text says why."""


class Orders:
    """Obeys orders for one node."""

    def __init__(self, node: str, workers: NodeWorkers, pacing: Pacing) -> None:
        self._node = node
        self._workers = workers
        self._pacing = pacing
        self._sequences: dict[str, int] = {}

    def obey(self, order: WorkOrder, trace: Carrier) -> WorkReply:
        """Carry out an order, and say what is true then. Blocks for some milliseconds per worker that is started."""
        try:
            self._check(order)
            self._keep_sequence(order)
            workers = [self._workers.get(WorkerKey(order.job, order.attempt, rank)) for rank in order.ranks]
            self._carry_out(order, workers, trace)
        except (RefusedError, CannotPaceError, NotRecordedError, IllegibleRecordError) as error:
            return WorkReply(obeyed=False, workers=self._known(order), reason=str(error)[:MAX_REASON_CHARACTERS])
        except OSError as error:
            reason = f"the order cannot be recorded: {error}"
            return WorkReply(obeyed=False, workers=self._known(order), reason=reason[:MAX_REASON_CHARACTERS])
        return WorkReply(obeyed=True, workers=self._known(order))

    def _check(self, order: WorkOrder) -> None:
        if order.action is not OrderAction.RUN:
            return
        here = {rank for rank, node in enumerate(order.nodes) if node == self._node}
        if order.spec is None or order.spec.job != order.job:
            raise RefusedError("an order to run needs its job's spec")
        if len(order.nodes) != order.spec.workers or not here.issuperset(order.ranks):
            raise RefusedError(f"the order's ranks {order.ranks} on {self._node} do not fit its nodes {order.nodes}")

    # -- sequence --------------------------------------------------------------------------------------------------

    def _keep_sequence(self, order: WorkOrder) -> None:
        """Refuse an order of a leader that knows less than the one obeyed last for the job; written down first.

        What starts nothing is obeyed also where a full disk does not let it be written down.
        """
        path = self._workers.job_directory(order.job) / ORDER_FILE
        last = self._sequences.get(order.job)
        if last is None:
            last = self._sequences[order.job] = _read_sequence(path)
        if order.sequence < last:
            raise RefusedError(f"it is of sequence {order.sequence}, after one of {last} was obeyed")
        if order.sequence > last:
            try:
                path.parent.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
                write_atomically(path, json.dumps({"sequence": order.sequence}), to_disk=True)
            except OSError:
                if order.action is OrderAction.RUN:
                    raise
            self._sequences[order.job] = order.sequence

    # -- steps -----------------------------------------------------------------------------------------------------

    def _carry_out(self, order: WorkOrder, workers: list[Worker], trace: Carrier) -> None:
        steps = [next_step(worker.facts(), order.action) for worker in workers]
        if order.action is OrderAction.FORGET and (living := [w.key.rank for w in workers if w.intent and not w.over]):
            raise RefusedError(f"ranks {living} have not ended")
        if starting := [worker for worker, step in zip(workers, steps, strict=True) if step is Step.START]:
            for worker in starting:
                worker.trace = trace
            self._workers.start(order, starting)
        if order.action is OrderAction.PACE:
            self._pace(order, steps)
        for worker, step in zip(workers, steps, strict=True):
            _ACTIONS[step](self._workers, worker)

    def _pace(self, order: WorkOrder, steps: list[Step]) -> None:
        idle = [rank for rank, step in zip(order.ranks, steps, strict=True) if step is not Step.PACE]
        if order.pace is not None and idle:
            raise RefusedError(f"ranks {idle} do not run")
        self._pacing.pace(JobKey(order.job, order.attempt), order.pace)

    def _known(self, order: WorkOrder) -> tuple[WorkerState, ...]:
        found = ((rank, self._workers.find(order.job, order.attempt, rank)) for rank in order.ranks)
        return tuple(
            WorkerState(rank=rank, last=worker.events[-1] if worker.events else None, pid=worker.pid)
            for rank, worker in found
            if worker is not None and (worker.intent is not None or worker.over)
        )


def _read_sequence(path: Path) -> int:
    """Of the last order obeyed; 0: none was, or the file is not legible."""
    try:
        return int(json.loads(path.read_bytes())["sequence"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _stop(_workers: NodeWorkers, worker: Worker) -> None:
    restarts = worker.preemption is Preemption.RESTART
    worker.ask_stop(0.0 if restarts or worker.intent is None else worker.intent.grace_s)


def _nothing(_workers: NodeWorkers, _worker: Worker) -> None:
    """It is as it has to be, or was started or paced with its gang."""


_ACTIONS: Final[dict[Step, Callable[[NodeWorkers, Worker], object]]] = {
    Step.NOTHING: _nothing,
    Step.START: _nothing,
    Step.PACE: _nothing,
    Step.ASK_STOP: _stop,
    Step.ASK_KILL: lambda _, worker: worker.ask_stop(0.0),
    Step.DECLARE_STOPPED: lambda _, worker: worker.declare(End(time.time_ns(), asked="order")),
    Step.DECLARE_LOST: lambda workers, worker: workers.declare_lost(worker),
    Step.FORGET: lambda _, worker: worker.files.forget(),
}
