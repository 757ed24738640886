"""A rank's samples of each step, in its micro-batches, on its device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from services._jobs.user_module import UserCodeError
from services.trainer.worker.sampler import PlanSampler
from services.trainer.worker.user_code import UserCode


@dataclass(frozen=True, slots=True)
class Microbatches:
    """Of one rank and step; none: it loads no samples."""

    inputs: list[Tensor]
    targets: list[Tensor]


def microbatches(user: UserCode, sampler: PlanSampler, microbatch: int, device: torch.device) -> Iterator[Microbatches]:
    """Of each step, in turn.

    Args:
        user: with the data set.
        sampler: says which samples.
        microbatch: samples of one; 0: the rank has none.
        device: to which they are moved.

    Raises:
        UserCodeError: samples are no pairs of tensors.
    """
    if not sampler.positions:
        yield from (Microbatches([], []) for _ in range(sampler.steps))
        return
    # A generator of its own: it draws at its first batch, so dropout would depend on where a training was continued.
    loader = DataLoader(user.dataset, batch_sampler=sampler, generator=torch.Generator())
    for batch in loader:
        if (
            not isinstance(batch, list | tuple)
            or len(batch) != 2
            or not all(isinstance(part, Tensor) for part in batch)
        ):
            raise UserCodeError(
                "samples of the data set have to be pairs (input, target) that torch collates to tensors"
            )
        inputs, targets = (part.to(device) for part in batch)
        yield Microbatches(list(inputs.split(microbatch)), list(targets.split(microbatch)))
