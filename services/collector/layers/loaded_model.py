"""The user's model on a device, loaded and checked, and what was measured of it as a layer profile."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from schemas.layers import Dtype, LayerProfile
from services._jobs.layer_chain import Layers, UnusableModelError, chain_of, scalar_parameters_of
from services._jobs.recorded_build import UnrecordableError, recorded
from services._jobs.user_module import UserCodeError, call, load, own_modules_hidden
from services._runtime.command.errors import UnavailableError, UsageError
from services._runtime.command.tool_events import say
from services.collector.layers.alike import element_type, refusal_of, structure_of
from services.collector.layers.block_times import Repetitions
from services.collector.layers.first_input import FirstInput, cast, of_data, of_example
from services.collector.layers.gpu import kind_of_name
from services.collector.layers.measuring import Bench, Measured, Progress, reserved_bytes
from services.collector.layers.options import Place
from services.collector.layers.profile import digest, layer_class
from services.collector.profiler.features import module_and_example
from services.collector.profiler.torch_features import FeatureError, InputShape
from services.collector.profiler.worker_environment import threads_per_worker


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What is measured."""

    layers: Layers
    first_input: FirstInput
    device: torch.device
    dtype: Dtype
    reserved_bytes: int
    """Used before there was a model."""
    construction_bytes: int
    """As `LayerProfile.construction_bytes`."""
    kind: str
    task: str
    source: str
    """Of the user's module; empty: it has none."""

    @property
    def refused(self) -> str:
        """Why no engine can train it."""
        return refusal_of(self.layers)

    def measure(self, batch_up_to: int, repetitions: Repetitions) -> Generator[Progress, None, LayerProfile]:
        """Measure, and give the progress after each step.

        Raises:
            UnusableModelError: not even one sample fits.
            UserCodeError: a layer fails on its input.
        """
        bench = Bench(self.device, self.first_input, repetitions)
        measured = yield from bench.measure(self.layers, batch_up_to)
        return self._profile(measured)

    def _profile(self, measured: Measured) -> LayerProfile:
        model = digest(self.source, *(structure_of(module) for _, module in self.layers))
        sample = self.first_input(1)
        sequence = f"{sample.dtype} {tuple(sample.shape[1:])}"
        return LayerProfile(
            profile=digest(model, torch.__version__, self.kind, self.dtype, sequence),
            model=model,
            task=self.task,
            kind=self.kind,
            dtype=self.dtype,
            scalar_parameters=any(scalar_parameters_of(module) for _, module in self.layers),
            refused=self.refused,
            classes=tuple(
                layer_class(layers, costs, self.dtype.item_bytes, fsdp2_us)
                for layers, costs, fsdp2_us in zip(measured.classes, measured.costs, measured.fsdp2_us, strict=True)
            ),
            order=measured.order,
            optimizer_us_per_mib=measured.optimizer_us_per_mib,
            reserved_bytes=self.reserved_bytes,
            construction_bytes=self.construction_bytes,
            measured_ns=time.time_ns(),
            node=platform.node(),
        )


def load_model(given: argparse.Namespace) -> LoadedModel:
    """Import the user's modules and call what builds the model; its parameters are the same at every call.

    Raises:
        UnavailableError: the GPU is not there.
        UsageError: no input is given.
        UserCodeError: a module or function cannot be used.
        UnusableModelError: the model's layers cannot be measured.
    """
    place: Place = given.device
    device, kind = _device(place)
    reserved = reserved_bytes(device)
    with own_modules_hidden():
        torch.manual_seed(0)
        model, example = module_and_example(given.model)
        whole_bytes = _construction_bytes(model, given.model)
        first_input = _first_input(given, example)
    layers, dtype = _in_type(model, given.dtype)
    return LoadedModel(
        layers=layers,
        first_input=cast(first_input, getattr(torch, dtype)),
        device=device,
        dtype=dtype,
        reserved_bytes=reserved,
        construction_bytes=whole_bytes,
        kind=given.kind or kind,
        task=given.task or given.model,
        source=_source_of(given.model),
    )


def _device(place: Place) -> tuple[torch.device, str]:
    """The device, and what kind it is."""
    if place.cpu_cores is not None:
        torch.set_num_threads(threads_per_worker(1, len(os.sched_getaffinity(0)), place.cpu_cores))
    device = torch.device(place.device)
    if device.type != "cuda":
        return device, place.kind
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.index >= count:
        raise UnavailableError(f"there is no {place.device}: torch {torch.__version__} finds {count} GPUs here")
    return device, kind_of_name(torch.cuda.get_device_name(device))


def _first_input(given: argparse.Namespace, example: Any) -> FirstInput:
    if given.data:
        return of_data(call(load(given.data), given.data), given.data)
    if given.input_shape is not None:
        shape = InputShape(given.input_shape, given.input_dtype, given.input_high)
        try:
            shape.example()
        except FeatureError as error:
            raise UsageError(str(error)) from error
        return shape.example
    if example is None:
        raise UsageError("which input? give --data or --input-shape, or let the function return (model, example_input)")
    return of_example(example)


def _construction_bytes(model: nn.Module, name: str) -> int:
    """Of a model that the trainer has to build as a whole, which is said; else of what it does not compute itself."""
    try:
        _, recording = recorded(lambda: module_and_example(name)[0])
    except (UnrecordableError, UserCodeError) as error:
        say(f"each worker builds the whole model before it keeps its part of it: {error}")
        return sum(value.nbytes for value in (*model.parameters(), *model.buffers()))
    return recording.given_bytes


def _in_type(model: nn.Module, wanted: str | None) -> tuple[Layers, Dtype]:
    if wanted is not None:
        model.to(getattr(torch, wanted))
    layers = chain_of(model)
    name = str(element_type(layers)).removeprefix("torch.")
    if name not in set(Dtype):
        raise UnusableModelError(f"the model's parameters are {name}: give --dtype, one of {', '.join(Dtype)}")
    return layers, Dtype(name)


def _source_of(name: str) -> str:
    """Text of the module that ``module:function`` names."""
    place = name.rpartition(":")[0]
    file = place if place.endswith(".py") else getattr(sys.modules.get(place), "__file__", None)
    return Path(file).read_text(encoding="utf-8", errors="replace") if file else ""
