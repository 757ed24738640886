"""Environment of a data-parallel job's workers, for torch's ``env://`` rendezvous and gloo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services._jobs.rank_environment import DEVICES, rank_variables

MASTER: Final = "master"
MASTER_PORT: Final = 29_500
_NETWORK_VARIABLES: Final = (*DEVICES, "UCX_NET_DEVICES")


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Address and parameters of the rendezvous."""

    workers: int
    master_address: str
    master_port: int
    device: str
    """The network device that they use."""
    threads: int
    """Of each worker's numerical libraries, unless the user has said so."""


def worker_names(workers: int) -> tuple[str, ...]:
    """``master``, ``worker-1``, ``worker-2``..., by rank."""
    return (MASTER, *(f"worker-{rank}" for rank in range(1, workers)))


def worker_environment(base: Mapping[str, str], rank: int, rendezvous: Rendezvous) -> dict[str, str]:
    """The environment of one worker: the user's own, and one process per machine as torchrun would have it."""
    threads = str(rendezvous.threads)
    return {
        "OMP_NUM_THREADS": threads,  # torchrun sets it, too: else each worker takes every core
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",  # its progress is read as it comes
        **base,
        **rank_variables(worker_names(rendezvous.workers), rank, rendezvous.master_address, rendezvous.master_port),
        "GROUP_WORLD_SIZE": str(rendezvous.workers),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(rendezvous.workers),
        **dict.fromkeys(_NETWORK_VARIABLES, rendezvous.device),
    }


def threads_per_worker(workers: int, cores: int, cpu_cores: float | None) -> int:
    """As many as a worker has whole cores, of its own or of the machine's; at least one."""
    return max(1, int(cpu_cores) if cpu_cores is not None else cores // workers)
