"""The codec: round trips of every message type, and nothing but CodecError for anything that is none."""

from __future__ import annotations

import json
import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.codec import (
    MAX_MESSAGE_BYTES,
    MESSAGE_TYPES,
    CodecError,
    decode,
    decode_as,
    encode,
    encode_json,
    is_json,
    to_plain,
)
from schemas.limits import LimitUpdate
from schemas.message import ColumnarMessage, Message
from schemas.queries import ExplainRequest, QueryError, StateRequest
from schemas.runs import SERIES, RunProfile
from tests.support.message_strategies import ANY_MESSAGE, MESSAGES

TYPES = list(MESSAGE_TYPES.values())
PLAIN_MESSAGE = st.one_of(*(strategy for model, strategy in MESSAGES.items() if not issubclass(model, ColumnarMessage)))
TABLE = st.one_of(*(strategy for model, strategy in MESSAGES.items() if issubclass(model, ColumnarMessage)))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def attempt(data: bytes) -> Message | CodecError:
    """What decoding gives; any other exception fails the test."""
    try:
        return decode(data)
    except CodecError as error:
        refusal = error
    assert refusal.kind in {"oversized", "malformed", "unknown_type", "invalid"}
    assert len(str(refusal)) < 1_000
    return refusal


def nested(depth: int, head: bytes) -> bytes:
    """A msgpack map with one key, whose value is arrays in arrays."""
    packed: bytes = msgpack.packb(head.decode())
    return b"\x81" + packed + b"\x91" * depth + b"\xc0"


def small_update(**fields: Any) -> LimitUpdate:
    columns = {"quota_us": [5_000, 7_000], "limit_bytes": [0, 1 << 30]}
    head = {"node": "n", "incarnation": 1, "epoch": 2, "seq": 3, "time_ns": 4, "apps": ("shop",)}
    return LimitUpdate.build(["web-0", "db-1"], columns, **(head | fields))


def test_every_message_type_has_a_strategy() -> None:
    assert set(MESSAGES) == set(TYPES)


@pytest.mark.parametrize("model", TYPES, ids=lambda model: model.__name__)
@given(data=st.data())
def test_every_message_survives_the_wire(model: type[Message], data: st.DataObject) -> None:
    message = data.draw(MESSAGES[model])

    decoded = decode(encode(message))

    assert type(decoded) is model
    assert decoded == message
    assert decode_as(encode(message), model) == message


@given(PLAIN_MESSAGE)
def test_json_is_accepted_for_what_has_no_columns(message: Message) -> None:
    text = encode_json(message)

    assert is_json(text)
    assert decode(text) == message
    assert decode_as(text, type(message)) == message


@given(TABLE)
def test_columns_become_rows_for_people(message: Message) -> None:
    assert isinstance(message, ColumnarMessage)
    plain = to_plain(message)

    assert [row["container"] for row in plain["rows"]] == message.keys
    for name in message.column_types:
        assert name not in plain
        np.testing.assert_array_equal([row[name] for row in plain["rows"]], message.column(name))
    assert plain["type"] == message.type_name


@given(ANY_MESSAGE, st.dictionaries(st.text(min_size=1, max_size=6).map("later_".__add__), VALUES, max_size=3))
def test_fields_of_a_later_version_are_ignored(message: Message, later: dict[str, Any]) -> None:
    fields = msgpack.unpackb(encode(message)) | later | {"schema_version": 99}

    assert decode(msgpack.packb(fields)) == message


@given(st.binary(max_size=200))
@example(b"")
@example(b"{")
@example(b"{}")
@example(b"\xc1")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xc6\xff\xff\xff\xff")
@example(b'{"type": "turnbuckle.query.v1.StateRequest", "app": "\xff"}')
def test_garbage_is_refused(data: bytes) -> None:
    assert isinstance(attempt(data), CodecError)


@given(ANY_MESSAGE, st.data())
def test_a_truncated_message_is_refused(message: Message, data: st.DataObject) -> None:
    encoded = encode(message)
    end = data.draw(st.integers(0, len(encoded) - 1))

    assert isinstance(attempt(encoded[:end]), CodecError)


@given(ANY_MESSAGE, st.binary(min_size=1, max_size=5))
def test_trailing_bytes_are_refused(message: Message, tail: bytes) -> None:
    assert isinstance(attempt(encode(message) + tail), CodecError)


@given(ANY_MESSAGE, st.data())
def test_a_flipped_bit_gives_a_message_or_a_codec_error(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(encoded) * 8 - 1))
        encoded[position // 8] ^= 1 << (position % 8)

    result = attempt(bytes(encoded))

    assert isinstance(result, CodecError) or decode(encode(result)) == result or holds_nan(result)


def holds_nan(message: Message) -> bool:
    """A flipped exponent bit can make a plain float NaN, which equals nothing."""
    return "nan" in repr(message)


@pytest.mark.parametrize("model", TYPES, ids=lambda model: model.__name__)
@given(data=st.data())
def test_any_value_in_any_field_gives_a_message_or_a_codec_error(model: type[Message], data: st.DataObject) -> None:
    fields = msgpack.unpackb(encode(data.draw(MESSAGES[model])))
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(VALUES)

    attempt(msgpack.packb(fields))


@given(st.dictionaries(st.sampled_from(["type", "schema_version", "app", "node", "last", "memory_limit"]), VALUES))
def test_any_map_gives_a_message_or_a_codec_error(fields: dict[str, Any]) -> None:
    attempt(msgpack.packb(fields))


@pytest.mark.parametrize("field", ["type", "schema_version", "later"])
@pytest.mark.parametrize("depth", [10, 500, 900, 990, 1_000, 1_010, 1_020, 1_024, 1_100, 100_000])
def test_deep_nesting_is_refused(field: str, depth: int) -> None:
    assert isinstance(attempt(nested(depth, field.encode())), CodecError)
    assert isinstance(attempt(b'{"%s":%s%s}' % (field.encode(), b"[" * depth, b"]" * depth)), CodecError)


@pytest.mark.parametrize("model", TYPES, ids=lambda model: model.__name__)
@pytest.mark.parametrize("depth", [10, 900, 1_000])
def test_deep_nesting_in_a_field_is_refused(model: type[Message], depth: int) -> None:
    for name in model.model_fields:
        head = msgpack.packb({"type": model.type_name})[1:]
        body = b"\x82" + head + msgpack.packb(name) + b"\x91" * depth + b"\xc0"
        assert isinstance(attempt(body), CodecError)


@pytest.mark.parametrize("digits", [19, 20, 400, 4_300, 5_000])
def test_huge_integers_in_json_are_refused_or_kept(digits: int) -> None:
    number = "9" * digits
    spec = f'{{"type": "turnbuckle.app.v1.AppSpec", "name": "a", "cpu_limit": 1, "memory_limit": {number}}}'
    request = f'{{"type": "turnbuckle.query.v1.ExplainRequest", "app": "a", "last": {number}}}'

    assert isinstance(attempt(spec.encode()), CodecError)
    result = attempt(request.encode())
    assert isinstance(result, CodecError) or result == ExplainRequest(app="a", last=int(number))


@pytest.mark.parametrize("series", [[{}], [10**400], [[1], 2], ["x"], [None], [-1.0], 5])
def test_a_series_that_is_no_list_of_numbers_is_refused(series: Any) -> None:
    """With nothing but a CodecError: anything else would end the subscription that meets it."""
    worker = {"worker": "master"} | {name: series if name == "cpu_cores" else [1.0] for name in SERIES}
    profile = {
        "run": "r",
        "task": {"task": "t"},
        "configuration": {"instance_type": "i", "workers": 1},
        "duration_s": 9.0,
        "end": "finished",
        "workers": [worker],
    }

    assert isinstance(attempt(json.dumps({"type": RunProfile.type_name} | profile).encode()), CodecError)


def test_a_message_that_only_its_json_makes_too_large_cannot_be_sent_as_json() -> None:
    """Who asked is told so, rather than left to wait for an answer that does not fit."""
    error = QueryError(code=1, message="\u0000" * (MAX_MESSAGE_BYTES // 2))

    assert len(encode(error)) < MAX_MESSAGE_BYTES
    with pytest.raises(CodecError, match="oversized"):
        encode_json(error)


def test_an_integer_beyond_64_bits_cannot_be_sent() -> None:
    with pytest.raises(CodecError, match="more than 64 bits") as caught:
        encode(ExplainRequest(app="a", last=1 << 64))
    assert caught.value.kind == "oversized"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "field", ["cpu_limit", "sigma", "kappa", "gamma", "upsilon", "container_min_cpu", "memory_limit"]
)
def test_a_spec_with_a_number_that_is_none_is_refused(field: str, value: float) -> None:
    fields = {"type": AppSpec.type_name, "name": "a", "cpu_limit": 1.0, "memory_limit": 1 << 30, field: value}

    for data in (msgpack.packb(fields), json.dumps(fields).encode()):
        with pytest.raises(CodecError) as caught:
            decode(data)
        assert caught.value.kind == "invalid"


@given(TABLE, st.data())
def test_a_column_of_another_length_is_refused(message: Message, data: st.DataObject) -> None:
    assert isinstance(message, ColumnarMessage)
    fields = msgpack.unpackb(encode(message))
    name = data.draw(st.sampled_from(sorted(message.column_types)))
    length = data.draw(st.integers(0, 60).filter(lambda n: n != len(fields[name])))
    fields[name] = bytes(length)

    with pytest.raises(CodecError, match=f"column {name} holds {length} bytes") as caught:
        decode(msgpack.packb(fields))
    assert caught.value.kind == "invalid"


def test_more_keys_than_rows_are_refused() -> None:
    fields = msgpack.unpackb(encode(small_update())) | {"containers": "web-0\ndb-1\ncache-2"}

    with pytest.raises(CodecError, match="column quota_us holds 16 bytes, 3 containers need 24"):
        decode(msgpack.packb(fields))


def test_a_type_of_another_kind_is_named() -> None:
    with pytest.raises(CodecError, match=r"no message type 'turnbuckle\.x'") as unknown:
        decode(msgpack.packb({"type": "turnbuckle.x"}))
    with pytest.raises(
        CodecError, match=r"expected turnbuckle\.query\.v1\.StateRequest, got 'turnbuckle\.query"
    ) as wrong:
        decode_as(encode(QueryError(code=404, message="no")), StateRequest)

    assert (unknown.value.kind, wrong.value.kind) == ("unknown_type", "wrong_type")


@given(VALUES.filter(lambda value: not isinstance(value, str)))
def test_a_type_name_that_is_no_text_is_refused(name: Any) -> None:
    data = msgpack.packb({"type": name})

    with pytest.raises(CodecError):
        decode(data)
    with pytest.raises(CodecError, match="wrong_type"):
        decode_as(data, StateRequest)


def test_requests_by_hand_need_no_type_name() -> None:
    assert decode_as(b"", StateRequest) == StateRequest()
    assert decode_as(b"{}", StateRequest) == StateRequest()
    assert decode_as(b'{"app": "shop"}', ExplainRequest) == ExplainRequest(app="shop")
    with pytest.raises(CodecError, match="app: Field required"):
        decode_as(b"", ExplainRequest)


def test_json_is_recognised_by_its_first_byte() -> None:
    assert is_json(b"")
    assert is_json(b'{"app": 1}')
    assert not is_json(encode(StateRequest()))


def test_a_message_may_fill_a_payload_but_not_pass_it() -> None:
    room = MAX_MESSAGE_BYTES - len(encode(QueryError(code=500, message="x" * 100_000))) + 100_000

    assert len(encode(QueryError(code=500, message="x" * room))) == MAX_MESSAGE_BYTES
    with pytest.raises(CodecError, match="exceeds 1048576") as caught:
        encode(QueryError(code=500, message="x" * (room + 1)))
    assert caught.value.kind == "oversized"
    with pytest.raises(CodecError, match="oversized"):
        decode(b"{" + b" " * MAX_MESSAGE_BYTES)


def test_columns_are_read_only_views_of_the_payload() -> None:
    update = decode_as(encode(small_update()), LimitUpdate)

    quota_us = update.column("quota_us")

    assert quota_us.tolist() == [5_000, 7_000]
    assert not quota_us.flags.writeable
    assert not quota_us.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        quota_us[0] = 1


def test_columns_are_little_endian_on_the_wire() -> None:
    # 5,000 = 0x1388 and 7,000 = 0x1B58, eight bytes each, lowest first.
    assert small_update().quota_us.hex() == "8813000000000000581b000000000000"


def test_building_refuses_a_column_of_another_length() -> None:
    with pytest.raises(ValueError, match="column limit_bytes holds 8 bytes, 2 containers need 16"):
        LimitUpdate.build(
            ["a", "b"],
            {"quota_us": [1, 2], "limit_bytes": [1]},
            node="n",
            incarnation=1,
            epoch=1,
            seq=1,
            time_ns=1,
            apps=(),
        )


def test_a_table_without_rows_is_a_message() -> None:
    empty: dict[str, list[int]] = {name: [] for name in CfsBatch.column_types}
    head = {"incarnation": 1, "report_seq": 1, "time_ns": 1, "period_us": 100_000, "host_cpus": 2}
    batch = CfsBatch.build([], empty, app="a", node="n", **head)

    assert decode(encode(batch)) == batch
    assert (batch.row_count, batch.keys, batch.rows()) == (0, [], [])
