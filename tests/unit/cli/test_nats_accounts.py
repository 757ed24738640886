"""What passes between the accounts of a NATS server: what one publishes and another receives, and nothing else."""

from __future__ import annotations

import itertools
import re

import pytest

from schemas.codec import CodecError, decode_as, encode
from schemas.oom import MemoryReply
from schemas.permissions import NODE_ROLES, Identity, allowed, grants
from schemas.registry import CHANNELS, ENDPOINTS
from schemas.remote_memory import SlabReply
from schemas.roles import Role
from schemas.service import Delivery
from schemas.streams import BUCKETS, STREAMS
from schemas.subjects import SLAB_REQUESTS, SubjectTemplate, token
from services.cli.nats.accounts import ACCOUNTS, HOSTS, STORE, Exchange, account_of, exchanges
from services.cli.nats.config import User, users_text

NODES = ("gpu-01.example", "gpu-02")
USERS = (
    *(Identity(role, node) for role in NODE_ROLES for node in NODES),
    *(Identity(role) for role in Role if role not in NODE_ROLES),
)
GRANTS = {user: grants(user, "tb") for user in USERS}
PASSING = exchanges("tb")
PAIRS = [pair for pair in itertools.permutations(ACCOUNTS, 2) if STORE not in pair]
STORED = [template for stream in STREAMS for template in stream.templates]
QUESTIONS = [channel.template for channel in CHANNELS if channel.delivery is Delivery.REQUEST]
QUESTIONS += [endpoint.template for endpoint in ENDPOINTS]


def concrete(template: SubjectTemplate, node: str = NODES[0]) -> str:
    names = template.parameters
    return template.subject("tb", **{name: node if name in {"daemon", "node"} else "x1" for name in names}).text


def of(account: str) -> list[Identity]:
    return [user for user in USERS if account_of(user.role) == account]


def passing(subject: str, exporter: str, importer: str) -> list[Exchange]:
    between = [each for each in PASSING if (each.exporter, each.importer) == (exporter, importer)]
    return [each for each in between if allowed([each.subject], subject)]


def ways(subject: str, publisher: str, receiver: str) -> list[Exchange]:
    """Of a service the answering account exports, of a stream the publishing one."""
    streams = [each for each in passing(subject, publisher, receiver) if each.kind == "stream"]
    return streams + [each for each in passing(subject, receiver, publisher) if each.kind == "service"]


def may_publish(subject: str, account: str) -> bool:
    return any(allowed(GRANTS[user].publish, subject) for user in of(account))


def may_receive(subject: str, account: str) -> bool:
    return any(allowed(GRANTS[user].subscribe, subject) for user in of(account))


MESSAGES = {concrete(channel.template, node) for channel in CHANNELS for node in NODES}
MESSAGES |= {concrete(endpoint.template) for endpoint in ENDPOINTS}
WRITES = {f"$KV.{bucket.bucket_name('tb')}.{token(NODES[0])}" for bucket in BUCKETS}


@pytest.mark.parametrize("subject", sorted(MESSAGES | WRITES))
def test_what_one_account_publishes_and_another_receives_passes_once_and_nothing_else_does(subject: str) -> None:
    """Twice would be two events of one; what passes besides, somebody else's word."""
    for publisher, receiver in PAIRS:
        wanted = may_publish(subject, publisher) and may_receive(subject, receiver)
        assert len(ways(subject, publisher, receiver)) == wanted, (publisher, receiver)


def test_what_hosts_ask_each_other_stays_among_them() -> None:
    for subject in (concrete(SLAB_REQUESTS, node) for node in NODES):
        assert may_publish(subject, HOSTS)
        assert may_receive(subject, HOSTS)
        assert [each for each in PASSING if allowed([each.subject], subject)] == []


def test_nothing_reaches_the_account_that_stores_with_its_reply_subject() -> None:
    """A stream import passes reply subjects on: the acknowledgement would be written in the account that stores."""
    assert [each for each in PASSING if each.importer == STORE] == []
    assert {each.kind for each in PASSING if each.exporter == STORE} == {"service"}
    assert [user.role for user in of(STORE)] == [Role.ADMINISTRATOR]


@pytest.mark.parametrize("template", STORED, ids=lambda each: each.text)
def test_an_event_is_stored_from_whatever_account_it_comes(template: SubjectTemplate) -> None:
    subject = concrete(template)
    for account in ACCOUNTS:
        kept = [each.kind for each in passing(subject, STORE, account)]
        assert kept == ["service"] * (may_publish(subject, account) and account != STORE)


def test_of_the_server_an_account_is_given_what_its_users_may_ask() -> None:
    """The server's answer to one request follows an import of another: all that hosts share only reads."""
    for each in PASSING:
        if each.subject.startswith("$JS.") and each.subject != "$JS.API.INFO":
            assert any(each.subject in GRANTS[user].publish for user in of(each.importer)), each
    verbs = ("INFO", "STREAM.INFO.", "STREAM.MSG.GET.", "STREAM.NAMES", "STREAM.LIST")
    reading = tuple(f"$JS.API.{verb}" for verb in verbs)
    assert all(
        each.subject.startswith(reading)
        for each in PASSING
        if each.subject.startswith("$JS.") and each.importer in {HOSTS, account_of(Role.OBSERVER)}
    )


@pytest.mark.parametrize("template", QUESTIONS, ids=lambda each: each.text)
def test_whoever_asks_a_central_service_names_no_subject_of_its_account(template: SubjectTemplate) -> None:
    subject = concrete(template)
    for asking, answering in PAIRS:
        kinds = {each.kind for each in ways(subject, asking, answering)}
        ordered = answering in {HOSTS, account_of(Role.SLURM)} and asking != account_of(Role.OBSERVER)
        assert kinds <= {"stream" if ordered else "service"}
        if kinds == {"stream"}:
            assert [each.kind for each in passing("_INBOX.x.y", answering, asking)] == ["stream"]


def test_what_services_answer_to_hosts_is_no_message_that_hosts_hear() -> None:
    """A host may name any subject of its account as the reply subject: another host would hear the answer there."""
    answers = (
        MemoryReply(app="shop", epoch=1, granted_bytes=1, reclaiming_bytes=0, denial=""),
        SlabReply(address="10.0.0.2:1", export="5f" * 32),
    )
    heard = [channel for channel in CHANNELS if may_receive(concrete(channel.template), HOSTS)]
    asked = [channel for channel in CHANNELS if channel.reply and may_publish(concrete(channel.template), HOSTS)]

    assert [channel.reply for channel in asked] == [*map(type, answers)], "another one has to be looked at here"
    assert len(heard) > 4
    for channel in heard:
        for answer in answers:
            with pytest.raises(CodecError):
                decode_as(encode(answer), channel.message)


def test_what_services_answer_to_observers_is_no_message_that_observers_hear() -> None:
    observers = account_of(Role.OBSERVER)
    replies = {channel.reply for channel in CHANNELS if may_publish(concrete(channel.template), observers)}
    replies |= {each.reply for each in ENDPOINTS if may_publish(concrete(each.template), observers)}
    heard = {channel.message for channel in CHANNELS if may_receive(concrete(channel.template), observers)}

    assert len(replies) > 4
    assert len(heard) > 4
    assert replies & heard == set()


def test_each_user_stands_in_its_account_and_one_account_stores() -> None:
    users = [User(identity, f"U{identity.name}") for identity in USERS]
    parts = re.split(r"^  (\w+) \{$", users_text(users, "tb"), flags=re.MULTILINE)[1:]
    text = dict(zip(parts[::2], parts[1::2], strict=True))

    assert tuple(text) == ACCOUNTS
    assert [name for name, body in text.items() if "jetstream: enabled" in body] == [STORE]
    for user in users:
        assert [name for name, body in text.items() if f"nkey: {user.public_key}," in body] == [
            account_of(user.identity.role)
        ]


def test_what_passes_keeps_to_its_root() -> None:
    for each in exchanges("mine"):
        assert not each.subject.startswith("tb.")
        assert ".tb_" not in each.subject.lower()
