"""Grants by fair share: how much of a node's reserve each container of an application may take."""

from __future__ import annotations

from collections.abc import Iterable

from services.agent.containers import ContainerSet
from services.agent.memory.fair_share import Holding, grantable_bytes, is_above
from services.agent.memory.policy import ContainerMemory, IntArray, by_urgency
from services.agent.memory.reserve import Reserves


class FairShares:
    """Of all applications, with what their containers used at the last sample."""

    def __init__(self, containers: ContainerSet, reserves: Reserves) -> None:
        self._containers = containers
        self._reserves = reserves
        self._used_bytes: dict[str, int] = {}

    def take_sample(self, keys: list[str], usage_bytes: IntArray) -> None:
        """What every container uses, but for page cache that can be dropped; shape (N,)."""
        samples = self._containers.samples
        reclaimable = samples.reclaimable_bytes if samples.keys is keys else 0
        self._used_bytes = dict(zip(keys, (usage_bytes - reclaimable).tolist(), strict=True))

    def spend(self, container: ContainerMemory, limit_bytes: int, wanted_bytes: int) -> int:
        """Take up to so much out of the reserve for a container with this limit; returns how much, bytes."""
        app, fair, update_log = (
            container.app,
            self._reserves.fair_of(container.app),
            self._containers.limits,
        )
        if limit_bytes + wanted_bytes <= fair.share_bytes or not fair.share_bytes:
            return self._reserves.spend(app, wanted_bytes)
        others = [
            Holding(self._used_bytes.get(key, 0), update_log[key].limit_bytes)
            for key in self._containers.of_app(app)
            if key != container.key
        ]
        most_bytes = grantable_bytes(fair, limit_bytes, self._reserves.left_of(app), others)
        return self._reserves.spend(app, min(wanted_bytes, most_bytes))

    def short_of(self, app: str, container: Iterable[ContainerMemory]) -> list[ContainerMemory]:
        """Containers that lack memory: those below their shares first; of them those whose tasks wait, the longest."""
        waiting = [one for one in container if one.app == app and one.short_since_ns is not None]
        return sorted(by_urgency(waiting), key=self._is_above)

    @staticmethod
    def by_size(waiting: list[ContainerMemory]) -> list[ContainerMemory]:
        """Whose wait a refusal ends first: the largest, as the kernel would choose were all of them in one group."""
        return sorted(waiting, key=lambda one: (-(one.state.usage_bytes if one.state else 0), one.key))

    def _is_above(self, container: ContainerMemory) -> bool:
        """Whether it has its share, or more."""
        limit_bytes = self._containers.limits[container.key].limit_bytes
        return is_above(self._reserves.fair_of(container.app), limit_bytes)
