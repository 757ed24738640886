"""The least change with which there is a plan where there is none: a smaller batch, else further devices. Pure."""

from __future__ import annotations

import math
from typing import Final

from schemas.devices import MAX_DEVICES, Device
from schemas.plans import PlanRequest
from services.planner.core import cephalo
from services.planner.core.construction import too_large_to_build
from services.planner.core.inputs import Inputs, data_parallel, inputs_of
from services.planner.core.profile import GIB

_FURTHER_TRIED: Final = 3
"""Numbers of devices, from what the missing memory suggests."""


def remedy(inputs: Inputs) -> str:
    """A sentence; empty: none was found. Whatever it says was planned, over all devices in uneven parts."""
    return _smaller_batch(inputs) or _further_devices(inputs)


def _fits(request: PlanRequest, inputs: Inputs) -> bool:
    """Whether it has a plan over all devices."""
    changed = inputs_of(request, list(inputs.profiles.values()))
    problem = data_parallel(changed)
    if problem is None or not isinstance(found := cephalo.plan(problem), cephalo.Plan):
        return False
    return too_large_to_build(changed, found.shares) is None


def _smaller_batch(inputs: Inputs) -> str:
    """The largest batch with a plan, found by halving: more samples never need less memory."""
    request = inputs.request
    least, most = len(request.cluster.devices), request.batch
    if least >= most:
        return f"a batch of at least {least} samples" if least > most else ""

    def fits(batch: int) -> bool:
        return _fits(request.model_copy(update={"batch": batch}), inputs)

    if not fits(least):
        return ""
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return f"a batch of {least} samples instead of {request.batch}"


def _further_devices(inputs: Inputs) -> str:
    """How many devices more, of the present kind with the most memory, are enough for the batch."""
    devices, request = inputs.request.cluster.devices, inputs.request
    largest = max(devices, key=lambda device: device.memory_bytes)
    problem = data_parallel(inputs)
    if problem is None:
        return ""
    alone = problem.allowed_gib[largest.rank] - problem.memory[largest.rank].held(1, 1)
    rooms = [allowed - memory.held(1, 1) for allowed, memory in zip(problem.allowed_gib, problem.memory, strict=True)]
    missing = problem.state_gib - sum(room for room in rooms if room > 0)
    if alone <= 0 or min(rooms) < 0:
        return ""
    first = max(1, math.ceil(missing / alone))
    for count in range(
        first, min(first + _FURTHER_TRIED, MAX_DEVICES - len(devices), request.batch - len(devices) + 1)
    ):
        cluster = request.cluster.model_copy(update={"devices": _with(devices, largest, count)})
        if _fits(request.model_copy(update={"cluster": cluster}), inputs):
            plural = "s" if count > 1 else ""
            return f"{count} more device{plural} of kind {largest.kind} ({largest.memory_bytes / GIB:.1f} GiB)"
    return ""


def _with(devices: tuple[Device, ...], model: Device, count: int) -> tuple[Device, ...]:
    """Devices with further ones like `model` on its machine, ranks anew."""
    place = max(device.rank for device in devices if device.machine == model.machine) + 1
    longer = [*devices[:place], *[model] * count, *devices[place:]]
    return tuple(device.model_copy(update={"rank": rank}) for rank, device in enumerate(longer))
