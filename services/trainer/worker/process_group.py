"""The ranks of a job as torchrun started them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from services.trainer.worker.gather import rank_failures
from services.trainer.worker.options import Options
from services.trainer.worker.plan_file import RefusedError


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the job's."""

    rank: int
    world: int
    device: torch.device
    timeout: timedelta | None = None
    """Of groups of some of them; None: c10d's own."""


@contextmanager
def joined(options: Options) -> Iterator[Ranks]:
    """Join the job's process group, and leave it at the end unless something has failed.

    Raises:
        RefusedError: there is no GPU though one was asked for.
        RankFailedError: the others do not come in time.
    """
    device = device_of(options.device)
    # Values that are no tensors of the GPU go by gloo.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=options.timeout_s)
    with rank_failures():
        store, rank, world = next(iter(rendezvous("env://", timeout=timeout)))
        dist.init_process_group(backend, store=_of_this_start(store), rank=rank, world_size=world, timeout=timeout)
    yield Ranks(dist.get_rank(), dist.get_world_size(), device, timeout)
    dist.destroy_process_group()


def _of_this_start(store: Store) -> Store:
    """The store that torchrun's agent keeps over restarts holds the addresses of ranks that have ended.

    Over several machines their agents count restarts each for itself, and the store is left as it is.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if restarts is None or os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
        return store
    return PrefixStore(f"start-{restarts}", store)


def check_same(ranks: Ranks, text: str) -> None:
    """Refuse ranks whose plan, options or model differ: they would wait for each other, or add up what does not belong.

    Raises:
        RefusedError: names a rank that differs from rank 0.
        RankFailedError: another rank fails meanwhile.
    """
    digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())
    held = torch.zeros(ranks.world, dtype=torch.int64)
    held[ranks.rank] = digest
    with rank_failures():
        dist.all_reduce(held)
    differing = (held != held[0]).nonzero().flatten().tolist()
    if differing:
        raise RefusedError(
            f"rank {differing[0]} has another plan, model, batch or seed than rank 0: give every machine the same files"
        )


def agreed(ranks: Ranks, loss: float, *, stop: bool) -> tuple[float, bool]:
    """The global batch's loss, and whether any rank was asked to stop: all ranks decide alike.

    Raises:
        RankFailedError: another rank fails meanwhile.
    """
    if ranks.world == 1:
        return loss, stop
    held = torch.tensor([loss, stop], dtype=torch.float64)
    with rank_failures():
        dist.all_reduce(held)
    return float(held[0]), bool(held[1])


def device_of(wanted: str) -> torch.device:
    """This rank's.

    Raises:
        RefusedError: there is no GPU though one was asked for, or fewer than ranks on this machine.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise RefusedError("--device cuda: torch sees no GPU here")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    index, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if index >= count:
        seen = "1 GPU" if count == 1 else f"{count} GPUs"
        raise RefusedError(
            f"torch sees {seen} on this machine, too few for process {index + 1}: each rank has one of its own. Start "
            "fewer, let CUDA_VISIBLE_DEVICES name more, or give all of them --device cpu"
        )
    return torch.device("cuda", index)
