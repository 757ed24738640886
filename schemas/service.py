"""What a service declares of itself, beside its messages. `schemas.services` has a module for each, and collects them.

Derived from it are the subject table's endpoints (`schemas.registry`), what the server permits (`schemas.permissions`)
and which metrics and spans there are (`schemas.telemetry`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from schemas.message import Message
from schemas.streams import BucketSpec, ObjectStoreSpec, StreamSpec
from schemas.subjects import SubjectTemplate
from schemas.telemetry_specs import AlertSpec, MetricSpec, SpanSpec


class Delivery(StrEnum):
    """Delivery semantics of a message."""

    CORE = "core"
    """Lossy, newest wins."""
    JETSTREAM = "jetstream"
    """Stored, acknowledged, deduplicated."""
    REQUEST = "request"
    """Request and reply, with a deadline."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One line of the subject table."""

    template: SubjectTemplate
    message: type[Message]
    delivery: Delivery
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    summary: str
    reply: type[Message] | None = None
    read_only: bool = False
    """A request that changes and stores nothing: observers may ask it."""
    from_all_hosts: bool = False
    """Of an event: a host's service receives those of all hosts, without a right to their stream."""
    title: str = ""
    """Distinguishes channels of the same message type."""

    @property
    def name(self) -> str:
        """Unique among channels and requests of endpoints."""
        return self.title or self.message.__name__


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One query of a NATS micro service; its subject is ``<root>.cmd.<service>.<name>``."""

    service: str
    name: str
    request: type[Message]
    reply: type[Message]
    summary: str
    read_only: bool = False
    """It changes and stores nothing: observers may ask it."""

    @property
    def template(self) -> SubjectTemplate:
        """The endpoint's subject."""
        return SubjectTemplate(f"cmd.{self.service}.{self.name}")


@dataclass(frozen=True, slots=True)
class BucketUse:
    """What a service may do with one bucket."""

    bucket: BucketSpec
    writes: bool = False
    """Every key."""
    own_key: bool = False
    """It writes the key of its node's name."""
    key: str = ""
    """It writes this key alone."""
    reads: bool = False
    watches: bool = False
    """It reads and follows it; unless hosts write it, it is sent each write, for changes without delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """How a service is deployed that needs nothing of its host, keeps nothing there and has no settings to begin with.

    From it come its image's target in compose/Dockerfile, its place in Compose and in Kubernetes' lists, and its
    credentials in both. Its Deployment and its systemd unit are files of its own.
    """

    memory: str
    """Limit in Compose, such as ``256m``."""
    profile: str = ""
    """Of Compose, by which it has to be asked for; empty: it always starts."""
    why_profile: str = ""
    """Why it has to be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service with a user of its own on the bus."""

    name: str
    """As in its settings and in `Role`."""
    per_host: bool = False
    """One per host, whose user may only use subjects with its own node name."""
    channels: tuple[Channel, ...] = ()
    """What it publishes, or answers as one of several hosts or replicas: each is declared by one service."""
    endpoints: tuple[Endpoint, ...] = ()
    asks: tuple[Endpoint, ...] = ()
    """Queries to other services."""
    replays: tuple[StreamSpec, ...] = ()
    """Streams that it follows: each event is received, unless hosts write them."""
    looks_up: tuple[StreamSpec, ...] = ()
    """Streams of which single events, or all that are stored, are read."""
    buckets: tuple[BucketUse, ...] = ()
    object_stores: tuple[ObjectStoreSpec, ...] = ()
    dashboard: str = ""
    """Title of the dashboard with its metrics; empty: they are part of another one."""
    metrics: tuple[MetricSpec, ...] = ()
    spans: tuple[SpanSpec, ...] = ()
    alerts: tuple[AlertSpec, ...] = ()
    deployment: Deployment | None = None
    """None: what it needs of a host, or nothing else, is written by hand in compose/."""
