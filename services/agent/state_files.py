"""Small files of one agent that outlive it: the values found first, waits, who holds a lock.

Read and written by two processes, the agent and its watchdog, so this module knows the standard library only. A process
is killed while writing leaves the old content: what fits is written as one page in place (a signal takes effect between
pages), and only the rest is replaced by renaming, which takes ext4 half a millisecond. What cannot be read, or was
written by something else, counts as absent.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from services._host.boot_records import boot_id
from services._runtime.atomic_file import replacing

_FORMAT: Final = 1
_PAGE_BYTES: Final = 4096


def as_json(content: dict[str, Any]) -> bytes:
    """JSON that `read_file` recognises."""
    return json.dumps({"format": _FORMAT, **content}).encode()


def save_file(path: Path, content: dict[str, Any]) -> None:
    """Write JSON to a file, as a whole or not at all. Raises OSError."""
    text = as_json(content)
    if len(text) <= _PAGE_BYTES:
        _write(path, text.ljust(_PAGE_BYTES))
        return
    with replacing(path) as draft:
        _write(draft, text)


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, content, 0)
    finally:
        os.close(descriptor)


def _is_being_written(path: Path) -> bool:
    """Whether a process that lives is about to rename it."""
    name, _, pid = path.name.rpartition(".")
    return name.startswith(".") and Path(f"/proc/{pid}").exists()


def read_file(path: Path) -> dict[str, Any] | None:
    """What `save_file` put there; None if there is nothing, or something else."""
    try:
        text = path.read_bytes()
    except OSError:
        return None
    return parse_json(text)


def parse_json(text: bytes) -> dict[str, Any] | None:
    """JSON that `as_json` made; None: it is something else."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) and content.get("format") == _FORMAT else None


@dataclass(slots=True)
class FoundValues:
    """A container that is managed, and what its control files held before any agent changed them, as far as any did."""

    key: str
    app: str
    container_id: str
    version: int
    """Of its control groups."""
    directories: dict[str, str]
    """By controller."""
    inode: int
    """Of the memory directory: distinguishes a group from a later one of the same name."""
    guarded: bool = False
    """Whether its memory was ever under OOM control: then the watchdog has to supervise it."""
    values: dict[str, str] = field(default_factory=dict)
    """By control file. Only files that were changed are in here."""
    source: str = ""
    """A `schemas.containers.ContainerSource`; empty: written by an agent that did not record it."""

    def exists(self) -> bool:
        """Whether this very group is still there."""
        return inode_of(self.directories["memory"]) == self.inode


Loaded = dict[str, tuple[int, FoundValues | None]]
"""By file name: when it was changed last (0: so lately that another change would look the same), and its content."""
_SAME_TICK_NS: Final = 1_000_000_000
"""Two changes of a file within a tick of the kernel's clock have the same time; a tick is less than this."""


def _names_in(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - names are wanted, and Path objects cost more than the call
    except OSError:
        return []


def _changed_ns(path: str) -> int:
    """0: it is gone."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - as in `inode_of`
    except OSError:
        return 0


def inode_of(directory: str) -> int | None:
    """The inode of a directory; None if there is none."""
    try:
        return os.stat(directory).st_ino  # noqa: PTH116 - a hot path, and Path objects cost more than the call
    except OSError:
        return None


class StateDirectory:
    """One managed root's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reserves = path / "reserves.json"
        self.reports = path / "watchdog-reports.jsonl"
        self.taken_reports = path / "watchdog-reports-taken.jsonl"
        """Read by an agent before all of it is stored in the stream."""
        self.watchdog_errors = path / "watchdog-errors.txt"
        self._originals = path / "originals"
        self._waits = path / "waits"

    def make(self) -> None:
        """Create it. Raises OSError: it cannot be, cannot be written, or is full."""
        for directory in (self._originals, self._waits):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = self.path / f".probe.{os.getpid()}"
        try:
            probe.write_bytes(bytes(_PAGE_BYTES))
        finally:
            probe.unlink(missing_ok=True)

    def load(self, key: str) -> FoundValues | None:
        """One container's values; None if there are none of this boot."""
        return self._parse(read_file(self._originals / f"{key}.json"))

    def load_all(self, loaded: Loaded | None = None) -> list[FoundValues]:
        """Every container's. ``loaded`` is what was read before; it is brought up to date by what has changed since."""
        loaded = {} if loaded is None else loaded
        before, now_ns = dict(loaded), time.time_ns()
        loaded.clear()
        for name in sorted(name for name in _names_in(self._originals) if name.endswith(".json")):
            stamp_ns, known = _changed_ns(f"{self._originals}/{name}"), before.get(name)
            if known is None or known[0] != stamp_ns:
                known = stamp_ns, self._parse(read_file(self._originals / name))
            loaded[name] = known if now_ns - stamp_ns > _SAME_TICK_NS else (0, known[1])
        return [found for _, found in loaded.values() if found is not None]

    def save(self, found: FoundValues) -> None:
        """Store them. Raises OSError."""
        save_file(self._originals / f"{found.key}.json", {"boot": boot_id(), **asdict(found)})

    def forget(self, key: str) -> None:
        """Remove them."""
        with suppress(OSError):
            (self._originals / f"{key}.json").unlink(missing_ok=True)
        self.record_oom_wait(key, None)

    def record_oom_wait(self, key: str, since_ns: int | None) -> None:
        """Record since when a container's tasks wait at its limit (monotonic), or None: none waits any more.

        The deadline counts from there, for the agent, its watchdog and the next agent.
        """
        path = self._waits / key
        with suppress(OSError):  # unwritable: the next agent begins to count anew
            if since_ns is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(str(since_ns), encoding="ascii")

    def oom_wait_since_ns(self, key: str) -> int | None:
        """What was recorded; None: nothing, or it was torn, or in an earlier boot."""
        try:
            since_ns = int((self._waits / key).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return since_ns if since_ns <= time.monotonic_ns() else None

    def oldest_wait_ns(self) -> int | None:
        """The earliest of all that are recorded."""
        try:
            keys = [path.name for path in self._waits.iterdir()]
        except OSError:
            return None
        return min((since_ns for key in keys if (since_ns := self.oom_wait_since_ns(key)) is not None), default=None)

    def sweep(self) -> None:
        """Remove files of an earlier boot, foreign ones, and those that a killed writer has left."""
        for path in self._originals.iterdir():
            if not _is_being_written(path) and self._parse(read_file(path)) is None:
                with suppress(OSError):
                    path.unlink()
        for path in self.path.glob(".*"):
            if not _is_being_written(path):
                with suppress(OSError):
                    path.unlink()

    @staticmethod
    def _parse(content: dict[str, Any] | None) -> FoundValues | None:
        if content is None or content.pop("boot", None) != boot_id():
            return None
        content.pop("format")
        try:
            found = FoundValues(**content)
        except TypeError:
            return None
        valid = isinstance(found.directories, dict) and "memory" in found.directories and isinstance(found.values, dict)
        return found if valid else None


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Holder of a lock of this host, by its own record."""

    pid: int
    node: str
    started: str
    """UTC, ISO 8601."""


def read_holder(path: Path) -> LockHolder | None:
    """The last holder recorded in a lock file; None if there is none, or it is illegible."""
    content = read_file(path)
    if content is None:
        return None
    pid = content.get("pid")
    return LockHolder(pid if isinstance(pid, int) else 0, str(content.get("node")), str(content.get("started")))
