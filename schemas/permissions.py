"""Publish and subscribe permissions of each role, derived from what services declare. Pure.

The server enforces them (``turnbuckle nats config`` writes its configuration); docs/security.md lists them. What each
service sends, answers, asks, stores and reads is declared in `schemas.services`.

Three features bypass subject permissions. A consumer delivers to *any* subject of its account, in the server's name; a
stream takes in, and republishes, any: only the administrator makes either. And every answer of the server, a direct
get's stored bytes among them, is written wherever the request says, so each role has an account of its own, where
nothing is stored (``services/cli/nats/accounts.py``). Hosts, and observers, share theirs: they are answered in the
server's JSON only, which is no message of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from schemas.registry import CHANNELS, ENDPOINTS
from schemas.roles import Role
from schemas.service import BucketUse, Channel, Delivery, Service
from schemas.services import SERVICES
from schemas.streams import (
    APPS,
    BUCKETS,
    OBJECT_STORES,
    STREAMS,
    BucketSpec,
    ObjectStoreSpec,
    StreamSpec,
)
from schemas.subjects import (
    ROUTE_EVENTS,
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


_DECLARED: Final = {
    **{Role(service.name): service for service in SERVICES},
    Role.ADMINISTRATOR: Service(name=Role.ADMINISTRATOR),
    Role.OPERATOR: Service(name=Role.OPERATOR, buckets=(BucketUse(APPS, writes=True),)),
    Role.OBSERVER: Service(name=Role.OBSERVER),
}
NODE_ROLES: Final = tuple(role for role, service in _DECLARED.items() if service.per_host)
"""One user per host: it may only use subjects with its own node name."""
PEOPLE: Final = (Role.OPERATOR, Role.OBSERVER)

READ_ONLY: Final = (
    *(channel.template for channel in CHANNELS if channel.read_only),
    *(endpoint.template for endpoint in ENDPOINTS if endpoint.read_only),
)
"""Read-only queries, permitted to observers. (`advisor.predict`, `.rank` and `planner.plan` store an event.)"""
_FOR_PEOPLE: Final = tuple(bucket for bucket in BUCKETS if not bucket.secret)


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
    declared = _DECLARED[role]
    read = (*declared.replays, *declared.looks_up)
    streams = tuple(stream for stream in STREAMS if templates & set(stream.templates) or stream in read)
    used = {use.bucket for use in declared.buckets}
    return Uses(streams, tuple(bucket for bucket in BUCKETS if bucket in used), declared.object_stores)


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
    asks_to_change = channel.delivery is Delivery.REQUEST and not channel.read_only
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
        asks = endpoint in _DECLARED[role].asks
        if asks or role is Role.OPERATOR or (role is Role.OBSERVER and endpoint.read_only):
            yield _subject(identity, endpoint.template, root)
    if role in PEOPLE:
        yield from (f"$SRV.{verb}{names}" for verb in ("PING", "INFO", "STATS") for names in ("", ".*", ".*.*"))


def _messages_in(identity: Identity, root: str) -> Iterator[str]:
    role = identity.role
    for channel in CHANNELS:
        # People subscribe to observations and events, only responders to commands: no user may ask what it hears.
        if _receives(role, channel) and channel.from_all_hosts:
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
    for stream in _DECLARED[role].replays:
        if stream.max_messages_per_host is None:
            yield from (subject.text for subject in stream.subjects(root))
    for use in _DECLARED[role].buckets:
        if use.watches and not use.bucket.written_by_hosts:
            yield f"$KV.{use.bucket.bucket_name(root)}.>"


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
    declared = _DECLARED[role]
    if role in NODE_ROLES or not (receives or stream in (*declared.replays, *declared.looks_up)):
        return
    yield f"{_API}.STREAM.MSG.GET.{name}"
    if role is not Role.OBSERVER:  # another observer would be sent the stored bytes
        yield f"{_API}.DIRECT.GET.{name}"


def _bucket_rights(identity: Identity, bucket: BucketSpec, root: str) -> Iterator[str]:
    role, name = identity.role, bucket.bucket_name(root)
    use = next((use for use in _DECLARED[role].buckets if use.bucket == bucket), BucketUse(bucket))
    if use.writes:
        yield f"$KV.{name}.>"
    if use.own_key and identity.node is not None:
        yield f"$KV.{name}.{token(identity.node)}"
    if use.key:
        yield f"$KV.{name}.{token(use.key)}"
    if use.reads or use.watches or (role in PEOPLE and not bucket.secret):
        yield f"{_API}.STREAM.MSG.GET.KV_{name}"
