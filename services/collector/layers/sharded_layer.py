"""What torch's `fully_shard` (engine ``fsdp2``) takes for a layer beside its passes and the collectives.

It copies parameters out of shards and gradients into them, and runs hooks before and after each pass: the same for each
micro-batch, on processors a sixth of a step of small layers (docs/decisions/0109). A layer is sharded over two ranks of
which the other one does not exist: torch's process group ``fake`` begins and ends collectives without sending anything.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

_RANKS = 2


@contextmanager
def absent_peer(device: torch.device) -> Iterator[None]:
    """A process group of this process and one that does not exist, as long as the context lasts."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # `fully_shard` takes the current one
    dist.init_process_group(dist.Backend.FAKE, rank=0, world_size=_RANKS)
    # What no rank has sent is any number, and a processor takes long over denormal ones.
    flushed = torch.set_flush_denormal(True)
    try:
        with warnings.catch_warnings():
            # Of in-place changes of an output that is a view: nothing changes one here.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
            yield
    finally:
        if flushed:
            torch.set_flush_denormal(False)
        dist.destroy_process_group()


class ShardedLayer:
    """A copy of a layer as the engine ``fsdp2`` has it, within `absent_peer`."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        """Of a module that is on the device.

        Raises:
            Exception: it cannot be copied, by its own code or torch's, or not be sharded.
        """
        layer = copy.deepcopy(module)
        self._model = nn.Sequential(layer)
        mesh = init_device_mesh(device.type, (_RANKS,))
        for part in (layer, self._model):
            fully_shard(part, mesh=mesh)
        for part in self._model.modules():
            if isinstance(part, FSDPModule):  # as the engine has it: by default gradients in float64 are divided
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)

    def step(self, boundary: Tensor, gradient: Tensor) -> None:
        """Forward and backward pass; gradients as the optimizer would get them, which are dropped."""
        boundary.grad = None
        torch.autograd.backward(self._model(boundary), gradient)
        for parameter in self._model.parameters():
            if isinstance(parameter.grad, DTensor):
                parameter.grad.to_local()
        self._model.zero_grad()
