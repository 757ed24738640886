"""Values of enums that were renamed on the wire: streams, journals and files of 0.1 stay readable."""

from __future__ import annotations

from enum import StrEnum

import msgpack
import pytest

from schemas.codec import CodecError, decode, encode
from schemas.network import RouteKind
from schemas.oom import OomCause, OomEvent, OomKind
from schemas.runs import RunEnd
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
