"""What passes between the accounts of a NATS server: what each side says and hears, and nothing else."""

from __future__ import annotations

import re

import pytest

from schemas.codec import CodecError, decode_as, encode
from schemas.oom import MemoryReply
from schemas.permissions import NODE_ROLES, Identity, Role, allowed, grants
from schemas.registry import CHANNELS, Delivery
from schemas.remote_memory import SlabReply
from schemas.streams import BUCKETS, STREAMS
from schemas.subjects import SLAB_REQUESTS, SubjectTemplate
from services.cli.nats.accounts import Account, Exchange, account_of, exchanges
from services.cli.nats.config import User, users_text

NODES = ("gpu-01.example", "gpu-02")
HOSTS = tuple(Identity(role, node) for role in NODE_ROLES for node in NODES)
STORED = [template for stream in STREAMS for template in stream.templates]


def concrete(template: SubjectTemplate, node: str = NODES[0]) -> str:
    names = template.parameters
    return template.subject("tb", **{name: node if name in {"daemon", "node"} else "x1" for name in names}).text


def passing(subject: str, exporter: Account, importer: Account) -> list[Exchange]:
    between = [each for each in exchanges("tb") if (each.exporter, each.importer) == (exporter, importer)]
    return [each for each in between if allowed([each.subject], subject)]


def may_publish(subject: str, *users: Identity) -> bool:
    return any(allowed(grants(user, "tb").publish, subject) for user in users)


def may_hear(subject: str, *users: Identity) -> bool:
    return any(allowed(grants(user, "tb").subscribe, subject) for user in users)


FROM_HOST_TO_HOST = {
    concrete(channel.template, node)
    for channel in CHANNELS
    for node in NODES
    if channel.delivery is Delivery.REQUEST and set(channel.senders) & set(channel.receivers) & set(NODE_ROLES)
}
SUBJECTS = sorted({concrete(channel.template, node) for channel in CHANNELS for node in NODES})


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_hosts_say_arrives_once_and_nothing_else_does(subject: str) -> None:
    """Of a service the answering account exports, of a stream the speaking one."""
    services = passing(subject, Account.SERVICES, Account.HOSTS)
    ways = [each for each in services if each.kind == "service"]
    ways += [each for each in passing(subject, Account.HOSTS, Account.SERVICES) if each.kind == "stream"]

    assert len(ways) == (may_publish(subject, *HOSTS) and subject not in FROM_HOST_TO_HOST)


def test_what_hosts_ask_each_other_stays_among_them() -> None:
    assert {concrete(SLAB_REQUESTS, node) for node in NODES} == FROM_HOST_TO_HOST
    for subject in FROM_HOST_TO_HOST:
        assert may_publish(subject, *HOSTS)
        assert may_hear(subject, *HOSTS)
        for account in (Account.SERVICES, Account.OBSERVERS):
            assert passing(subject, Account.HOSTS, account) == passing(subject, account, Account.HOSTS) == []


@pytest.mark.parametrize("template", STORED, ids=lambda each: each.text)
def test_what_is_stored_is_a_service(template: SubjectTemplate) -> None:
    """A stream import passes reply subjects on: the acknowledgement would be written in the account that stores."""
    arriving = passing(concrete(template), Account.HOSTS, Account.SERVICES)

    assert [each.subject for each in arriving if each.kind == "stream"] == []


def test_no_key_of_a_bucket_is_a_stream() -> None:
    for bucket in BUCKETS:
        for exporter in (Account.HOSTS, Account.OBSERVERS):
            assert passing(f"$KV.{bucket.bucket_name('tb')}.x", exporter, Account.SERVICES) == []


@pytest.mark.parametrize("subject", SUBJECTS)
def test_hosts_are_sent_what_they_hear_of_others(subject: str) -> None:
    sent = [each for each in passing(subject, Account.SERVICES, Account.HOSTS) if each.kind == "stream"]

    assert len(sent) == (may_hear(subject, *HOSTS) and not may_publish(subject, *HOSTS))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_observers_hear_from_whose_users_say_it(subject: str) -> None:
    users = [*HOSTS, *(Identity(role) for role in Role if account_of(role) is Account.SERVICES)]
    speakers = {account_of(user.role) for user in users if may_publish(subject, user)}
    sources = [
        each.exporter
        for account in (Account.SERVICES, Account.HOSTS)
        for each in passing(subject, account, Account.OBSERVERS)
        if each.kind == "stream"
    ]

    assert sorted(sources) == sorted(speakers if may_hear(subject, Identity(Role.OBSERVER)) else ())


def test_an_observers_question_goes_to_the_account_that_answers() -> None:
    for channel in CHANNELS:
        subject = concrete(channel.template)
        if channel.delivery is Delivery.REQUEST and may_publish(subject, Identity(Role.OBSERVER)):
            found = [
                each.exporter
                for account in (Account.SERVICES, Account.HOSTS)
                for each in passing(subject, account, Account.OBSERVERS)
            ]
            assert found == [Account.HOSTS if may_hear(subject, *HOSTS) else Account.SERVICES], subject


def test_what_services_answer_to_hosts_is_no_message_that_hosts_hear() -> None:
    """A host may name any subject of its account as the reply subject: another host would hear the answer there."""
    answers = (
        MemoryReply(app="shop", epoch=1, granted_bytes=1, reclaiming_bytes=0, denial=""),
        SlabReply(address="10.0.0.2:1", export="5f" * 32),
    )
    heard = [channel for channel in CHANNELS if may_hear(concrete(channel.template), *HOSTS)]
    asked = [channel for channel in CHANNELS if channel.reply and may_publish(concrete(channel.template), *HOSTS)]

    assert [channel.reply for channel in asked] == [*map(type, answers)], "another one has to be looked at here"
    assert len(heard) > 4
    for channel in heard:
        for answer in answers:
            with pytest.raises(CodecError):
                decode_as(encode(answer), channel.message)


def test_each_user_stands_in_its_account_and_one_account_stores() -> None:
    users = [User(Identity(role), f"U{role.name}") for role in Role if role not in NODE_ROLES]
    users += [User(identity, f"U{identity.role.name}{identity.node}") for identity in HOSTS]
    parts = re.split(r"^  (\w+) \{$", users_text(users, "tb"), flags=re.MULTILINE)[1:]
    text = dict(zip(parts[::2], parts[1::2], strict=True))

    assert list(text) == list(Account)
    assert [name for name, body in text.items() if "jetstream: enabled" in body] == [Account.SERVICES]
    for user in users:
        assert [name for name, body in text.items() if f"nkey: {user.public_key}," in body] == [
            account_of(user.identity.role)
        ]


def test_what_passes_keeps_to_its_root() -> None:
    for each in exchanges("mine"):
        assert not each.subject.startswith("tb.")
        assert ".tb_" not in each.subject.lower()
