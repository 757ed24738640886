"""Write-ahead log of records: JSON lines with fsync, and marks of the published ones.

One directory holds one journal, ``records.jsonl``. A line is either a record (a `JobRecord` or `RunProfile` as JSON
with its type) or ``{"published": key}``. Lines are only ever added. A line counts once its newline is there: kill -9,
a power cut or a full disk leave at most one torn line at the end, which the next `Journal` removes.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from schemas.codec import TYPE_KEY, CodecError, encode, to_plain
from schemas.jobs import JobRecord
from schemas.runs import RunProfile
from schemas.subjects import JOB_RECORDS, RUN_PROFILES, Subject, SubjectError
from services._runtime.file_lock import open_lock_file, try_process_lock

FILE_NAME: Final = "records.jsonl"
LOCK_NAME: Final = "records.lock"
_PUBLISHED: Final = "published"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

Record = JobRecord | RunProfile
_KINDS: Final[dict[str, type[Record]]] = {kind.type_name: kind for kind in (JobRecord, RunProfile)}


class JournalError(Exception):
    """The journal cannot be used; the text gives the reason and the remedy."""


class JournalFullError(JournalError):
    """The disk is full. Earlier records are intact."""


class JournalInUseError(JournalError):
    """Another process, or another part of this one, has the directory open."""


class UnsendableRecordError(JournalError):
    """The record could never be published: its id or its size does not fit a message."""


def record_id(record: Record) -> str:
    """The record's identity on the bus (``Nats-Msg-Id``): the job, or the run."""
    return record.job if isinstance(record, JobRecord) else record.run


def record_key(record: Record) -> str:
    """The record's identity in a journal: a job and a run may have the same name."""
    return f"{'job' if isinstance(record, JobRecord) else 'run'}:{record_id(record)}"


def record_subject(root: str, record: Record) -> Subject:
    """Where the record is published.

    Raises:
        SubjectError: its id does not fit a subject.
    """
    if isinstance(record, JobRecord):
        return JOB_RECORDS.subject(root, job=record.job)
    return RUN_PROFILES.subject(root, run=record.run)


@dataclass(slots=True)
class _Content:
    """Content of a journal file."""

    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Offset and length of each record's line, by key, in the order of writing."""
    published: set[str] = field(default_factory=set)
    size: int = 0
    """Bytes of whole lines."""


class Journal:
    """The single writer of a directory. A context manager; `close` unlocks the directory. Thread-safe."""

    _open_here: Final[set[Path]] = set()
    """POSIX locks do not hold between parts of one process."""

    def __init__(self, directory: Path) -> None:
        """Create the directory, lock it, remove a torn last line, and read the journal.

        Raises:
            JournalInUseError: another writer has locked it.
            JournalFullError: the disk is full.
            JournalError: it cannot be written, or the file is damaged in the middle.
        """
        self.directory = directory.resolve()
        self._path = self.directory / FILE_NAME
        self._writing = threading.RLock()
        self._lock = self._take_lock()
        try:
            with as_journal_errors(self._path):
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._content = self._recover()
            except BaseException:
                os.close(self._file)
                raise
        except BaseException:
            self._release_lock()
            raise

    def _take_lock(self) -> int:
        with as_journal_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        if self.directory in self._open_here:
            raise JournalInUseError(f"{self.directory} is written to by another part of this process")
        with as_journal_errors(self.directory):
            lock = open_lock_file(self.directory / LOCK_NAME, 0o644)
            # Not flock: a forked worker that outlives a killed parent would keep it.
            held = try_process_lock(lock)
        if not held:
            os.close(lock)
            raise JournalInUseError(f"another process writes to {self.directory}: wait for it, or stop it")
        self._open_here.add(self.directory)
        return lock

    def _release_lock(self) -> None:
        self._open_here.discard(self.directory)
        os.close(self._lock)

    def _recover(self) -> _Content:
        content = _Content()
        with as_journal_errors(self._path):
            data = _read_all(self._file)
            for key, record, place in _parse(data, self._path):
                if record is not None:
                    content.places.setdefault(key, place)
                elif key in content.places:
                    content.published.add(key)
                content.size = sum(place)
            if content.size < len(data):
                os.ftruncate(self._file, content.size)
            os.fsync(self._file)
            _sync_directory(self.directory)
        return content

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the directory; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._release_lock()

    def __len__(self) -> int:
        return len(self._content.places)

    def __contains__(self, key: str) -> bool:
        return key in self._content.places

    @property
    def waiting(self) -> int:
        """Number of records not marked as published."""
        return len(self._content.places) - len(self._content.published)

    def append(self, record: Record) -> bool:
        """Append a record durably. False: its job or run is in the journal already.

        Raises:
            JournalFullError: the disk is full; nothing has changed, and a retry may succeed.
            UnsendableRecordError: it could never be published.
            JournalError: it cannot be written.
        """
        return self.append_all([record]) == 1

    def append_all(self, records: Iterable[Record]) -> int:
        """As `append`, with one fsync for all; returns how many were new.

        Raises:
            JournalError: as `append`; none of them is written then.
        """
        lines: dict[str, bytes] = {}
        with self._writing:
            for record in records:
                key = record_key(record)
                if key not in self._content.places and key not in lines:
                    require_sendable(record)
                    lines[key] = _line(to_plain(record))
            start = self._content.size
            if lines:
                self._write(b"".join(lines.values()))
            for key, line in lines.items():
                self._content.places[key] = (start, len(line))
                start += len(line)
        return len(lines)

    def mark_published(self, keys: Iterable[str]) -> None:
        """Mark records as published. A mark lost in a crash only costs a lookup on the bus.

        Raises:
            JournalError: as `append`.
        """
        with self._writing:
            new = [key for key in keys if key in self._content.places and key not in self._content.published]
            if new:
                self._write(b"".join(_line({_PUBLISHED: key}) for key in new))
                self._content.published.update(new)

    def unpublished(self) -> Iterator[Record]:
        """Records without a mark, oldest first."""
        with self._writing:
            places = [place for key, place in self._content.places.items() if key not in self._content.published]
        for place in places:
            yield self._read(place)

    def _read(self, place: tuple[int, int]) -> Record:
        offset, length = place
        return _record(json.loads(os.pread(self._file, length, offset)))

    def _write(self, data: bytes) -> None:
        """Append whole lines, or nothing."""
        start = self._content.size
        with as_journal_errors(self._path):
            try:
                written = 0
                while written < len(data):
                    written += os.pwrite(self._file, data[written:], start + written)
                os.fsync(self._file)
            except OSError:
                # Truncating needs no space. If even that fails the torn line is removed at the next start, or
                # overwritten by a later write.
                os.ftruncate(self._file, start)
                raise
        self._content.size = start + len(data)


def read_journal(directory: Path) -> Iterator[Record]:
    """Every record of a journal, also while it is being written.

    Raises:
        JournalError: it does not exist, cannot be read, or is damaged.
    """
    path = directory / FILE_NAME
    with as_journal_errors(path):
        data = path.read_bytes()
    seen: set[str] = set()
    for key, record, _ in _parse(data, path):
        if record is not None and key not in seen:
            seen.add(key)
            yield record


@contextmanager
def as_journal_errors(path: Path) -> Iterator[None]:
    """Convert an OSError into a `JournalError` with the file and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise JournalFullError(f"no space left for {path}: make room, then start again") from error
        raise JournalError(f"{path}: {error.strerror or error}") from error


def _line(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def require_sendable(record: Record) -> None:
    """Raise `UnsendableRecordError` where a record could never be published."""
    try:
        record_subject("tb", record)
        encode(record)
    except (SubjectError, CodecError) as error:
        raise UnsendableRecordError(f"{record_key(record)[:80]} can never be published: {error}") from error


def _read_all(file: int) -> bytes:
    parts, offset = [], 0
    while part := os.pread(file, 1 << 20, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _sync_directory(directory: Path) -> None:
    """Sync the directory entry."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parse(data: bytes, path: Path) -> Iterator[tuple[str, Record | None, tuple[int, int]]]:
    """Key, record (None: a mark) and place of each whole line. Lines after the last readable one are torn.

    Raises:
        JournalError: an unreadable line precedes a readable one, or the file is not a journal.
    """
    start, number, torn, found = 0, 0, 0, False
    while end := data.find(b"\n", start) + 1:
        number += 1
        try:
            entry = _entry(data[start:end])
        except ValueError as error:
            raise JournalError(f"{path}:{number}: no record that this version knows: name another directory") from error
        if entry is None:
            torn = torn or number
        elif torn:
            raise JournalError(f"{path}:{torn}: damaged line; keep a copy of the file, then remove that line")
        else:
            found = True
            yield *entry, (start, end - start)
        start = end
    if torn and not found:
        raise JournalError(f"{path} is no journal: name another directory")


def _entry(line: bytes) -> tuple[str, Record | None] | None:
    """Key, and the record (None: a mark); None: torn.

    Raises:
        ValueError: it is JSON, so it is whole, but not an entry of a journal.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(fields, dict) and isinstance(fields.get(_PUBLISHED), str) and len(fields) == 1:
        return fields[_PUBLISHED], None
    record = _record(fields)
    return record_key(record), record


def _record(fields: Any) -> Record:
    """Not by `schemas.codec.decode`, which limits a message's size: JSON numbers are longer.

    Raises:
        ValueError: it is neither a job nor a run.
    """
    kind = _KINDS.get(str(fields.get(TYPE_KEY))) if isinstance(fields, dict) else None
    if kind is None:
        raise ValueError("neither a job nor a run")
    return kind.model_validate(fields)
