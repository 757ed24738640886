"""torch's own `fully_shard` with uneven batches: state is even, and each rank computes one micro-batch of its own size.

FSDP divides summed gradients by the number of ranks; here each rank's loss is already divided by the global batch, so
that is switched off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from services._jobs.layer_chain import Layers
from services.trainer.worker.built_model import BuiltModel, replace
from services.trainer.worker.engine import Block, MicrobatchLoss
from services.trainer.worker.flat import Placement
from services.trainer.worker.gather import broadcast_tensor, gather_by_owner, rank_failures
from services.trainer.worker.plan_file import RefusedError
from services.trainer.worker.refusals import check_sharded
from services.trainer.worker.step_clock import Part, StepClock


@dataclass(frozen=True, slots=True)
class _Sharded:
    """One parameter of the model, cut evenly along its first dimension."""

    name: str
    distributed: DTensor
    """The model's."""
    parameter: nn.Parameter
    """This rank's part of it: the same memory. An optimizer takes ten times as long over a DTensor on a processor."""
    aliases: Sequence[str]
    """Further names of a parameter that stands in several places."""

    @classmethod
    def of(cls, name: str, distributed: nn.Parameter, aliases: Sequence[str]) -> _Sharded:
        """With a parameter for the optimizer."""
        assert isinstance(distributed, DTensor)
        return cls(name, distributed, nn.Parameter(distributed.to_local().detach()), aliases)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The parameter's."""
        return {self.name: tuple(self.distributed.shape)}

    def whole(self, held: Tensor) -> dict[str, Tensor]:
        """The full tensor. A collective."""
        whole = self.distributed
        with rank_failures(), torch.no_grad():
            parts = DTensor.from_local(
                held.detach(), whole.device_mesh, whole.placements, shape=whole.shape, stride=whole.stride()
            )
            return dict.fromkeys((self.name, *self.aliases), parts.full_tensor())

    def part(self, full: Mapping[str, Tensor] | None) -> Tensor:
        """This rank's part of rank 0's full tensor. A collective."""
        mesh, placements = self.distributed.device_mesh, self.distributed.placements
        local = self.parameter
        whole = local.new_empty(self.distributed.shape) if full is None else full[self.name].to(local).contiguous()
        # Cut here: its own way of sending the parts would need every rank to have the tensor already.
        return distribute_tensor(broadcast_tensor(whole), mesh, placements, src_data_rank=None).to_local()

    def take_gradient(self) -> None:
        """Of the step, for the optimizer. FSDP may have moved the parameter's memory when it was first used."""
        held, gradient = self.distributed.to_local().detach(), self.distributed.grad
        assert gradient is None or isinstance(gradient, DTensor)
        if held.data_ptr() != self.parameter.data_ptr():
            self.parameter.data = held
        self.parameter.grad = None if gradient is None else gradient.to_local()


@dataclass(frozen=True, slots=True)
class _Group:
    """Parameters that a checkpoint writes together."""

    pieces: Sequence[_Sharded]
    constants: Mapping[str, Tensor]


class _BroadcastGather:
    """torch's interface `AllGather`, which it does not export.

    One broadcast per owner, in place: gloo's `all_gather` copies all parts twice (`services.trainer.worker.gather`).
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """What is gathered into."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,  # noqa: FBT002, ARG002 - torch's interface; nothing is computed meanwhile
    ) -> None:
        """Gather, and wait for all of it."""
        for work in gather_by_owner(input_tensor, torch.chunk(output_tensor, group.size()), group):
            work.wait()


class Fsdp2Engine:
    """A model with `fully_shard` on each block and on what is around them."""

    def __init__(self, built: BuiltModel, blocks: Layers, placement: Placement) -> None:
        """A collective.

        Raises:
            RefusedError: a parameter cannot be cut, or nothing can be trained.
        """
        check_sharded(built.model)
        # Shared parameters would be separate ones after `to_empty`.
        parts = built.parts({} if built.has_shared_parameters else _owned(built.model, placement))
        self._model = model = built.model if parts else built.model.to(placement.device)
        mesh = init_device_mesh(placement.device.type, (len(placement.shares),))
        low = placement.gather_dtype
        policy = MixedPrecisionPolicy(low, torch.float32, torch.float32) if low is not None else MixedPrecisionPolicy()
        for module in [*(block for _, block in blocks if next(block.parameters(), None) is not None), model]:
            fully_shard(module, mesh=mesh, mp_policy=policy)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                if placement.device.type == "cpu":
                    module.set_custom_all_gather(_BroadcastGather())  # type: ignore[arg-type]
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # else float32 is scaled on the way, which gloo cannot
        if parts:
            _fill(model, parts, placement.device)
        sharded = _sharded(model)
        self._pieces = [piece for piece in sharded if piece.distributed.requires_grad]
        if not self._pieces:
            raise RefusedError("the model has no trainable parameters")
        self.blocks: Sequence[Block] = _groups(model, sharded, [name for name, _ in blocks])

    @property
    def parameters(self) -> list[nn.Parameter]:
        """This rank's parts of the model's."""
        return [piece.parameter for piece in self._pieces]

    def step(
        self, inputs: Sequence[Tensor], loss: MicrobatchLoss, clock: StepClock, optimizer: Optimizer | None = None
    ) -> Tensor:
        """Gradients of the whole global batch into the parameters; returns this rank's part of the loss.

        Collectives happen within, and are not measured apart. An optimizer, where one is given, steps at the end.

        Raises:
            RankFailedError: another rank fails meanwhile.
        """
        self._model.zero_grad()
        with clock.during(Part.COMPUTE), rank_failures():
            (given,) = inputs
            value = loss(self._model(given), 0)
            torch.autograd.backward(value)
        for piece in self._pieces:
            piece.take_gradient()
        if optimizer is not None:
            optimizer.step()
        return value.detach()


def _owned(model: nn.Module, placement: Placement) -> dict[str, slice]:
    """Which elements of each parameter, as one row, `fully_shard` leaves to this rank: rows as `torch.chunk` cuts."""
    found = {}
    for name, value in model.named_parameters():
        each = ceil(value.shape[0] / len(placement.shares)) * prod(value.shape[1:])
        found[name] = slice(placement.rank * each, (placement.rank + 1) * each)
    return found


@torch.no_grad()
def _fill(model: nn.Module, parts: dict[str, Tensor], device: torch.device) -> None:
    buffers = {name: value.to(device) for name, value in model.named_buffers()}
    model.to_empty(device=device)
    for name, value in list(model.named_buffers()):
        replace(model, value, buffers[name])
    for name, value in model.named_parameters():
        assert isinstance(value, DTensor)
        value.to_local().reshape(-1).copy_(parts.pop(name))


def _sharded(model: nn.Module) -> list[_Sharded]:
    """All parameters, also frozen ones: `fully_shard` cuts those, too, so no rank has them whole."""
    names: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    return [_Sharded.of(name, value, names[id(value)][1:]) for name, value in model.named_parameters()]


def _groups(model: nn.Module, pieces: Sequence[_Sharded], blocks: Sequence[str]) -> list[_Group]:
    """By block, and at the end what belongs to none."""

    def owner(key: str) -> str:
        return next((name for name in blocks if key.startswith(f"{name}.")), "")

    cut = {name for piece in pieces for name in (piece.name, *piece.aliases)}
    constants = {key: value for key, value in model.state_dict().items() if key not in cut}
    return [
        _Group(
            [piece for piece in pieces if owner(piece.name) == block],
            {key: value for key, value in constants.items() if owner(key) == block},
        )
        for block in [*blocks, ""]
    ]
