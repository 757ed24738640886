"""A chain's layers measured on one device, a class after the other, for micro-batches of 1, 2, 3 ... samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from schemas.layers import MAX_LAYER_CLASSES, MAX_LAYERS
from services._jobs.layer_chain import Layers, UnusableModelError, is_batch_norm
from services._runtime.command.tool_events import say
from services.collector.layers.alike import structure_of
from services.collector.layers.block_times import NOTHING, Repetitions, Spread, extra_us, timed
from services.collector.layers.flat_layer import FlatLayer, on_device
from services.collector.layers.profile import AlikeLayers, LayerCosts, distinct
from services.collector.layers.sharded_layer import ShardedLayer, absent_peer

_OPTIMIZER_ELEMENTS: Final = {"cpu": 1 << 22, "cuda": 1 << 25}
"""So many that a step takes what memory takes, not what its call takes: on a GPU that of a dozen kernels."""
_MIB: Final = 1 << 20


class Progress(NamedTuple):
    """Measurements made, of all."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Measured:
    """All that a profile holds of a model on a device."""

    classes: tuple[AlikeLayers, ...]
    costs: tuple[tuple[LayerCosts, ...], ...]
    """By class, then by micro-batch."""
    order: tuple[int, ...]
    optimizer_us_per_mib: float
    fsdp2_us: tuple[float, ...]
    """By class: as `LayerClass.fsdp2_us`."""


@dataclass(frozen=True, slots=True)
class _Measurable:
    """The layer of a class that is measured."""

    name: str
    module: nn.Module
    takes_gradient: bool
    """Something flows back to what stands before it."""


@dataclass(slots=True)
class Bench:
    """Device, clock and input of a measurement."""

    device: torch.device
    first_input: Callable[[int], Tensor]
    """Of so many samples, for the first layer."""
    repetitions: Repetitions
    _layers: list[_Measurable] = field(default_factory=list)
    _order: list[int] = field(default_factory=list)

    def measure(self, layers: Layers, batch_up_to: int) -> Generator[Progress, None, Measured]:
        """Measure, and give the progress after each step; only the sizes for which the device has enough memory.

        Raises:
            UnusableModelError: not even one sample fits.
            UserCodeError: a layer fails on its input.
        """
        for _, module in layers:
            module.train()
            for part in module.modules():
                if is_batch_norm(part):
                    part.eval()  # in training it refuses a single sample
        try:
            classes = self._classify(layers)
            rows = [(yield from self._row(1, batch_up_to))]
        except torch.OutOfMemoryError as error:
            raise UnusableModelError(f"not even one sample fits: {str(error).partition('. ')[0]}") from error
        for size in range(2, batch_up_to + 1):
            try:
                rows.append((yield from self._row(size, batch_up_to)))
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                break
        costs = tuple(zip(*rows, strict=True))
        fsdp2_us = self._fsdp2_us()
        return Measured(classes, costs, tuple(self._order), self._optimizer_us_per_mib(classes), fsdp2_us)

    def _classify(self, layers: Layers) -> tuple[AlikeLayers, ...]:
        """Which layers are alike, by one forward pass of one sample."""
        known: dict[tuple[str, torch.Size, torch.dtype], int] = {}
        sizes: list[tuple[int, int]] = []
        outputs: list[Tensor] = []
        boundary = self._input(1)
        for place, (name, module) in enumerate(layers):
            key = (structure_of(module), boundary.shape, boundary.dtype)
            if key not in known:
                known[key] = len(known)
                with torch.no_grad(), on_device(name, module, self.device) as layer:
                    outputs.append(layer.output(boundary).detach())
                    sizes.append((layer.elements, outputs[-1].nbytes))
                self._layers.append(_Measurable(name, module, place > 0))
            elif known[key] == 0:  # the first layer's class stands further on, too
                self._layers[0] = _Measurable(self._layers[0].name, self._layers[0].module, takes_gradient=True)
            self._order.append(known[key])
            boundary = outputs[known[key]]
        if len(layers) > MAX_LAYERS or len(known) > MAX_LAYER_CLASSES:
            raise UnusableModelError(
                f"{len(layers)} layers of {len(known)} classes: {MAX_LAYERS} of {MAX_LAYER_CLASSES} are the most"
            )
        names = distinct(type(layer.module).__name__ for layer in self._layers)
        return tuple(
            AlikeLayers(name, self._order.count(index), *sizes[index])  # parameters and bytes of its output
            for index, name in enumerate(names)
        )

    def _row(self, size: int, batch_up_to: int) -> Generator[Progress, None, list[LayerCosts]]:
        """Costs of each class for a micro-batch of this size."""
        costs: list[LayerCosts] = []
        outputs: list[Tensor] = []
        boundary = self._input(size)
        for index in self._order:
            if index == len(outputs):
                cost, output = self._at_work(self._layers[index], boundary)
                costs.append(cost)
                outputs.append(output)
                done = (size - 1) * len(self._layers) + len(costs)
                yield Progress(done, batch_up_to * len(self._layers))
            boundary = outputs[index]
        return costs

    def _at_work(self, measurable: _Measurable, boundary: Tensor) -> tuple[LayerCosts, Tensor]:
        """Costs and output of a layer, which is on the device no longer than that."""
        wanted = measurable.takes_gradient and boundary.is_floating_point()
        with on_device(measurable.name, measurable.module, self.device) as layer:
            given = boundary.detach().requires_grad_(wanted)
            output = layer.output(given).detach()
            return self._costs(layer, given), output

    def _costs(self, layer: FlatLayer, boundary: Tensor) -> LayerCosts:
        forward = timed(lambda calls: _repeat(calls, lambda: layer.run(boundary)), self._clock, self.repetitions)
        backward = self._backward(layer, boundary)
        saved_bytes = layer.saved_bytes(boundary)
        if backward is not NOTHING and self.device.type == "cuda":
            saved_bytes = max(saved_bytes, self._peak_bytes(layer, boundary))
        return LayerCosts(forward, backward, saved_bytes)

    def _backward(self, layer: FlatLayer, boundary: Tensor) -> Spread:
        output = layer.run(boundary)
        if not output.requires_grad:
            return NOTHING
        gradient = torch.ones_like(output)
        return timed(
            lambda calls: _repeat(calls, lambda: layer.backward(boundary, output, gradient)),
            self._clock,
            self.repetitions,
        )

    def _fsdp2_us(self) -> tuple[float, ...]:
        """Of each class, by a micro-batch of one sample: what is copied are parameters, however many there are."""
        if dist.is_initialized():
            say("what fsdp2 takes beside the layers is not known: the model's module has made a process group")
            return (0.0,) * len(self._layers)
        found: list[float] = []
        boundary = self._input(1)
        outputs: list[Tensor] = []
        with absent_peer(self.device):
            for index in self._order:
                if index == len(outputs):
                    extra, output = self._sharded(self._layers[index], boundary)
                    found.append(extra)
                    outputs.append(output)
                boundary = outputs[index]
        return tuple(found)

    def _sharded(self, measurable: _Measurable, boundary: Tensor) -> tuple[float, Tensor]:
        """What the engine takes more than the layer alone, and the layer's output."""
        wanted = measurable.takes_gradient and boundary.is_floating_point()
        with on_device(measurable.name, measurable.module, self.device) as layer:
            given = boundary.detach().requires_grad_(wanted)
            output = layer.output(given)
            if not layer.elements or not output.requires_grad:
                return 0.0, output.detach()
            output = output.detach()
            gradient = torch.ones_like(output)
            try:
                sharded = ShardedLayer(measurable.module, self.device)
                extra = extra_us(
                    lambda calls: _repeat(calls, lambda: sharded.step(given, gradient)),
                    lambda calls: _repeat(calls, lambda: layer.backward(given, layer.run(given), gradient)),
                    self._clock,
                    self.repetitions,
                )
            except Exception as error:  # noqa: BLE001 - the user's code, in parameters that it may not expect
                reason = str(error).partition("\n")[0] or type(error).__name__
                say(f"layer {measurable.name}: what fsdp2 takes beside it is not known: {reason}")
                return 0.0, output
            return extra, output

    def _peak_bytes(self, layer: FlatLayer, boundary: Tensor) -> int:
        """What both passes have allocated at most, with what they need for a moment only."""
        gradient = torch.ones_like(layer.run(boundary))
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        layer.backward(boundary, layer.run(boundary), gradient)
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before

    def _optimizer_us_per_mib(self, classes: tuple[AlikeLayers, ...]) -> float:
        """Of AdamW's step, per MiB of parameters, gradients and both moments."""
        if not any(layers.parameters for layers in classes):
            return 0.0
        parameter = nn.Parameter(torch.zeros(_OPTIMIZER_ELEMENTS[self.device.type], device=self.device))
        parameter.grad = torch.ones_like(parameter)
        optimizer = torch.optim.AdamW([parameter])
        step = timed(lambda calls: _repeat(calls, optimizer.step), self._clock, self.repetitions)
        return step.median_us / (4 * parameter.nbytes / _MIB)

    def _input(self, size: int) -> Tensor:
        return self.first_input(size).to(self.device)

    def _clock(self) -> float:
        """Seconds, once the device has done what was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def reserved_bytes(device: torch.device) -> int:
    """What a worker uses before it has a model: this process with the same loaded; on a GPU with all who use it.

    Of this process as it was started: with a rank's settings of malloc (`services._jobs.malloc_tunables`).
    On a GPU that is the context, what cuBLAS works in, and the kernels of a first step, which CUDA loads as they are
    called.
    """
    _load_as_a_worker(device)
    if device.type != "cuda":
        with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 - a line of the kernel's
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def _load_as_a_worker(device: torch.device) -> None:
    """What torch loads for ranks, and once an optimizer steps: half as much again as torch alone."""
    import_module("torch.distributed.checkpoint")
    import_module("torch.distributed.fsdp")
    layer = nn.Linear(64, 64, device=device)
    torch.autograd.backward(layer(torch.ones(8, 64, device=device)).sum())
    torch.optim.AdamW(layer.parameters()).step()


def _repeat(calls: int, run: Callable[[], object]) -> None:
    for _ in range(calls):
        run()
