"""Object stores of `nats`, in the layout of NATS ADR-20 (``nats object ls`` shows them).

nats-py's own ``ObjectStore`` is not used: its `get` blocks for ever if chunks are missing (a concurrent put of the same
name, or a damaged store), its `list` leaks a consumer when it is cancelled, and the chunks of an aborted put are never
deleted. Here chunks are read one by one from the stream's leader, each with a timeout.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import nats.errors
import nats.js.errors

from schemas.streams import ObjectStoreSpec
from services._runtime.bus.api import BusError, CorruptObjectError, ObjectInfo, ObjectStoreFullError, StoredObject
from services._runtime.bus.nats_connection import as_bus_errors
from services._runtime.bus.nats_session import NatsSession

_CHUNK_BYTES: Final = 128 << 10
_ATTEMPTS: Final = 3
"""Of a read that meets concurrent puts of the same name."""
_ORPHAN_AGE_S: Final = 600.0
"""Chunks of no object are deleted at this age: no put takes that long."""
_ROLLUP: Final = {"Nats-Rollup": "sub"}
_DIGEST: Final = "SHA-256="


@dataclass(frozen=True, slots=True)
class _Entry:
    """An object's stored metadata."""

    info: ObjectInfo
    chunks: int
    nuid: str
    """Last token of its chunks' subject."""


class _ReplacedError(Exception):
    """Chunks are missing, perhaps deleted by a newer put."""


class NatsObjects:
    """One object store."""

    def __init__(self, bus: NatsSession, spec: ObjectStoreSpec) -> None:
        self._bus = bus
        self.name = spec.bucket_name(bus.root)
        self._stream = f"OBJ_{self.name}"
        self._metadata = f"$O.{self.name}.M."
        self._chunks = f"$O.{self.name}.C."

    async def put(self, name: str, data: bytes, attributes: Mapping[str, str] | None = None) -> ObjectInfo:
        """Store an object: its chunks first, then its metadata."""
        subject = self._metadata_subject(name)
        nuid = uuid.uuid4().hex
        with as_bus_errors(f"put {name} into {self.name}"):
            before = await self._entry(name)
            try:
                for start in range(0, len(data), _CHUNK_BYTES):
                    chunk = data[start : start + _CHUNK_BYTES]
                    await self._bus.jetstream.publish(self._chunks + nuid, chunk)
                description = _describe(name, self.name, nuid, data, attributes or {})
                stored = await self._bus.jetstream.publish(subject, json.dumps(description).encode(), headers=_ROLLUP)
            except nats.js.errors.APIError as error:  # after any other error it may be stored: see `_sweep`
                await self._delete_chunks(nuid)
                if "maximum bytes" in str(error):
                    raise ObjectStoreFullError(
                        f"{self.name} is full: {name} of {len(data)} bytes finds no room"
                    ) from error
                raise
            if before is not None:
                await self._delete_chunks(before.nuid)
        with suppress(BusError, nats.errors.Error, TimeoutError):  # the object is stored, and the next put sweeps again
            await self._sweep()
        return _info(description, stored.seq)

    async def get(self, name: str) -> StoredObject | None:
        """The object, or None."""
        with as_bus_errors(f"get {name} from {self.name}"):
            for _ in range(_ATTEMPTS):
                entry = await self._entry(name, strict=True)
                if entry is None:
                    return None
                with suppress(_ReplacedError):
                    return StoredObject(entry.info, await self._read(entry))
                if (now := await self._entry(name)) is not None and now.nuid == entry.nuid:
                    break
            raise CorruptObjectError(f"{name} in {self.name} is not whole: pieces are missing")

    async def _read(self, entry: _Entry) -> bytes:
        chunks: list[bytes] = []
        sequence = 1
        for _ in range(entry.chunks):
            try:
                chunk = await self._bus.jetstream.get_msg(
                    self._stream, seq=sequence, subject=self._chunks + entry.nuid, next=True
                )
            except nats.js.errors.NotFoundError as error:
                raise _ReplacedError from error
            chunks.append(chunk.data or b"")
            sequence = int(chunk.seq or 0) + 1
        data = b"".join(chunks)
        if len(data) != entry.info.size_bytes or hashlib.sha256(data).hexdigest() != entry.info.sha256:
            raise CorruptObjectError(f"{entry.info.name} in {self.name} is not what was put there: its digest differs")
        return data

    async def names(self) -> dict[str, ObjectInfo]:
        """All objects by name."""
        return {entry.info.name: entry.info for entry in await self._entries()}

    async def delete(self, name: str) -> None:
        """Delete the object: its metadata first, so that no reader finds a part of it."""
        subject = self._metadata_subject(name)
        with as_bus_errors(f"delete {name} from {self.name}"):
            entry = await self._entry(name)
            await self._bus.jetstream.purge_stream(self._stream, subject=subject)
            if entry is not None:
                await self._delete_chunks(entry.nuid)

    def _metadata_subject(self, name: str) -> str:
        if not name:
            raise BusError("an object's name must not be empty")
        try:
            return self._metadata + base64.urlsafe_b64encode(name.encode()).decode()
        except UnicodeEncodeError as error:
            raise BusError(f"an object cannot be named {name!r}") from error

    async def _entry(self, name: str, *, strict: bool = False) -> _Entry | None:
        """The metadata of a name; if it is malformed: None, or an error with `strict`."""
        try:
            return await self._entry_at(self._metadata_subject(name))
        except CorruptObjectError:
            if strict:
                raise
            return None

    async def _entry_at(self, subject: str) -> _Entry | None:
        try:
            message = await self._bus.jetstream.get_last_msg(self._stream, subject)
        except nats.js.errors.NotFoundError:
            return None
        try:
            description = json.loads(message.data or b"")
            if description.get("deleted"):
                return None
            return _Entry(_info(description, message.seq), int(description["chunks"]), str(description["nuid"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptObjectError(f"{subject} in {self.name} describes no object: {error}") from error

    async def _entries(self) -> list[_Entry]:
        with as_bus_errors(f"list {self.name}"):
            found = await asyncio.gather(
                *(self._entry_at(subject) for subject in await self._subjects(self._metadata)),
                return_exceptions=True,
            )
            for one in found:
                if isinstance(one, BaseException) and not isinstance(one, CorruptObjectError):
                    raise one
        return [one for one in found if isinstance(one, _Entry)]

    async def _subjects(self, prefix: str) -> list[str]:
        info = await self._bus.jetstream.stream_info(self._stream, subjects_filter=f"{prefix}>")
        return list(info.state.subjects or {})

    async def _delete_chunks(self, nuid: str) -> None:
        with suppress(nats.errors.Error, TimeoutError):  # the next put deletes them
            await self._bus.jetstream.purge_stream(self._stream, subject=self._chunks + nuid)

    async def _sweep(self) -> None:
        """Delete chunks of puts that were aborted or whose outcome is unknown."""
        known = {entry.nuid for entry in await self._entries()}
        for subject in await self._subjects(self._chunks):
            nuid = subject.removeprefix(self._chunks)
            if nuid in known:
                continue
            with suppress(nats.js.errors.NotFoundError):
                last = await self._bus.jetstream.get_last_msg(self._stream, subject)
                if last.time is not None and time.time() - last.time.timestamp() > _ORPHAN_AGE_S:
                    await self._delete_chunks(nuid)


def _describe(name: str, bucket: str, nuid: str, data: bytes, attributes: Mapping[str, str]) -> dict[str, Any]:
    """ADR-20's ObjectInfo."""
    return {
        "name": name,
        "bucket": bucket,
        "nuid": nuid,
        "size": len(data),
        "chunks": -(-len(data) // _CHUNK_BYTES),
        "digest": _DIGEST + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode(),
        "mtime": datetime.now(UTC).isoformat(),
        "options": {"max_chunk_size": _CHUNK_BYTES},
        "metadata": dict(attributes),
    }


def _info(description: dict[str, Any], revision: int | None) -> ObjectInfo:
    digest = base64.urlsafe_b64decode(str(description["digest"]).removeprefix(_DIGEST))
    return ObjectInfo(
        name=str(description["name"]),
        revision=int(revision or 0),
        size_bytes=int(description["size"]),
        sha256=digest.hex(),
        attributes={str(key): str(value) for key, value in (description.get("metadata") or {}).items()},
    )
