"""A worker's process, from the fork to its program: session, control group, log, user, directory. For the shim.

Standard library only.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final, NoReturn

from services._host.cgroup_processes import CgroupProcesses
from services.runner.worker_files import Intent, WorkerFiles

_PDEATHSIG: Final = 1
_CANNOT_EXECUTE: Final = 126
_MAX_REASON_BYTES: Final = 2_000


class CannotStartError(Exception):
    """A worker cannot be started; the text says why."""


def start_worker(files: WorkerFiles, intent: Intent, group: CgroupProcesses | None) -> int:
    """Start it, with its output appended to its log; returns its process id, which is its session's, too.

    Raises:
        CannotStartError: it cannot be started; nothing runs.
    """
    shim = os.getpid()
    failed, failing = os.pipe2(os.O_CLOEXEC)
    try:
        log = os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotStartError(f"its log cannot be written: {error.strerror}") from error
    pid = os.fork()
    if pid == 0:
        try:
            _Child(intent, group, shim).become(log)
        except (OSError, ValueError, CannotStartError) as error:
            os.write(failing, str(error).encode(errors="replace")[:_MAX_REASON_BYTES])
        finally:
            os._exit(_CANNOT_EXECUTE)
    os.close(failing)
    os.close(log)
    with os.fdopen(failed, "rb") as pipe:
        reason = pipe.read()
    if reason:
        os.waitpid(pid, 0)
        raise CannotStartError(reason.decode(errors="replace"))
    return pid


class _Child:
    """What the forked child does until it is the worker."""

    def __init__(self, intent: Intent, group: CgroupProcesses | None, shim: int) -> None:
        self._intent = intent
        self._group = group
        self._shim = shim

    def become(self, log: int) -> NoReturn:
        """Become the worker.

        Raises:
            CannotStartError, OSError, ValueError: that cannot be.
        """
        import ctypes  # noqa: PLC0415 - in the child only, and before it may not read the interpreter's files any more

        libc = ctypes.CDLL(None)
        os.setsid()
        if self._group is not None and not self._group.add_process(0):
            raise CannotStartError("its control group has been removed")
        _redirect(log)
        self._enter_network()
        self._change_user()
        libc.prctl(_PDEATHSIG, signal.SIGKILL)  # after the change of the user, which would undo it
        if os.getppid() != self._shim:
            raise CannotStartError("its shim was killed")
        self._enter_directory()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._execute()

    def _enter_network(self) -> None:
        namespace = self._intent.network_namespace
        if not namespace:
            return
        from services._host.netns import enter  # noqa: PLC0415 - as ctypes above

        try:
            enter(os.open(namespace, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            reason = error.strerror
            raise CannotStartError(f"its network namespace {namespace} cannot be entered: {reason}") from error

    def _change_user(self) -> None:
        if self._intent.user is None:
            return
        name, uid, gid, groups = self._intent.user
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
        except OSError as error:
            raise CannotStartError(f"it cannot run as {name}: {error.strerror}") from error

    def _enter_directory(self) -> None:
        user = f" by {self._intent.user[0]}" if self._intent.user is not None else ""
        try:
            os.chdir(self._intent.directory)
        except OSError as error:
            raise CannotStartError(
                f"its directory {self._intent.directory} cannot be entered{user}: {error.strerror}"
            ) from error
        checkpoints = self._intent.checkpoint_directory
        if not checkpoints:
            return
        try:
            Path(checkpoints).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotStartError(
                f"its checkpoint directory {checkpoints} cannot be made{user}: {error.strerror}. Make it for that "
                "user, let `checkpoint: {directory: ...}` name another, or TURNBUCKLE_RUNNER__RUN_AS another user"
            ) from error

    def _execute(self) -> NoReturn:
        command = self._intent.command
        try:
            os.execvpe(command[0], command, self._intent.environment)  # noqa: S606 - the user's own command
        except FileNotFoundError as error:
            raise CannotStartError(f"{command[0]}: command not found") from error
        except OSError as error:
            # Directories of PATH that this user may not search hide that there is no such program in the others.
            if isinstance(error, PermissionError) and not self._is_there(command[0]):
                path = self._intent.environment.get("PATH", os.defpath)
                raise CannotStartError(
                    f"{command[0]}: command not found in what its user may search of {path}"
                ) from error
            raise CannotStartError(f"{command[0]} cannot be executed: {error.strerror}") from error

    def _is_there(self, program: str) -> bool:
        directories = [""] if os.sep in program else os.get_exec_path(self._intent.environment)
        return any(Path(directory, program).is_file() for directory in directories if _may_search(directory))


def _may_search(directory: str) -> bool:
    return os.access(directory or ".", os.X_OK)


def _redirect(log: int) -> None:
    """No input; output and errors to the log."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
