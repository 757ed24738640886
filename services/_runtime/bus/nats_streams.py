"""Declares streams, KV buckets and object stores of `nats`, idempotently.

Reads the existing configuration first: where users have keys, only the administrator's may create or change
(docs/security.md). Until it has, durable events stay in the outbox.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StorageType, StreamConfig, SubjectTransform

from schemas.streams import BucketSpec, ObjectStoreSpec, StreamSpec
from services._runtime.bus.api import BusError
from services._runtime.bus.dispatch import Dispatch
from services._runtime.bus.nats_connection import RefusedError, as_bus_errors
from services._runtime.bus.options import BusOptions
from services._runtime.telemetry.logging import log_once

_CONFIGURATION_DIFFERS: Final = 10058
"""Server error: a stream of this name exists with another configuration."""
_LOG_EVERY_S: Final = 60.0


class MissingStreamError(BusError):
    """The server has no such stream yet, a bucket's or a store's included."""

    def __init__(self, stream: str) -> None:
        remedy = "start an allocator, or, as administrator, turnbuckle nats declare"
        super().__init__(f"the server has no stream {stream} yet: {remedy}")


@dataclass(frozen=True, slots=True)
class _StreamDeclaration:
    """A stream's configuration, and the fields that are updated on an existing one."""

    config: StreamConfig
    fields: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.config.name)

    def changes(self, found: StreamConfig) -> dict[str, Any]:
        """Fields to update. Replicas are never reduced: an administrator may have added them."""
        changes = {field: getattr(self.config, field) for field in self.fields}
        different = {field: value for field, value in changes.items() if getattr(found, field) != value}
        if (self.config.num_replicas or 1) > (found.num_replicas or 1):
            different["num_replicas"] = self.config.num_replicas
        return different


async def declare(jetstream: JetStreamContext, options: BusOptions, dispatch: Dispatch) -> list[str]:
    """Create or update everything that the options name, as far as this user is permitted.

    Returns the names of streams that this user may not read, create or update.

    Raises:
        BusError: the server does not answer, or refuses.
    """
    refused = []
    for declaration in _declarations(options):
        with as_bus_errors(f"declare stream {declaration.name} at {options.address}"):
            try:
                await _ensure(jetstream, declaration)
            except RefusedError as error:
                refused.append(declaration.name)
                log_once(
                    dispatch.log.warning,
                    dispatch.limiter,
                    f"not_declared_{declaration.name}",
                    _LOG_EVERY_S,
                    error=str(error),
                    remedy="an administrator does it: turnbuckle nats declare",
                )
    return refused


async def _ensure(jetstream: JetStreamContext, declaration: _StreamDeclaration) -> None:
    try:
        info = await jetstream.stream_info(declaration.name)
    except nats.js.errors.NotFoundError:
        try:
            await jetstream.add_stream(declaration.config)
        except nats.js.errors.APIError as error:
            if error.err_code != _CONFIGURATION_DIFFERS:  # else another service created it concurrently
                raise
            info = await jetstream.stream_info(declaration.name)
        else:
            return
    if changes := declaration.changes(info.config):
        await jetstream.update_stream(info.config.evolve(**changes))


def _declarations(options: BusOptions) -> Iterator[_StreamDeclaration]:
    for stream in options.streams:
        yield _stream(stream, options)
    for bucket in options.buckets:
        yield _bucket(bucket, options)
    for store in options.object_stores:
        yield _object_store(store, options)


def _stream(spec: StreamSpec, options: BusOptions) -> _StreamDeclaration:
    config = StreamConfig(
        name=spec.stream_name(options.root),
        subjects=[subject.text for subject in spec.subjects(options.root)],
        storage=StorageType.FILE,
        max_age=spec.max_age_s,
        max_bytes=spec.max_bytes,
        duplicate_window=spec.duplicate_window_s,
        max_msgs_per_subject=1 if spec.newest_per_subject else spec.max_messages_per_host or -1,
        max_msg_size=spec.max_message_bytes or -1,
        subject_transform=SubjectTransform(*mapping) if (mapping := spec.stored_by_host(options.root)) else None,
        allow_direct=True,
        num_replicas=options.replicas,
    )
    limits = ("max_age", "max_bytes", "max_msgs_per_subject", "max_msg_size", "duplicate_window")
    return _StreamDeclaration(config, ("subjects", "subject_transform", *limits))


def _bucket(spec: BucketSpec, options: BusOptions) -> _StreamDeclaration:
    """As nats-py's ``create_key_value`` (NATS ADR-8), which cannot change what exists.

    Without rollups and per-message TTLs, which are not used: with a rollup a writer of one key could delete all others,
    and with a TTL of its own an entry could outlive the bucket's.
    """
    name = spec.bucket_name(options.root)
    config = StreamConfig(
        name=f"KV_{name}",
        description=spec.description,
        subjects=[f"$KV.{name}.>"],
        storage=StorageType.FILE,
        max_msgs_per_subject=1,
        max_age=spec.ttl_s or 0.0,
        duplicate_window=min(120.0, spec.ttl_s) if spec.ttl_s else 120.0,
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=False,
        deny_delete=True,
        allow_direct=True,
        num_replicas=options.replicas,
    )
    return _StreamDeclaration(config, ("description", "max_age", "duplicate_window", "allow_rollup_hdrs"))


def _object_store(spec: ObjectStoreSpec, options: BusOptions) -> _StreamDeclaration:
    """As nats-py's ``create_object_store``, which cannot change what exists."""
    name = spec.bucket_name(options.root)
    config = StreamConfig(
        name=f"OBJ_{name}",
        description=spec.description,
        subjects=[f"$O.{name}.C.>", f"$O.{name}.M.>"],
        storage=StorageType.FILE,
        max_bytes=spec.max_bytes,
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        allow_direct=True,
        num_replicas=options.replicas,
    )
    return _StreamDeclaration(config, ("description", "max_bytes"))
