"""`up` and `down`: a host as its file says, or as it was before; never half of either."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.cli.fabric.daemons import DaemonError
from services.cli.fabric.journal import Entry, Journal, locked
from services.cli.fabric.layout import layout
from services.cli.fabric.machine import Machine
from services.cli.fabric.model import HostFile
from services.cli.fabric.places import Places
from services.cli.fabric.plan import Action, Progress, Step, obsolete, removal, step_for, survey
from services.cli.fabric.preflight import examine
from services.cli.fabric.resources import Resource
from services.cli.failure import CommandError

_REFUSALS = (OSError, DaemonError)
"""What the host may answer to a write."""


class ApplyError(CommandError):
    """A step failed; the text says which, why, and what became of the others."""


def silent(_step: Step) -> None:
    """Progress for those who do not watch."""


def up(host: HostFile, progress: Progress = silent, places: Places | None = None) -> list[Step]:
    """Make the host as the file says. A step that fails takes back all that this call has done.

    Returns:
        Every step, with those that need not be taken (KEEP).

    Raises:
        PreflightError: the file does not suit the host; nothing was written.
        ApplyError: a step failed; what had been done is undone, and the text says so.
        JournalError: what is done could not be noted, or another `up` is at work.
    """
    places = places or Places()
    with locked(places.state, host.name), Machine() as machine:
        journal = Journal.load(places.state, host.name)
        survey(host, machine, journal, places)
        wanted = layout(host, examine(host, machine, places), places.frr)
        run = _Run(machine, journal, progress)
        unwanted = obsolete(journal.entries, wanted)
        run.doomed = {entry.resource.key for entry in unwanted}
        try:
            for entry in unwanted:
                run.undo(entry)
            for resource in wanted:
                run.ensure(resource)
        except BaseException as error:
            left = run.roll_back()
            raise _failure(error, run.current, left) from error
        return run.steps


def down(host: HostFile | str, progress: Progress = silent, places: Places | None = None) -> list[Step]:
    """Undo what `up` has done under this name, and no more. What somebody has changed since is left.

    Raises:
        ApplyError: something could not be undone; the rest was, and calling again tries what is left.
        JournalError: it cannot be known what was done, or another `up` is at work.
    """
    places = places or Places()
    name = host if isinstance(host, str) else host.name
    with locked(places.state, name), Machine() as machine:
        run = _Run(machine, Journal.load(places.state, name), progress)
        left = run.undo_all(reversed(list(run.journal.entries.values())))
        if left:
            raise ApplyError("\n".join([f"{name} is not all undone:", *left, "mend that, then run it again"]))
        return run.steps


def _failure(error: BaseException, resource: Resource | None, left: list[str]) -> BaseException:
    undone = "what had been done is undone" if not left else "\n".join(["what could not be undone:", *left])
    if not isinstance(error, (*_REFUSALS, CommandError)):
        return error  # an interrupt, or a mistake of ours
    what = f"{resource.key}: " if resource else ""
    return ApplyError(f"{what}{describe(error)}; {undone}")


def describe(error: BaseException) -> str:
    """An error of the host in words."""
    return str(getattr(error, "strerror", None) or error)


@dataclass(slots=True)
class _Done:
    """One act of this run, and what takes it back."""

    resource: Resource
    before: str | None
    """Its value when this run began."""


class _Run:
    """One call of `up` or `down`."""

    def __init__(self, machine: Machine, journal: Journal, progress: Progress) -> None:
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

    def undo_all(self, entries: Iterable[Entry]) -> list[str]:
        """Take back all that can be. Returns a line for each that could not."""
        left = []
        entries = list(entries)
        self.doomed = {entry.resource.key for entry in entries}
        for entry in entries:
            try:
                self.undo(entry)
            except _REFUSALS as error:
                left.append(f"{entry.resource.key}: {describe(error)}")
        return left

    def _undoing(self, entry: Entry) -> Step:
        current = self.machine.read(entry.resource)
        if current == entry.before or current is None:
            return Step(Action.KEEP, entry.resource, "is undone already", ())
        if current != entry.resource.value:
            return Step(Action.LEAVE, entry.resource, "somebody has changed it since", ())
        return removal(entry)

    def roll_back(self) -> list[str]:
        """Take back this run, last act first, then put back what an earlier one had done. A line for each failure."""
        left = []
        for done in reversed(self._done):
            try:
                self.machine.restore(done.resource, done.before if not done.resource.exclusive else None)
            except _REFUSALS as error:
                left.append(f"{done.resource.key}: {describe(error)}")
        for entry in self._earlier.values():
            try:
                if self.machine.read(entry.resource) != entry.resource.value:
                    self.machine.write(entry.resource)
            except _REFUSALS as error:
                left.append(f"{entry.resource.key}: {describe(error)}")
        if not left:
            self.journal.replace(self._earlier)
        return left

    def _tell(self, step: Step) -> None:
        self.steps.append(step)
        self._progress(step)


__all__ = ["ApplyError", "down", "silent", "up"]
