"""The emitted AsyncAPI document is well-formed, complete and fresh."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from schemas.codec import MESSAGE_TYPES, encode
from schemas.containers import ContainerEvent
from schemas.message import ColumnarMessage, Message
from schemas.queries import ExplainRequest
from schemas.registry import CHANNELS, ENDPOINTS
from schemas.service import Delivery
from schemas.streams import BUCKETS, STREAMS
from scripts.asyncapi import words
from scripts.asyncapi.document import CONTRACT_VERSION, document, text

ROOT = Path(__file__).resolve().parents[3]
made = cache(document)
"""Made once, and not by an import: every process of `make test` imports every file."""


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolve(reference: str) -> Any:
    node: Any = made()
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


def payload_schema(model: type[Message]) -> dict[str, Any]:
    payload: dict[str, Any] = made()["components"]["messages"][model.__name__]["payload"]
    return payload | {"components": made()["components"]}


def test_the_committed_document_is_fresh_however_often_it_is_emitted() -> None:
    committed = (ROOT / "docs/asyncapi.json").read_text()

    assert [text(), text()] == [committed, committed], "run `make docs` and commit docs/asyncapi.json"


def test_version_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["version"] == CONTRACT_VERSION


def test_every_reference_resolves_inside_the_document() -> None:
    found = list(references(made()))

    assert len(found) > 50
    for reference in found:
        assert reference.startswith("#/")
        assert isinstance(resolve(reference), dict), reference


@pytest.mark.parametrize("model", MESSAGE_TYPES.values(), ids=lambda model: model.__name__)
@pytest.mark.parametrize("draft", [jsonschema.Draft7Validator, jsonschema.Draft202012Validator])
def test_every_payload_is_a_valid_json_schema(model: type[Message], draft: Any) -> None:
    draft.check_schema(payload_schema(model))


@pytest.mark.parametrize("draft", [jsonschema.Draft7Validator, jsonschema.Draft202012Validator])
def test_every_schema_that_payloads_refer_to_is_valid(draft: Any) -> None:
    schemas = made()["components"]["schemas"]

    assert len(schemas) > len(MESSAGE_TYPES)
    for schema in schemas.values():
        draft.check_schema(schema)


def test_payload_schema_accepts_a_message_and_refuses_another() -> None:
    validator = jsonschema.Draft202012Validator(payload_schema(ExplainRequest))

    assert validator.is_valid({"type": "turnbuckle.query.v1.ExplainRequest", "app": "shop", "later_field": 1})
    assert not validator.is_valid({"type": "turnbuckle.query.v1.StateRequest", "app": "shop"})
    assert not validator.is_valid({"type": "turnbuckle.query.v1.ExplainRequest"})


@pytest.mark.parametrize("model", MESSAGE_TYPES.values(), ids=lambda model: model.__name__)
def test_every_message_has_an_example_that_its_schema_accepts(model: type[Message]) -> None:
    (example,) = made()["components"]["messages"][model.__name__]["examples"]

    jsonschema.Draft202012Validator(payload_schema(model)).validate(example["payload"])


def test_an_example_shows_the_numbers_of_a_column() -> None:
    (example,) = made()["components"]["messages"]["LimitUpdate"]["examples"]

    assert example["payload"]["containers"] == "web-4f0c9a1b2d3e"
    assert example["payload"]["quota_us"] == "int64 [62000]"


@pytest.mark.parametrize(
    "model", [m for m in MESSAGE_TYPES.values() if issubclass(m, ColumnarMessage)], ids=lambda model: model.__name__
)
def test_columns_are_described_with_their_element_type(model: type[ColumnarMessage]) -> None:
    properties = made()["components"]["schemas"][model.__name__]["properties"]

    assert model.column_types
    for name, kind in model.column_types.items():
        assert properties[name]["format"] == "binary"
        assert properties[name]["x-numpy-dtype"] == kind.str
        assert kind.name in properties[name]["description"]


def test_every_channel_has_its_address_parameters_and_operations() -> None:
    for channel in CHANNELS:
        name = channel.name
        emitted = made()["channels"][name]
        assert emitted["address"] == "{root}." + channel.template.text
        assert set(emitted["parameters"]) == set(re.findall(r"\{(\w+)\}", emitted["address"]))
        for action, services in (("send", channel.senders), ("receive", channel.receivers)):
            for service in services:
                operation = made()["operations"][f"{service}_{action}_{name}"]
                assert operation["action"] == action
                assert ("reply" in operation) == (channel.delivery is Delivery.REQUEST)


def test_every_query_is_received_and_replied_to() -> None:
    for endpoint in ENDPOINTS:
        operation = made()["operations"][f"{endpoint.service}_receive_{endpoint.request.__name__}"]
        channel = resolve(operation["channel"]["$ref"])
        assert channel["address"] == f"{{root}}.{endpoint.template.text}"
        replies = {reference["$ref"].rpartition("/")[2] for reference in operation["reply"]["messages"]}
        assert replies == {endpoint.reply.__name__, "QueryError"}


def test_channel_and_message_names_are_unique() -> None:
    addresses = [c["address"] for c in made()["channels"].values() if c["address"] is not None]

    assert all(one != other for one, other in itertools.combinations(addresses, 2))
    assert len(made()["components"]["messages"]) == len(MESSAGE_TYPES)


def test_streams_and_buckets_are_listed() -> None:
    assert [s["name"] for s in made()["x-streams"]] == [stream.stream_name("tb") for stream in STREAMS]
    assert [b["name"] for b in made()["x-kv-buckets"]] == [bucket.bucket_name("tb") for bucket in BUCKETS]


def test_attribute_docstrings_become_descriptions() -> None:
    properties = made()["components"]["schemas"]["ContainerEvent"]["properties"]

    assert properties["quota_us"]["description"] == "Initial limit of the container; -1: unlimited."


def test_members_of_enums_and_codes_are_described() -> None:
    schemas = made()["components"]["schemas"]

    assert "- `oom_wait`: Usage reached the limit" in schemas["OomKind"]["description"]
    assert schemas["OomKind"]["description"].count("\n- ") == len(schemas["OomKind"]["enum"])
    assert "- `4 DEMAND_ROSE`" in schemas["LimitDecisions"]["properties"]["quota_reason"]["description"]
    for name in words.CODES:
        assert any("x-numpy-dtype" in schema.get("properties", {}).get(name, {}) for schema in schemas.values()), name


def test_words_for_fields_without_any_are_needed() -> None:
    said = {
        (name, property_.get("description"))
        for schema in made()["components"]["schemas"].values()
        for name, property_ in schema.get("properties", {}).items()
    }

    assert set(words.FIELDS.items()) <= said


def test_encoded_type_name_is_the_documented_one() -> None:
    event = ContainerEvent(
        change="exited", app="shop", node="n", container="web-0", name="web", source="docker", time_ns=1, incarnation=1
    )

    constant = made()["components"]["messages"]["ContainerEvent"]["payload"]["allOf"][1]["properties"]["type"]
    assert constant["const"].encode() in encode(event)
    assert json.loads(text()) == made()
