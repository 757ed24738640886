"""Messages only ever gain optional fields: their JSON schemas are compared with committed snapshots."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from schemas.containers import ContainerEvent
from scripts.schema_snapshots import (
    SNAPSHOTS,
    all_breaking_changes,
    breaking_changes,
    current_schemas,
    snapshot_text,
    stored_schemas,
    write_snapshots,
)


@pytest.fixture
def schema() -> dict[str, Any]:
    return ContainerEvent.model_json_schema()


def test_no_message_breaks_its_snapshot() -> None:
    faults = all_breaking_changes(stored_schemas(), current_schemas())

    assert not faults, "old readers or writers would break: add a new message type instead\n" + "\n".join(faults)


def test_snapshots_are_fresh() -> None:
    wanted = {f"{name}.json": snapshot_text(schema) for name, schema in current_schemas().items()}
    stored = {path.name: path.read_text() for path in SNAPSHOTS.glob("*.json")}

    stale = sorted(name for name in wanted.keys() | stored.keys() if wanted.get(name) != stored.get(name))

    assert not stale, f"run `make snapshots` and commit: {', '.join(stale)}"


def test_an_added_optional_field_breaks_nothing(schema: dict[str, Any]) -> None:
    new = copy.deepcopy(schema)
    new["properties"]["image"] = {"type": "string", "default": ""}

    assert breaking_changes(schema, new) == []


def test_better_prose_changes_no_snapshot() -> None:
    assert all("description" not in text for text in map(snapshot_text, current_schemas().values()))


def test_a_field_named_like_a_keyword_is_kept() -> None:
    old = {"properties": {"title": {"type": "string", "title": "Title"}}}

    assert breaking_changes(old, {"properties": {}}) == ["field title was removed"]
    assert breaking_changes(old, {"properties": {"title": {"type": "string", "title": "Other"}}}) == []


def test_a_removed_field_is_breaking(schema: dict[str, Any]) -> None:
    new = copy.deepcopy(schema)
    del new["properties"]["reason"]

    assert breaking_changes(schema, new) == ["field reason was removed"]


def test_a_changed_type_is_breaking(schema: dict[str, Any]) -> None:
    new = copy.deepcopy(schema)
    new["properties"]["time_ns"]["type"] = "string"

    assert breaking_changes(schema, new) == ["field time_ns changed from {'type': 'integer'} to {'type': 'string'}"]


def test_a_changed_column_type_is_breaking() -> None:
    old = {"properties": {"used_us": {"type": "string", "format": "binary", "x-numpy-dtype": "<i4"}}}
    new = {"properties": {"used_us": {"type": "string", "format": "binary", "x-numpy-dtype": "<i8"}}}

    assert len(breaking_changes(old, new)) == 1


def test_a_new_required_field_is_breaking(schema: dict[str, Any]) -> None:
    new = copy.deepcopy(schema)
    new["properties"]["image"] = {"type": "string"}
    new["required"].append("image")

    assert breaking_changes(schema, new) == ["new field image is required: give it a default"]


def test_an_optional_field_that_becomes_required_is_breaking(schema: dict[str, Any]) -> None:
    new = copy.deepcopy(schema)
    new["required"].append("reason")

    assert breaking_changes(schema, new) == ["field reason became required"]


def test_a_lost_enumeration_value_is_breaking(schema: dict[str, Any]) -> None:
    new = copy.deepcopy(schema)
    new["$defs"]["ContainerChange"]["enum"].remove("refused")

    assert breaking_changes(schema, new) == ["ContainerChange lost the value 'refused'"]


def test_a_field_removed_from_a_nested_model_is_breaking() -> None:
    old = {"$defs": {"Pool": {"properties": {"free_us": {"type": "integer"}}}}}

    assert breaking_changes(old, {"$defs": {"Pool": {"properties": {}}}}) == ["field Pool.free_us was removed"]


def test_a_removed_message_is_breaking() -> None:
    assert all_breaking_changes({"turnbuckle.x.v1.X": {}}, {}) == ["turnbuckle.x.v1.X: the message type was removed"]


def test_writing_reports_only_what_changed(tmp_path: Path) -> None:
    assert len(write_snapshots(tmp_path, {"a.v1.A": {}, "a.v1.B": {}})) == 2
    assert write_snapshots(tmp_path, {"a.v1.A": {}, "a.v1.B": {}}) == []

    assert [path.name for path in write_snapshots(tmp_path, {"a.v1.A": {}})] == ["a.v1.B.json"]
    assert stored_schemas(tmp_path) == {"a.v1.A": {}}
