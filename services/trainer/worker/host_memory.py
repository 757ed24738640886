"""A GPU rank's parts of layers in the host's memory, from where each is copied to the GPU as it is gathered.

The memory is page-locked, so that copies run beside computing, on a stream of their own. The optimizer computes on the
host, where parameters, gradients and moments are: the GPU has whole layers only. As FSDP's `CPUOffloadPolicy`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from services.trainer.worker.gather import Begun


class HostMemory:
    """Of a rank with a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copying: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @classmethod
    def of(cls, device: torch.device) -> Self | None:
        """The device's; None: it is a processor, whose memory that is already, so nothing has to be moved."""
        return cls(device) if device.type == "cuda" else None

    def kept(self, part: Tensor) -> Tensor:
        """A tensor as it is kept between steps."""
        return part.detach().cpu().pin_memory()

    def bring(self, part: Tensor, begin: Callable[[Tensor], Begun]) -> Begun:
        """Copy what is kept to the GPU, and begin a collective with it; neither waits for what the GPU computes.

        Raises:
            RankFailedError: another rank has failed.
        """
        with torch.cuda.stream(self._copying):
            begun = begin(part.to(self._device, non_blocking=True))
            return replace(begun, copied=self._copying.record_event())
