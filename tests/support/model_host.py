"""A host as a table of values, for what `fabric` does to one: refuses and dies at any act that a test names."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from services.fabric.resources import Device, LinkAttribute, PortFlag, Resource, Sysctl

FRESH: Final = "as the kernel makes it"
"""Value of a property of a device that nobody has set."""


class KilledError(BaseException):
    """Stands for SIGKILL: nothing runs after it."""


class ModelHost:
    """Devices bring their properties with them, and take them along when they go, as in the kernel."""

    def __init__(self, resources: Iterable[Resource], values: dict[str, str] | None = None) -> None:
        self.resources = {resource.key: resource for resource in resources}
        self.values = dict(values or {})
        for resource in self.resources.values():
            if _always_there(resource):
                self.values.setdefault(resource.key, FRESH)
        self.acts = 0
        self.refuse_at: int | None = None
        self.die_at: int | None = None
        """Act at which it dies: an even number before, an odd one after its effect (two numbers per act)."""

    def read(self, resource: Resource) -> str | None:
        return self.values.get(resource.key)

    def write(self, resource: Resource) -> None:
        self._act(lambda: self._write(resource))

    def remove(self, resource: Resource) -> None:
        self._act(lambda: self._remove(resource.key))

    def restore(self, resource: Resource, before: str | None) -> None:
        if before is None:
            self.remove(resource)
        else:
            self.write(replace(resource, value=before))

    def _act(self, effect) -> None:
        number = self.acts
        self.acts += 1
        if self.refuse_at == number:
            raise OSError(errno.EBUSY, "refused by the model")
        if self.die_at == 2 * number:
            raise KilledError
        effect()
        if self.die_at == 2 * number + 1:
            raise KilledError

    def _write(self, resource: Resource) -> None:
        if resource.exclusive and resource.key in self.values:
            raise OSError(errno.EEXIST, f"{resource.key} is there")
        if _is_property(resource) and resource.key not in self.values:
            raise OSError(errno.ENODEV, f"{resource.key} has no device")
        self.values[resource.key] = resource.value
        for child in self.resources.values():
            if child.parent == resource.key and _is_property(child) and _belongs(child, resource):
                self.values.setdefault(child.key, FRESH)

    def _remove(self, key: str) -> None:
        if key in self.resources and _is_property(self.resources[key]):
            return  # a property cannot be absent while its device is there
        self.values.pop(key, None)
        for child in self.resources.values():
            if child.parent == key and child.key in self.values:
                self._drop(child.key)

    def _drop(self, key: str) -> None:
        self.values.pop(key, None)
        for child in self.resources.values():
            if child.parent == key:
                self._drop(child.key)


def _belongs(child: Resource, device: Resource) -> bool:
    """A pair has properties at both ends, in two namespaces."""
    if not isinstance(device, Device) or not isinstance(child, LinkAttribute | PortFlag):
        return True
    return (child.netns, child.device) in {(device.netns, device.name), (device.peer_netns, device.peer)}


def _is_property(resource: Resource) -> bool:
    return isinstance(resource, LinkAttribute | PortFlag | Sysctl)


def _always_there(resource: Resource) -> bool:
    return _is_property(resource) and resource.parent is None
