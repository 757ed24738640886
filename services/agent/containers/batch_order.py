"""The order of containers in batches: by application, the same for limits, handles and columns of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Self

import numpy as np

from services._host.cgroup_snapshot import IntArray
from services.agent.containers.container import ContainerLimits, ManagedContainer
from services.agent.ports import ContainerHandle


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """All containers, sorted by application, then key: the order of batches."""

    keys: list[str]
    managed: list[ManagedContainer]
    handles: list[ContainerHandle]
    limits: list[ContainerLimits]
    first_kills: IntArray
    """Kills by the kernel before each was found, shape (N,)."""
    apps: list[tuple[str, slice]]
    """Applications, and which rows are theirs."""

    @classmethod
    def of(cls, containers: Mapping[str, ManagedContainer], limits: Mapping[str, ContainerLimits]) -> Self:
        """Of these containers, and their limits, by key."""
        keys = sorted(containers, key=lambda key: (containers[key].found.app, key))
        managed = [containers[key] for key in keys]
        apps, start = [], 0
        for app, group in groupby(managed, key=lambda member: member.found.app):
            end = start + sum(1 for _ in group)
            apps.append((app, slice(start, end)))
            start = end
        first_kills = np.array([member.first_oom_kills for member in managed], dtype=np.int64)
        handles = [member.handle for member in managed]
        return cls(keys, managed, handles, [limits[key] for key in keys], first_kills, apps)
