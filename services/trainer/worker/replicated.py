"""A model that every rank has whole: its trainable parameters are one vector, as aggregators take and answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from schemas.aggregations import AggregationOptimizer, OptimizerKind
from services.trainer.worker.built_model import BuiltModel
from services.trainer.worker.engine import MicrobatchLoss
from services.trainer.worker.gather import broadcast_tensor
from services.trainer.worker.plan_file import RefusedError
from services.trainer.worker.push_pull import Moments
from services.trainer.worker.step_clock import Part, StepClock

_KINDS: Final[Mapping[type, OptimizerKind]] = {
    torch.optim.SGD: OptimizerKind.SGD,
    torch.optim.Adam: OptimizerKind.ADAM,
    torch.optim.AdamW: OptimizerKind.ADAMW,
}
_FIXED: Final[Mapping[str, Any]] = {
    "amsgrad": False, "dampening": 0, "eps": 1e-8, "maximize": False, "nesterov": False,
}  # fmt: skip
"""Options that aggregators do not know, and what they compute with."""
_COUNT: Final = "step"
"""Of Adam's steps: one number for all values."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """One parameter of the model, the same on every rank."""

    name: str
    parameter: nn.Parameter

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The parameter's."""
        return {self.name: tuple(self.parameter.shape)}

    def whole(self, held: Tensor) -> dict[str, Tensor]:
        """It is whole."""
        return {self.name: held.detach()}

    def part(self, full: Mapping[str, Tensor] | None) -> Tensor:
        """Rank 0's tensor. A collective."""
        empty = torch.empty_like(self.parameter, memory_format=torch.contiguous_format)
        return broadcast_tensor(empty if full is None else full[self.name].to(empty).contiguous())


@dataclass(frozen=True, slots=True)
class _Model:
    pieces: Sequence[_Whole]
    constants: Mapping[str, Tensor]


class ReplicatedEngine:
    """Gradients of a rank's samples only: they are summed elsewhere."""

    def __init__(self, built: BuiltModel, device: torch.device) -> None:
        """Of a model whose values are computed here.

        Raises:
            RefusedError: it has no trainable parameters, or others than float32.
        """
        built.parts({})
        self._model = model = built.model.to(device)
        named = {name: value for name, value in model.named_parameters() if value.requires_grad}
        if not named:
            raise RefusedError("the model has no trainable parameters")
        if other := sorted({str(value.dtype) for value in named.values()} - {"torch.float32"}):
            raise RefusedError(f"aggregators sum float32, but the model has parameters of {', '.join(other)}")
        self.flat = torch.cat([value.detach().reshape(-1) for value in named.values()])
        self.gradient = torch.zeros_like(self.flat)
        self._named = named
        for value, own, gradient in zip(named.values(), self._of(self.flat), self._of(self.gradient), strict=True):
            value.data, value.grad = own, gradient
        constants = {key: value for key, value in model.state_dict().items() if key not in named}
        self.blocks = [_Model([_Whole(name, value) for name, value in named.items()], constants)]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The model's own: views of `flat`."""
        return list(self._named.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the model's trainable parameters, by their names, in the order of `flat`."""
        return {name: tuple(value.shape) for name, value in self._named.items()}

    def _of(self, vector: Tensor) -> list[Tensor]:
        """A vector as long as `flat`, as views in the parameters' shapes."""
        parts = torch.split(vector, [value.numel() for value in self._named.values()])
        return [part.view(value.shape) for part, value in zip(parts, self._named.values(), strict=True)]

    def step(
        self, inputs: Sequence[Tensor], loss: MicrobatchLoss, clock: StepClock, optimizer: Optimizer | None = None
    ) -> Tensor:
        """Gradients of this rank's samples into `gradient`; returns this rank's part of the loss."""
        assert optimizer is None, "aggregators make the step"
        value = torch.zeros((), dtype=torch.float64, device=self.flat.device)
        self.gradient.zero_()
        with clock.during(Part.COMPUTE):
            for number, given in enumerate(inputs):
                part = loss(self._model(given), number)
                torch.autograd.backward(part)
                value += part.detach()
        return value

    def moments_of(self, found: Mapping[str, Mapping[str, Tensor]], names: Sequence[str]) -> Moments:
        """What a checkpoint has of each parameter, as one vector for each name; nothing where it lacks one."""
        if not names or any(name not in found for name in names):
            return Moments()
        vectors = {name: torch.cat([found[name][key].reshape(-1) for key in self._named]) for name in names}
        counts = found.get(_COUNT, {})
        return Moments(vectors, {_COUNT: float(counts[next(iter(self._named))])} if counts else {})

    def keep_moments(self, optimizer: torch.optim.Optimizer, moments: Moments) -> None:
        """Put them into the user's optimizer, for a checkpoint."""
        scalars = {name: torch.tensor(value, dtype=torch.float32) for name, value in moments.scalars.items()}
        for value in self._named.values():
            optimizer.state[value] = dict(scalars)
        for name, vector in moments.vectors.items():
            for value, part in zip(self._named.values(), self._of(vector), strict=True):
                optimizer.state[value][name] = part


def vector_names(spec: AggregationOptimizer) -> tuple[str, ...]:
    """What an aggregator has of each range after a step, by its names in ``torch.optim``."""
    if spec.kind is OptimizerKind.SGD:
        return ("momentum_buffer",) if spec.momentum else ()
    return ("exp_avg", "exp_avg_sq")


def aggregated(optimizer: torch.optim.Optimizer) -> AggregationOptimizer:
    """The user's optimizer as aggregators have it.

    Raises:
        RefusedError: it has an option that they do not know.
    """
    (group,) = optimizer.param_groups
    for option, value in _FIXED.items():
        if group.get(option, value) != value:
            raise RefusedError(
                f"aggregators compute {type(optimizer).__name__} with {option}={value}, not {group[option]}: "
                "leave it out, or train without --aggregate"
            )
    kind, lr = _KINDS[type(optimizer)], float(group["lr"])
    if kind is OptimizerKind.ADAM and group.get("decoupled_weight_decay"):
        kind = OptimizerKind.ADAMW
    if not lr > 0:
        raise RefusedError(f"aggregators need a learning rate above 0, not {lr:g}")
    fields: dict[str, Any] = {"kind": kind, "lr": lr, "weight_decay": float(group["weight_decay"])}
    if kind is OptimizerKind.SGD:
        return AggregationOptimizer(**fields, momentum=float(group["momentum"]))
    beta1, beta2 = (float(beta) for beta in group["betas"])
    return AggregationOptimizer(**fields, beta1=beta1, beta2=beta2)
