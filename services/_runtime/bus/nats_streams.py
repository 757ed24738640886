"""Streams, KV buckets and object stores of `nats`: made to exist as specified, idempotently.

What is there already is looked at first, because most users of a bus may look but not make: then somebody else has to,
who may (docs/security.md), and until then facts wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StorageType, StreamConfig, SubjectTransform

from schemas.streams import BucketSpec, ObjectStoreSpec, StreamSpec
from services._runtime.bus.dispatch import Dispatch
from services._runtime.bus.nats_connection import RefusedError, as_bus_errors
from services._runtime.bus.options import BusOptions
from services._runtime.telemetry.logging import log_once

_CONFIGURATION_DIFFERS: Final = 10058
"""Server error: a stream of this name exists with another configuration."""
_TOLD_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A stream, and which of its fields are brought in line where it exists with others."""

    config: StreamConfig
    fields: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.config.name)

    def changes(self, found: StreamConfig) -> dict[str, Any]:
        """What is to be changed. More replicas than are wanted are never taken away: an operator asked for them."""
        changes = {field: getattr(self.config, field) for field in self.fields}
        different = {field: value for field, value in changes.items() if getattr(found, field) != value}
        if (self.config.num_replicas or 1) > (found.num_replicas or 1):
            different["num_replicas"] = self.config.num_replicas
        return different


async def declare(jetstream: JetStreamContext, options: BusOptions, dispatch: Dispatch) -> list[str]:
    """Make everything that the options name exist; what exists is brought in line, so far as this user may.

    Returns the streams that this user may not look at, make or change as they should be.

    Raises:
        BusError: the server does not answer, or refuses.
    """
    refused = []
    for wanted in _all_wanted(options):
        with as_bus_errors(f"declare stream {wanted.name} at {options.address}"):
            try:
                await _ensure(jetstream, wanted)
            except RefusedError as error:
                refused.append(wanted.name)
                log_once(
                    dispatch.log.warning, dispatch.limiter, f"not_declared_{wanted.name}", _TOLD_EVERY_S,
                    error=str(error), remedy="an operator does it: turnbuckle nats declare",
                )  # fmt: skip
    return refused


async def _ensure(jetstream: JetStreamContext, wanted: _Wanted) -> None:
    try:
        info = await jetstream.stream_info(wanted.name)
    except nats.js.errors.NotFoundError:
        try:
            await jetstream.add_stream(wanted.config)
        except nats.js.errors.APIError as error:
            if error.err_code != _CONFIGURATION_DIFFERS:  # else someone else was quicker
                raise
            info = await jetstream.stream_info(wanted.name)
        else:
            return
    if changes := wanted.changes(info.config):
        await jetstream.update_stream(info.config.evolve(**changes))


def _all_wanted(options: BusOptions) -> Iterator[_Wanted]:
    for stream in options.streams:
        yield _stream(stream, options)
    for bucket in options.buckets:
        yield _bucket(bucket, options)
    for store in options.object_stores:
        yield _object_store(store, options)


def _stream(spec: StreamSpec, options: BusOptions) -> _Wanted:
    config = StreamConfig(
        name=spec.stream_name(options.root),
        subjects=[subject.text for subject in spec.subjects(options.root)],
        storage=StorageType.FILE,
        max_age=spec.max_age_s,
        max_bytes=spec.max_bytes,
        duplicate_window=spec.duplicate_window_s,
        max_msgs_per_subject=spec.host_facts or -1,
        max_msg_size=spec.fact_bytes or -1,
        subject_transform=SubjectTransform(*mapping) if (mapping := spec.stored_by_host(options.root)) else None,
        allow_direct=True,
        num_replicas=options.replicas,
    )
    limits = ("max_age", "max_bytes", "max_msgs_per_subject", "max_msg_size", "duplicate_window")
    return _Wanted(config, ("subjects", "subject_transform", *limits))


def _bucket(spec: BucketSpec, options: BusOptions) -> _Wanted:
    """As nats-py's ``create_key_value`` (NATS ADR-8), which cannot change what exists.

    But without rollups and times to live of single messages, which nothing of ours uses: with a rollup who may write
    one key deletes all others, and with a time to live of its own an entry outlives the bucket's.
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
    return _Wanted(config, ("description", "max_age", "duplicate_window", "allow_rollup_hdrs"))


def _object_store(spec: ObjectStoreSpec, options: BusOptions) -> _Wanted:
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
    return _Wanted(config, ("description", "max_bytes"))
