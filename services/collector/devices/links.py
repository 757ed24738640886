"""What connections carry, as the processes of a training job see it: messages to and fro by torch's own collectives."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import combinations
from statistics import median
from typing import Any, Final

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import Store

from schemas.devices import LinkRate
from services._jobs.rank_environment import GLOO_DEVICE
from services._runtime.command.errors import UnavailableError
from services._runtime.service.interpreter import isolated_command
from services.collector.devices.found import FoundCluster, FoundMachine
from services.collector.devices.options import Meeting

REFERENCE_BYTES: Final = 10_000_000
"""`LinkRate.latency_us` is of such a message."""
LARGE_BYTES: Final = 64_000_000
WARM_UP, COUNTED = 2, 7
_TIMEOUT: Final = timedelta(seconds=120)
TcpStore: Final[Any] = dist.TCPStore  # type: ignore[attr-defined]  # public, though its stubs do not say so
_PROBE: Final = "services.collector.devices.probe"


def link_rate(times_s: Mapping[int, Sequence[float]]) -> LinkRate:
    """Of messages one way: by the median time of 10 MB, and what each byte beyond these adds up to 64 MB."""
    reference_s, large_s = median(times_s[REFERENCE_BYTES]), median(times_s[LARGE_BYTES])
    if large_s > reference_s:
        bytes_per_s = (LARGE_BYTES - REFERENCE_BYTES) / (large_s - reference_s)
    else:  # other work was there while the small ones were sent
        bytes_per_s = LARGE_BYTES / large_s
    return LinkRate(bytes_per_s=bytes_per_s, latency_us=reference_s * 1e6)


def join(store: Store, rank: int, world: int, *, with_gpus: bool = False) -> None:
    """Join a process group; gloo, and NCCL for tensors on GPUs."""
    backend = "cpu:gloo,cuda:nccl" if with_gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_TIMEOUT)


def measure_pairs(device: torch.device) -> dict[tuple[int, int], LinkRate]:
    """The rate of each pair of ranks, one pair after another; rank 0 has them all, the others their own."""
    own: dict[tuple[int, int], LinkRate] = {}
    for pair in combinations(range(dist.get_world_size()), 2):
        dist.barrier()
        if dist.get_rank() in pair:
            own[pair] = _to_and_fro(device, *pair)
    gathered: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(own, gathered)
    return own if gathered is None else {pair: rate for each in reversed(gathered) for pair, rate in each.items()}


def _to_and_fro(device: torch.device, first: int, second: int) -> LinkRate:
    times_s: dict[int, list[float]] = {}
    for size in (REFERENCE_BYTES, LARGE_BYTES):
        message = torch.zeros(size, dtype=torch.uint8, device=device)
        times_s[size] = [_both_ways_s(message, first, second) / 2 for _ in range(WARM_UP + COUNTED)][WARM_UP:]
    return link_rate(times_s)


def _both_ways_s(message: torch.Tensor, first: int, second: int) -> float:
    began = time.perf_counter()
    if dist.get_rank() == first:
        dist.send(message, second)
        dist.recv(message, second)
    else:
        dist.recv(message, first)
        dist.send(message, first)
    if message.is_cuda:
        torch.cuda.synchronize(message.device)
    return time.perf_counter() - began


def met(machine: FoundMachine, meeting: Meeting) -> FoundCluster | None:
    """What the machines that meet have, and the rates between them; None: rank 0 has it.

    Raises:
        RuntimeError: they do not meet in time, or one is lost.
    """
    is_master = meeting.rank == 0
    store = TcpStore(meeting.host, meeting.port, meeting.machines, is_master=is_master, timeout=_TIMEOUT)
    join(store, meeting.rank, meeting.machines)
    gathered: list[Any] | None = [None] * meeting.machines if is_master else None
    dist.gather_object(machine, gathered)
    rates = measure_pairs(torch.device("cpu"))
    dist.barrier()
    dist.destroy_process_group()
    if gathered is None:
        return None
    between = {(gathered[first].name, gathered[second].name): rate for (first, second), rate in rates.items()}
    return FoundCluster(tuple(gathered), between)


def rate_inside(*, with_gpus: bool) -> LinkRate:
    """Between two processes of this machine, each with a GPU of its own where there are some.

    Raises:
        UnavailableError: the second process fails.
    """
    store = TcpStore("127.0.0.1", 0, world_size=2, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
    command = isolated_command(_PROBE, str(store.port), *(["--gpus"] if with_gpus else []))
    with _by_loopback(), subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as other:  # noqa: S603 - our own
        try:
            join(store, 0, 2, with_gpus=with_gpus)
            rates = measure_pairs(torch.device("cuda", 0) if with_gpus else torch.device("cpu"))
            dist.destroy_process_group()
        except RuntimeError as error:
            other.kill()
            said = other.communicate()[1].decode(errors="replace").strip().splitlines()
            raise UnavailableError(
                f"the rate inside this machine cannot be measured: {(said or [str(error)])[-1]}"
            ) from error
        finally:
            other.kill()
    return rates[(0, 1)]


@contextmanager
def _by_loopback() -> Iterator[None]:
    """Both processes are here: they need no other interface, whatever the host's name resolves to."""
    before = os.environ.get(GLOO_DEVICE)
    os.environ[GLOO_DEVICE] = "lo"
    try:
        yield
    finally:
        if before is None:
            del os.environ[GLOO_DEVICE]
        else:
            os.environ[GLOO_DEVICE] = before
