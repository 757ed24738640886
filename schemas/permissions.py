"""Who may publish and subscribe to what, derived from the registry, streams and buckets. Pure.

A server enforces it (``turnbuckle nats config`` writes its configuration), docs/security.md shows it. What the registry
cannot tell stands here: who reads and writes which bucket, who replays which stream, which questions change nothing.

Three ways around subject permissions decide what nobody gets lightly. A consumer may deliver to *any* subject, in the
server's name: whoever may make consumers on a stream could replay what others have stored there onto subjects that are
not his. A direct get, like every question, may name any subject to be answered at. A stream may take in, and publish
again, any subject: so streams are made by services in the centre only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from schemas.registry import (
    ADVISOR_EXPLAIN,
    ALLOCATOR_EXPLAIN,
    ALLOCATOR_STATE,
    CHANNELS,
    ENDPOINTS,
    Channel,
    Delivery,
)
from schemas.streams import (
    APPS,
    BUCKETS,
    JOB_STREAM,
    LEASES,
    MODELS,
    NODES,
    OBJECT_STORES,
    OOM_STREAM,
    RECONCILERS,
    ROUTE_STREAM,
    RUN_STREAM,
    STREAMS,
    TC_STREAM,
    BucketSpec,
    ObjectStoreSpec,
    StreamSpec,
)
from schemas.subjects import (
    RECONCILER_DIFF,
    RECONCILER_RULES,
    RECONCILER_STATE,
    REPLICA_EXPLAIN,
    REPLICA_STATE,
    ROUTE_EVENTS,
    Subject,
    SubjectTemplate,
    check_root,
    token,
)

INBOX: Final = "_INBOX"
"""Where replies arrive, below a token of the requester's own (`Identity.inbox`)."""
MAPPED_INBOX: Final = "_R_"
"""In place of the inbox of a requester in another account: the server chooses it, and maps it back."""
_API: Final = "$JS.API"


class Role(StrEnum):
    """What a user of the bus is. The values are the services' names in their settings."""

    AGENT = "agent"
    ALLOCATOR = "allocator"
    RECONCILER = "reconciler"
    FAST_PATH = "fast_path"
    COLLECTOR = "collector"
    ADVISOR = "advisor"
    OPERATOR = "operator"
    """A person who announces applications: everything but orders to agents, and what only services say."""
    OBSERVER = "observer"
    """Reads, changes nothing; also the web console's."""


NODE_ROLES: Final = (Role.AGENT, Role.RECONCILER, Role.FAST_PATH)
"""One user per host: what carries a node's name must be its own."""
CENTRAL_ROLES: Final = (Role.ALLOCATOR, Role.COLLECTOR, Role.ADVISOR)
"""May make the streams and buckets that they use, where these are missing."""
PEOPLE: Final = (Role.OPERATOR, Role.OBSERVER)

READ_ONLY: Final = (
    ALLOCATOR_STATE.template,
    ALLOCATOR_EXPLAIN.template,
    ADVISOR_EXPLAIN.template,
    RECONCILER_STATE,
    RECONCILER_DIFF,
    RECONCILER_RULES,
    REPLICA_EXPLAIN,
    REPLICA_STATE,
)
"""Questions that change nothing: an observer may ask them. (`advisor.predict` and `.rank` leave a fact behind.)"""


class _BucketUse(NamedTuple):
    """Who does what with a bucket; `operator` may do all, `observer` may read."""

    writers: tuple[Role, ...] = ()
    own_key: tuple[Role, ...] = ()
    """Write the key that is their node's name."""
    readers: tuple[Role, ...] = ()
    watchers: tuple[Role, ...] = ()
    """Readers who make a consumer, to hear of changes at once."""
    makers: tuple[Role, ...] = ()
    """Who make it for hosts, which make nothing on the server."""


_BUCKET_USES: Final[dict[BucketSpec, _BucketUse]] = {
    APPS: _BucketUse(readers=(Role.AGENT,), watchers=(Role.ALLOCATOR,)),
    LEASES: _BucketUse(writers=(Role.ALLOCATOR,), watchers=(Role.ALLOCATOR,)),
    NODES: _BucketUse(own_key=(Role.AGENT,), readers=(Role.AGENT,), watchers=(Role.ALLOCATOR,)),
    RECONCILERS: _BucketUse(own_key=(Role.RECONCILER,), readers=(Role.RECONCILER,), makers=(Role.ALLOCATOR,)),
}
_STORE_USES: Final[dict[ObjectStoreSpec, tuple[Role, ...]]] = {MODELS: (Role.ADVISOR,)}
_MADE_FOR_HOSTS: Final[dict[Role, tuple[StreamSpec, ...]]] = {Role.ALLOCATOR: (OOM_STREAM, ROUTE_STREAM, TC_STREAM)}
"""Hosts write them, but make nothing on the server."""
_REPLAYS: Final[dict[Role, tuple[StreamSpec, ...]]] = {Role.ADVISOR: (RUN_STREAM, JOB_STREAM)}
"""Who reads all of a stream through a consumer of his own. Its writers are in the centre, see above."""
_HEARD_OF_ALL: Final = (ROUTE_EVENTS,)
"""Facts that a host's service hears of all hosts, as they happen: without any right to the stream that stores them."""
_LOOKS_UP: Final[dict[Role, tuple[StreamSpec, ...]]] = {Role.COLLECTOR: (RUN_STREAM, JOB_STREAM)}
"""Who looks for single facts in a stream that he writes."""


@dataclass(frozen=True, slots=True)
class Uses:
    """What a role needs to be there."""

    streams: tuple[StreamSpec, ...]
    buckets: tuple[BucketSpec, ...]
    object_stores: tuple[ObjectStoreSpec, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """A user: a role, of a node where the role is one per host; and where its replies arrive."""

    role: Role
    node: str | None = None
    inbox: str = ""
    """First token after ``_INBOX``, its own: nobody else may listen there. Empty: replies cannot be received."""

    def __post_init__(self) -> None:
        if (self.role in NODE_ROLES) != (self.node is not None):
            raise ValueError(f"a {self.role} is {'' if self.role in NODE_ROLES else 'not '}bound to a node")

    @property
    def name(self) -> str:
        """``allocator``, ``agent-gpu-07``; fit to name a file."""
        return self.role.value if self.node is None else f"{self.role.value}-{token(self.node)}".replace("/", ".")


@dataclass(frozen=True, slots=True)
class Grants:
    """Patterns of subjects, as the server knows them; what is not named is refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def uses(role: Role) -> Uses:
    """Streams, buckets and stores that a role writes or reads, or makes for others."""
    if role in PEOPLE:
        return Uses(STREAMS, BUCKETS, OBJECT_STORES if role is Role.OPERATOR else ())
    channels = [channel for channel in CHANNELS if _sends(role, channel) or _receives(role, channel)]
    templates = {channel.template for channel in channels if channel.delivery is Delivery.JETSTREAM}
    made = _MADE_FOR_HOSTS.get(role, ())
    streams = tuple(stream for stream in STREAMS if templates & set(stream.templates) or stream in made)
    buckets = tuple(bucket for bucket in BUCKETS if any(role in roles for roles in _BUCKET_USES[bucket]))
    return Uses(streams, buckets, tuple(store for store in OBJECT_STORES if role in _STORE_USES[store]))


def grants(identity: Identity, root: str) -> Grants:
    """What a user may do below a subject root."""
    check_root(root)
    publish = [*_messages_out(identity, root), *_replies(identity.role), *_storage(identity, root)]
    subscribe = [*_messages_in(identity, root)]
    if identity.inbox:
        subscribe.append(f"{INBOX}.{identity.inbox}.>")
    return Grants(_sorted(publish), _sorted(subscribe))


def allowed(patterns: Iterable[str], subject: str) -> bool:
    """Whether one of the patterns covers a concrete subject, as the server decides it."""
    return any(Subject(pattern).matches(Subject(subject)) for pattern in patterns)


def _sorted(patterns: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(patterns)))


# -- messages ------------------------------------------------------------------------------------------------------


def _sends(role: Role, channel: Channel) -> bool:
    if role is Role.FAST_PATH:
        return channel.template == ROUTE_EVENTS  # it is a part of the reconciler, with a process of its own
    return _among(role, channel.senders, channel)


def _receives(role: Role, channel: Channel) -> bool:
    return role is not Role.FAST_PATH and _among(role, channel.receivers, channel)


def _among(role: Role, services: tuple[str, ...], channel: Channel) -> bool:
    """Whether a role stands in a list of the registry, where both kinds of people are ``cli``."""
    if role not in PEOPLE:
        return role.value in services
    asks_to_change = channel.delivery is Delivery.REQUEST and channel.template not in READ_ONLY
    return "cli" in services and (role is Role.OPERATOR or not asks_to_change)


def _subject(identity: Identity, template: SubjectTemplate, root: str) -> str:
    ids = {"node": identity.node} if identity.node is not None and "node" in template.parameters else {}
    return template.pattern(root, **ids).text


def _messages_out(identity: Identity, root: str) -> Iterator[str]:
    role = identity.role
    for channel in CHANNELS:
        if _sends(role, channel):
            yield _subject(identity, channel.template, root)
    for endpoint in ENDPOINTS:
        if role is Role.OPERATOR or (role is Role.OBSERVER and endpoint.template in READ_ONLY):
            yield _subject(identity, endpoint.template, root)
    if role in PEOPLE:
        yield from (f"$SRV.{verb}{names}" for verb in ("PING", "INFO", "STATS") for names in ("", ".*", ".*.*"))


def _messages_in(identity: Identity, root: str) -> Iterator[str]:
    role = identity.role
    for channel in CHANNELS:
        # People hear facts as they happen; commands are heard by those who answer them, and by nobody else.
        if _receives(role, channel) and channel.template in _HEARD_OF_ALL:
            yield channel.template.pattern(root).text
        elif _receives(role, channel):
            yield _subject(identity, channel.template, root)
    for endpoint in ENDPOINTS:
        if endpoint.service == role.value:
            yield _subject(identity, endpoint.template, root)
            yield from ("$SRV.*", f"$SRV.*.{role.value}", f"$SRV.*.{role.value}.*")
    if role is Role.OPERATOR:
        yield from (f"{root}.>", "$JS.EVENT.>")
    if role in PEOPLE:
        yield from (f"{root}.obs.>", f"{root}.evt.>")
        yield from (f"$KV.{bucket.bucket_name(root)}.>" for bucket in BUCKETS)


def _replies(role: Role) -> Iterator[str]:
    """Inboxes, for those who answer.

    Not `allow_responses`: it lets a user publish to *any* reply subject of a message that it has received, and nobody's
    right to name one is checked. An inbox can be answered by those only who know it: it ends with 128 random bits.
    """
    answered = {channel.template for channel in CHANNELS if _receives(role, channel) and channel.reply is not None}
    answered |= {endpoint.template for endpoint in ENDPOINTS if endpoint.service == role.value}
    if answered:
        yield f"{INBOX}.>"
    if answered & set(READ_ONLY):  # what observers may ask, who are in another account
        yield f"{MAPPED_INBOX}.>"


# -- what is stored ------------------------------------------------------------------------------------------------


def _storage(identity: Identity, root: str) -> Iterator[str]:
    role = identity.role
    if role is Role.OPERATOR:
        yield from (f"{_API}.>", "$JS.ACK.>", "$JS.FC.>")
        yield from (f"$KV.{bucket.bucket_name(root)}.>" for bucket in BUCKETS)
        yield from (f"$O.{store.bucket_name(root)}.>" for store in OBJECT_STORES)
        return
    if role is Role.OBSERVER:
        yield from (f"{_API}.INFO", f"{_API}.STREAM.NAMES", f"{_API}.STREAM.LIST")
    needs = uses(role)
    for name in _stream_names(needs, root):
        yield f"{_API}.STREAM.INFO.{name}"
        if role in CENTRAL_ROLES:
            yield f"{_API}.STREAM.CREATE.{name}"
    for stream in needs.streams:
        yield from _stream_rights(role, stream, stream.stream_name(root))
    for bucket in needs.buckets:
        yield from _bucket_rights(identity, bucket, root)
    for store in needs.object_stores:
        name = store.bucket_name(root)
        yield f"$O.{name}.>"
        yield from (f"{_API}.STREAM.{verb}.OBJ_{name}" for verb in ("MSG.GET", "PURGE"))


def _stream_names(needs: Uses, root: str) -> Iterator[str]:
    yield from (stream.stream_name(root) for stream in needs.streams)
    yield from (f"KV_{bucket.bucket_name(root)}" for bucket in needs.buckets)
    yield from (f"OBJ_{store.bucket_name(root)}" for store in needs.object_stores)


def _stream_rights(role: Role, stream: StreamSpec, name: str) -> Iterator[str]:
    # Not hosts: a direct get may name any subject to be answered at.
    reads = role not in NODE_ROLES and any(
        channel.template in stream.templates and _receives(role, channel) for channel in CHANNELS
    )
    if reads or stream in _LOOKS_UP.get(role, ()):
        yield from _reading(name)
    if stream in _REPLAYS.get(role, ()):
        yield from _consuming(name)


def _bucket_rights(identity: Identity, bucket: BucketSpec, root: str) -> Iterator[str]:
    role, use, name = identity.role, _BUCKET_USES[bucket], bucket.bucket_name(root)
    if role in use.writers:
        yield f"$KV.{name}.>"
    if role in use.own_key and identity.node is not None:
        yield f"$KV.{name}.{token(identity.node)}"
    if role in (*use.readers, *use.watchers, Role.OBSERVER):
        yield f"{_API}.STREAM.MSG.GET.KV_{name}"
    if role in use.watchers:
        yield from _consuming(f"KV_{name}")


def _reading(stream: str) -> Iterator[str]:
    """Single messages, or many, asked for without a consumer: for the centre, and people."""
    yield from (f"{_API}.STREAM.MSG.GET.{stream}", f"{_API}.DIRECT.GET.{stream}", f"{_API}.DIRECT.GET.{stream}.>")


def _consuming(stream: str) -> Iterator[str]:
    yield f"{_API}.CONSUMER.CREATE.{stream}"
    yield from (f"{_API}.CONSUMER.{verb}.{stream}.>" for verb in ("CREATE", "DURABLE.CREATE", "MSG.NEXT", "DELETE"))
    yield f"$JS.ACK.{stream}.>"
