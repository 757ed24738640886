"""One job as a process: its ranks are threads that sleep, push a gradient of real size, and pull the parameters."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final, Self

import torch

from services._jobs.aggregation_frames import RangePlace
from services._runtime.child_process import die_with_parent
from services.trainer.worker.push_pull import PushPull
from tests.bench.aggregation.cases import RANKS, Shape

STOP: Final = "stop"
_ENDED_WITHIN_S: Final = 60.0
_TIMEOUT_S: Final = 120.0


class JobFailedError(RuntimeError):
    """A job has ended by itself; the text says how."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to train, and where it is aggregated."""

    shape: Shape
    key: bytes
    places: tuple[RangePlace, ...]


@dataclass(slots=True)
class Training:
    """One job's ranks, until they are told to stop."""

    order: Order
    last_step: int | None = None
    """Agreed by rank 0, once it is told to stop: no rank can be further than the step after its own."""
    step_ends_s: list[float] = field(default_factory=list)
    """Of rank 0, on the monotonic clock of the machine."""
    failed: threading.Event = field(default_factory=threading.Event)

    def run_rank(self, rank: int, stopping: threading.Event) -> None:
        """Train; returns after the same step in each rank.

        Raises:
            RankFailedError: another rank has failed, or an aggregator refuses this one.
            AggregationLostError: the ranges are gone.
        """
        order = self.order
        worker = PushPull((order.shape.name, rank, order.key), order.places, _TIMEOUT_S)
        gradient = torch.randn(order.shape.values, generator=torch.Generator().manual_seed(rank))
        try:
            worker.start(torch.zeros(order.shape.values))
            step = 0
            while self.last_step is None or step < self.last_step:
                step += 1
                if rank == 0 and self.last_step is None and stopping.is_set():
                    self.last_step = step + 1
                time.sleep(order.shape.compute_s)
                worker.reduce(gradient)
                if rank == 0:
                    self.step_ends_s.append(time.monotonic())
        finally:
            worker.close()


class JobProcess:
    """A process that trains one job after the other; forked, so that torch is imported once."""

    def __init__(self) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._ours.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def begin(self, order: Order) -> None:
        """Train until `end`."""
        self._ours.send(order)

    def stop(self) -> None:
        """Make a step more, then no other."""
        self._ours.send(STOP)

    def ended(self) -> list[float]:
        """When each step had ended, seconds of the monotonic clock. To be called after `stop`.

        Raises:
            JobFailedError: a rank has failed.
        """
        if not self._ours.poll(_ENDED_WITHIN_S):
            raise JobFailedError(f"a job did not end within {_ENDED_WITHIN_S:g} s")
        answer: list[float] | str = self._ours.recv()
        if isinstance(answer, str):
            raise JobFailedError(answer)
        return answer


def _serve(orders: Connection, parent: int) -> None:
    """Train each order until the next message; ends with the other side."""
    die_with_parent(signal.SIGKILL, parent)
    torch.set_num_threads(1)
    while True:
        try:
            order: Order = orders.recv()
        except EOFError:
            return
        training, stopping = Training(order), threading.Event()
        with ThreadPoolExecutor(RANKS) as pool:
            ranks = [pool.submit(training.run_rank, rank, stopping) for rank in range(RANKS)]
            try:
                orders.recv()
            except EOFError:
                os._exit(0)  # the other side has ended
            stopping.set()
            failures = [str(error) for rank in ranks if (error := rank.exception()) is not None]
        orders.send(f"{order.shape.name}: {failures[0]}" if failures else training.step_ends_s)
