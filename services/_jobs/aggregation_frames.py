"""What workers and aggregators send each other over TCP: a header in msgpack, then fp32 values as they lie in memory.

A connection begins with `Challenge`, `Hello`, `Welcome`: each side shows that it has the job's key, which never
crosses the network. The contents that follow are not encrypted, and nothing protects them from who can change packets.
A frame is magic, length of the header (2 bytes) and of the content (8 bytes, big endian), header, content.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Annotated, Final, Literal, NamedTuple

import msgpack
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

MAGIC: Final = b"TBA1"
PREFIX: Final = struct.Struct("!4sHQ")
MOST_HEADER_BYTES: Final = 4096
NONCE_BYTES: Final = 16
LEAST_KEY_BYTES: Final = 16
VALUE_BYTES: Final = 4
"""Of one fp32 value; little endian."""
MOST_RANGES: Final = 4096
MOST_RANKS: Final = 4096
MOST_TEXT: Final = 255
"""Characters."""
MOST_MOMENTS: Final = 8
"""Of an optimizer, by their names."""

RangeIndex = Annotated[int, Field(ge=0, lt=MOST_RANGES)]
Step = Annotated[int, Field(ge=0, lt=1 << 53)]
Version = Annotated[int, Field(ge=1, lt=1 << 53)]
Text = Annotated[str, Field(max_length=MOST_TEXT)]
Nonce = Annotated[bytes, Field(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Proof = Annotated[bytes, Field(min_length=32, max_length=32)]
Role = Literal["worker", "aggregator"]


class FrameError(ValueError):
    """Bytes that are no frame, or a frame that was not due; the text says which."""


class RangePlace(NamedTuple):
    """Where values [first, last) of a job's flat vector are aggregated."""

    first: int
    last: int
    version: int
    """Rises with each move of the range."""
    address: str
    """HOST:PORT."""


class Header(BaseModel):
    """The fields of one kind of frame."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Challenge(Header):
    """Aggregator to whom connects: a number that was not used before."""

    kind: Literal["challenge"] = "challenge"
    nonce: Nonce


class Hello(Header):
    """Who connects, and the proof that it has the key of this role in this job."""

    kind: Literal["hello"] = "hello"
    job: Text
    role: Role
    rank: Annotated[int, Field(ge=0, lt=MOST_RANKS)] = 0
    """Of a worker."""
    nonce: Nonce
    proof: Proof


class Welcome(Header):
    """The aggregator's proof that it has the same key."""

    kind: Literal["welcome"] = "welcome"
    proof: Proof


class DeniedHeader(Header):
    """The aggregator ends the connection: the job is not there, or the proof is wrong."""

    kind: Literal["denied"] = "denied"


class PushHeader(Header):
    """Worker: a range's gradient, or at step 0 its parameters (rank 0's count); the connection says of which rank."""

    kind: Literal["push"] = "push"
    range: RangeIndex
    step: Step
    version: Version
    vectors: Annotated[tuple[Text, ...], Field(max_length=MOST_MOMENTS)] = ()
    """Of rank 0 at step 0: the optimizer's moments that stand behind the parameters, in the order of their names."""
    scalars: Annotated[dict[Text, float], Field(max_length=MOST_MOMENTS)] = {}
    """With `vectors`: what the optimizer has once for all values, such as its number of steps."""


class FetchHeader(Header):
    """Worker: one of the optimizer's moments after the last finished step, for a checkpoint."""

    kind: Literal["fetch"] = "fetch"
    range: RangeIndex
    step: Step
    """The last finished one."""
    version: Version
    vector: Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]
    """Its name in ``torch.optim``, such as ``exp_avg``."""


class ResultHeader(Header):
    """Answer: a range's parameters after a step, or the moment that was asked for."""

    kind: Literal["result"] = "result"
    range: RangeIndex
    step: Step
    vector: Text = ""
    """Name of the moment; empty: parameters."""
    scalars: Annotated[dict[Text, float], Field(max_length=MOST_MOMENTS)] = {}
    """With a moment: what the optimizer has once for all values."""


class MovedHeader(Header):
    """Answer: push the range there, as this version."""

    kind: Literal["moved"] = "moved"
    range: RangeIndex
    version: Version
    address: Text


class RefusedHeader(Header):
    """Answer: a push that cannot be taken, and why."""

    kind: Literal["refused"] = "refused"
    range: RangeIndex
    step: Step
    reason: Text


class StateHeader(Header):
    """Aggregator to the next owner: parameters, then the optimizer's vectors in the order of their names."""

    kind: Literal["state"] = "state"
    range: RangeIndex
    version: Version
    done: Annotated[int, Field(ge=-1, lt=1 << 53)]
    """The last finished step; -1: none, and no content."""
    vectors: Annotated[tuple[Text, ...], Field(max_length=MOST_MOMENTS)]
    scalars: Annotated[dict[Text, float], Field(max_length=MOST_MOMENTS)]


class TakenHeader(Header):
    """Answer: the next owner has the state, or had it already."""

    kind: Literal["taken"] = "taken"
    range: RangeIndex
    version: Version
    refused: Text = ""
    """Why it does not take it."""


AnyHeader = Annotated[
    Challenge
    | Hello
    | Welcome
    | DeniedHeader
    | PushHeader
    | FetchHeader
    | ResultHeader
    | MovedHeader
    | RefusedHeader
    | StateHeader
    | TakenHeader,
    Field(discriminator="kind"),
]
_HEADERS: Final[TypeAdapter[AnyHeader]] = TypeAdapter(AnyHeader)


def encode_frame(header: Header, content_bytes: int = 0) -> bytes:
    """All of a frame that comes before so many bytes of content."""
    packed = msgpack.packb(header.model_dump())
    return PREFIX.pack(MAGIC, len(packed), content_bytes) + bytes(packed)


def decode_prefix(data: bytes | bytearray) -> tuple[int, int]:
    """Bytes of the header, and of the content, which the receiver bounds once it knows the header.

    Raises:
        FrameError: no frame begins here.
    """
    magic, header_bytes, content_bytes = PREFIX.unpack(data)
    if magic != MAGIC or header_bytes > MOST_HEADER_BYTES:
        raise FrameError("no frame of this protocol begins here")
    return header_bytes, content_bytes


def decode_header(data: bytes | bytearray) -> AnyHeader:
    """The header of a frame.

    Raises:
        FrameError: it is not one.
    """
    try:
        return _HEADERS.validate_python(msgpack.unpackb(data, use_list=False))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise FrameError(f"a header cannot be used: {first['msg']}") from error
    except (msgpack.UnpackException, ValueError, TypeError, RecursionError) as error:
        raise FrameError("a header is not msgpack") from error


def client_proof(key: bytes, peer: tuple[str, Role, int], server_nonce: bytes, client_nonce: bytes) -> bytes:
    """HMAC-SHA256 over what is claimed (job, role, rank) and both sides' numbers."""
    job, role, rank = peer
    claimed = msgpack.packb(("turnbuckle aggregation client", job, role, rank, server_nonce, client_nonce))
    return hmac.digest(key, claimed, hashlib.sha256)


def server_proof(key: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """HMAC-SHA256 by which the aggregator shows that it has the key, too."""
    claimed = msgpack.packb(("turnbuckle aggregation server", server_nonce, client_nonce))
    return hmac.digest(key, claimed, hashlib.sha256)


def address_of(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT.

    Raises:
        ValueError: it has another form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
