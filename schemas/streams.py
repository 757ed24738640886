"""JetStream streams and KV buckets as data; the runtime declares them, idempotently, at start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemas.subjects import CONTAINER_EVENTS, OOM_EVENTS, ROUTE_EVENTS, TC_EVENTS, Subject, SubjectTemplate

_DAY_S: Final = 86_400.0
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream of facts. Names are prefixed with the subject root in capitals, so that tests do not meet."""

    name: str
    templates: tuple[SubjectTemplate, ...]
    max_age_s: float
    max_bytes: int
    duplicate_window_s: float = 120.0

    def stream_name(self, root: str) -> str:
        """The name on the server."""
        return f"{root.upper()}_{self.name}"

    def subjects(self, root: str) -> tuple[Subject, ...]:
        """Patterns of the subjects that the stream keeps."""
        return tuple(template.pattern(root) for template in self.templates)


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """A KV bucket of current state, one revision deep."""

    name: str
    description: str
    ttl_s: float | None = None

    def bucket_name(self, root: str) -> str:
        """The name on the server."""
        return f"{root}_{self.name}"


CONTAINER_STREAM: Final = StreamSpec("CONTAINER", (CONTAINER_EVENTS,), max_age_s=7 * _DAY_S, max_bytes=128 * _MIB)
OOM_STREAM: Final = StreamSpec("OOM", (OOM_EVENTS,), max_age_s=7 * _DAY_S, max_bytes=64 * _MIB)
ROUTE_STREAM: Final = StreamSpec("ROUTE", (ROUTE_EVENTS,), max_age_s=7 * _DAY_S, max_bytes=64 * _MIB)
TC_STREAM: Final = StreamSpec("TC", (TC_EVENTS,), max_age_s=7 * _DAY_S, max_bytes=128 * _MIB)
STREAMS: Final = (CONTAINER_STREAM, OOM_STREAM, ROUTE_STREAM, TC_STREAM)

APPS: Final = BucketSpec("apps", "AppSpec by application name")
LEASES: Final = BucketSpec("leases", "allocator replicas that live, and the owner of each application with its epoch")
NODES: Final = BucketSpec("nodes", "NodeInfo heartbeats", ttl_s=30.0)
BUCKETS: Final = (APPS, LEASES, NODES)
