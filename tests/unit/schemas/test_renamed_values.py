"""Values and fields that were renamed on the wire: streams, buckets, journals and files of 0.1 stay readable."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgpack
import pytest
from pydantic import AliasChoices

from schemas.codec import CodecError, decode, encode
from schemas.message import Message
from schemas.network import RouteKind
from schemas.oom import OomCause, OomEvent, OomKind
from schemas.runs import RunEnd
from scripts.asyncapi.examples import EXAMPLES
from tests.support.oom_events import oom_event

RENAMED: dict[type[StrEnum], dict[str, str]] = {
    OomKind: {
        "near": "near_limit",
        "trap": "oom_wait",
        "refusal": "grant_denied",
        "release": "oom_killer_enabled",
    },
    OomCause: {"answer": "allocator_reply"},
    RouteKind: {"release": "override_removed"},
    RunEnd: {"time_up": "timed_out"},
}


@pytest.mark.parametrize("enum", RENAMED)
def test_an_old_value_is_the_new_one(enum: type[StrEnum]) -> None:
    assert {old: enum(old).value for old in RENAMED[enum]} == RENAMED[enum]
    assert not set(RENAMED[enum]) & {member.value for member in enum}


def test_a_stored_event_of_the_version_before_is_decoded() -> None:
    stored = msgpack.unpackb(encode(oom_event())) | {"kind": "trap", "cause": "answer"}

    event = decode(msgpack.packb(stored))

    assert isinstance(event, OomEvent)
    assert (event.kind, event.cause) == (OomKind.OOM_WAIT, OomCause.ALLOCATOR_REPLY)


def test_a_value_of_no_version_is_refused() -> None:
    stored = msgpack.unpackb(encode(oom_event())) | {"kind": "trapped"}

    with pytest.raises(CodecError):
        decode(msgpack.packb(stored))


def earlier_names(model: type[Message]) -> dict[str, str]:
    """Earlier name by field of a message."""
    aliases = {name: field.validation_alias for name, field in model.model_fields.items()}
    return {name: str(found.choices[1]) for name, found in aliases.items() if isinstance(found, AliasChoices)}


def models(base: type[Message] = Message) -> list[type[Message]]:
    """Messages of the contract."""
    children = [model for child in base.__subclasses__() for model in models(child)]
    return ([base] if base.__module__.startswith("schemas.") else []) + children


EARLIER = {name: old for model in models() for name, old in earlier_names(model).items()}


def as_before(fields: Any) -> Any:
    """A message's plain fields under their earlier names, nested ones too."""
    if isinstance(fields, list):
        return [as_before(each) for each in fields]
    if not isinstance(fields, dict):
        return fields
    return {EARLIER.get(name, name): as_before(value) for name, value in fields.items()}


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.type_name)
def test_a_message_with_the_earlier_names_is_read(message: Message) -> None:
    stored = msgpack.unpackb(encode(message))

    assert decode(msgpack.packb(as_before(stored))) == message


def test_no_field_has_the_earlier_name_of_another() -> None:
    assert {"limit_update_seq": "order_seq", "managed": "ours", "blocked_us": "paused_us"}.items() <= EARLIER.items()
    assert [model for model in models() if set(EARLIER.values()) & set(model.model_fields)] == []
