"""Environment of a training job's ranks, in variables as torchrun and torch's libraries name them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

GLOO_DEVICE: Final = "GLOO_SOCKET_IFNAME"
DEVICES: Final = (GLOO_DEVICE, "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""By which torch's libraries know the device of a network where the host's name leads nowhere."""


class RankPlace(NamedTuple):
    """Where one rank runs."""

    node: str
    local_rank: int
    """Among those on its node."""
    local_size: int
    node_rank: int
    """Of its node among those of the job, in the order of ranks."""


def places(nodes: Sequence[str]) -> tuple[RankPlace, ...]:
    """The place of each rank.

    Args:
        nodes: of each rank.
    """
    sizes, seen = Counter(nodes), Counter[str]()
    numbers = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    found = []
    for node in nodes:
        found.append(RankPlace(node, seen[node], sizes[node], numbers[node]))
        seen[node] += 1
    return tuple(found)


def rank_variables(nodes: Sequence[str], rank: int, master_address: str, master_port: int) -> dict[str, str]:
    """A rank's own place, and where it meets the others."""
    place = places(nodes)[rank]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(nodes)),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.node_rank),
        "NODE_RANK": str(place.node_rank),
        "MASTER_ADDR": master_address,
        "MASTER_PORT": str(master_port),
    }
