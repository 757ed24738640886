"""`up` and `down`: a host as its file says, or as it was before; never half of either."""

from __future__ import annotations

from services._runtime.command.failure import CommandError
from services.fabric.journal import Journal, locked
from services.fabric.machine import Machine
from services.fabric.model import HostFile
from services.fabric.nic import Nics
from services.fabric.places import Places
from services.fabric.plan import Progress, Step, survey
from services.fabric.preflight import require_ground, require_rights
from services.fabric.resources import Resource
from services.fabric.run import REFUSALS, Run, describe


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
    require_ground(host)
    with locked(places.state, host.name), Machine(Nics(places.sysfs)) as machine:
        journal = Journal.load(places.state, host.name)
        _, wanted = survey(host, machine, journal, places)
        run = Run(machine, journal, progress)
        try:
            run.bring_up(wanted)
        except BaseException as error:
            left = run.roll_back()
            raise _failure(error, run.current, left) from error
        return run.steps


def down(host: HostFile | str, progress: Progress = silent, places: Places | None = None) -> list[Step]:
    """Undo what `up` has done under this name, and no more. What somebody has changed since is left.

    Raises:
        PreflightError: no right to.
        ApplyError: something could not be undone; the rest was, and calling again tries what is left.
        JournalError: it cannot be known what was done, or another `up` is at work.
    """
    places = places or Places()
    name = host if isinstance(host, str) else host.name
    require_rights()
    with locked(places.state, name), Machine(Nics(places.sysfs)) as machine:
        run = Run(machine, Journal.load(places.state, name), progress)
        left = run.take_down()
        if left:
            raise ApplyError("\n".join([f"{name} is not all undone:", *left, "fix that, then run it again"]))
        return run.steps


def _failure(error: BaseException, resource: Resource | None, left: list[str]) -> BaseException:
    undone = "what had been done is undone" if not left else "\n".join(["what could not be undone:", *left])
    if not isinstance(error, (*REFUSALS, CommandError)):
        return error  # an interrupt, or a mistake of ours
    what = f"{resource.key}: " if resource else ""
    return ApplyError(f"{what}{describe(error)}; {undone}")
