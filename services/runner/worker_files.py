"""What is recorded of a worker in its directory: the intent, its start, readiness, a request to stop, its end.

The runner writes the intent and requests, the worker's shim all else. The space for what comes after the intent is
reserved with it, so that a disk that has filled up meanwhile hides no end. Standard library only: the shim reads it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

SHIM_POLL_S: Final = 1.0
"""A shim reads what the runner has written at least so often, and at once where it is sent SIGUSR1."""
_RECORD_BYTES: Final = 4096
"""A block of most file systems: reserved for each record, and written whole."""
_MAX_TEXT: Final = 500
_READABLE: Final = 0o644


class IllegibleRecordError(ValueError):
    """A record is not what this program writes; the text names the file."""


class Intent(NamedTuple):
    """A worker that is to be started, at most once: all that its shim needs to know."""

    job: str
    attempt: int
    rank: int
    boot: str
    """Boot of the host in which it was ordered."""
    preemption: str
    grace_s: float
    slots: list[int]
    """Places among the node's slots that it holds until its end."""
    cpu_cores: float
    memory_bytes: int
    """Its first limits."""
    command: list[str]
    directory: str
    environment: dict[str, str]
    """All of it."""
    checkpoint_directory: str
    """Absolute, made for the worker; empty: none."""
    user: list[Any] | None
    """Name, uid, gid and supplementary groups; None: as the runner."""
    group: dict[str, Any] | None
    """Arguments of `CgroupProcesses`; None: no control group of its own."""
    ordered_s: float
    """When, by CLOCK_BOOTTIME: the runner had the bus then."""
    bus_file: str
    """Holds when the runner had the bus last, seconds of CLOCK_BOOTTIME."""
    fence_after_s: float
    """Without the bus for so long, it is stopped; 0: never."""
    ready_within_s: float
    """Until then its ready file is waited for; 0: it is ready at its start."""
    log_bytes: int
    congestion_control: str = ""
    """As its job wants it (`schemas.scheduling.JobSpec`)."""
    network_namespace: str = ""
    """Its path; empty: the worker stays in the shim's."""
    interleave: bool = False
    """Its job may be paused between two iterations."""
    spread: bool = False
    """Its job has workers on other nodes."""


class Claim(NamedTuple):
    """A shim is about to start the worker: no other one may, whatever becomes of this one."""

    pid: int
    started_ticks: int


class Started(NamedTuple):
    """The worker's process."""

    pid: int
    started_ticks: int
    time_ns: int


class Ready(NamedTuple):
    """It makes progress."""

    took_s: float
    time_ns: int


class StopRequest(NamedTuple):
    """It has to stop: SIGTERM, and SIGKILL after the grace period; 0: at once."""

    grace_s: float
    why: str = "order"
    """As `End.asked`."""


class Pause(NamedTuple):
    """Its processes are stopped for a part of an iteration, from some moments after this was written."""

    until_s: float
    """By CLOCK_BOOTTIME: if its runner has not let it go on by then, its shim does."""


class End(NamedTuple):
    """It has ended, and so has all that it started."""

    time_ns: int
    exit_code: int | None = None
    """Negative: that signal; None: it was not started, or its end was not seen."""
    asked: str = ""
    """Why it was asked to stop before: ``order``, ``runner`` (it ended), ``fence``, ``signal``; empty: it was not."""
    killed: bool = False
    """It did not stop within the grace period, or had none."""
    error: str = ""
    """Why it could not be started, or is lost."""
    lost: bool = False
    oom_kills: int = 0
    ran_s: float = 0.0
    took_s: float = 0.0
    """From the request until it had stopped."""


RecordT = TypeVar("RecordT", Intent, Claim, Started, Ready, StopRequest, Pause, End)
_NAMES: Final[dict[type[Any], str]] = {
    Intent: "spec.json",
    Claim: "claim.json",
    Started: "started.json",
    Ready: "ready.json",
    StopRequest: "stop.json",
    Pause: "pause.json",
    End: "exit.json",
}


class WorkerFiles:
    """The directory of one worker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._directory = str(directory)
        self.lock = directory / "lock"
        """Held by its shim as long as that lives."""
        self.log = directory / "log"
        self.own = directory / "run"
        """Belongs to the worker's user."""
        self.ready_file = self.own / "ready"
        self.training_socket = directory / "training"
        """On which it says what its training does; for its user only."""
        self.plan = directory / "plan.json"
        self._paths = {kind: directory / name for kind, name in _NAMES.items()}  # looked for ten times a second

    def read(self, kind: type[RecordT]) -> RecordT | None:
        """A record; None: there is none.

        Raises:
            IllegibleRecordError: it is not one that was written here.
        """
        path = self._paths[kind]
        try:
            return _checked(kind(**json.loads(path.read_bytes())))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError) as error:
            raise IllegibleRecordError(f"{path} is not legible: {str(error)[:_MAX_TEXT]}") from error

    def has(self, kind: type[RecordT]) -> bool:
        """Whether there is such a record."""
        return self._paths[kind].exists()

    def changed_ns(self) -> int | None:
        """When a record was written last, as the file system has it; None: there is no directory."""
        try:
            return os.stat(self._directory).st_mtime_ns  # noqa: PTH116 - ten times a second for each worker
        except (FileNotFoundError, NotADirectoryError):
            return None

    def reserve(self) -> None:
        """Take the space that the later records need.

        Raises:
            OSError: there is none.
        """
        for name in _NAMES.values():
            if name != _NAMES[Intent]:
                _write(self._reserved(name), b" " * _RECORD_BYTES)

    def write(self, record: RecordT) -> None:
        """Write a record, whole or not at all; in its reserved space, if there is any left.

        Raises:
            OSError: it cannot be written.
        """
        name = _NAMES[type(record)]
        draft = self._reserved(name)
        try:
            _write(draft, _padded(record))
            draft.rename(self._paths[type(record)])
        except OSError:
            if isinstance(record, Intent):
                draft.unlink(missing_ok=True)
            raise

    def overwrite(self, record: RecordT) -> None:
        """As `write`, in place where there is one already: two system calls less, and the directory does not change.

        Who reads it in that moment may find a mixture of both, and has to read it again.

        Raises:
            OSError: it cannot be written.
        """
        try:
            descriptor = os.open(self._paths[type(record)], os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            self.write(record)
            return
        try:
            _write_all(descriptor, _padded(record))
        finally:
            os.close(descriptor)

    def write_plan(self, text: str) -> None:
        """Write the job's plan, for the worker's user to read.

        Raises:
            OSError: it cannot be written.
        """
        _write(self.plan, text.encode())
        self.plan.chmod(_READABLE)

    @property
    def forgotten(self) -> Path:
        """A file: only the log is needed from its time on."""
        return self.directory / "forgotten"

    def _reserved(self, name: str) -> Path:
        return self.directory / f".{name}.reserved"

    def forget(self) -> None:
        """Remove what is not needed after the end: all but the log and the end itself; the environment holds secrets.

        Raises:
            OSError: something cannot be removed.
        """
        self.forgotten.touch()
        kept = {self.log.name, _NAMES[End], self.lock.name, self.forgotten.name}
        for path in self.directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                for inner in path.iterdir():
                    inner.unlink()
                path.rmdir()
            elif path.name not in kept:
                path.unlink()


_PLAIN: Final[dict[str, tuple[type, ...]]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
    "None": (type(None),),
}


def _checked(record: RecordT) -> RecordT:
    """The record, if each field has its type.

    Raises:
        TypeError: one has not.
    """
    for name, annotation in type(record).__annotations__.items():
        words = str(getattr(annotation, "__forward_arg__", annotation)).split(" | ")
        value = getattr(record, name)
        if not any(isinstance(value, _PLAIN[word.partition("[")[0]]) for word in words):
            raise TypeError(f"{name} is {value!r:.40}")
    return record


def boot_s() -> float:
    """Seconds since the boot, also while the machine is suspended: other nodes count those, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _write(path: Path, content: bytes) -> None:
    """Over what is there, without giving up its blocks: they may be the last ones. For its owner only."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, content)
        os.ftruncate(descriptor, len(content))  # of an earlier, longer draft
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _padded(record: RecordT) -> bytes:
    return json.dumps(record._asdict()).encode().ljust(_RECORD_BYTES)
