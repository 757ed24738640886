"""Every subject that a user of the bus could try, and a plain connection that notes what the server refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Self

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas.permissions import NODE_ROLES, Identity, allowed
from schemas.registry import CHANNELS, ENDPOINTS
from schemas.roles import Role
from schemas.streams import BUCKETS, OBJECT_STORES, STREAMS
from schemas.subjects import SLAB_REQUESTS, SubjectTemplate, token
from services.cli.nats.accounts import account_of, exchanges
from tests.support.deadline import until
from tests.support.secured_nats import NODES as HOSTS
from tests.support.secured_nats import SecuredNats

MINE, OTHERS = HOSTS
_REFUSAL = re.compile(
    r'permissions violation for (publish with reply|publish|subscription) (?:to|of) "([^"]*)"', re.IGNORECASE
)
_NO_REPLY_SUBJECTS: Final = "$JS.ACK."
"""Reserved by the server, which carries no message of a client that names one to be answered at."""


def concrete(template: SubjectTemplate, node: str) -> str:
    """One subject of a template."""
    return template.subject("tb", **{name: node if name == "node" else "x.1" for name in template.parameters}).text


def every_subject() -> list[str]:
    """Of messages, for both hosts; of what is stored; of the server's own interface.

    Whoever may, none of them changes a stream or a consumer: what would is asked of one that is not there.
    """
    templates = [channel.template for channel in CHANNELS] + [endpoint.template for endpoint in ENDPOINTS]
    subjects = {concrete(template, node) for template in templates for node in HOSTS}
    subjects |= {SLAB_REQUESTS.subject("tb", daemon=daemon, node=node).text for daemon in HOSTS for node in HOSTS}
    subjects |= {f"$KV.{bucket.bucket_name('tb')}.{token(node)}" for bucket in BUCKETS for node in HOSTS}
    subjects |= {f"$O.{store.bucket_name('tb')}.{part}.x" for store in OBJECT_STORES for part in "CM"}
    names = [stream.stream_name("tb") for stream in STREAMS]
    names += [f"KV_{bucket.bucket_name('tb')}" for bucket in BUCKETS]
    names += [f"OBJ_{store.bucket_name('tb')}" for store in OBJECT_STORES]
    subjects |= {subject for name in names for subject in _of_stream(name)}
    return sorted(subjects | _OTHERS)


_OTHERS: Final = {
    *(f"$JS.API.{rest}" for rest in ("INFO", "STREAM.NAMES", "STREAM.LIST", "META.LEADER.STEPDOWN")),
    *(f"$JS.API.ACCOUNT.{rest}" for rest in ("INFO", "PURGE.NOT", "STREAM.MOVE.NOT.NOT", "STREAM.CANCEL_MOVE.NOT.NOT")),
    "$JS.API.SERVER.REMOVE",
    "$JS.EVENT.ADVISORY.NOT",
    "$SRV.PING",
    "$SRV.INFO.allocator",
    "$SRV.STATS.advisor.x",
    "$SYS.REQ.SERVER.PING",
    "elsewhere",
    "tb.new.thing",
}


def _of_stream(name: str) -> Iterator[str]:
    """What may be asked of one stream and its consumers (https://docs.nats.io/reference/reference-protocols/nats_api_reference)."""
    for verb in (
        "CREATE",
        "UPDATE",
        "INFO",
        "DELETE",
        "PURGE",
        "MSG.GET",
        "MSG.DELETE",
        "SNAPSHOT",
        "RESTORE",
        "LEADER.STEPDOWN",
        "PEER.REMOVE",
    ):
        yield f"$JS.API.STREAM.{verb}.{name}_NOT"
    yield from (f"$JS.API.STREAM.{verb}.{name}" for verb in ("INFO", "MSG.GET"))
    yield from (f"$JS.API.DIRECT.GET.{name}", f"$JS.API.DIRECT.GET.{name}.x.1")
    yield from (f"$JS.API.CONSUMER.{verb}.{name}" for verb in ("CREATE", "LIST", "NAMES"))
    for verb in (
        "CREATE",
        "DURABLE.CREATE",
        "INFO",
        "MSG.NEXT",
        "DELETE",
        "PAUSE",
        "UNPIN",
        "LEADER.STEPDOWN",
    ):
        yield f"$JS.API.CONSUMER.{verb}.{name}.c"
    yield from (f"$JS.ACK.{name}.c.1.1.1.1.0", f"$JS.FC.{name}.c.x")


class Trial:
    """One user's plain connection, and what the server has refused it."""

    def __init__(self, server: SecuredNats, identity: Identity) -> None:
        self._server = server
        self._identity = identity
        self.refused: dict[str, set[str]] = {"publish": set(), "publish with reply": set(), "subscription": set()}
        self.client = Client()

    async def __aenter__(self) -> Self:
        self.client = await nats.connect(
            self._server.url,
            nkeys_seed=self._server.seed_file(self._identity.role, self._identity.node),
            error_cb=self._take,
            inbox_prefix=f"_INBOX.{self._identity.inbox}",
            connect_timeout=60,  # two seconds are too few on a busy machine
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def _take(self, error: Exception) -> None:
        found = _REFUSAL.search(str(error))
        assert found is not None, error
        self.refused[found[1].lower()].add(found[2])

    async def publish(self, subjects: list[str]) -> set[str]:
        """Those that the server lets pass."""
        for subject in subjects:
            await self.client.publish(subject, b"trial")
        return await self._passed("publish", subjects)

    async def trace_to(self, own: str, destinations: list[str]) -> set[str]:
        """Those to which the server would send a message's trace (NATS ADR-41), in its own name."""
        for subject in destinations:
            await self.client.publish(own, b"trial", headers={"Nats-Trace-Dest": subject, "Nats-Trace-Only": "true"})
        return await self._passed("publish", destinations)

    async def take_baits(self, subject: str, publisher: Trial, replies: list[str]) -> None:
        """Receive one message for each reply subject that the server carries, on a subject that this user may hear.

        With `allow_responses` the server would now let this user publish to each of them.
        """
        received: set[str] = set()
        reserved = {reply for reply in replies if reply.startswith(_NO_REPLY_SUBJECTS)}

        async def on_message(message: Msg) -> None:
            received.add(message.reply)

        await self.client.subscribe(subject, cb=on_message)
        await self.client.flush()
        await self.client.flush()  # nats-py's PING overtakes what is queued: only the second is behind the SUB
        for reply in replies:
            await publisher.client.publish(subject, b"bait", reply=reply)
        await publisher.client.flush()
        expected, refused = set(replies) - reserved, {reply.lower() for reply in reserved}
        await until(lambda: received >= expected, within_s=60, what="the messages that name a reply subject")
        await until(lambda: publisher.refused["publish with reply"] == refused, within_s=60, what="their refusal")
        assert not received & reserved, "what may not be named as a reply subject was carried"

    async def subscribe(self, subjects: list[str]) -> set[str]:
        """Those that the server lets us hear."""
        for subject in subjects:
            await self.client.subscribe(subject)
        return await self._passed("subscription", subjects)

    async def _passed(self, what: str, subjects: list[str]) -> set[str]:
        await self.client.flush()
        await self.client.flush()  # the answer to the first may overtake the callbacks
        refused = {each.lower() for each in self.refused[what]}
        return {subject for subject in subjects if subject.lower() not in refused}


def identities() -> list[tuple[Role, str | None]]:
    """One user of each role."""
    return [(role, MINE if role in NODE_ROLES else None) for role in Role]


def passes_as_it_is(publisher: Role, hearer: Role, subject: str) -> bool:
    """Whether a message of one role arrives at another with the reply subject that it names."""
    here, there = account_of(publisher), account_of(hearer)
    streams = [each for each in exchanges("tb") if each.kind == "stream"]
    between = [each.subject for each in streams if (each.exporter, each.importer) == (here, there)]
    return here == there or allowed(between, subject)
