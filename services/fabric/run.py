"""One call of `up` or `down`, act by act, each noted before it is done, so that all of it can be taken back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from services.fabric.daemons import DaemonError
from services.fabric.journal import Entry, Journal
from services.fabric.plan import Action, Progress, Step, obsolete, removal, step_for
from services.fabric.resources import Resource

REFUSALS: Final = (OSError, DaemonError)
"""What the host may answer to a write."""


class Ground(Protocol):
    """What a run works on: the host."""

    def read(self, resource: Resource) -> str | None:
        """A resource's value; None if it is absent."""

    def write(self, resource: Resource) -> None:
        """Give a resource its value."""

    def remove(self, resource: Resource) -> None:
        """Make a resource absent."""

    def restore(self, resource: Resource, before: str | None) -> None:
        """Give a resource its earlier value, or make it absent."""


def describe(error: BaseException) -> str:
    """An error of the host in words."""
    return str(getattr(error, "strerror", None) or error)


@dataclass(slots=True)
class _Done:
    """One act of this run, and what takes it back."""

    resource: Resource
    before: str | None
    """Its value when this run began."""


class Run:
    """One call of `up` or `down`."""

    def __init__(self, machine: Ground, journal: Journal, progress: Progress) -> None:
        self.machine = machine
        self.journal = journal
        self.steps: list[Step] = []
        self.current: Resource | None = None
        """What is being worked on."""
        self.doomed: set[str] = set()
        """Keys of what this run removes."""
        self._progress = progress
        self._earlier = dict(journal.entries)
        self._done: list[_Done] = []

    def bring_up(self, wanted: Sequence[Resource]) -> None:
        """Undo what is no longer wanted, and give everything else its value.

        Raises:
            OSError: or DaemonError: the host refuses; what was done so far stands, see `roll_back`.
            JournalError: an act could not be noted, so it was not done.
        """
        unwanted = obsolete(self.journal.entries, wanted)
        self.doomed = {entry.resource.key for entry in unwanted}
        for entry in unwanted:
            self.undo(entry)
        for resource in wanted:
            self.ensure(resource)

    def take_down(self) -> list[str]:
        """Undo everything, last act first. Returns a line for each that could not be undone."""
        entries = list(reversed(self.journal.entries.values()))
        self.doomed = {entry.resource.key for entry in entries}
        left = []
        for entry in entries:
            try:
                self.undo(entry)
            except REFUSALS as error:
                left.append(f"{entry.resource.key}: {describe(error)}")
        return left

    def ensure(self, resource: Resource) -> None:
        """Give a resource its value, if it has another."""
        self.current = resource
        value = self.machine.read(resource)
        step = step_for(resource, value, ours=self.journal.made(resource.key))
        if step.writes:
            self.journal.record(resource, value if step.action is Action.CHANGE else None)
            self._done.append(_Done(resource, value))
            if step.action is Action.REPLACE:
                self.machine.remove(resource)
            self.machine.write(resource)
        self._tell(step)

    def undo(self, entry: Entry) -> None:
        """Take back one entry of the journal."""
        self.current = resource = entry.resource
        # With its parent it disappears by itself, and faster.
        if not (resource.parent in self.doomed and self.journal.made(resource.parent)):
            step = self._undoing(entry)
            if step.writes:
                self._done.append(_Done(resource, resource.value))
                self.machine.restore(resource, entry.before)
            self._tell(step)
        self.journal.forget(resource.key)

    def _undoing(self, entry: Entry) -> Step:
        current = self.machine.read(entry.resource)
        if current == entry.before or current is None:
            return Step(Action.KEEP, entry.resource, "is undone already", ())
        if current != entry.former and not entry.resource.is_ours(current):
            return Step(Action.LEAVE, entry.resource, "modified externally since", ())
        return removal(entry)

    def roll_back(self) -> list[str]:
        """Take back this run, last act first, then put back what an earlier one had done. A line for each failure."""
        left = []
        for done in reversed(self._done):
            left += self._attempt(done.resource, partial(self._take_back, done))
        for entry in self._earlier.values():
            left += self._attempt(entry.resource, partial(self._put_back, entry))
        if not left:
            self.journal.replace(self._earlier)
        return left

    @staticmethod
    def _attempt(resource: Resource, act: Callable[[], None]) -> list[str]:
        try:
            act()
        except REFUSALS as error:
            return [f"{resource.key}: {describe(error)}"]
        return []

    def _take_back(self, done: _Done) -> None:
        earlier = self._earlier.get(done.resource.key)
        if earlier is None:
            self.machine.restore(done.resource, done.before)
        elif done.resource.exclusive and self.machine.read(done.resource) not in {None, earlier.resource.value}:
            self.machine.remove(done.resource)  # makes room for the earlier one

    def _put_back(self, entry: Entry) -> None:
        if self.machine.read(entry.resource) != entry.resource.value:
            self.machine.write(entry.resource)

    def _tell(self, step: Step) -> None:
        self.steps.append(step)
        self._progress(step)
