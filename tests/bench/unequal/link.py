"""What collectives take between the sandboxes of a set: rate, latency, factor of uneven shares, as in a cluster file.

A processor at a quota sends and receives at less than its network's rate, and gloo reduces by more than one round: the
rate is that of the trainer's own collectives, as a ring would have them. As a program, this module is one rank.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import distributed as dist

from schemas.devices import Cluster
from services._jobs.sandbox.network import DEVICE
from services._jobs.sandbox.sandbox import Output, Sandboxes
from services.collector.layers.quota import PERIOD_US
from services.collector.profiler.worker_environment import MASTER_PORT, Rendezvous, worker_environment
from services.trainer.worker.gather import begin_reduce_scatter, gather
from tests.bench.unequal.cases import RATE_BITS_PER_S, Box

ELEMENTS: Final = (768 << 10, 3 << 20)
"""About a layer's of each model."""
_ITEM_BYTES: Final = 4
_REPETITIONS: Final = 15
_DEADLINE_S: Final = 120.0
_REFERENCE_BYTES: Final = 10**7
"""Of the message whose time a cluster file calls latency."""


class Connection(NamedTuple):
    """Of a set, as a cluster file has it."""

    bits_per_s: int
    latency_ms: float
    """Of a message of 10 MB."""
    uneven_factor: float
    """By so much collectives take longer where one rank has everything."""


class LinkFailedError(RuntimeError):
    """A rank has failed, or does not answer."""


def measured(boxes: tuple[Box, ...], directory: Path) -> Connection:
    """Measure it.

    Raises:
        LinkFailedError: a rank has failed.
    """
    with Sandboxes() as where:
        made = [where.create(f"link-{rank}", None, None, RATE_BITS_PER_S) for rank in range(len(boxes))]
        rendezvous = Rendezvous(len(boxes), made[0].address, MASTER_PORT, DEVICE, threads=1)
        processes = []
        for rank, (box, sandbox) in enumerate(zip(boxes, made, strict=True)):
            sandbox.limit_cpu(box.cpu_cores, PERIOD_US)
            command = [sys.executable, "-m", "tests.bench.unequal.link"]
            environment = worker_environment(os.environ, rank, rendezvous)
            output = Output(directory / f"link-{rank}", directory / f"link-{rank}.errors")
            processes.append(sandbox.spawn(command, environment, output=output))
        codes = [process.wait(_DEADLINE_S) for process in processes]
    if any(codes):
        raise LinkFailedError((directory / "link-0.errors").read_text(encoding="utf-8"))
    even_s, uneven_s = json.loads((directory / "link-0").read_text(encoding="utf-8"))
    return connection(len(boxes), even_s, uneven_s)


def connection(ranks: int, even_s: Sequence[float], uneven_s: Sequence[float]) -> Connection:
    """With which two gathers and one reduction of a layer, of each of `ELEMENTS`, take as long as measured.

    Args:
        ranks: of the set.
        even_s: seconds of a collective, the mean of those three, by size, where each rank has an equal part.
        uneven_s: the same where one rank has everything.
    """
    small, large = (count * _ITEM_BYTES for count in ELEMENTS)
    s_per_byte = max(even_s[1] - even_s[0], 0.1 * even_s[1]) / (large - small)
    fixed_s = max(even_s[1] - s_per_byte * large, 0.0)
    ring = Cluster.model_fields["ring_factor"].default * (ranks - 1) / ranks
    bytes_per_s = ring / s_per_byte
    latency_s = fixed_s / (ranks - 1) + _REFERENCE_BYTES / bytes_per_s
    return Connection(round(8 * bytes_per_s), latency_s * 1e3, max(sum(uneven_s) / sum(even_s), 1.0))


def _median_s(collective: Callable[[], object]) -> float:
    """Of the slowest rank."""
    took_s = []
    for _ in range(_REPETITIONS):
        dist.barrier()
        began_s = time.perf_counter()
        collective()
        slowest = torch.tensor(time.perf_counter() - began_s)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        took_s.append(slowest.item())
    return statistics.median(took_s)


def _collective_s(sizes: Sequence[int]) -> float:
    """The mean of a step's two gathers and one reduction of a layer."""
    own, elements = sizes[dist.get_rank()], sum(sizes)
    part, whole, reduced = torch.ones(own), torch.ones(elements), torch.empty(own)
    gather_s = _median_s(lambda: gather(part, sizes))
    return (2 * gather_s + _median_s(lambda: begin_reduce_scatter(whole, sizes, reduced).wait())) / 3


def main() -> None:
    """Be a rank; rank 0 prints seconds of a collective, even and uneven, by size."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    even_s = [_collective_s([count // world + (rank < count % world) for rank in range(world)]) for count in ELEMENTS]
    uneven_s = [_collective_s([count] + [0] * (world - 1)) for count in ELEMENTS]
    if dist.get_rank() == 0:
        print(json.dumps([even_s, uneven_s]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
