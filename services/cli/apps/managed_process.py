"""One process in a managed control group: joined before exec, signals forwarded, nothing left behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas.apps import MIN_QUOTA_US, PERIOD_US
from services._host.cgroupfs import (
    MANAGED_ID_LENGTH,
    MANAGED_ROOT,
    CgroupLayout,
    CgroupUnavailableError,
    ManagedCgroup,
    detect,
    managed_directory,
)
from services._runtime.child_process import die_with_parent
from services._runtime.command.errors import CommandError, UnavailableError, UsageError
from services._runtime.exit_code import ExitCode

FORWARDED_SIGNALS: Final = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
_KILLED: Final = 128 + signal.SIGKILL
_SI_KERNEL: Final = 0x80
"""The terminal sent the signal: to the whole foreground group, so the command has it already (sigaction(2))."""


@dataclass(frozen=True, slots=True)
class ManagedCommand:
    """What to run, and as which container of which application."""

    app: str
    name: str
    arguments: tuple[str, ...]
    cpus: float | None = None
    """Cores to start with; None: no limit until the allocator sets one."""
    memory_bytes: int | None = None
    root: str = MANAGED_ROOT

    @property
    def quota_us(self) -> int | None:
        """The first quota per period."""
        return None if self.cpus is None else max(MIN_QUOTA_US, int(self.cpus * PERIOD_US))


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command has ended."""

    exit_code: int
    """128 + n if signal n ended it."""
    oom_kills: int = 0
    """Tasks of its group that the kernel killed, where that ended the command."""


def usable_layout() -> CgroupLayout:
    """This host's control groups.

    Raises:
        UnavailableError: there are none of use; the message says why.
    """
    try:
        return detect()
    except CgroupUnavailableError as error:
        raise UnavailableError(str(error)) from error


def make_group(layout: CgroupLayout, command: ManagedCommand) -> ManagedCgroup:
    """A fresh control group for the command.

    Raises:
        UsageError: a name cannot be used.
        UnavailableError: the kernel does not let us; the message says what would help.
    """
    try:
        directory = managed_directory(
            command.app, command.name, secrets.token_hex(MANAGED_ID_LENGTH // 2), command.root
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        return ManagedCgroup.create(layout, directory, command.quota_us, command.memory_bytes)
    except CgroupUnavailableError as error:
        advice = "" if os.geteuid() == 0 else ". Only root may do that: use sudo"
        raise UnavailableError(f"{error}{advice}") from error


def run_in_group(layout: CgroupLayout, command: ManagedCommand) -> Ended:
    """Run the command to its end.

    What it has left running in its group is killed then, as a container's processes end with its first one.

    Raises:
        CommandError, UnavailableError: see `make_group`; or the command cannot be executed (126, 127).
    """
    group = make_group(layout, command)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED_SIGNALS, signal.SIGCHLD})
    try:
        process = spawn_in_group(group, command.arguments, before)
        status = _wait_forwarding(process)
        kills = group.oom_kills() if status == _KILLED else 0
    finally:
        group.end()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Ended(status, kills)


def killed_sentence(app: str, kills: int) -> str:
    """Why a command has ended with 137."""
    return (
        f"the kernel killed it at its memory limit ({kills} in its group): give it more "
        f"with --memory, or the application with `turnbuckle apply`; `turnbuckle explain {app}` tells more"
    )


def spawn_in_group(
    group: ManagedCgroup,
    arguments: Sequence[str],
    signal_mask: set[int | signal.Signals] | None = None,
    *,
    log_file: Path | None = None,
    end_with_parent: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a command that is in the group before its program begins.

    Args:
        group: control group to join.
        arguments: the program and its arguments.
        signal_mask: signals that the command shall have blocked; None: as we have.
        log_file: where its output is appended, and it gets no input; None: it shares ours.
        end_with_parent: kill it when this process dies.

    Raises:
        ManagedCommandError: the program does not exist (127) or cannot be executed (126).
        CommandError: the group refuses the process.
    """

    def join() -> None:
        group.add_process(0)
        if signal_mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
        if end_with_parent:
            die_with_parent(signal.SIGKILL)

    try:
        with ExitStack() as stack:
            output = None if log_file is None else stack.enter_context(log_file.open("ab"))
            source = None if log_file is None else subprocess.DEVNULL
            return subprocess.Popen(arguments, preexec_fn=join, stdin=source, stdout=output, stderr=output)  # noqa: S603, PLW1509 - the user's own command; no threads yet
    except FileNotFoundError as error:
        raise ManagedCommandError(f"{arguments[0]}: no such program", ExitCode.NOT_FOUND) from error
    except PermissionError as error:
        raise ManagedCommandError(f"{arguments[0]}: not executable", ExitCode.NOT_EXECUTABLE) from error
    except OSError as error:
        raise ManagedCommandError(f"{arguments[0]}: {error.strerror}", ExitCode.NOT_EXECUTABLE) from error
    except subprocess.SubprocessError as error:
        raise CommandError(
            f"the control group {group.directory} does not take the process (a real-time one? see chrt -p $$)"
        ) from error


class ManagedCommandError(CommandError):
    """The program could not be executed; carries the shell's exit code for that."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def _wait_forwarding(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end; the signals are blocked, so that none can arrive unseen."""
    while (status := process.poll()) is None:
        info = signal.sigwaitinfo({*FORWARDED_SIGNALS, signal.SIGCHLD})
        if info.si_signo != signal.SIGCHLD and info.si_code != _SI_KERNEL:
            process.send_signal(info.si_signo)
    return status if status >= 0 else 128 - status
