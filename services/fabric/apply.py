"""`fabric plan`, `up` and `down`: what a host.yaml needs, apply it or undo it, all or nothing."""

from __future__ import annotations

from services._runtime.command.errors import CommandError
from services.fabric.journal import Journal, locked
from services.fabric.layout import layout
from services.fabric.machine import Machine
from services.fabric.model import HostFile
from services.fabric.nic import Nics
from services.fabric.paths import FabricPaths
from services.fabric.plan import Action, ConflictError, Progress, Step, obsolete, removal, step_for
from services.fabric.preflight import require_host_access, require_privileges, run_preflight
from services.fabric.preflight_error import PreflightError, PreflightProblem
from services.fabric.resources import Resource
from services.fabric.transaction import HOST_ERRORS, Transaction, describe


class ApplyError(CommandError):
    """A step failed; the text says which, why, and what became of the others."""


def no_progress(_step: Step) -> None:
    """Discards progress."""


def plan(host: HostFile, paths: FabricPaths | None = None) -> list[Step]:
    """Every step that `up` would take now, with those that need not be taken.

    Raises:
        PreflightError: the file does not suit the host; each mistake with its remedy.
    """
    paths = paths or FabricPaths()
    with Machine(Nics(paths.sysfs)) as machine:
        return _steps(host, machine, Journal.load(paths.state, host.name), paths)[0]


def _steps(
    host: HostFile, machine: Machine, journal: Journal, paths: FabricPaths
) -> tuple[list[Step], tuple[Resource, ...]]:
    """As `plan`, and everything that the file asks for."""
    mtu = run_preflight(host, machine, paths)
    wanted = layout(host, mtu, paths.frr)
    steps = [removal(entry) for entry in obsolete(journal.entries, wanted)]
    fresh: set[str] = set()
    conflicts = []
    for resource in wanted:
        current = None if resource.parent in fresh else machine.read(resource)
        try:
            step = step_for(resource, current, owned=journal.made(resource.key))
        except ConflictError as conflict:
            conflicts.append(PreflightProblem(str(conflict), conflict.remedy))
            continue
        if step.action in {Action.MAKE, Action.REPLACE}:
            fresh.add(resource.key)
        steps.append(step)
    if conflicts:
        raise PreflightError(conflicts)
    return steps, wanted


def up(host: HostFile, progress: Progress = no_progress, paths: FabricPaths | None = None) -> list[Step]:
    """Make the host as the file says. A step that fails takes back all that this call has done.

    Returns:
        Every step, with those that need not be taken (KEEP).

    Raises:
        PreflightError: the file does not suit the host; nothing was written.
        ApplyError: a step failed; what had been done is undone, and the text says so.
        JournalError: what is done could not be noted, or another `up` is at work.
    """
    paths = paths or FabricPaths()
    require_host_access(host)
    with locked(paths.state, host.name), Machine(Nics(paths.sysfs)) as machine:
        journal = Journal.load(paths.state, host.name)
        _, wanted = _steps(host, machine, journal, paths)
        run = Transaction(machine, journal, progress)
        try:
            run.bring_up(wanted)
        except BaseException as error:
            failures = run.roll_back()
            raise _failure(error, run.current, failures) from error
        return run.steps


def down(host: HostFile | str, progress: Progress = no_progress, paths: FabricPaths | None = None) -> list[Step]:
    """Undo what `up` has done under this name, and no more. Resources modified externally since are left.

    Raises:
        PreflightError: no right to.
        ApplyError: something could not be undone; the rest was, and calling again tries what is left.
        JournalError: it cannot be known what was done, or another `up` is at work.
    """
    paths = paths or FabricPaths()
    name = host if isinstance(host, str) else host.name
    require_privileges()
    with locked(paths.state, name), Machine(Nics(paths.sysfs)) as machine:
        run = Transaction(machine, Journal.load(paths.state, name), progress)
        failures = run.take_down()
        if failures:
            raise ApplyError("\n".join([f"{name} is not all undone:", *failures, "fix that, then run it again"]))
        return run.steps


def _failure(error: BaseException, resource: Resource | None, failures: list[str]) -> BaseException:
    undone = "what had been done is undone" if not failures else "\n".join(["what could not be undone:", *failures])
    if not isinstance(error, (*HOST_ERRORS, CommandError)):
        return error  # an interrupt, or a programming error
    what = f"{resource.key}: " if resource else ""
    return ApplyError(f"{what}{describe(error)}; {undone}")
