"""A worker's environment: what it inherits of the runner's, what its job sets, its place among the workers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from schemas.scheduling import WorkOrder
from schemas.trainings import TRAINING_SOCKET_VARIABLE
from services._jobs.rank_environment import DEVICES, rank_variables

INHERITED: Final = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""All that a worker gets of the runner's environment: the key to the bus is in none of them."""
_DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """What is decided for one worker on its node."""

    rank: int
    gpus: tuple[int, ...]
    """Indices of those that it may use; empty: the node has none."""
    checkpoint_directory: str
    ready_file: str
    home: str = ""
    """Of its user; empty: the runner's."""
    user: str = ""
    training_socket: str = ""
    """On which the runner takes what it says of a training."""
    plan_file: str = ""
    """Empty: its job has none."""
    device: str = ""
    """Network device that reaches the other workers; empty: they find it themselves."""


def worker_environment(order: WorkOrder, place: WorkerPlace, own: Mapping[str, str]) -> dict[str, str]:
    """All variables of a worker, named as torchrun names them.

    Args:
        order: of `run`, with a spec.
        place: the worker's.
        own: the runner's environment.
    """
    assert order.spec is not None
    inherited = {name: own[name] for name in INHERITED if name in own}
    inherited.setdefault("PATH", _DEFAULT_PATH)
    if place.home:
        inherited |= {"HOME": place.home, "USER": place.user, "LOGNAME": place.user}
    if place.device:
        inherited |= dict.fromkeys(DEVICES, place.device)
    return inherited | order.spec.environment | _place_variables(order, place)


def _place_variables(order: WorkOrder, place: WorkerPlace) -> dict[str, str]:
    master_address = order.master_address or "127.0.0.1"
    variables = rank_variables(order.nodes, place.rank, master_address, order.master_port) | {
        "TURNBUCKLE_JOB": order.job,
        "TURNBUCKLE_ATTEMPT": str(order.attempt),
        "TURNBUCKLE_CHECKPOINT_DIR": place.checkpoint_directory,
        "TURNBUCKLE_READY_FILE": place.ready_file,
    }
    if place.training_socket:
        variables[TRAINING_SOCKET_VARIABLE] = place.training_socket
    if order.spec is not None and order.spec.batch:
        variables["TURNBUCKLE_BATCH"] = str(order.spec.batch)
    if place.plan_file:
        variables["TURNBUCKLE_PLAN"] = place.plan_file
    if place.gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, place.gpus))
    return variables
