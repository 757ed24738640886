"""The contract as an AsyncAPI 3.0 document, emitted from the registry (``python -m scripts.asyncapi.document``).

Payloads travel as msgpack; their JSON schemas describe the decoded map. A byte column is a string of format ``binary``
whose ``x-numpy-dtype`` says how to read it. AsyncAPI: https://www.asyncapi.com/docs/reference/specification/v3.0.0
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from schemas.aggregations import Aggregation, AggregatorInfo
from schemas.apps import AppSpec
from schemas.codec import MESSAGE_TYPES, TYPE_KEY, VERSION_KEY
from schemas.containers import NodeInfo
from schemas.kubeoperator import PodSelectors
from schemas.leases import Members
from schemas.message import Message
from schemas.network import ReconcilerInfo
from schemas.queries import QueryError
from schemas.registry import CHANNELS, ENDPOINTS
from schemas.remote_memory import MemoryHostInfo
from schemas.scheduling import JobSpec, RunnerInfo
from schemas.service import Channel, Delivery, Endpoint
from schemas.streams import (
    AGGREGATIONS,
    AGGREGATORS,
    APPS,
    BUCKETS,
    JOB_SPECS,
    LEASES,
    MEMORY_HOSTS,
    NODES,
    OBJECT_STORES,
    POD_SELECTORS,
    RECONCILERS,
    RUNNERS,
    STREAMS,
    TRAININGS,
    BucketSpec,
    StreamSpec,
)
from schemas.subjects import SubjectTemplate
from schemas.trainings import TrainingGeneration
from scripts.asyncapi import words
from scripts.asyncapi.examples import examples
from scripts.asyncapi.words import members

Document = dict[str, Any]

CONTRACT_VERSION: Final = "0.1.0"
"""As in pyproject.toml; a test keeps them equal."""
DEFAULT_ROOT: Final = "tb"
SCHEMA_REF: Final = "#/components/schemas/{model}"
_INBOX: Final = "The requester's inbox, taken from the request's reply subject."
BUCKET_MESSAGES: Final[dict[str, type[Message]]] = {
    APPS.name: AppSpec,
    LEASES.name: Members,
    NODES.name: NodeInfo,
    RECONCILERS.name: ReconcilerInfo,
    POD_SELECTORS.name: PodSelectors,
    RUNNERS.name: RunnerInfo,
    JOB_SPECS.name: JobSpec,
    TRAININGS.name: TrainingGeneration,
    AGGREGATORS.name: AggregatorInfo,
    AGGREGATIONS.name: Aggregation,
    MEMORY_HOSTS.name: MemoryHostInfo,
}

_DESCRIPTION: Final = """\
Every message between Turnbuckle's services: each subject, who sends it (SEND, REQUEST), who reads or answers it
(RECEIVE, REPLY), and its fields. Labels below an operation name the service that does it.

- **Subjects** are `root.kind.domain.id...`; the root is `tb` unless `TURNBUCKLE_SUBJECT_ROOT` says otherwise. Kinds:
  `obs` is an observation, lossy, the newest counts (core NATS); `evt` a durable event, stored once (JetStream); `cmd`
  a query or a limit update, answered with the resulting state (request and reply).
- **Ids** (`{app}`, `{node}` ...) are escaped to one token each: `.` becomes `/`, anything but letters, digits, `_` and
  `-` becomes `=XX` per UTF-8 byte.
- **Payloads** are msgpack maps with the fields below, beside them `type` (name of the message) and `schema_version`.
  Queries accept JSON too, and answer a JSON request in JSON. Fields are only ever added; readers ignore those that they
  do not know.
- **Columns**, strings of format `binary`, hold one number per row (container), one after the other: read them with
  `numpy.frombuffer(column, x-numpy-dtype)`. Examples show the numbers instead, as `int64 [62000]`.
"""

_PARAMETER_TEXT: Final = {
    "replica": "Allocator replica (escaped).",
    "root": "First token of every subject (setting).",
    "app": "Application (escaped).",
    "node": "Node (escaped).",
    "daemon": "Node whose daemon is asked (escaped).",
    "job": "Training job (escaped).",
    "run": "Local run (escaped).",
    "profile": "Digest of a layer profile (escaped).",
    "day": "Day (UTC), such as 2026-11-26.",
    "record": "Account of one allocator replica (escaped).",
}


def document() -> Document:
    """The AsyncAPI 3.0 document as plain JSON types; equal registries give equal documents."""
    channels, operations = _described()
    shown = examples()
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Turnbuckle",
            "version": CONTRACT_VERSION,
            "description": "\n".join((_DESCRIPTION, *_stored())),
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/msgpack",
        "servers": {
            "nats": {
                "host": "127.0.0.1:4222",
                "protocol": "nats",
                "description": "The default of `turnbuckle up` and of every command; NATS_URL names another server.",
            }
        },
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": {model.__name__: _message(model, shown[model]) for model in MESSAGE_TYPES.values()},
            "schemas": _schemas(),
        },
        "x-streams": [_stream(spec) for spec in STREAMS],
        "x-kv-buckets": [_bucket(spec) for spec in BUCKETS],
    }


def text() -> str:
    """The document as indented JSON with a final newline: the content of docs/asyncapi.json."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def _stored() -> Iterator[str]:
    """Markdown tables of streams, buckets and stores: AsyncAPI has no element for them."""
    yield from ("### What is stored", "", "| stream | subjects | kept |", "|---|---|---|")
    for stream in STREAMS:
        subjects = ", ".join(f"`{DEFAULT_ROOT}.{template.text}`" for template in stream.templates)
        yield f"| `{stream.stream_name(DEFAULT_ROOT)}` | {subjects} | {retention(stream)} |"
    yield from ("", "| key-value bucket | holds | message |", "|---|---|---|")
    for bucket in BUCKETS:
        held = bucket.description + (f"; gone after {bucket.ttl_s:g} s" if bucket.ttl_s else "")
        yield f"| `{bucket.bucket_name(DEFAULT_ROOT)}` | {held} | {BUCKET_MESSAGES[bucket.name].__name__} |"
    yield from ("", "| object store | holds | at most |", "|---|---|---|")
    for store in OBJECT_STORES:
        yield f"| `{store.bucket_name(DEFAULT_ROOT)}` | {store.description} | {store.max_bytes >> 20} MiB |"


def _described() -> tuple[Document, Document]:
    channels: Document = {}
    operations: Document = {}
    for channel in CHANNELS:
        name = channel.name
        channels[name] = _channel(channel.template, channel.message, channel.summary, channel.delivery)
        if channel.reply is not None:
            channels[f"{name}Reply"] = _reply_channel(name, (channel.reply, QueryError))
        for action, services in (("send", channel.senders), ("receive", channel.receivers)):
            for service in services:
                operations[f"{service}_{action}_{name}"] = _channel_operation(channel, action, service)
    for endpoint in ENDPOINTS:
        name = endpoint.request.__name__
        channels[name] = _channel(endpoint.template, endpoint.request, endpoint.summary, Delivery.REQUEST)
        channels[f"{name}Reply"] = _reply_channel(name, (endpoint.reply, QueryError))
        operations[f"{endpoint.service}_receive_{name}"] = _query_operation(endpoint)
    return channels, operations


def _channel(template: SubjectTemplate, message: type[Message], summary: str, delivery: Delivery) -> Document:
    root: Document = {"description": _PARAMETER_TEXT["root"], "default": DEFAULT_ROOT}
    ids: Document = {name: {"description": _PARAMETER_TEXT[name]} for name in template.parameters}
    return {
        "address": f"{{root}}.{template.text}",
        "summary": summary,
        "description": _delivery_text(template, delivery),
        "messages": _message_refs(message),
        "parameters": {"root": root} | ids,
        "x-delivery": delivery.value,
    }


def _delivery_text(template: SubjectTemplate, delivery: Delivery) -> str:
    if delivery is Delivery.CORE:
        return "Observation: lossy, the newest counts (core NATS)."
    if delivery is Delivery.REQUEST:
        return "Request: answered at the requester's inbox, with the message below or with a QueryError."
    (stream,) = (spec for spec in STREAMS if template in spec.templates)
    name = stream.stream_name(DEFAULT_ROOT)
    return f"Durable event: stored once in the stream `{name}`, kept {retention(stream)} (JetStream)."


def retention(stream: StreamSpec) -> str:
    """Retention of a stream as text."""
    age = f"{stream.max_age_s / 86_400:g} days" if stream.max_age_s else "for ever"
    return f"{age}, {stream.max_bytes >> 20} MiB at most"


def _reply_channel(name: str, replies: tuple[type[Message], ...]) -> Document:
    return {"address": None, "summary": f"answer to {name}", "description": _INBOX, "messages": _message_refs(*replies)}


def _message_refs(*models: type[Message]) -> Document:
    return {model.__name__: {"$ref": f"#/components/messages/{model.__name__}"} for model in models}


def _channel_operation(channel: Channel, action: str, service: str) -> Document:
    models = (channel.reply, QueryError) if channel.reply is not None else ()
    return _operation((channel.name, channel.message), action, (service, channel.summary), models)


def _query_operation(endpoint: Endpoint) -> Document:
    what = (endpoint.request.__name__, endpoint.request)
    who = (endpoint.service, endpoint.summary)
    operation = _operation(what, "receive", who, (endpoint.reply, QueryError))
    operation["description"] = (
        f"Endpoint `{endpoint.name}` of the NATS micro service `{endpoint.service}`; the request may be JSON or empty."
    )
    return operation


def _operation(
    what: tuple[str, type[Message]], action: str, who: tuple[str, str], replies: tuple[type[Message], ...]
) -> Document:
    name, message = what
    service, summary = who
    operation: Document = {
        "action": action,
        "channel": {"$ref": f"#/channels/{name}"},
        "summary": f"{service}: {summary}",
        "tags": [{"name": service}],
        "messages": [{"$ref": f"#/channels/{name}/messages/{message.__name__}"}],
    }
    if replies:
        operation["reply"] = {
            "channel": {"$ref": f"#/channels/{name}Reply"},
            "messages": [{"$ref": f"#/channels/{name}Reply/messages/{model.__name__}"} for model in replies],
        }
    return operation


def _message(model: type[Message], example: Document) -> Document:
    """One message: its own fields, and beside them the type name and version that the codec adds."""
    envelope = {
        "type": "object",
        "properties": {
            TYPE_KEY: {"type": "string", "const": model.type_name},
            VERSION_KEY: {"type": "integer", "minimum": 1, "default": model.schema_version},
        },
        "required": [TYPE_KEY],
    }
    return {
        "name": model.type_name,
        "title": model.__name__,
        "summary": _first_line(model),
        "contentType": "application/msgpack",
        "payload": {"allOf": [{"$ref": SCHEMA_REF.format(model=model.__name__)}, envelope]},
        "examples": [{"payload": {TYPE_KEY: model.type_name, VERSION_KEY: model.schema_version} | example}],
    }


def _schemas() -> Document:
    """JSON schemas of all models, nested ones included, with the attributes' docstrings as descriptions."""
    models = tuple(MESSAGE_TYPES.values())
    _, generated = models_json_schema([(model, "validation") for model in models], ref_template=SCHEMA_REF)
    schemas: Document = dict(sorted(generated["$defs"].items()))
    for model in _all_models(Message):
        properties = schemas.get(model.__name__, {}).get("properties", {})
        for name, sentence in attribute_docstrings(model).items():
            if name in properties:
                kind = properties[name].get("description")
                properties[name]["description"] = f"{sentence} ({kind})" if kind else sentence
        for name, schema in properties.items():
            _standardise_bounds(schema)
            _describe_field(name, schema)
    for name, sentence in words.enums().items():
        if name in schemas:
            schemas[name]["description"] = sentence
    return schemas


def _describe_field(name: str, schema: Document) -> None:
    """Describe a field that has no docstring, or whose numbers are codes."""
    if "x-numpy-dtype" in schema and name in words.CODES:
        schema["description"] = "\n".join((schema["description"], "", *members(words.CODES[name])))
    elif name in words.FIELDS and "$ref" not in schema:
        schema.setdefault("description", words.FIELDS[name])


def _standardise_bounds(schema: Document) -> None:
    """Pydantic writes the bounds of a ByteSize as ``ge`` and ``le`` beside its ``anyOf``: use JSON Schema's names."""
    for branch in (schema, *schema.get("anyOf", ())):
        bounds = {new: branch.pop(old) for old, new in (("ge", "minimum"), ("le", "maximum")) if old in branch}
        for alternative in branch.get("anyOf", ()):
            if alternative.get("type") == "integer":
                alternative.update(bounds)


def _all_models(base: type[Message]) -> list[type[Message]]:
    """The message classes of this package below `base`; subclasses defined elsewhere are not in the contract."""
    found = [base] if base.__module__.startswith("schemas.") else []
    for child in base.__subclasses__():
        found += _all_models(child)
    return found


def attribute_docstrings(model: type[Message]) -> dict[str, str]:
    """The strings that stand below the annotated attributes of a message and its bases, on one line each."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if issubclass(owner, Message):
            found |= _own_docstrings(owner)
    return found


def _own_docstrings(owner: type[Message]) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    body = getattr(definition, "body", [])
    return {
        attribute.target.id: " ".join(below.value.value.split())
        for attribute, below in itertools.pairwise(body)
        if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def _first_line(model: type[Message]) -> str:
    return (inspect.getdoc(model) or "").partition("\n")[0]


def _stream(spec: StreamSpec) -> Document:
    return {
        "name": spec.stream_name(DEFAULT_ROOT),
        "subjects": [str(subject) for subject in spec.subjects(DEFAULT_ROOT)],
        "max_age_s": spec.max_age_s,
        "max_bytes": spec.max_bytes,
        "duplicate_window_s": spec.duplicate_window_s,
        "max_messages_per_host": spec.max_messages_per_host,
        "max_message_bytes": spec.max_message_bytes,
        "newest_per_subject": spec.newest_per_subject,
        "stored_as": mapping[1] if (mapping := spec.stored_by_host(DEFAULT_ROOT)) else None,
    }


def _bucket(spec: BucketSpec) -> Document:
    model = BUCKET_MESSAGES[spec.name]
    return {
        "name": spec.bucket_name(DEFAULT_ROOT),
        "description": spec.description,
        "ttl_s": spec.ttl_s,
        "message": {"$ref": f"#/components/messages/{model.__name__}"},
    }


if __name__ == "__main__":
    sys.stdout.write(text())
