"""Snapshots of the message schemas, and the rule that a message may only gain optional fields.

``python -m scripts.schema_snapshots`` writes the snapshots. It refuses a change that breaks readers or writers of the
last committed form: such a message needs a new type name (``...v2...``), or ``--allow-breaking`` before a release.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from schemas.codec import MESSAGE_TYPES

Schema = dict[str, Any]

SNAPSHOTS: Final = Path(__file__).resolve().parent.parent / "tests/unit/schemas/snapshots"
_PROSE: Final = frozenset({"title", "description", "examples"})
_ANNOTATIONS: Final = _PROSE | {"default"}
"""Keywords that say nothing about which values are valid."""


def current_schemas() -> dict[str, Schema]:
    """The JSON schema of every message type, by type name, without prose: a better docstring changes no contract."""
    return {name: _without(_PROSE, model.model_json_schema()) for name, model in sorted(MESSAGE_TYPES.items())}


def snapshot_text(schema: Schema) -> str:
    """The content of a snapshot file."""
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def stored_schemas(directory: Path = SNAPSHOTS) -> dict[str, Schema]:
    """The committed snapshots, by type name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}


def breaking_changes(old: Schema, new: Schema) -> list[str]:
    """What in ``new`` breaks a reader or writer of ``old``, one sentence each; empty if there were only additions."""
    old_parts, new_parts = _parts(old), _parts(new)
    return [fault for name, part in old_parts.items() for fault in _part_faults(name, part, new_parts.get(name))]


def all_breaking_changes(old: dict[str, Schema], new: dict[str, Schema]) -> list[str]:
    """The breaking changes of a whole set of messages; each names its message."""
    gone = [f"{name}: the message type was removed" for name in old if name not in new]
    return gone + [
        f"{name}: {fault}" for name in old if name in new for fault in breaking_changes(old[name], new[name])
    ]


def _parts(schema: Schema) -> dict[str, Schema]:
    """The message itself under the empty name, and the models and enumerations nested in it under theirs."""
    nested: dict[str, Schema] = schema.get("$defs", {})
    return {"": schema} | nested


def _part_faults(name: str, old: Schema, new: Schema | None) -> Iterator[str]:
    if new is None:
        return  # nothing refers to it any more, or a field's reference changed, which is reported there
    place = f"{name}." if name else ""
    if "enum" in old:
        yield from (f"{name} lost the value {value!r}" for value in old["enum"] if value not in new.get("enum", []))
    old_fields, new_fields = old.get("properties", {}), new.get("properties", {})
    for field, schema in old_fields.items():
        if field not in new_fields:
            yield f"field {place}{field} was removed"
        elif _shape(schema) != _shape(new_fields[field]):
            yield f"field {place}{field} changed from {_shape(schema)} to {_shape(new_fields[field])}"
    for field in new.get("required", []):
        if field not in old_fields:
            yield f"new field {place}{field} is required: give it a default"
        elif field not in old.get("required", []):
            yield f"field {place}{field} became required"


def _shape(schema: Schema) -> Schema:
    """What decides whether a value is valid."""
    return _without(_ANNOTATIONS, schema)


def _without(keywords: frozenset[str], schema: Schema) -> Schema:
    """The schema without these keywords at any depth; fields may well be named like a keyword."""
    kept: Schema = {}
    for key, value in schema.items():
        if key in {"properties", "$defs"}:
            kept[key] = {name: _without(keywords, part) for name, part in value.items()}
        elif key not in keywords:
            kept[key] = _without_inside(keywords, value)
    return kept


def _without_inside(keywords: frozenset[str], value: Any) -> Any:
    if isinstance(value, dict):
        return _without(keywords, value)
    if isinstance(value, list):
        return [_without_inside(keywords, item) for item in value]
    return value


def write_snapshots(directory: Path, schemas: dict[str, Schema]) -> list[Path]:
    """Write every snapshot, remove those of types that are gone, and return the files that changed."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {directory / f"{name}.json": snapshot_text(schema) for name, schema in schemas.items()}
    changed = [path for path in directory.glob("*.json") if path not in wanted]
    for path in changed:
        path.unlink()
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(path)
    return changed


def main() -> int:
    """Write the snapshots; 1 if that would hide a breaking change."""
    parser = argparse.ArgumentParser(description="write the snapshots of the message schemas")
    parser.add_argument("--allow-breaking", action="store_true", help="write them although readers or writers break")
    allow_breaking: bool = parser.parse_args().allow_breaking
    schemas = current_schemas()
    faults = all_breaking_changes(stored_schemas(), schemas)
    for fault in faults:
        sys.stderr.write(f"breaking: {fault}\n")
    if faults and not allow_breaking:
        sys.stderr.write("nothing written: add a new message type instead, or pass --allow-breaking\n")
        return 1
    for path in write_snapshots(SNAPSHOTS, schemas):
        sys.stdout.write(f"wrote {path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
