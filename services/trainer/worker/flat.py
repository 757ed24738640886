"""A layer whose trainable parameters are one vector, of which each rank holds a part of any size, also none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call

from services._jobs.layer_chain import Layers
from services.trainer.worker.built_model import BuiltModel, emptied
from services.trainer.worker.cuts import cut
from services.trainer.worker.gather import Begun, Group, begin_gather, begin_reduce_scatter, broadcast_tensor, gather
from services.trainer.worker.host_memory import HostMemory
from services.trainer.worker.plan_file import RefusedError


@dataclass(frozen=True, slots=True)
class Placement:
    """What is the same for all layers of a rank."""

    rank: int
    shares: tuple[float, ...]
    """Of the state, by rank, in any unit."""
    device: torch.device
    gather_dtype: torch.dtype | None = None
    """Layers are gathered and computed in it; None: in the parameters' own. Gradients are reduced in the latter."""
    group: Group | None = None
    """Ranks that compute the layer: the others have no share of it. None: all ranks do."""
    host: HostMemory | None = None
    """Keeps the rank's parts, and what the optimizer has of them; None: the device does."""


class FlatLayer:
    """One layer. Its module's own parameters are emptied: it computes with views of the gathered vector."""

    def __init__(
        self, name: str, module: nn.Module, placement: Placement, parts: dict[str, Tensor] | None = None
    ) -> None:
        """Of a module with values, or of one without, and this rank's part of each (`owned`), which is taken out."""
        trainable = _trainable(module)
        dtypes = {value.dtype for value in trainable.values()}
        if len(dtypes) > 1:
            raise RefusedError(f"{name} has trainable parameters of several types: {', '.join(map(str, dtypes))}")
        self._name, self._module, self._placement = name, module, placement
        self._shapes = {key: tuple(value.shape) for key, value in trainable.items()}
        self.sizes = cut(sum(value.numel() for value in trainable.values()), placement.shares)
        own = [
            parts.pop(key) if parts and key in parts else value.detach().reshape(-1)[part]
            for (key, part), value in zip(owned(name, module, placement).items(), trainable.values(), strict=True)
        ]
        self.parameter = nn.Parameter(self._kept(torch.cat(own) if own else torch.empty(0)))
        # Kept from step to step: what lasts, allocated between what is freed, would leave holes that malloc keeps.
        self.parameter.grad = self._kept(torch.zeros_like(self.parameter))
        self._aliases = _aliases(module, trainable)
        for value in trainable.values():
            emptied(module, value)
        module.to(placement.device)
        if placement.gather_dtype is not None:
            module.to(placement.gather_dtype)  # buffers and frozen parameters; whole numbers stay what they are

    @property
    def elements(self) -> int:
        """Trainable ones of the whole layer."""
        return sum(self.sizes)

    @property
    def whole_bytes(self) -> int:
        """Of the whole vector as it is gathered."""
        return self.elements * (self._placement.gather_dtype or self.parameter.dtype).itemsize

    @property
    def reduced_bytes(self) -> int:
        """Of the whole vector's gradient as it is summed."""
        return self.elements * self.parameter.dtype.itemsize

    def begin_gather(self) -> Begun:
        """The whole vector, in the type that the layer computes in. A collective of the ranks that compute it.

        Raises:
            RankFailedError: another rank has failed.
        """
        mine, host = self.parameter.detach(), self._placement.host
        dtype = self._placement.gather_dtype or mine.dtype
        if host is None:
            return begin_gather(mine.to(dtype), self.sizes, self._placement.group)
        return host.bring(mine, lambda part: begin_gather(part.to(dtype), self.sizes, self._placement.group))

    def begin_scatter(self, gradient: Tensor | None) -> Begun:
        """Sum the ranks' gradients of the vector: `end_scatter` has this rank's part. A collective, as gathering.

        Args:
            gradient: None: this rank had no samples.

        Raises:
            RankFailedError: another rank has failed.
        """
        dtype, part = self.parameter.dtype, self.parameter.grad
        assert part is not None
        if gradient is None:
            gradient = torch.zeros(self.elements, dtype=dtype, device=self._placement.device)
        if self._placement.host is not None:
            part = torch.empty(part.shape, dtype=dtype, device=self._placement.device)
        return begin_reduce_scatter(gradient, self.sizes, part, self._placement.group)

    def end_scatter(self, begun: Begun) -> None:
        """Wait for the sum; this rank's part of it is the parameter's gradient.

        Raises:
            RankFailedError: another rank fails meanwhile.
        """
        part = begun.wait()
        if self._placement.host is not None:
            assert self.parameter.grad is not None
            self.parameter.grad.copy_(part)  # waits for the GPU: the optimizer computes on the host

    def run(self, whole: Tensor, boundary: Tensor) -> Tensor:
        """The layer's output.

        Raises:
            RefusedError: it is no tensor, so the layer cannot stand in a chain.
        """
        views = dict(self._split(whole))
        output = functional_call(self._module, views, (boundary,))
        if not isinstance(output, Tensor):
            raise RefusedError(f"{self._name} returns a {type(output).__name__}: layers of a chain return one tensor")
        return output

    def cast(self, boundary: Tensor) -> Tensor:
        """The model's input in the type that layers compute in; whole numbers stay what they are."""
        low = self._placement.gather_dtype
        return boundary.to(low) if low is not None and boundary.is_floating_point() else boundary

    def uncast(self, output: Tensor) -> Tensor:
        """The model's output for the loss: in float32 where layers compute in a shorter type."""
        return output.float() if self._placement.gather_dtype is not None and output.is_floating_point() else output

    def renumber(self, placement: Placement) -> None:
        """Another rank among others, with the same part."""
        sizes = cut(self.elements, placement.shares)
        assert sizes[placement.rank] == self.parameter.numel(), "the part is another one"
        self.sizes, self._placement = sizes, placement

    def hold(self, placement: Placement, own: Tensor) -> None:
        """From now on this part, which the placement gives this rank; the parameter stays the same object."""
        self.sizes = cut(self.elements, placement.shares)
        self._placement = placement
        self.parameter.data = own
        self.parameter.grad = torch.zeros_like(own)

    @property
    def pieces(self) -> Sequence[FlatLayer]:
        """It is one itself."""
        return (self,) if self.elements else ()

    @property
    def constants(self) -> dict[str, Tensor]:
        """Buffers that are saved, and frozen parameters."""
        known = self._shapes.keys() | self._aliases.keys()
        return {f"{self._name}.{key}": value for key, value in self._module.state_dict().items() if key not in known}

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the trainable parameters, by their names in the model."""
        return {f"{self._name}.{key}": shape for key, shape in self._shapes.items()}

    def whole(self, held: Tensor) -> dict[str, Tensor]:
        """Full tensors by name, out of each rank's part of a vector. A collective."""
        full = dict(self._split(gather(held.detach(), self.sizes)))
        full |= {alias: full[key] for alias, key in self._aliases.items()}
        return {f"{self._name}.{key}": value for key, value in full.items()}

    def part(self, full: Mapping[str, Tensor] | None) -> Tensor:
        """This rank's part of rank 0's full tensors. A collective."""
        if full is None:
            whole = self.parameter.new_empty(self.elements)
        else:
            whole = _joined([full[key] for key in self.shapes]).to(self.parameter)
        return self._own(broadcast_tensor(whole)).clone()

    def _kept(self, part: Tensor) -> Tensor:
        host = self._placement.host
        return part.to(self._placement.device) if host is None else host.kept(part)

    def _own(self, whole: Tensor) -> Tensor:
        return torch.split(whole, list(self.sizes))[self._placement.rank]

    def _split(self, whole: Tensor) -> list[tuple[str, Tensor]]:
        parts = torch.split(whole, [prod(shape) for shape in self._shapes.values()])
        return [(key, part.view(shape)) for part, (key, shape) in zip(parts, self._shapes.items(), strict=True)]


def flat_layers(layers: Layers, placements: Sequence[Placement], built: BuiltModel | None = None) -> list[FlatLayer]:
    """Layers with values, or those of a model that gets its values by this; each has a placement.

    Raises:
        RefusedError: they have nothing to train.
    """
    parts: dict[str, Tensor] = {}
    placed = list(zip(layers, placements, strict=True))
    if built is not None:
        parts = built.parts(
            {key: part for layer, placement in placed for key, part in owned(*layer, placement).items()}
        )
    found = [FlatLayer(name, module, placement, parts) for (name, module), placement in placed]
    if not any(layer.elements for layer in found):
        raise RefusedError("the model has no trainable parameters")
    return found


def owned(name: str, module: nn.Module, placement: Placement) -> dict[str, slice]:
    """Which elements of each trainable parameter, as one row, are this rank's part of the layer's vector.

    By their names in the model.
    """
    trainable = _trainable(module)
    sizes = cut(sum(value.numel() for value in trainable.values()), placement.shares)
    begin = sum(sizes[: placement.rank])
    end, found = begin + sizes[placement.rank], {}
    for key, value in trainable.items():
        found[f"{name}.{key}"] = slice(max(begin, 0), max(end, 0))
        begin, end = begin - value.numel(), end - value.numel()
    return found


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {key: value for key, value in module.named_parameters() if value.requires_grad}


def _joined(values: Sequence[Tensor]) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in values]) if values else torch.empty(0)


def _aliases(module: nn.Module, trainable: Mapping[str, nn.Parameter]) -> dict[str, str]:
    """Further names of a parameter that the layer uses in several places."""
    first = {id(value): key for key, value in trainable.items()}
    named = module.named_parameters(remove_duplicate=False)
    return {key: first[id(value)] for key, value in named if id(value) in first and first[id(value)] != key}
