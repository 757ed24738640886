"""What `turnbuckle devices --measure` measures: each device's speed, and the rates inside and between machines."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from services._runtime.command.errors import UnavailableError
from services._runtime.command.tool_events import say
from services._runtime.exit_code import ExitCode
from services._runtime.install_hint import package_missing
from services.collector.devices.found import FoundCluster, FoundDevice, FoundMachine
from services.collector.devices.options import Meeting, SandboxPlace
from services.collector.layers.block_times import Spread
from services.collector.layers.quota import LEAST_BLOCK_S, under_quota
from services.collector.profiler.worker_environment import threads_per_worker


def measured_machine(machine: FoundMachine, places: Sequence[SandboxPlace]) -> FoundMachine:
    """The machine with the speed of each kind of its devices, and the rate between two of them.

    Raises:
        UnavailableError: torch is not installed, sandboxes cannot be made here, or there is no rate.
    """
    # Sandboxes first: their processes are forked, which torch's threads would not survive.
    speeds = {place.kind: _speed_in_sandbox(place) for place in places}
    try:
        from services.collector.devices import links  # noqa: PLC0415 - says what is missing
    except ImportError as error:
        raise UnavailableError(package_missing(error.name or "torch", "trainer")) from error
    devices = [
        replace(device, speed=_speed(device) if device.torch_device else speeds.get(device.kind))
        for device in machine.devices
    ]
    inside = links.rate_inside(with_gpus=_gpus(machine) > 1) if machine.count > 1 else None
    return replace(machine, devices=tuple(devices), inside=inside)


def _gpus(machine: FoundMachine) -> int:
    return sum(device.count for device in machine.devices if device.torch_device.startswith("cuda"))


def _speed(device: FoundDevice) -> Spread:
    """Of one of them, with the threads that it would have beside the others."""
    import torch  # noqa: PLC0415 - only where it is measured

    from services.collector.devices.speed import reference_layer_us  # noqa: PLC0415 - as above

    say(f"measures {device.kind}")
    if device.torch_device == "cpu":
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(min(torch.get_num_threads(), threads_per_worker(device.count, cores, None)))
    return reference_layer_us(torch.device(device.torch_device))


def _speed_in_sandbox(place: SandboxPlace) -> Spread:
    """By a child under the quota, which leaves the figures in a file."""
    say(f"measures {place.kind}")
    with tempfile.TemporaryDirectory(prefix="turnbuckle-devices-") as directory:
        file = Path(directory) / "speed.json"
        code = under_quota(place.cpu_cores, lambda begin: _leave_speed(file, place.cpu_cores, begin))
        if code:  # it has said why
            raise SystemExit(code)
        return Spread(**json.loads(file.read_text(encoding="utf-8")))


def _leave_speed(file: Path, cpu_cores: float, begin: Callable[[], None]) -> int:
    try:
        import torch  # noqa: PLC0415 - after the fork

        from services.collector.devices.speed import REPETITIONS, reference_layer_us  # noqa: PLC0415 - as above
    except ImportError as error:
        raise UnavailableError(package_missing(error.name or "torch", "trainer")) from error
    torch.set_num_threads(threads_per_worker(1, len(os.sched_getaffinity(0)), cpu_cores))
    begin()
    repetitions = replace(REPETITIONS, least_block_s=LEAST_BLOCK_S)
    found = reference_layer_us(torch.device("cpu"), repetitions)
    file.write_text(json.dumps(asdict(found)), encoding="utf-8")
    return ExitCode.OK


def measured_cluster(machine: FoundMachine, meeting: Meeting) -> FoundCluster | None:
    """All machines that meet, with the rates between them; None: this one is not rank 0, which has them.

    Raises:
        UnavailableError: the others do not come in time, or one of them fails.
    """
    from services.collector.devices import links  # noqa: PLC0415 - torch, which has measured the devices

    try:
        return links.met(machine, meeting)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise UnavailableError(
            f"{meeting.machines} machines did not meet at {meeting.host}:{meeting.port}: {first}. Start the command on "
            "each of them within two minutes, with ranks from 0; GLOO_SOCKET_IFNAME names the interface to use"
        ) from error
