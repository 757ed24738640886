"""Object stores of `nats`, in the layout of NATS ADR-20 (``nats object ls`` shows them).

nats-py's own ``ObjectStore`` is not used: its `get` waits for ever where pieces are missing (a reader meets a put of
the same name, or a spoiled store), its `list` leaves a consumer behind when it is cancelled, and pieces of a put that
was killed stay for ever. Here pieces are asked for one by one, each with a deadline, and are never read from a
replica that may lag behind.
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

_PIECE_BYTES: Final = 128 << 10
_ATTEMPTS: Final = 3
"""A reader that meets puts of the same name begins again."""
_ABANDONED_S: Final = 600.0
"""Pieces that belong to no object are taken away when they are so old: no put takes that long."""
_ROLLUP: Final = {"Nats-Rollup": "sub"}
_DIGEST: Final = "SHA-256="


@dataclass(frozen=True, slots=True)
class _Entry:
    """An object's description, as stored."""

    info: ObjectInfo
    pieces: int
    nuid: str
    """Where its pieces are."""


class _ReplacedError(Exception):
    """Pieces are missing: gone with a newer put, perhaps."""


class NatsObjects:
    """One object store."""

    def __init__(self, bus: NatsSession, spec: ObjectStoreSpec) -> None:
        self._bus = bus
        self.name = spec.bucket_name(bus.root)
        self._stream = f"OBJ_{self.name}"
        self._descriptions = f"$O.{self.name}.M."
        self._pieces = f"$O.{self.name}.C."

    async def put(self, name: str, data: bytes, attributes: Mapping[str, str] | None = None) -> ObjectInfo:
        """Store an object: its pieces first, then the description that makes them one."""
        subject = self._description_of(name)
        nuid = uuid.uuid4().hex
        with as_bus_errors(f"put {name} into {self.name}"):
            before = await self._entry(name)
            try:
                for start in range(0, len(data), _PIECE_BYTES):
                    piece = data[start : start + _PIECE_BYTES]
                    await self._bus.jetstream.publish(self._pieces + nuid, piece)
                description = _describe(name, self.name, nuid, data, attributes or {})
                stored = await self._bus.jetstream.publish(subject, json.dumps(description).encode(), headers=_ROLLUP)
            except nats.js.errors.APIError as error:  # any other leaves open whether it is stored: see `_sweep`
                await self._forget_pieces(nuid)
                if "maximum bytes" in str(error):
                    raise ObjectStoreFullError(
                        f"{self.name} is full: {name} of {len(data)} bytes finds no room"
                    ) from error
                raise
            if before is not None:
                await self._forget_pieces(before.nuid)
        with suppress(BusError, nats.errors.Error, TimeoutError):  # it is stored, and the next put sweeps again
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
        pieces: list[bytes] = []
        sequence = 1
        for _ in range(entry.pieces):
            try:
                piece = await self._bus.jetstream.get_msg(
                    self._stream, seq=sequence, subject=self._pieces + entry.nuid, next=True
                )
            except nats.js.errors.NotFoundError as error:
                raise _ReplacedError from error
            pieces.append(piece.data or b"")
            sequence = int(piece.seq or 0) + 1
        data = b"".join(pieces)
        if len(data) != entry.info.size_bytes or hashlib.sha256(data).hexdigest() != entry.info.sha256:
            raise CorruptObjectError(f"{entry.info.name} in {self.name} is not what was put there: its digest differs")
        return data

    async def names(self) -> dict[str, ObjectInfo]:
        """All objects by name."""
        return {entry.info.name: entry.info for entry in await self._entries()}

    async def delete(self, name: str) -> None:
        """Remove the object: its description first, so that nobody finds half of it."""
        subject = self._description_of(name)
        with as_bus_errors(f"delete {name} from {self.name}"):
            entry = await self._entry(name)
            await self._bus.jetstream.purge_stream(self._stream, subject=subject)
            if entry is not None:
                await self._forget_pieces(entry.nuid)

    def _description_of(self, name: str) -> str:
        if not name:
            raise BusError("an object's name must not be empty")
        try:
            return self._descriptions + base64.urlsafe_b64encode(name.encode()).decode()
        except UnicodeEncodeError as error:
            raise BusError(f"an object cannot be named {name!r}") from error

    async def _entry(self, name: str, *, strict: bool = False) -> _Entry | None:
        """What is noted under a name; where that is garbage: None, or with `strict` an error."""
        try:
            return await self._entry_at(self._description_of(name))
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
                *(self._entry_at(subject) for subject in await self._subjects(self._descriptions)),
                return_exceptions=True,
            )
            for one in found:
                if isinstance(one, BaseException) and not isinstance(one, CorruptObjectError):
                    raise one
        return [one for one in found if isinstance(one, _Entry)]

    async def _subjects(self, prefix: str) -> list[str]:
        info = await self._bus.jetstream.stream_info(self._stream, subjects_filter=f"{prefix}>")
        return list(info.state.subjects or {})

    async def _forget_pieces(self, nuid: str) -> None:
        with suppress(nats.errors.Error, TimeoutError):  # the next put sweeps them up
            await self._bus.jetstream.purge_stream(self._stream, subject=self._pieces + nuid)

    async def _sweep(self) -> None:
        """Take pieces away that a killed put has left, or one whose end is not known."""
        known = {entry.nuid for entry in await self._entries()}
        for subject in await self._subjects(self._pieces):
            nuid = subject.removeprefix(self._pieces)
            if nuid in known:
                continue
            with suppress(nats.js.errors.NotFoundError):
                last = await self._bus.jetstream.get_last_msg(self._stream, subject)
                if last.time is not None and time.time() - last.time.timestamp() > _ABANDONED_S:
                    await self._forget_pieces(nuid)


def _describe(name: str, bucket: str, nuid: str, data: bytes, attributes: Mapping[str, str]) -> dict[str, Any]:
    """ADR-20's ObjectInfo."""
    return {
        "name": name,
        "bucket": bucket,
        "nuid": nuid,
        "size": len(data),
        "chunks": -(-len(data) // _PIECE_BYTES),
        "digest": _DIGEST + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode(),
        "mtime": datetime.now(UTC).isoformat(),
        "options": {"max_chunk_size": _PIECE_BYTES},
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
