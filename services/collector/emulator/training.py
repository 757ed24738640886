"""What a worker does: distributed data-parallel training of a task, as any torch tutorial has it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from services._jobs.rank_environment import GLOO_DEVICE
from services.collector.emulator.tasks.task import TrainingTask

PORT: Final = 29500
"""Each run has a network of its own."""
_TIMEOUT: Final = timedelta(seconds=600)
"""Longer than any run: a run that hangs is stopped from outside, at the grid's limit."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which worker this is, of how many."""

    rank: int
    world_size: int
    master_address: str
    threads: int
    device: str
    """The network device to the others."""


def train(
    task: TrainingTask, data: TensorDataset, batch_size: int, place: Place, at_the_start: Callable[[], None]
) -> float:
    """Train for the task's epochs; returns the last batch's loss. The seed is the process' (`torch.manual_seed`).

    `at_the_start` is called when all is ready, and returns when all workers may begin.
    """
    torch.set_num_threads(place.threads)
    os.environ[GLOO_DEVICE] = place.device
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{place.master_address}:{PORT}",
        rank=place.rank,
        world_size=place.world_size,
        timeout=_TIMEOUT,
    )
    model = DistributedDataParallel(task.build_model())
    optimizer = task.build_optimizer(model.parameters())
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler)
    loss = torch.tensor(float("nan"))
    at_the_start()
    for epoch in range(task.epochs):
        sampler.set_epoch(epoch)
        for *inputs, target in loader:
            optimizer.zero_grad()
            loss = task.loss(model(*inputs), target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return float(loss)
