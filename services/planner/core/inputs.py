"""A request and layer profiles as the problems that Cephalo's and Zorse's divisions solve. Pure.

What a worker needs beside its part of the state, by how the engine `layered` works: its idle memory, one layer
gathered with its gradients by parameter, these joined, and what their sum over ranks takes, what the layer with most
saves for its backward pass, and the outputs of all layers that are kept for the backward pass, of all samples of the
step. It does the forward pass again, but of the last layer, and gathers a layer when it is needed: no collective is
hidden. The engine `ministage` does likewise with all layers of a ministage together. The engine `fsdp2` does no forward
pass again: it has what all layers save, and a second layer gathered ahead. On processors the copies of a layer count
twice (`_WITH_HOLES`), which is a margin: holes differ from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemas.devices import Cluster
from schemas.layers import LayerClass, LayerProfile
from schemas.plans import Engine, PlanRequest
from services.planner.core import cephalo, hybrid, zorse
from services.planner.core.profile import GIB, Device, LayerTimes, MemoryProfile, Network, fitted
from services.planner.core.zorse_groups import fixed_ms, ring_ms

MAX_UNITS: Final = 128
"""Into so many units a batch is divided, where its divisors allow it."""
MOST_UNITS: Final = 512
"""Else into so many at most: the time grows with the third power."""
REDUCE_BYTES: Final = 4
"""Gradients are reduced in float32."""
_MS_PER_US: Final = 1e-3
_WITH_HOLES: Final = 2
"""By so much a processor's memory for copies of a layer exceeds them: malloc keeps holes between those it has freed."""


class MissingProfileError(ValueError):
    """Kinds of devices have no layer profile of the model."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__(
            f"no layer profile of {', '.join(kinds)}: measure the model's layers there first (turnbuckle layers)"
        )
        self.kinds = tuple(kinds)


class UnusableInputError(ValueError):
    """Profiles or cluster cannot be planned with; the text says why."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is planned from."""

    request: PlanRequest
    profiles: Mapping[str, LayerProfile]
    """By kind of device."""
    network: Network

    @property
    def model(self) -> LayerProfile:
        """The profile that says which layers the model has: they all do."""
        return next(iter(self.profiles.values()))

    @property
    def has_scalar_parameters(self) -> bool:
        """Engine `fsdp2` cannot train it. A profile by an older Turnbuckle says nothing of that."""
        return any(profile.scalar_parameters for profile in self.profiles.values())

    @property
    def parameters(self) -> int:
        """Of the model."""
        return sum(layer.parameters * layer.count for layer in self.model.classes)


def inputs_of(request: PlanRequest, profiles: Sequence[LayerProfile]) -> Inputs:
    """The newest profile of each kind, checked to be of the same model, and the network's rates.

    Raises:
        MissingProfileError: a kind of device has no profile.
        UnusableInputError: the profiles are of several models, the model is refused, or a rate is not known.
    """
    newest = {profile.kind: profile for profile in sorted(profiles, key=lambda profile: profile.measured_ns)}
    kinds = list(dict.fromkeys(device.kind for device in request.cluster.devices))
    missing = [kind for kind in kinds if kind not in newest]
    if missing:
        raise MissingProfileError(missing)
    used = {kind: newest[kind] for kind in kinds}
    _check_same_model(list(used.values()))
    return Inputs(request, used, network_of(request.cluster))


def _check_same_model(profiles: Sequence[LayerProfile]) -> None:
    first = profiles[0]
    for profile in profiles:
        if profile.refused:
            raise UnusableInputError(f"the model cannot be trained: {profile.refused}")
        if profile.scalar_parameters and not profile.chain:
            raise UnusableInputError(
                "the model cannot be trained: its layers are no chain, so engine fsdp2 would have to, which cannot cut "
                "parameters without dimensions. Make them vectors of one element"
            )
        shape = [(layer.name, layer.count, layer.parameters, layer.boundary_bytes) for layer in profile.classes]
        if profile.model != first.model or profile.dtype != first.dtype or profile.order != first.order:
            raise UnusableInputError(
                f"the profiles of {first.kind} and {profile.kind} are of different models or types: measure anew"
            )
        if shape != [(layer.name, layer.count, layer.parameters, layer.boundary_bytes) for layer in first.classes]:
            raise UnusableInputError(f"the profiles of {first.kind} and {profile.kind} differ in their layers")


def network_of(cluster: Cluster) -> Network:
    """Rates between all machines.

    Raises:
        UnusableInputError: one that a collective would use is not known.
    """
    machines = cluster.machines
    given = {(link.first, link.second): link for link in cluster.links}
    given |= {(link.second, link.first): link for link in cluster.links}
    several = {name for name in machines if sum(device.machine == name for device in cluster.devices) > 1}

    def rate(first: str, second: str) -> tuple[float, float]:
        link = given.get((first, second)) or (cluster.inside if first == second else cluster.between)
        if link is not None:
            return link.bytes_per_s / GIB, link.latency_us * _MS_PER_US
        if first != second or first in several:
            where = f"inside machine {first}" if first == second else f"between machines {first} and {second}"
            raise UnusableInputError(f"no transfer rate {where} is given: turnbuckle devices --measure measures it")
        return 1.0, 0.0  # one device alone: nothing is sent

    rows = [[rate(first, second) for second in machines] for first in machines]
    return Network(
        tuple(tuple(gib_per_s for gib_per_s, _ in row) for row in rows),
        tuple(tuple(latency_ms for _, latency_ms in row) for row in rows),
    )


def devices_of(cluster: Cluster) -> tuple[Device, ...]:
    """Devices with memory in GiB and the row of their machine."""
    rows = {name: row for row, name in enumerate(cluster.machines)}
    return tuple(
        Device(device.rank, device.kind, device.memory_bytes / GIB, rows[device.machine]) for device in cluster.devices
    )


def units_of(batch: int, devices: int) -> int | None:
    """Samples that stay together, so that there are at most `MAX_UNITS` units; None: the batch has no such divisor."""
    counts = [count for count in range(1, min(batch, MOST_UNITS) + 1) if batch % count == 0 and count >= devices]
    few = [count for count in counts if count <= MAX_UNITS]
    if few and (few[-1] >= 4 * devices or len(few) == len(counts)):
        return batch // few[-1]
    return batch // min(count for count in counts if count > MAX_UNITS) if counts else None


Quantile = Callable[[LayerClass], LayerTimes]
"""Which of a layer class's measured times are taken."""


def median_times(layer: LayerClass) -> LayerTimes:
    """Medians, in milliseconds."""
    return _times(layer.forward_us, layer.backward_us)


def low_times(layer: LayerClass) -> LayerTimes:
    """First deciles; where there are none, medians."""
    return _times(layer.forward_us_p10 or layer.forward_us, layer.backward_us_p10 or layer.backward_us)


def high_times(layer: LayerClass) -> LayerTimes:
    """Ninth deciles; where there are none, medians."""
    return _times(layer.forward_us_p90 or layer.forward_us, layer.backward_us_p90 or layer.backward_us)


def _times(forward_us: Sequence[float], backward_us: Sequence[float]) -> LayerTimes:
    return LayerTimes(fitted([us * _MS_PER_US for us in forward_us]), fitted([us * _MS_PER_US for us in backward_us]))


def with_fsdp2(times: LayerTimes, fsdp2_us: float, *, is_processor: bool) -> LayerTimes:
    """The times with what `fully_shard` takes beside the passes, by `LayerClass.fsdp2_us`, in the backward pass.

    On a processor it comes on top. A GPU computes meanwhile: its host issues the kernels of a step in the same time
    whatever the micro-batch, and a layer takes no less than the one sample by which that was measured.
    """
    fsdp2_ms = fsdp2_us * _MS_PER_US
    backward = times.backward
    if not fsdp2_ms:
        return times
    if is_processor:
        measured = tuple(ms + fsdp2_ms for ms in backward.measured)
        return replace(times, backward=replace(backward, measured=measured, intercept=backward.intercept + fsdp2_ms))
    issued_ms = times.forward.measured[0] + backward.measured[0] + fsdp2_ms
    pairs = zip(times.forward.measured, backward.measured, strict=True)
    return replace(times, backward=replace(backward, measured=tuple(max(b, issued_ms - f) for f, b in pairs)))


def data_parallel(
    inputs: Inputs, times_of: Quantile = median_times, engine: Engine = Engine.LAYERED
) -> cephalo.Problem | None:
    """The problem of dividing samples and state over all devices; None: the batch cannot be divided (`units_of`)."""
    request, devices = inputs.request, devices_of(inputs.request.cluster)
    unit = units_of(request.batch, len(devices))
    if unit is None:
        return None
    item_bytes, is_layered = request.gather_dtype.item_bytes, engine is Engine.LAYERED
    layer_bytes = (3 if is_layered else 2) * item_bytes + (2 if is_layered else 1) * REDUCE_BYTES
    times = {kind: [times_of(layer) for layer in profile.classes] for kind, profile in inputs.profiles.items()}
    if not is_layered:
        times = {
            kind: [
                with_fsdp2(one, layer.fsdp2_us, is_processor=is_processor(kind))
                for one, layer in zip(times[kind], profile.classes, strict=True)
            ]
            for kind, profile in inputs.profiles.items()
        }
    memory_of = _memory if is_layered else _memory_of_all
    memory = {
        kind: memory_of(profile, layer_bytes * (_WITH_HOLES if is_processor(kind) else 1))
        for kind, profile in inputs.profiles.items()
    }

    fixed = fixed_ms(devices, inputs.network)

    def collective_ms(parameters: int, size: int) -> float:
        if not parameters:
            return 0.0
        return fixed + ring_ms(devices, inputs.network, parameters * size, request.cluster.ring_factor)

    return cephalo.Problem(
        devices=devices,
        layers=tuple(
            cephalo.Layers(
                tuple(times[device.kind][index] for device in devices),
                collective_ms(layer.parameters, item_bytes),
                collective_ms(layer.parameters, REDUCE_BYTES),
                layer.count,
            )
            for index, layer in enumerate(inputs.model.classes)
        ),
        memory=tuple(memory[device.kind] for device in devices),
        parameters=inputs.parameters,
        batch=request.batch,
        max_microbatch=request.max_microbatch,
        memory_share=request.memory_share,
        bytes_per_parameter=request.optimizer_bytes_per_parameter,
        uneven_factor=request.cluster.uneven_factor,
        accumulation_ms=tuple(inputs.profiles[device.kind].accumulation_us * _MS_PER_US for device in devices),
        unit=unit,
        hides_collectives=not is_layered and not any(map(is_processor, inputs.profiles)),
        recomputes=is_layered,
        last=inputs.model.order[-1] if is_layered else None,
    )


def is_processor(kind: str) -> bool:
    """As `turnbuckle layers` calls them: there collectives are computing, too, and nothing runs beside them."""
    return kind == "cpu" or kind.startswith("sandbox:")


def pipeline(inputs: Inputs, times_of: Quantile = median_times) -> zorse.Problem:
    """The problem of dividing layers over groups of devices."""
    request, item_bytes = inputs.request, inputs.request.gather_dtype.item_bytes
    layer_bytes = 2 * item_bytes + 2 * REDUCE_BYTES  # of its backward pass, beside its ministage
    classes = tuple(
        zorse.LayerClass(
            {kind: times_of(profile.classes[index]) for kind, profile in inputs.profiles.items()},
            layer.parameters,
            layer.boundary_bytes,
        )
        for index, layer in enumerate(inputs.model.classes)
    )
    model = zorse.Model(
        classes,
        inputs.model.order,
        gather_bytes=item_bytes,
        reduce_bytes=REDUCE_BYTES,
        parameter_bytes=float(item_bytes),
        optimizer_bytes=request.optimizer_bytes_per_parameter,
        working={
            kind: _memory(profile, layer_bytes * (_WITH_HOLES if is_processor(kind) else 1))
            for kind, profile in inputs.profiles.items()
        },
        is_carried_out=True,
    )
    return zorse.Problem(
        devices_of(request.cluster),
        inputs.network,
        model,
        request.batch,
        request.max_microbatch,
        request.memory_share,
        request.cluster.ring_factor,
        hides_collectives=False,
    )


def stages_and_replicas(inputs: Inputs) -> hybrid.Problem:
    """The problem of using any number of the devices as stages and replicas.

    Raises:
        UnusableInputError: they are not all alike.
    """
    request, devices = inputs.request, devices_of(inputs.request.cluster)
    if len({(device.kind, device.memory_gib) for device in devices}) > 1:
        raise UnusableInputError("stages and replicas are planned of devices that are all alike")
    profile, item_bytes = inputs.model, request.gather_dtype.item_bytes
    layer_bytes = (2 * item_bytes + 2 * REDUCE_BYTES) * (_WITH_HOLES if is_processor(profile.kind) else 1)
    layers = [
        hybrid.Layer(median_times(layer), layer.parameters, layer.boundary_bytes)
        for layer in (profile.classes[index] for index in profile.order)
    ]
    return hybrid.Problem(
        tuple(layers),
        _memory(profile, layer_bytes),
        request.batch,
        len(devices),
        request.memory_share * devices[0].memory_gib,
        min(min(row) for row in inputs.network.gib_per_s),
        request.optimizer_bytes_per_parameter,
    )


def _memory(profile: LayerProfile, layer_bytes_per_parameter: int) -> MemoryProfile:
    """What a worker on this kind of device needs, with so many bytes for each parameter of one whole layer."""
    sizes = range(profile.microbatches)
    saved = [max(layer.saved_bytes[size] for layer in profile.classes) for size in sizes]
    return _memory_with(profile, saved, layer_bytes_per_parameter)


def _memory_of_all(profile: LayerProfile, layer_bytes_per_parameter: int) -> MemoryProfile:
    """The same where all layers' forward passes are saved until their backward passes."""
    sizes = range(profile.microbatches)
    saved = [sum(layer.count * layer.saved_bytes[size] for layer in profile.classes) for size in sizes]
    return _memory_with(profile, saved, layer_bytes_per_parameter)


def _memory_with(profile: LayerProfile, saved: list[int], layer_bytes_per_parameter: int) -> MemoryProfile:
    layer_bytes = layer_bytes_per_parameter * max(layer.parameters for layer in profile.classes)
    saved += [2 * saved[0]] * (len(saved) == 1)
    kept = sum(layer.boundary_bytes * layer.count for layer in profile.classes)
    return MemoryProfile(tuple((size + layer_bytes) / GIB for size in saved), profile.reserved_bytes / GIB, kept / GIB)
