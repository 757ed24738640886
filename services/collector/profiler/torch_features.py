"""The application features of Table 4.1 out of any `torch.nn.Module`, by one forward pass, and a step's work.

FLOPs are counted by `torch.utils.flop_counter`: matrix products, convolutions and attention, a multiplication with its
addition as two; what works element by element is left out. Fused kernels that it does not know (oneDNN's recurrent
layers, the fast path of transformers) are switched off meanwhile, else they would count as nothing.

A training step's bytes are those of the inputs and outputs of each operator of one forward and backward pass, as if no
two operators shared a kernel: what an eager training moves between a device's memory and its cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

BATCH: Final = 2
"""Samples of the forward pass where only a shape is given. One would not do for a BatchNorm in training."""


class FeatureError(Exception):
    """The module's features cannot be had; the message says why and what would help."""


@dataclass(frozen=True, slots=True)
class ModuleFeatures:
    """What one forward pass says, per sample where it depends on the batch."""

    parameter_count: int
    frozen_parameter_count: int
    layers: tuple[str, ...]
    input_elements: int
    output_elements: int
    forward_flops: float
    work: TrainingWork | None
    """None: a training step of it fails, or has no gradient."""


@dataclass(frozen=True, slots=True)
class TrainingWork:
    """Forward and backward pass, without the optimizer's update."""

    flops: float
    """Of one sample."""
    bytes: float
    """Read and written for one sample, in the module's precision."""
    weight_bytes: float
    """Of weights read and gradients written, once a step, whatever the batch."""
    activation_bytes: float
    """Kept of the forward pass for the backward pass, for one sample: tensors that share a storage count once."""


class _ByteCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums bytes of the inputs and outputs of every operator, views aside; those of some storages by themselves."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self.of_weights = 0
        self._weights = {_storage(one) for one in weights}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if not func.is_view and not func.name().startswith(_WITHOUT_TRAFFIC):
            for one in tree_leaves((args, kwargs, output)):
                if isinstance(one, Tensor):
                    size = one.numel() * one.element_size()
                    self.total += size
                    self.of_weights += size if _storage(one) in self._weights else 0
        return output


class _KeptBytes:
    """Sums the storages that are kept for the backward pass, less those of the weights and of the input."""

    def __init__(self, weights: Sequence[Tensor], example: Any) -> None:
        self._seen = {_storage(one) for one in (*weights, *_tensors(example))}
        self._kept: list[Tensor] = []
        """So that no storage's number is used again meanwhile."""
        self.total = 0

    def pack(self, saved: Tensor) -> Tensor:
        """Count a tensor that is kept, once for its storage."""
        if _storage(saved) not in self._seen:
            self._seen.add(_storage(saved))
            self._kept.append(saved)
            self.total += saved.untyped_storage().nbytes()
        return saved


_WITHOUT_TRAFFIC: Final = ("aten::empty", "aten::detach", "aten::_unsafe_view")


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - tensors on the meta device have no address


def training_work(module: nn.Module, example: Any) -> TrainingWork | None:
    """Return the work of one training step per sample; None where the output has no gradient.

    Raises:
        FeatureError: the example has no batch.
        Exception: whatever the module's forward pass raises in training mode.
    """
    batch = _batch_of(list(_tensors(example)))
    weights = [one for one in module.parameters() if one.requires_grad]
    evaluated = [part for part in module.modules() if not part.training]
    states = {name: value.clone() for name, value in module.named_buffers()}
    gradients = [one.grad for one in weights]
    flops, moved, kept = FlopCounterMode(display=False), _ByteCounter(weights), _KeptBytes(weights, example)
    try:
        module.train()
        with _unfused(), flops, moved:
            with saved_tensors_hooks(kept.pack, lambda saved: saved):
                output = _main_output(_call(module, example))
            if not output.requires_grad:
                return None
            output.backward(torch.ones_like(output))  # type: ignore[no-untyped-call]
    finally:
        for part in evaluated:
            part.training = False
        for one, gradient in zip(weights, gradients, strict=True):
            one.grad = gradient
        with torch.no_grad():
            for name, value in module.named_buffers():
                value.copy_(states[name])
    once = moved.of_weights + sum(one.numel() * one.element_size() for one in weights)
    return TrainingWork(
        flops.get_total_flops() / batch, max(moved.total - once, 0) / batch, float(once), kept.total / batch
    )


@dataclass(frozen=True, slots=True)
class InputShape:
    """An input to be made up: one sample's shape, and the type of its elements."""

    dimensions: tuple[int, ...]
    """Without the batch; empty: one number per sample."""
    dtype: str = "float32"
    high: int = 2
    """Whole numbers are drawn from 0 to high - 1: the size of a vocabulary."""

    def example(self, batch: int = BATCH) -> Tensor:
        """A batch of this shape, the same at every call.

        Raises:
            FeatureError: torch has no such type, or a dimension makes no sense.
        """
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise FeatureError(f"{self.dtype!r} is no type of torch: use such as float32 or int64")
        if any(size < 1 for size in self.dimensions) or self.high < 1:
            raise FeatureError(f"input shape {self.dimensions}: sizes are at least 1")
        source = torch.Generator().manual_seed(0)
        shape = (batch, *self.dimensions)
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(shape, generator=source, dtype=torch.float32).to(dtype)
        return torch.randint(0, self.high, shape, generator=source).to(dtype)


def leaf_types(module: nn.Module) -> tuple[str, ...]:
    """Types of the modules without children, in the order of registration; a shared one once, where it comes first."""
    return tuple(type(part).__name__ for part in module.modules() if next(part.children(), None) is None)


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Trainable and frozen parameters; a shared one counts once.

    Raises:
        FeatureError: a lazy module was not initialised by the forward pass.
    """
    trainable = frozen = 0
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise FeatureError(f"{name}: a lazy module that the forward pass does not reach has no size")
        if parameter.requires_grad:
            trainable += parameter.numel()
        else:
            frozen += parameter.numel()
    return trainable, frozen


def measure(module: nn.Module, example: Any) -> ModuleFeatures:
    """All features, by one forward pass in evaluation mode; a tuple is taken as arguments, a mapping as keywords.

    Raises:
        FeatureError: the forward pass fails on it, or input or output hold no tensor.
    """
    inputs = list(_tensors(example))
    if not inputs:
        raise FeatureError("the example input holds no tensor")
    batch = _batch_of(inputs)
    output, flops = _forward(module, example)
    trainable, frozen = count_parameters(module)
    return ModuleFeatures(
        trainable,
        frozen,
        leaf_types(module),
        sum(_per_sample(tensor, batch) for tensor in inputs),
        _per_sample(_main_output(output), batch),
        flops / batch,
        _work_or_none(module, example),
    )


def _work_or_none(module: nn.Module, example: Any) -> TrainingWork | None:
    try:
        return training_work(module, example)
    except Exception:  # noqa: BLE001 - of the user's module; its other features are known
        return None


def _batch_of(inputs: Sequence[Tensor]) -> int:
    first = inputs[0]
    if first.dim() == 0 or first.shape[0] == 0:
        raise FeatureError(f"the example input {_describe(first)} has no batch: its first dimension is one's size")
    return int(first.shape[0])


def _per_sample(tensor: Tensor, batch: int) -> int:
    """Elements per sample; a tensor whose first dimension is no batch (a loss, a shared mask) counts as a whole."""
    if batch in tensor.shape:
        return math.prod(tensor.shape) // batch
    return tensor.numel()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _main_output(output: Any) -> Tensor:
    """Where there are several: the logits by name, else the first."""
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    found = named if isinstance(named, Tensor) else next(_tensors(output), None)
    if found is None and hasattr(output, "__dict__"):
        found = next(_tensors(vars(output)), None)
    if found is None:
        raise FeatureError(f"the forward pass returns {type(output).__name__}, which holds no tensor")
    return found


def _forward(module: nn.Module, example: Any) -> tuple[Any, int]:
    training = [part for part in module.modules() if part.training]
    module.eval()
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), _unfused(), counter:
            output = _call(module, example)
    except FeatureError:
        raise
    except Exception as error:
        given = ", ".join(_describe(tensor) for tensor in _tensors(example))
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        raise FeatureError(
            f"the module's forward pass fails on {given}: {type(error).__name__}: {reason}. "
            "Check the input's shape and type, or let your function return (module, example_input)"
        ) from error
    finally:
        for part in training:
            part.training = True
    return output, counter.get_total_flops()


def _call(module: nn.Module, example: Any) -> Any:
    if isinstance(example, Mapping):
        return module(**example)
    if isinstance(example, tuple):
        return module(*example)
    return module(example)


@contextmanager
def _unfused() -> Iterator[None]:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # None leaves a flag alone: the default would set TF32, with a warning on machines that have none.
        unfused = torch.backends.mkldnn.flags(enabled=False, deterministic=None, allow_tf32=None)
        with unfused, sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
