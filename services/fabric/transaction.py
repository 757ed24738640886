"""One `up` or `down` as a transaction: each operation is journaled before it is done, and can be rolled back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from services.fabric.daemons import DaemonError
from services.fabric.journal import Journal
from services.fabric.machine import Machine
from services.fabric.plan import Action, Progress, Step, obsolete, removal, step_for
from services.fabric.resources import Entry, Resource

HOST_ERRORS: Final = (OSError, DaemonError)
"""Errors of a write to the host."""


def describe(error: BaseException) -> str:
    """An error of the host as text."""
    return str(getattr(error, "strerror", None) or error)


@dataclass(slots=True)
class _Operation:
    """One operation of this transaction, and the value that undoes it."""

    resource: Resource
    before: str | None
    """Its value when this run began."""


class Transaction:
    """One call of `up` or `down`: applied resource by resource, rolled back on failure."""

    def __init__(self, machine: Machine, journal: Journal, progress: Progress) -> None:
        self.machine = machine
        self.journal = journal
        self.steps: list[Step] = []
        self.current: Resource | None = None
        """The resource of the current operation."""
        self.to_be_removed: set[str] = set()
        """Keys of the resources that this transaction removes."""
        self._progress = progress
        self._earlier = dict(journal.entries)
        self._done: list[_Operation] = []

    def bring_up(self, wanted: Sequence[Resource]) -> None:
        """Undo what is no longer wanted, and give everything else its value.

        Raises:
            OSError: or DaemonError: the host refuses; what was done so far stands, see `roll_back`.
            JournalError: an act could not be noted, so it was not done.
        """
        unwanted = obsolete(self.journal.entries, wanted)
        self.to_be_removed = {entry.resource.key for entry in unwanted}
        for entry in unwanted:
            self.undo(entry)
        for resource in wanted:
            self.ensure(resource)

    def take_down(self) -> list[str]:
        """Undo everything, last act first. Returns a line for each that could not be undone."""
        entries = list(reversed(self.journal.entries.values()))
        self.to_be_removed = {entry.resource.key for entry in entries}
        failures = []
        for entry in entries:
            try:
                self.undo(entry)
            except HOST_ERRORS as error:
                failures.append(f"{entry.resource.key}: {describe(error)}")
        return failures

    def ensure(self, resource: Resource) -> None:
        """Give a resource its value, if it has another."""
        self.current = resource
        value = self.machine.read(resource)
        step = step_for(resource, value, owned=self.journal.made(resource.key))
        if step.writes:
            self.journal.record(resource, value if step.action is Action.CHANGE else None)
            self._done.append(_Operation(resource, value))
            if step.action is Action.REPLACE:
                self.machine.remove(resource)
            self.machine.write(resource)
        self._report(step)

    def undo(self, entry: Entry) -> None:
        """Take back one entry of the journal."""
        self.current = resource = entry.resource
        # Removing the parent removes it too, and faster.
        if not (resource.parent in self.to_be_removed and self.journal.made(resource.parent)):
            step = self._undo_step(entry)
            if step.writes:
                self._done.append(_Operation(resource, resource.value))
                self.machine.restore(resource, entry.before)
            self._report(step)
        self.journal.forget(resource.key)

    def _undo_step(self, entry: Entry) -> Step:
        current = self.machine.read(entry.resource)
        if current == entry.before or current is None:
            return Step(Action.KEEP, entry.resource, "is undone already", ())
        if current != entry.former and not entry.resource.is_managed(current):
            return Step(Action.LEAVE, entry.resource, "modified externally since", ())
        return removal(entry)

    def roll_back(self) -> list[str]:
        """Take back this run, last act first, then put back what an earlier one had done. A line for each failure."""
        failures = []
        for done in reversed(self._done):
            failures += self._collect_failure(done.resource, partial(self._revert, done))
        for entry in self._earlier.values():
            failures += self._collect_failure(entry.resource, partial(self._reapply, entry))
        if not failures:
            self.journal.replace(self._earlier)
        return failures

    @staticmethod
    def _collect_failure(resource: Resource, action: Callable[[], None]) -> list[str]:
        try:
            action()
        except HOST_ERRORS as error:
            return [f"{resource.key}: {describe(error)}"]
        return []

    def _revert(self, done: _Operation) -> None:
        earlier = self._earlier.get(done.resource.key)
        if earlier is None:
            self.machine.restore(done.resource, done.before)
        elif done.resource.exclusive and self.machine.read(done.resource) not in {None, earlier.resource.value}:
            self.machine.remove(done.resource)  # only one can exist: the earlier one follows

    def _reapply(self, entry: Entry) -> None:
        if self.machine.read(entry.resource) != entry.resource.value:
            self.machine.write(entry.resource)

    def _report(self, step: Step) -> None:
        self.steps.append(step)
        self._progress(step)
