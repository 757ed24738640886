"""What `up` would do: a step per resource, from what the host has and what the file asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from services.fabric.journal import Entry, Journal
from services.fabric.layout import layout
from services.fabric.machine import Machine
from services.fabric.model import HostFile
from services.fabric.nic import Nics
from services.fabric.places import Places
from services.fabric.preflight import examine
from services.fabric.problem import PreflightError, Problem
from services.fabric.resources import PRESENT, Resource


class Action(StrEnum):
    """What becomes of a resource."""

    MAKE = "make"
    CHANGE = "change"
    REPLACE = "replace"
    """Ours, and it cannot be changed in place."""
    KEEP = "keep"
    REMOVE = "remove"
    """Ours, and the file no longer asks for it; or `down`."""
    RESTORE = "restore"
    """`down`: its earlier value again."""
    LEAVE = "leave"
    """`down`: somebody else has changed it since."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens, or need not."""

    action: Action
    resource: Resource
    reason: str
    commands: tuple[str, ...]
    """The same in a shell; empty for KEEP and LEAVE."""

    @property
    def name(self) -> str:
        """What it is about."""
        return self.resource.key

    @property
    def writes(self) -> bool:
        """Whether it changes the host."""
        return self.action not in {Action.KEEP, Action.LEAVE}


Progress = Callable[[Step], None]
"""Called with each step once it is done."""


def plan(host: HostFile, places: Places | None = None) -> list[Step]:
    """Every step that `up` would take now, with those that need not be taken.

    Raises:
        PreflightError: the file does not suit the host; each mistake with its remedy.
    """
    places = places or Places()
    with Machine(Nics(places.sysfs)) as machine:
        journal = Journal.load(places.state, host.name)
        return survey(host, machine, journal, places)[0]


def survey(
    host: HostFile, machine: Machine, journal: Journal, places: Places
) -> tuple[list[Step], tuple[Resource, ...]]:
    """As `plan`, on an open machine; and everything that the file asks for."""
    mtu = examine(host, machine, places)
    wanted = layout(host, mtu, places.frr)
    steps = [removal(entry) for entry in obsolete(journal.entries, wanted)]
    fresh: set[str] = set()
    conflicts = []
    for resource in wanted:
        current = None if resource.parent in fresh else machine.read(resource)
        try:
            step = step_for(resource, current, ours=journal.made(resource.key))
        except ConflictError as conflict:
            conflicts.append(Problem(str(conflict), conflict.remedy))
            continue
        if step.action in {Action.MAKE, Action.REPLACE}:
            fresh.add(resource.key)
        steps.append(step)
    if conflicts:
        raise PreflightError(conflicts)
    return steps, wanted


def obsolete(entries: Mapping[str, Entry], wanted: Iterable[Resource]) -> list[Entry]:
    """What was done for an earlier version of the file and is no longer asked for; last made first."""
    keys = {resource.key for resource in wanted}
    return [entry for key, entry in reversed(list(entries.items())) if key not in keys]


def removal(entry: Entry) -> Step:
    """The step that undoes an entry."""
    resource, before = entry.resource, entry.before
    action = Action.REMOVE if before is None else Action.RESTORE
    reason = "was made by `fabric up`" if before is None else f"was {resource.show(before)} before `fabric up`"
    return Step(action, resource, reason, resource.undo_commands(before))


def step_for(resource: Resource, current: str | None, *, ours: bool) -> Step:
    """What has to happen to a resource whose value is ``current``."""
    if current == resource.value:
        return Step(Action.KEEP, resource, "is as it should be", ())
    if current is None:
        return Step(Action.MAKE, resource, _news(resource), resource.commands())
    reason = f"{resource.show(current)} becomes {resource.show(resource.value)}"
    if not resource.exclusive:
        return Step(Action.CHANGE, resource, reason, resource.commands())
    if ours:
        return Step(Action.REPLACE, resource, reason, (*resource.undo_commands(None), *resource.commands()))
    raise ConflictError(resource, current)


class ConflictError(Exception):
    """Somebody else's device or daemon stands where ours should be."""

    def __init__(self, resource: Resource, current: str) -> None:
        super().__init__(f"{resource.key} is there already, not made by turnbuckle ({resource.show(current)})")
        self.remedy = f"{resource.undo_commands(None)[0]}, or choose another name in the file"


def _news(resource: Resource) -> str:
    return "is not there" if resource.value == PRESENT else resource.show(resource.value)
