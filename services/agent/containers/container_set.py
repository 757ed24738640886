"""Which containers there are: found, opened, gone; their order; and what they came with, by application."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Final

from services._host.cgroup_snapshot import UNLIMITED, Limits
from services.agent.containers.batch_order import BatchOrder
from services.agent.containers.container import ContainerLimits, ManagedContainer, same_memory
from services.agent.containers.incarnation import Incarnation
from services.agent.containers.kernel_limits import KernelLimits
from services.agent.containers.pending_sources import Inventory
from services.agent.containers.sample_state import SampleState
from services.agent.ports import FoundContainer, Host

_MOST: Final = Limits(1 << 40, 1 << 60)
"""What a batch can carry."""


class ContainerSet:
    """All containers that are sampled."""

    def __init__(self, incarnation: Incarnation, host: Host, inventory: Inventory) -> None:
        self.incarnation = incarnation
        self.node = incarnation.node
        """Name of the host."""
        self.host = host
        self.inventory = inventory
        self.limits: dict[str, ContainerLimits] = {}
        self.managed: dict[str, ManagedContainer] = {}
        self.kernel = KernelLimits(self.managed, self.limits)
        self.samples = SampleState()
        self._key_by_id: dict[str, str] = {}

    @cached_property
    def order(self) -> BatchOrder:
        """The same object as long as no container is added or removed."""
        return BatchOrder.of(self.managed, self.limits)

    @cached_property
    def configured(self) -> dict[str, Limits]:
        """By application, the sums of what its containers came with; `UNLIMITED`: one of them came without a limit."""
        order = self.order
        return {app: _sum_of([member.configured for member in order.managed[part]]) for app, part in order.apps}

    def refresh_configured(self, key: str) -> None:
        """After its limits were read: others may have changed what no agent did."""
        member = self.managed[key]
        before, member.configured = member.configured, member.handle.configured
        if member.configured != before:
            self.__dict__.pop("configured", None)

    def _forget_order(self) -> None:
        """A container was added or removed: the order is made anew when it is next asked for."""
        self.__dict__.pop("order", None)
        self.__dict__.pop("configured", None)

    def key_of(self, container_id: str) -> str | None:
        """Key of a managed container."""
        return self._key_by_id.get(container_id)

    @property
    def apps(self) -> set[str]:
        """Applications that have a container here."""
        return {member.found.app for member in self.managed.values()}

    def of_app(self, app: str) -> list[str]:
        """Keys of an application."""
        return self.of_apps({app})

    def of_apps(self, apps: Collection[str]) -> list[str]:
        """Keys of these applications."""
        return [key for key, limits in self.limits.items() if limits.app in apps]

    def open(self, container: FoundContainer) -> ManagedContainer | None:
        """Begin with a container; None if it is known already or has vanished."""
        if container.container_id in self._key_by_id or container.key in self.managed:
            return None
        handle = self.host.open(container)
        if handle is None:
            return None
        limits = handle.read_limits()
        if limits is None:
            handle.close()
            return None
        kills, configured = handle.read_oom_kills(), handle.configured
        member = ManagedContainer(container, handle, configured, oom_kills=kills, first_oom_kills=kills)
        self.managed[container.key] = member
        self._key_by_id[container.container_id] = container.key
        self.limits[container.key] = ContainerLimits(
            container.app,
            limits.quota_us,
            limits.memory_bytes,
            quota_inherited=limits.quota_us != configured.quota_us,
            limit_promised=not same_memory(limits.memory_bytes, configured.memory_bytes),
        )
        self.samples.reset(container.key)
        self._forget_order()
        return member

    def forget(self, container_id: str) -> ManagedContainer | None:
        """It is gone; its handle is closed, its limit updates are forgotten."""
        key = self._key_by_id.pop(container_id, None)
        if key is None:
            return None
        member = self.managed.pop(key)
        member.handle.close()
        del self.limits[key]
        self._forget_order()
        return member


def _sum_of(limits: list[Limits]) -> Limits:
    return Limits(
        *(
            UNLIMITED if UNLIMITED in values else min(sum(values), most)
            for values, most in zip(zip(*limits, strict=True), _MOST, strict=True)
        )
    )
