"""Steps of `fabric up` and `down`, one for each resource: from its value on the host to its desired value. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from services.fabric.resources import PRESENT, Entry, Resource


class Action(StrEnum):
    """What a step does with a resource."""

    MAKE = "make"
    CHANGE = "change"
    REPLACE = "replace"
    """Created by `up`, and it cannot be changed in place."""
    KEEP = "keep"
    REMOVE = "remove"
    """Created by `up`, and no longer in the file; or `down`."""
    RESTORE = "restore"
    """`down`: its earlier value again."""
    LEAVE = "leave"
    """`down`: modified externally since."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan."""

    action: Action
    resource: Resource
    reason: str
    commands: tuple[str, ...]
    """The same in a shell; empty for KEEP and LEAVE."""

    @property
    def name(self) -> str:
        """The resource's key."""
        return self.resource.key

    @property
    def writes(self) -> bool:
        """Whether it changes the host."""
        return self.action not in {Action.KEEP, Action.LEAVE}


Progress = Callable[[Step], None]
"""Called with each step once it is done."""


def obsolete(entries: Mapping[str, Entry], wanted: Iterable[Resource]) -> list[Entry]:
    """Entries of an earlier version of the file that are no longer desired; the newest first."""
    keys = {resource.key for resource in wanted}
    return [entry for key, entry in reversed(list(entries.items())) if key not in keys]


def removal(entry: Entry) -> Step:
    """The step that undoes an entry."""
    resource, before = entry.resource, entry.before
    action = Action.REMOVE if before is None else Action.RESTORE
    reason = "was made by `fabric up`" if before is None else f"was {resource.show(before)} before `fabric up`"
    return Step(action, resource, reason, resource.undo_commands(before))


def step_for(resource: Resource, current: str | None, *, owned: bool) -> Step:
    """The step for a resource whose value is ``current``; ``owned``: created by `up`."""
    if current == resource.value:
        return Step(Action.KEEP, resource, "is as it should be", ())
    if current is None:
        return Step(Action.MAKE, resource, _initial_reason(resource), resource.commands())
    reason = f"{resource.show(current)} becomes {resource.show(resource.value)}"
    if not resource.exclusive:
        return Step(Action.CHANGE, resource, reason, resource.commands())
    if owned:
        return Step(Action.REPLACE, resource, reason, (*resource.undo_commands(None), *resource.commands()))
    raise ConflictError(resource, current)


class ConflictError(Exception):
    """A device or daemon of this name exists, and was not created by `up`."""

    def __init__(self, resource: Resource, current: str) -> None:
        super().__init__(f"{resource.key} is there already, not made by turnbuckle ({resource.show(current)})")
        self.remedy = f"{resource.undo_commands(None)[0]}, or choose another name in the file"


def _initial_reason(resource: Resource) -> str:
    return "is not there" if resource.value == PRESENT else resource.show(resource.value)
