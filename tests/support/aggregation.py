"""A replicated job for the aggregators: parameters and gradients, ranks as threads, and the same by torch alone."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import numpy as np
import torch
from torch import Tensor

from services._jobs.aggregation_frames import RangePlace
from services.aggregator.hosted_job import JobSpec
from services.aggregator.range_state import OptimizerSpec
from services.aggregator.shard import JobKeys
from services.trainer.worker.push_pull import PushPull

KEYS = JobKeys(worker=b"w" * 32, aggregator=b"a" * 32)
ADAMW = OptimizerSpec(kind="adamw", lr=1e-2, weight_decay=0.1)
DEADLINE_S = 60.0


def spec(job: str = "job", ranks: int = 2, optimizer: OptimizerSpec = ADAMW) -> JobSpec:
    return JobSpec(job, ranks, optimizer)


def parameters(values: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(7).standard_normal(values).astype("f4"))


def gradient(values: int, step: int, rank: int) -> Tensor:
    """Of sizes that differ by orders of magnitude, so that another order of summation has other bits."""
    drawn = np.random.default_rng((step, rank))
    return torch.from_numpy((drawn.standard_normal(values) * 10.0 ** drawn.integers(-4, 2, values)).astype("f4"))


def by_torch(job: JobSpec, values: int, steps: int) -> Tensor:
    """The parameters after these steps in one process: one tensor, gradients added in order of rank."""
    parameter = torch.nn.Parameter(parameters(values))
    optimizer = job.optimizer.optimizer(parameter)
    for step in range(1, steps + 1):
        total = gradient(values, step, 0)
        for rank in range(1, job.ranks):
            total = total + gradient(values, step, rank)
        parameter.grad = total
        optimizer.step()
    return parameter.detach()


def sha256(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()


class Ranks:
    """All ranks of a job, each a thread that takes so many steps; the last rank waits before each gate's step."""

    def __init__(
        self,
        job: JobSpec,
        places: Sequence[RangePlace],
        steps: int,
        gates: Collection[int] = (),
        key: bytes = KEYS.worker,
    ) -> None:
        self.values = places[-1].last
        self.finished = [0] * job.ranks
        """Steps by rank."""
        self.gates = {step: threading.Event() for step in gates}
        self._steps = steps
        self.workers = [PushPull((job.job, rank, key), places, DEADLINE_S) for rank in range(job.ranks)]
        self._pool = ThreadPoolExecutor(job.ranks)
        self._results: list[Future[Tensor]] = [self._pool.submit(self._run, rank) for rank in range(job.ranks)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the threads, also where they have not come to their last step."""
        self._steps = 0
        for gate in self.gates.values():
            gate.set()
        for worker in self.workers:
            worker.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, rank: int) -> Tensor:
        worker, step = self.workers[rank], 0
        # Rank 0's parameters count for all.
        held = worker.start(parameters(self.values) if rank == 0 else torch.zeros(self.values))
        while step < self._steps:
            step += 1
            if rank == len(self.workers) - 1 and step in self.gates:
                assert self.gates[step].wait(DEADLINE_S)
            held = worker.reduce(gradient(self.values, step, rank))
            self.finished[rank] = step
        return held

    def all_finished(self, step: int) -> bool:
        """Whether every rank has taken this step; raises what a rank has raised."""
        for result in self._results:
            if result.done():
                result.result()
        return min(self.finished) >= step

    def results(self) -> list[Tensor]:
        """Each rank's parameters after its last step; raises what a rank has raised."""
        return [result.result(DEADLINE_S * 2) for result in self._results]


def run_ranks(job: JobSpec, places: Sequence[RangePlace], steps: int) -> list[Tensor]:
    """Each rank's parameters after so many steps."""
    with Ranks(job, places, steps) as ranks:
        return ranks.results()
