"""Messages to bytes and back: msgpack on the bus, JSON for people and for ``nats req``."""

from __future__ import annotations

import json
from datetime import date
from typing import Any, Final, TypeVar

import msgpack
from pydantic import ValidationError

from schemas.aggregations import Aggregation, AggregatorInfo
from schemas.apps import AppSpec
from schemas.containers import NodeInfo
from schemas.kubeoperator import PodSelectors
from schemas.leases import Heartbeat, Lease, Members
from schemas.message import ColumnarMessage, Message
from schemas.network import ReconcilerInfo
from schemas.queries import QueryError
from schemas.registry import CHANNELS, ENDPOINTS
from schemas.remote_memory import MemoryHostInfo
from schemas.scheduling import JobSpec, RunnerInfo
from schemas.trainings import TrainingGeneration

MAX_MESSAGE_BYTES: Final = 1 << 20
"""The server's default max_payload."""
TYPE_KEY: Final = "type"
VERSION_KEY: Final = "schema_version"

_ON_NO_CHANNEL: Final = (
    *(Aggregation, AggregatorInfo, AppSpec, Heartbeat, JobSpec, Lease, Members, NodeInfo, PodSelectors),
    *(MemoryHostInfo, QueryError, ReconcilerInfo, RunnerInfo, TrainingGeneration),
)
"""Values of KV buckets, and the reply to a failed request."""


def _message_types() -> set[type[Message]]:
    """Top-level message types; nested ones are not included."""
    travelling = [(one.message, one.reply) for one in CHANNELS] + [(one.request, one.reply) for one in ENDPOINTS]
    return {one for pair in travelling for one in pair if one is not None} | set(_ON_NO_CHANNEL)


MESSAGE_TYPES: Final[dict[str, type[Message]]] = {
    message.type_name: message for message in sorted(_message_types(), key=lambda one: one.__name__)
}

MessageT = TypeVar("MessageT", bound=Message)


class CodecError(ValueError):
    """Bytes that are not a valid message. `kind` is a short constant for counters."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


def encode(message: Message) -> bytes:
    """The message as msgpack.

    Raises:
        CodecError: it exceeds `MAX_MESSAGE_BYTES`, or an integer in it exceeds 64 bits.
    """
    # Columnar messages are flat, so their field dictionary is already what msgpack needs (no model_dump: 2 us saved).
    fields = message.__dict__ if isinstance(message, ColumnarMessage) else _fields(message)
    try:
        data: bytes = msgpack.packb(
            {TYPE_KEY: message.type_name, VERSION_KEY: message.schema_version, **fields}, default=_as_plain
        )
    except OverflowError as error:
        raise CodecError("oversized", f"{message.type_name} holds an integer of more than 64 bits") from error
    return _sendable(message, data)


def _fields(message: Message) -> dict[str, Any]:
    return message.model_dump(mode="python", exclude_defaults=message.sparse)


def _sendable(message: Message, data: bytes) -> bytes:
    if len(data) > MAX_MESSAGE_BYTES:
        raise CodecError("oversized", f"{message.type_name} of {len(data)} bytes exceeds {MAX_MESSAGE_BYTES}")
    return data


def _as_plain(value: object) -> str:
    """Encode a type that msgpack lacks: dates as ISO 8601. Also called for integers of more than 64 bits."""
    if isinstance(value, date):
        return value.isoformat()
    raise OverflowError if isinstance(value, int) else TypeError(f"cannot send a {type(value).__name__}")


def encode_json(message: Message) -> bytes:
    """The message as JSON with its columns as rows, for people and other programs.

    Raises:
        CodecError: it exceeds `MAX_MESSAGE_BYTES`.
    """
    return _sendable(message, json.dumps(to_plain(message)).encode())


def to_plain(message: Message) -> dict[str, Any]:
    """The message as plain JSON types; columns become a list of rows."""
    head = {TYPE_KEY: message.type_name, VERSION_KEY: message.schema_version}
    if isinstance(message, ColumnarMessage):
        skip = {"containers", *message.column_types}
        return head | message.model_dump(mode="json", exclude=skip) | {"rows": message.rows()}
    return head | message.model_dump(mode="json")


def decode(data: bytes) -> Message:
    """The message in ``data``, whatever its type. A payload that starts with ``{`` is read as JSON.

    Raises:
        CodecError: not msgpack or JSON, no known type, oversized, or not valid for its type.
    """
    fields = _unpack(data)
    name = fields.pop(TYPE_KEY, None)
    fields.pop(VERSION_KEY, None)
    model = MESSAGE_TYPES.get(name) if isinstance(name, str) else None
    if model is None:
        raise CodecError("unknown_type", f"no message type {_shown(name)}")
    return _validate(model, fields)


def decode_as(data: bytes, model: type[MessageT]) -> MessageT:
    """The message in ``data``, which must be a ``model``; its type name may be left out (``nats req`` by hand).

    Raises:
        CodecError: as `decode`, or the type is another one.
    """
    fields = _unpack(data) if data else {}
    name = fields.pop(TYPE_KEY, model.type_name)
    fields.pop(VERSION_KEY, None)
    if name != model.type_name:
        raise CodecError("wrong_type", f"expected {model.type_name}, got {_shown(name)}")
    return _validate(model, fields)


def is_json(data: bytes) -> bool:
    """Whether a request is JSON or empty (``nats req``), so that its reply is JSON."""
    return not data or data[:1] == b"{"


def _shown(name: object) -> str:
    """A type name for an error text; other values by their Python type: deep nesting cannot be printed."""
    return repr(name[:80]) if isinstance(name, str) else f"a {type(name).__name__}"


def _unpack(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_MESSAGE_BYTES:
        raise CodecError("oversized", f"{len(data)} bytes exceed {MAX_MESSAGE_BYTES}")
    try:
        fields = _parse_json(data) if data[:1] == b"{" else msgpack.unpackb(data, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise CodecError("malformed", f"neither msgpack nor JSON ({type(error).__name__})") from error
    if not isinstance(fields, dict):
        raise CodecError("malformed", "not a map")
    return fields


def _parse_json(data: bytes) -> Any:
    """Strict UTF-8 (`json.loads` is lenient). Half a surrogate pair has no bytes: it could not be sent or printed."""
    text = data.decode()
    fields = json.loads(text)
    if "\\u" in text:
        json.dumps(fields, ensure_ascii=False).encode()
    return fields


def _validate(model: type[MessageT], fields: dict[str, Any]) -> MessageT:
    try:
        return model.__pydantic_validator__.validate_python(fields)  # type: ignore[no-any-return]  # as model_validate
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CodecError("invalid", f"{model.type_name} {where}: {first['msg']}") from error
    except RecursionError as error:  # ByteSize prints what it cannot read
        raise CodecError("malformed", f"{model.type_name} is nested too deeply") from error
