"""Command lines that start a plan's ranks by torchrun, one per machine. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import Final

from schemas.devices import Cluster

MASTER_PORT: Final = 29_500
"""torchrun's default."""
_PROGRAM: Final = "--no-python"
"""What follows it is run as it stands."""


def launch_lines(cluster: Cluster, worker: tuple[str, ...]) -> tuple[str, ...]:
    """torchrun, on each machine, with the machine's devices as its processes; ranks come out as in the cluster.

    The first machine's name, or its node's, is where the others find it.
    """
    processes = Counter(device.machine for device in cluster.devices)
    if len(processes) == 1:
        (count,) = processes.values()
        return (shlex.join(single_machine(count, worker)),)
    first = cluster.devices[0]
    master = ("--master-addr", first.node or first.machine, "--master-port", str(MASTER_PORT))
    return tuple(
        shlex.join(
            (
                *("torchrun", "--nnodes", str(len(processes)), "--node-rank", str(place)),
                *("--nproc-per-node", str(count), *master, _PROGRAM, *worker),
            )
        )
        for place, count in enumerate(processes.values())
    )


def single_machine(processes: int, worker: tuple[str, ...]) -> tuple[str, ...]:
    """All ranks on this machine: torchrun finds a free port by itself."""
    return ("torchrun", "--standalone", "--nproc-per-node", str(processes), _PROGRAM, *worker)


def with_worker(line: str, worker: tuple[str, ...]) -> str:
    """One of `launch_lines` for another worker: a plan's lines have names of files for the reader to replace.

    Raises:
        ValueError: it is no such line.
    """
    words = shlex.split(line)
    if words[:1] != ["torchrun"] or _PROGRAM not in words:
        raise ValueError(f"{line!r} is no line of torchrun with {_PROGRAM}")
    return shlex.join((*words[: words.index(_PROGRAM) + 1], *worker))
