"""Publish and subscribe permissions of each role, derived from the registry, streams and buckets. Pure.

The server enforces them (``turnbuckle nats config`` writes its configuration); docs/security.md lists them. Defined
here because the registry lacks it: readers and writers of each bucket, replays of streams, read-only queries.

Three features bypass subject permissions. A consumer delivers to *any* subject of its account, in the server's name; a
stream takes in, and republishes, any: only the administrator makes either. And every answer of the server, a direct
get's stored bytes among them, is written wherever the request says, so each role has an account of its own, where
nothing is stored (``services/cli/nats/accounts.py``). Hosts, and observers, share theirs: they are answered in the
server's JSON only, which is no message of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from schemas.aggregations import APPLICATION
from schemas.registry import (
    ADVISOR_EXPLAIN,
    ADVISOR_PREDICT,
    AGGREGATOR_END,
    AGGREGATOR_PLACE,
    ALLOCATOR_EXPLAIN,
    ALLOCATOR_STATE,
    CHANNELS,
    ENDPOINTS,
    KUBEOPERATOR_STATE,
    PLANNER_PLAN,
    SCHEDULER_EXPLAIN,
    SCHEDULER_QUEUE,
    Channel,
    Delivery,
    Endpoint,
)
from schemas.streams import (
    AGGREGATIONS,
    AGGREGATORS,
    APPS,
    BUCKETS,
    JOB_SPECS,
    JOB_STREAM,
    LAYER_STREAM,
    LEASES,
    MEMORY_HOSTS,
    MODELS,
    NODES,
    OBJECT_STORES,
    POD_SELECTORS,
    RECONCILERS,
    ROUTE_STREAM,
    RUN_STREAM,
    RUNNERS,
    SCHEDULE_STREAM,
    SNAPSHOTS,
    STREAMS,
    TRAINING_STREAM,
    TRAININGS,
    WORK_STREAM,
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
    SLAB_EVENTS,
    Subject,
    SubjectTemplate,
    check_root,
    token,
)

INBOX: Final = "_INBOX"
"""Where replies arrive, below a token of the requester's own (`Identity.inbox`)."""
MAPPED_INBOX: Final = "_R_"
"""Replaces the inbox of a requester in another account: chosen and mapped back by the server."""
_API: Final = "$JS.API"


class Role(StrEnum):
    """Role of a bus user. The values are the services' names in their settings."""

    AGENT = "agent"
    ALLOCATOR = "allocator"
    RECONCILER = "reconciler"
    FAST_PATH = "fast_path"
    COLLECTOR = "collector"
    ADVISOR = "advisor"
    AGGREGATOR = "aggregator"
    KUBEOPERATOR = "kubeoperator"
    """Announces and withdraws the applications that a Kubernetes cluster declares."""
    MEMORY = "memory"
    """Memory of other hosts as swap: asks them for slabs, and answers them."""
    PLANNER = "planner"
    SCHEDULER = "scheduler"
    RUNNER = "runner"
    SLURM = "slurm"
    """In place of the runners of all nodes of a Slurm cluster."""
    TRAINER = "trainer"
    """Of ``turnbuckle train`` by hand. In a job it has none: its runner publishes what it says."""
    ADMINISTRATOR = "administrator"
    """Creates and changes streams and buckets (``turnbuckle nats declare``). JetStream's whole interface reaches every
    subject of the account: for a person, and for that command only."""
    OPERATOR = "operator"
    """A person who announces applications: asks every query; hears observations and events only."""
    OBSERVER = "observer"
    """Reads, changes nothing; also the web console's."""


NODE_ROLES: Final = (Role.AGENT, Role.RECONCILER, Role.FAST_PATH, Role.RUNNER, Role.MEMORY)
"""One user per host: it may only use subjects with its own node name."""
PEOPLE: Final = (Role.OPERATOR, Role.OBSERVER)

READ_ONLY: Final = (
    ALLOCATOR_STATE.template,
    ALLOCATOR_EXPLAIN.template,
    ADVISOR_EXPLAIN.template,
    KUBEOPERATOR_STATE.template,
    SCHEDULER_EXPLAIN.template,
    SCHEDULER_QUEUE.template,
    RECONCILER_STATE,
    RECONCILER_DIFF,
    RECONCILER_RULES,
    REPLICA_EXPLAIN,
    REPLICA_STATE,
)
"""Read-only queries, permitted to observers. (`advisor.predict`, `.rank` and `planner.plan` store an event.)"""


class _BucketUse(NamedTuple):
    """Roles by their rights on a bucket; `administrator` has all, `observer` and `operator` read what is not secret."""

    writers: tuple[Role, ...] = ()
    own_key: tuple[Role, ...] = ()
    """May write the key of their node's name."""
    one_key: tuple[tuple[Role, str], ...] = ()
    """Roles that may write this key alone."""
    readers: tuple[Role, ...] = ()
    watchers: tuple[Role, ...] = ()
    """Readers that follow it; unless hosts write it they are sent each write, for changes without delay."""


_BUCKET_USES: Final[dict[BucketSpec, _BucketUse]] = {
    APPS: _BucketUse(
        writers=(Role.KUBEOPERATOR, Role.OPERATOR, Role.SCHEDULER),
        one_key=((Role.AGGREGATOR, APPLICATION),),
        readers=(Role.AGENT, Role.AGGREGATOR, Role.KUBEOPERATOR, Role.SCHEDULER),
        watchers=(Role.ALLOCATOR,),
    ),
    LEASES: _BucketUse(writers=(Role.ALLOCATOR,), watchers=(Role.ALLOCATOR,)),
    NODES: _BucketUse(own_key=(Role.AGENT,), readers=(Role.AGENT,), watchers=(Role.ALLOCATOR,)),
    RECONCILERS: _BucketUse(own_key=(Role.RECONCILER,), readers=(Role.RECONCILER,)),
    POD_SELECTORS: _BucketUse(writers=(Role.KUBEOPERATOR,), readers=(Role.AGENT, Role.KUBEOPERATOR)),
    RUNNERS: _BucketUse(
        writers=(Role.SLURM,), own_key=(Role.RUNNER,), readers=(Role.RUNNER, Role.SLURM), watchers=(Role.SCHEDULER,)
    ),
    JOB_SPECS: _BucketUse(writers=(Role.SCHEDULER,), readers=(Role.SCHEDULER,)),
    TRAININGS: _BucketUse(writers=(Role.TRAINER,), readers=(Role.TRAINER,)),
    AGGREGATORS: _BucketUse(writers=(Role.AGGREGATOR,), readers=(Role.AGGREGATOR,)),
    AGGREGATIONS: _BucketUse(writers=(Role.AGGREGATOR,), readers=(Role.AGGREGATOR,)),
    MEMORY_HOSTS: _BucketUse(own_key=(Role.MEMORY,), readers=(Role.MEMORY,)),
}
_SECRET: Final = (JOB_SPECS,)
"""Buckets that people may not read."""
_FOR_PEOPLE: Final = tuple(bucket for bucket in BUCKETS if bucket not in _SECRET)
_STORE_USES: Final[dict[ObjectStoreSpec, tuple[Role, ...]]] = {MODELS: (Role.ADVISOR,), SNAPSHOTS: (Role.SCHEDULER,)}
_REPLAYS: Final[dict[Role, tuple[StreamSpec, ...]]] = {
    Role.ADVISOR: (RUN_STREAM, JOB_STREAM),
    Role.COLLECTOR: (SCHEDULE_STREAM,),
    Role.PLANNER: (LAYER_STREAM,),
    Role.SCHEDULER: (ROUTE_STREAM, SCHEDULE_STREAM, WORK_STREAM),
}
"""Streams that are followed: each event is received, unless hosts write them."""
_FROM_ALL_NODES: Final = (ROUTE_EVENTS, SLAB_EVENTS)
"""Events of all hosts that a host's service subscribes to, without a right to their stream."""
_ASKS: Final[dict[Role, tuple[Endpoint, ...]]] = {
    Role.KUBEOPERATOR: (ALLOCATOR_STATE,),
    Role.SCHEDULER: (ADVISOR_PREDICT, PLANNER_PLAN),
    Role.TRAINER: (AGGREGATOR_PLACE, AGGREGATOR_END),
}
"""Queries of services to others."""
_LOOKS_UP: Final[dict[Role, tuple[StreamSpec, ...]]] = {
    Role.COLLECTOR: (RUN_STREAM, JOB_STREAM),
    Role.PLANNER: (TRAINING_STREAM,),
    Role.SCHEDULER: (SCHEDULE_STREAM,),
}
"""Streams of which single events, or all that are stored, are read."""


@dataclass(frozen=True, slots=True)
class Uses:
    """Streams, buckets and stores that a role uses."""

    streams: tuple[StreamSpec, ...]
    buckets: tuple[BucketSpec, ...]
    object_stores: tuple[ObjectStoreSpec, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """A bus user: role, node (of roles that are one per host), and inbox."""

    role: Role
    node: str | None = None
    inbox: str = ""
    """First token after ``_INBOX``, exclusive to this user. Empty: it cannot receive replies."""

    def __post_init__(self) -> None:
        if (self.role in NODE_ROLES) != (self.node is not None):
            raise ValueError(f"a {self.role} is {'' if self.role in NODE_ROLES else 'not '}bound to a node")

    @property
    def name(self) -> str:
        """``allocator``, ``agent-gpu-07``; fit to name a file."""
        return self.role.value if self.node is None else f"{self.role.value}-{token(self.node)}".replace("/", ".")


@dataclass(frozen=True, slots=True)
class Grants:
    """Permitted subject patterns, in the server's syntax; all others are denied."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def uses(role: Role) -> Uses:
    """Streams, buckets and stores that a role writes or reads."""
    if role in {*PEOPLE, Role.ADMINISTRATOR}:
        everything = role is Role.ADMINISTRATOR
        return Uses(STREAMS, BUCKETS if everything else _FOR_PEOPLE, OBJECT_STORES if everything else ())
    channels = [channel for channel in CHANNELS if _sends(role, channel) or _receives(role, channel)]
    templates = {channel.template for channel in channels if channel.delivery is Delivery.JETSTREAM}
    read = (*_REPLAYS.get(role, ()), *_LOOKS_UP.get(role, ()))
    streams = tuple(stream for stream in STREAMS if templates & set(stream.templates) or stream in read)
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
        return channel.template == ROUTE_EVENTS  # listed as the reconciler in the registry
    return _among(role, channel.senders, channel)


def _receives(role: Role, channel: Channel) -> bool:
    return role is not Role.FAST_PATH and _among(role, channel.receivers, channel)


def _among(role: Role, services: tuple[str, ...], channel: Channel) -> bool:
    """Whether a role stands in a list of the registry, where both kinds of people are ``cli``."""
    if role not in PEOPLE:
        return role.value in services
    asks_to_change = channel.delivery is Delivery.REQUEST and channel.template not in READ_ONLY
    return "cli" in services and (role is Role.OPERATOR or not asks_to_change)


def _asked(template: SubjectTemplate) -> str:
    """The parameter that names the host which answers: a request from host to host names both."""
    return "daemon" if "daemon" in template.parameters else "node"


def _subject(identity: Identity, template: SubjectTemplate, root: str, own: str = "node") -> str:
    ids = {own: identity.node} if identity.node is not None and own in template.parameters else {}
    return template.pattern(root, **ids).text


def _messages_out(identity: Identity, root: str) -> Iterator[str]:
    role = identity.role
    for channel in CHANNELS:
        if _sends(role, channel):
            yield _subject(identity, channel.template, root)
    for endpoint in ENDPOINTS:
        asks = endpoint in _ASKS.get(role, ())
        if asks or role is Role.OPERATOR or (role is Role.OBSERVER and endpoint.template in READ_ONLY):
            yield _subject(identity, endpoint.template, root)
    if role in PEOPLE:
        yield from (f"$SRV.{verb}{names}" for verb in ("PING", "INFO", "STATS") for names in ("", ".*", ".*.*"))


def _messages_in(identity: Identity, root: str) -> Iterator[str]:
    role = identity.role
    for channel in CHANNELS:
        # People subscribe to observations and events, only responders to commands: no user may ask what it hears.
        if _receives(role, channel) and channel.template in _FROM_ALL_NODES:
            yield channel.template.pattern(root).text
        elif _receives(role, channel):
            yield _subject(identity, channel.template, root, own=_asked(channel.template))
    for endpoint in ENDPOINTS:
        if endpoint.service == role.value:
            yield _subject(identity, endpoint.template, root)
            yield from ("$SRV.*", f"$SRV.*.{role.value}", f"$SRV.*.{role.value}.*")
    yield from _followed(role, root)
    if role is Role.ADMINISTRATOR:
        yield "$JS.EVENT.>"
    if role in PEOPLE:
        yield from (f"{root}.obs.>", f"{root}.evt.>")
        yield from (f"$KV.{bucket.bucket_name(root)}.>" for bucket in _FOR_PEOPLE)


def _followed(role: Role, root: str) -> Iterator[str]:
    """Events and writes that a reader of a stream or bucket receives."""
    for stream in _REPLAYS.get(role, ()):
        if stream.max_messages_per_host is None:
            yield from (subject.text for subject in stream.subjects(root))
    for bucket in BUCKETS:
        if role in _BUCKET_USES[bucket].watchers and not bucket.written_by_hosts:
            yield f"$KV.{bucket.bucket_name(root)}.>"


def _replies(role: Role) -> Iterator[str]:
    """Inboxes that responders may publish to.

    Not `allow_responses`: it permits publishing to *any* reply subject of a received message, and the requester's right
    to name it is not checked. An inbox ends with 128 random bits, so only its responders know it.
    """
    answered = {channel.template for channel in CHANNELS if _receives(role, channel) and channel.reply is not None}
    answered |= {endpoint.template for endpoint in ENDPOINTS if endpoint.service == role.value}
    ordered = role in {*NODE_ROLES, Role.SLURM}
    if answered and ordered:  # orders pass with the inbox that they name
        yield f"{INBOX}.>"
    if answered and (not ordered or answered & set(READ_ONLY)):
        yield f"{MAPPED_INBOX}.>"


# -- storage -------------------------------------------------------------------------------------------------------


def _storage(identity: Identity, root: str) -> Iterator[str]:
    role = identity.role
    if role is Role.ADMINISTRATOR:
        yield from (f"{_API}.>", "$JS.ACK.>", "$JS.FC.>")
        yield from (f"$KV.{bucket.bucket_name(root)}.>" for bucket in BUCKETS)
        yield from (f"$O.{store.bucket_name(root)}.>" for store in OBJECT_STORES)
        return
    if role in PEOPLE:
        yield from (f"{_API}.INFO", f"{_API}.STREAM.NAMES", f"{_API}.STREAM.LIST")
    needs = uses(role)
    for name in _stream_names(needs, root):
        yield f"{_API}.STREAM.INFO.{name}"
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
    receives = any(channel.template in stream.templates and _receives(role, channel) for channel in CHANNELS)
    if role in NODE_ROLES or not (receives or stream in (*_REPLAYS.get(role, ()), *_LOOKS_UP.get(role, ()))):
        return
    yield f"{_API}.STREAM.MSG.GET.{name}"
    if role is not Role.OBSERVER:  # another observer would be sent the stored bytes
        yield f"{_API}.DIRECT.GET.{name}"


def _bucket_rights(identity: Identity, bucket: BucketSpec, root: str) -> Iterator[str]:
    role, use, name = identity.role, _BUCKET_USES[bucket], bucket.bucket_name(root)
    if role in use.writers:
        yield f"$KV.{name}.>"
    if role in use.own_key and identity.node is not None:
        yield f"$KV.{name}.{token(identity.node)}"
    yield from (f"$KV.{name}.{token(key)}" for other, key in use.one_key if other is role)
    if role in (*use.readers, *use.watchers) or (role in PEOPLE and bucket not in _SECRET):
        yield f"{_API}.STREAM.MSG.GET.KV_{name}"
