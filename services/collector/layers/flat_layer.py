"""A layer on a device as the engine `layered` runs it: with views of one vector of its trainable parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call

from services._jobs.user_module import UserCodeError, call


class FlatLayer:
    """One layer on the device, as long as the context lasts that made it."""

    def __init__(self, name: str, module: nn.Module) -> None:
        trainable = {key: value for key, value in module.named_parameters() if value.requires_grad}
        self._name, self._module = f"layer {name}", module
        self._shapes = {key: tuple(value.shape) for key, value in trainable.items()}
        parts = [value.detach().reshape(-1) for value in trainable.values()]
        self._flat = torch.cat(parts).requires_grad_() if parts else None
        self._constant = {_address(value) for value in (*module.parameters(), *module.buffers())}

    def output(self, boundary: Tensor) -> Tensor:
        """Of one forward pass; its errors come with the layer's name.

        Raises:
            UserCodeError: it fails, or returns something else than one tensor with the samples first.
            OutOfMemoryError: the device has not enough memory.
        """
        output = _named(self._name, self.run, boundary)
        if not isinstance(output, Tensor):
            raise UserCodeError(f"{self._name} returns a {type(output).__name__}: layers of a chain return one tensor")
        if output.dim() == 0 or output.shape[0] != boundary.shape[0]:
            raise UserCodeError(
                f"{self._name} returns shape {tuple(output.shape)} for {boundary.shape[0]} samples: "
                "the first dimension of a layer's output has to be the samples"
            )
        return output

    def run(self, boundary: Tensor) -> Tensor:
        """One forward pass, as it is timed."""
        views: dict[str, Tensor] = {}
        if self._flat is not None:
            parts = torch.split(self._flat, [prod(shape) for shape in self._shapes.values()])
            views = {key: part.view(shape) for part, (key, shape) in zip(parts, self._shapes.items(), strict=True)}
        output: Tensor = functional_call(self._module, views, (boundary,))
        return output

    def backward(self, boundary: Tensor, output: Tensor, gradient: Tensor) -> None:
        """One backward pass; the graph is kept for the next. The vector's gradient adds up, as over micro-batches.

        Raises:
            UserCodeError: it fails.
            OutOfMemoryError: the device has not enough memory.
        """
        boundary.grad = None

        def back() -> None:
            torch.autograd.backward(output, gradient, retain_graph=True)

        _named(f"the backward pass of {self._name}", back)

    def saved_bytes(self, boundary: Tensor) -> int:
        """Kept by a forward pass for the backward pass, beside the layer's input and what the layer has anyhow."""
        known = {*self._constant, _address(boundary)}
        if self._flat is not None:
            known.add(_address(self._flat))
        saved: dict[int, int] = {}

        def pack(value: Tensor) -> Tensor:
            saved[_address(value)] = value.untyped_storage().nbytes()
            return value  # the graph holds it: no other storage takes its address meanwhile

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            output = self.run(boundary)
        del output
        return sum(size for address, size in saved.items() if address not in known)

    @property
    def elements(self) -> int:
        """Trainable ones."""
        return 0 if self._flat is None else self._flat.numel()


@contextmanager
def on_device(name: str, module: nn.Module, device: torch.device) -> Iterator[FlatLayer]:
    """A layer on the device; afterwards on the host again: the model may be larger than the device's memory.

    Raises:
        OutOfMemoryError: the layer alone does not fit.
    """
    try:
        module.to(device)
        yield FlatLayer(name, module)
    finally:
        module.to("cpu")


def _named(name: str, run: object, *arguments: Tensor) -> object:
    try:
        return call(run, name, *arguments)
    except UserCodeError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise error.__cause__ from None
        raise UserCodeError(str(error).replace("() fails", " fails", 1)) from error


def _address(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()
