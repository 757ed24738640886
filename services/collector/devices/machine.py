"""Devices of this machine: GPUs that torch sees, else its processors, or control groups in their place."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from services._host.cgroupfs import CgroupUnavailableError, detect
from services._host.own_limits import OwnLimits, own_limits
from services._runtime.install_hint import install_extra
from services.collector.devices.found import FoundDevice
from services.collector.devices.options import SandboxPlace

DRIVERS: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Made by the drivers of NVIDIA's and AMD's GPUs, and by WSL. Without any, torch is not asked: that takes seconds."""


def gpus(drivers: Sequence[str] = DRIVERS) -> list[FoundDevice]:
    """That torch sees, those that are alike together."""
    if not any(Path(driver).exists() for driver in drivers):
        return []
    if find_spec("torch") is None:
        about = f"a GPU's driver is here, but torch is not, which knows its name and memory: {install_extra('trainer')}"
        return [FoundDevice("?", 1, None, about)]
    from services.collector.layers import gpu  # noqa: PLC0415 - torch

    visible = gpu.visible_gpus()
    return [
        FoundDevice(gpu.kind_of_name(name), count, memory_bytes, name, f"cuda:{visible.index((name, memory_bytes))}")
        for (name, memory_bytes), count in Counter(visible).items()
    ]


def processors(kind: str, processes: int = 1) -> FoundDevice:
    """All that this process may use, as one device or as so many equal ones."""
    try:
        limits = own_limits(detect())
    except CgroupUnavailableError:
        limits = OwnLimits(None, None)
    total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0))
    about = f"{_cores(cores)} ({platform.machine()})"
    if limits.cpu_cores is not None and limits.cpu_cores < cores:
        about += f", of which this control group may use {limits.cpu_cores:g}"
    if limits.memory_bytes is not None and limits.memory_bytes < total_bytes:
        about += f"; the control group's limit, of {total_bytes >> 20}MiB"
        total_bytes = limits.memory_bytes
    if processes > 1:
        about += f", in {processes} equal parts"
    return FoundDevice(kind, processes, total_bytes // processes, about, "cpu")


def sandboxes(places: Sequence[SandboxPlace]) -> list[FoundDevice]:
    """Control groups as they were asked for."""
    return [
        FoundDevice(place.kind, place.count, place.memory_bytes, f"{_cores(place.cpu_cores)}, as given")
        for place in places
    ]


def _cores(count: float) -> str:
    return "1 core" if count == 1 else f"{count:g} cores"
