"""Devices, found and measured: ``python -m services.collector.devices.command``, for `turnbuckle devices`.

Standard output has one JSON object a line: ``row`` (devices that are alike), then ``document`` with the text of
cluster.yaml, or ``result`` with the path that it was written to; or ``error``. Exit codes: 0; 2 a wrong command line;
69 no torch for --measure, no server for --nodes, the other machines do not come; 78 the file cannot be written.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from pathlib import Path

from schemas.containers import NodeInfo
from services._runtime.atomic_file import write_atomically
from services._runtime.command.connection import connected, find_server
from services._runtime.command.errors import BadFileError, UsageError
from services._runtime.command.nodes import read_nodes
from services._runtime.command.tool_events import emit, say
from services._runtime.exit_code import ExitCode
from services.collector.devices.cluster_text import cluster_text
from services.collector.devices.found import FoundCluster, FoundDevice, FoundMachine
from services.collector.devices.machine import gpus, processors, sandboxes
from services.collector.devices.measuring import measured_cluster, measured_machine
from services.collector.devices.options import Meeting, parse
from services.collector.devices.registered import with_nodes
from services.collector.tool import run_tool


def found_machine(given: argparse.Namespace) -> FoundMachine:
    """This machine's devices: GPUs, or what the user gave in place of the processors, or the processors."""
    groups, cpu = sandboxes(given.sandbox), processors(given.kind, given.processes)
    accelerators = gpus()
    known = [device for device in accelerators if device.memory_bytes is not None]
    if groups:
        cores = sum(place.cpu_cores * place.count for place in given.sandbox)
        note = f"in place of the processors: {cpu.about}; together they may use {cores:g} cores"
        return FoundMachine(given.name, (*accelerators, *groups), notes=(note,))
    if known and not given.cpu:
        note = f"the processors are left out ({cpu.about}): --cpu lists them, too"
        return FoundMachine(given.name, tuple(accelerators), notes=(note,))
    return FoundMachine(given.name, (*accelerators, cpu))


def found_cluster(given: argparse.Namespace) -> FoundCluster | None:
    """All machines that are known; None: the machine of rank 0 has them.

    Raises:
        UnavailableError: something cannot be measured, or no server answers.
    """
    machine = found_machine(given)
    if given.measure:
        machine = measured_machine(machine, given.sandbox)
    meeting: Meeting | None = given.meeting
    cluster = FoundCluster((machine,)) if meeting is None else measured_cluster(machine, meeting)
    if cluster is None or not (given.nodes or given.server or given.context):
        return cluster
    return with_nodes(cluster, asyncio.run(_registered(given)), socket.gethostname())


async def _registered(given: argparse.Namespace) -> list[NodeInfo]:
    async with connected(find_server(given.server, given.context)) as bus:
        return await read_nodes(bus)


def _row(machine: FoundMachine, device: FoundDevice, fastest_us: float | None) -> dict[str, object]:
    """For tables and programs; None: not known, or not measured."""
    row = {
        "machine": machine.name,
        "kind": device.kind,
        "devices": device.count,
        "memory_mib": None if device.memory_bytes is None else device.memory_bytes >> 20,
    }
    if device.speed is None or fastest_us is None:
        return {**row, "layer_ms": None, "p10_ms": None, "p90_ms": None, "times_fastest": None, "about": device.about}
    return {
        **row,
        "layer_ms": device.speed.median_us / 1e3,
        "p10_ms": device.speed.p10_us / 1e3,
        "p90_ms": device.speed.p90_us / 1e3,
        "times_fastest": device.speed.median_us / fastest_us,
        "about": device.about,
    }


def _report(given: argparse.Namespace, cluster: FoundCluster) -> int:
    for machine in cluster.machines:
        for device in machine.devices:
            emit("row", **_row(machine, device, cluster.fastest_us))
    text = cluster_text(cluster, f"By turnbuckle devices, {time.strftime('%Y-%m-%d')}: `?` is not known")
    if given.out is None:
        emit("document", text=text)
        return ExitCode.OK
    try:
        write_atomically(given.out, text)
    except OSError as error:
        raise BadFileError(f"{given.out} cannot be written: {error.strerror}") from error
    emit("result", written=str(given.out))
    return ExitCode.OK


def work() -> int:
    """The whole tool."""
    given = parse(sys.argv[1:])
    out: Path | None = given.out
    if out is not None and not out.absolute().parent.is_dir():  # said before it is measured
        raise BadFileError(f"{out} cannot be written: there is no directory {out.absolute().parent}")
    cluster = found_cluster(given)
    if cluster is None:
        say("sent to rank 0, which writes the file")
        return ExitCode.OK
    names = [machine.name for machine in cluster.machines]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"several machines are called {min(twice)}: give each its own --name")
    return _report(given, cluster)


def main() -> None:
    """Run the tool."""
    run_tool("devices", work)


if __name__ == "__main__":
    main()
