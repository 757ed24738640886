"""Streams, KV buckets and object stores of `bus_nats`: made to exist as specified, idempotently."""

from __future__ import annotations

from typing import Final

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, KeyValueConfig, StorageType, StreamConfig

from schemas.streams import BucketSpec, ObjectStoreSpec, StreamSpec
from services._runtime.bus_options import BusOptions
from services._runtime.nats_connection import as_bus_errors

_CONFIGURATION_DIFFERS: Final = 10058
"""Server error: a stream of this name exists with another configuration."""


async def declare(jetstream: JetStreamContext, options: BusOptions) -> None:
    """Make everything that the options name exist; what exists is brought in line.

    Raises:
        BusError: the server does not answer, or refuses.
    """
    for stream in options.streams:
        await _declare_stream(jetstream, options, stream)
    for bucket in options.buckets:
        await _declare_bucket(jetstream, options, bucket)
    for store in options.object_stores:
        await _declare_object_store(jetstream, options, store)


async def _declare_stream(jetstream: JetStreamContext, options: BusOptions, spec: StreamSpec) -> None:
    wanted = StreamConfig(
        name=spec.stream_name(options.root),
        subjects=[subject.text for subject in spec.subjects(options.root)],
        storage=StorageType.FILE,
        max_age=spec.max_age_s,
        max_bytes=spec.max_bytes,
        duplicate_window=spec.duplicate_window_s,
        allow_direct=True,
    )
    with as_bus_errors(f"declare stream {wanted.name} at {options.address}"):
        await _add_or_update(jetstream, wanted, ("subjects", "max_age", "max_bytes", "duplicate_window"))


async def _declare_bucket(jetstream: JetStreamContext, options: BusOptions, spec: BucketSpec) -> None:
    name = spec.bucket_name(options.root)
    config = KeyValueConfig(bucket=name, description=spec.description, ttl=spec.ttl_s, history=1)
    with as_bus_errors(f"declare bucket {name} at {options.address}"):
        try:
            await jetstream.create_key_value(config)
        except nats.js.errors.APIError as error:
            if error.err_code != _CONFIGURATION_DIFFERS:
                raise
            info = await jetstream.stream_info(f"KV_{name}")
            age_s = spec.ttl_s or 0
            window_s = min(120.0, spec.ttl_s) if spec.ttl_s else 120.0
            await jetstream.update_stream(
                info.config.evolve(description=spec.description, max_age=age_s, duplicate_window=window_s)
            )


async def _declare_object_store(jetstream: JetStreamContext, options: BusOptions, spec: ObjectStoreSpec) -> None:
    """As nats-py's ``create_object_store``, which cannot change what exists."""
    name = spec.bucket_name(options.root)
    wanted = StreamConfig(
        name=f"OBJ_{name}",
        description=spec.description,
        subjects=[f"$O.{name}.C.>", f"$O.{name}.M.>"],
        storage=StorageType.FILE,
        max_bytes=spec.max_bytes,
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        allow_direct=True,
    )
    with as_bus_errors(f"declare object store {name} at {options.address}"):
        await _add_or_update(jetstream, wanted, ("description", "max_bytes"))


async def _add_or_update(jetstream: JetStreamContext, wanted: StreamConfig, fields: tuple[str, ...]) -> None:
    try:
        await jetstream.add_stream(wanted)
    except nats.js.errors.APIError as error:
        if error.err_code != _CONFIGURATION_DIFFERS:
            raise
        info = await jetstream.stream_info(str(wanted.name))
        await jetstream.update_stream(info.config.evolve(**{field: getattr(wanted, field) for field in fields}))
