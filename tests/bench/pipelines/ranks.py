"""One rank of the benchmark, as a program: rates of connections, steps of all ways in turn. Rank 0 prints JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import Final

import torch
from torch import distributed as dist

from services._jobs.sandbox.network import read_traffic
from tests.bench.pipelines.cases import MACHINES, RATES, Extent
from tests.bench.pipelines.ways import ways

_BYTES: Final = 64 << 20
"""More than a burst of the link, or of a quota, lets through."""
_REPETITIONS: Final = 5
_TIMEOUT: Final = timedelta(seconds=300)


def bytes_per_s(source: int, target: int) -> float:
    """What one connection sends, as rank 0 sees it. A collective of all ranks; rank 0 is the source.

    The best of some: whatever else the machine does only slows it.
    """
    took_s, sent, answer = [], torch.ones(_BYTES // 4), torch.ones(1)
    for _ in range(_REPETITIONS):
        dist.barrier()
        began_s = time.perf_counter()
        if dist.get_rank() == source:
            dist.send(sent, target)
            dist.recv(answer, target)
            took_s.append(time.perf_counter() - began_s)
        elif dist.get_rank() == target:
            dist.recv(sent, source)
            dist.send(answer, source)
    return _BYTES / min(took_s) if took_s else 0.0


def tell(**what: object) -> None:
    """A line of rank 0."""
    if dist.get_rank() == 0:
        print(json.dumps(what), flush=True)


def train(extent: Extent) -> None:
    """All ways in turn, a step each."""
    tell(inside_bytes_per_s=bytes_per_s(0, 1), between_bytes_per_s=bytes_per_s(0, MACHINES[1][0]))
    steps = ways(extent)
    traffic = os.open("/proc/self/net/dev", os.O_RDONLY)
    is_first_of_machine = dist.get_rank() in {ranks[0] for ranks in MACHINES}
    for turn in range(extent.turns + 1):
        draw = torch.Generator().manual_seed(turn)
        inputs, targets = (
            torch.randn(extent.samples, extent.positions, extent.width, generator=draw) for _ in range(2)
        )
        for way, step in steps.items():
            dist.barrier()
            sent_bytes = read_traffic(traffic).tx_bytes
            began_s = time.perf_counter()
            loss = step(inputs, targets)
            dist.barrier()
            took_s = time.perf_counter() - began_s
            sent_bytes = read_traffic(traffic).tx_bytes - sent_bytes
            found = torch.tensor([loss, sent_bytes if is_first_of_machine else 0], dtype=torch.float64)
            dist.all_reduce(found)
            tell(turn=turn, way=way, step_s=took_s, loss=float(found[0]), link_bytes=int(found[1]))


def main() -> None:
    """Be a rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    if sys.argv[1] == RATES:
        tell(inside_bytes_per_s=bytes_per_s(0, 1))
    else:
        train(Extent.from_json(sys.argv[1]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
