"""Accounts of a NATS server, and what passes between them; derived from `schemas.permissions`. Pure.

The server checks nobody's right to name a reply subject, and writes its own answers (an acknowledgement, a stream's
description) to whatever subject of the asker's account is named. So hosts have an account of their own, and observers
another, in which nothing is stored. What hosts say is imported by the services' account, subject by subject; an answer
does not follow an import.

Two kinds of imports (https://docs.nats.io/running-a-nats-service/configuration/securing_nats/accounts):

- ``service``: a request passes, its reply subject replaced by one that the server chooses. For what JetStream answers,
  and for questions.
- ``stream``: a message passes as it is, with its reply subject. For observations; and for orders, which are answered at
  an inbox of 128 random bits. A reply subject that the server chooses has 36.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from schemas.permissions import INBOX, MAPPED_INBOX, NODE_ROLES, Identity, Role, grants
from schemas.registry import CHANNELS, Delivery

_ANY_NODE: Final = "any-node"
_JETSTREAM_INFO: Final = "$JS.API.INFO"
_ANSWERED_ONCE: Final = "$JS.API.STREAM."


class Account(StrEnum):
    """The names of the accounts. What JetStream stores belongs to the first: its name is that of earlier versions."""

    SERVICES = "TURNBUCKLE"
    HOSTS = "HOSTS"
    OBSERVERS = "OBSERVERS"


def account_of(role: Role) -> Account:
    """Whose account a role's users are in."""
    if role in NODE_ROLES:
        return Account.HOSTS
    return Account.OBSERVERS if role is Role.OBSERVER else Account.SERVICES


@dataclass(frozen=True, slots=True)
class Exchange:
    """A subject on which messages pass from one account (of a service: to the one that answers) to another."""

    kind: str
    """``service`` or ``stream``, as the server has it."""
    subject: str
    exporter: Account
    importer: Account


def exchanges(root: str) -> tuple[Exchange, ...]:
    """All that passes between accounts, for whatever hosts there are."""
    return (*_hosts_and_services(root), *_observed(root))


def _hosts_and_services(root: str) -> Iterator[Exchange]:
    published, subscribed = _subjects_of(NODE_ROLES, root)
    lossy = {channel.template.pattern(root).text for channel in CHANNELS if channel.delivery is Delivery.CORE}
    requests = {channel.template.pattern(root).text for channel in CHANNELS if channel.delivery is Delivery.REQUEST}
    among_hosts = requests & published & subscribed
    published, subscribed = published - among_hosts, subscribed - among_hosts
    for subject in sorted(subscribed - published):
        yield Exchange("stream", subject, Account.SERVICES, Account.HOSTS)
    for subject in sorted({*(published & lossy), f"{INBOX}.>"}):
        yield Exchange("stream", subject, Account.HOSTS, Account.SERVICES)
    # No host may publish to the last; without it the server would answer all of $JS.API there, with "not enabled".
    for subject in sorted({*(published - lossy), _JETSTREAM_INFO}):
        yield Exchange("service", subject, Account.SERVICES, Account.HOSTS)


def _observed(root: str) -> Iterator[Exchange]:
    _, subscribed_by_hosts = _subjects_of(NODE_ROLES, root)
    requested, subscribed = _subjects_of((Role.OBSERVER,), root)
    for subject in sorted(requested):
        answering = Account.HOSTS if subject in subscribed_by_hosts else Account.SERVICES
        yield Exchange("service", subject, answering, Account.OBSERVERS)
    # From whose users say it: what the services' account has by a service import goes no further on the same server; to
    # other servers of a cluster it does, so that an event would be received twice there.
    for account in (Account.SERVICES, Account.HOSTS):
        published, _ = _subjects_of((role for role in Role if account_of(role) is account), root)
        for subject in sorted(published):
            if any(_covers(pattern, subject) for pattern in subscribed):
                yield Exchange("stream", subject, account, Account.OBSERVERS)


def _covers(pattern: str, other: str) -> bool:
    return pattern == other or (pattern.endswith(".>") and other.startswith(pattern[:-1]))


def _subjects_of(roles: Iterable[Role], root: str) -> tuple[set[str], set[str]]:
    """Subjects that users of these roles publish and subscribe, of any node; without inboxes."""
    granted = [grants(Identity(role, _ANY_NODE if role in NODE_ROLES else None), root) for role in roles]
    published, subscribed = (
        {".".join("*" if part == _ANY_NODE else part for part in pattern.split(".")) for pattern in patterns}
        for patterns in (
            [pattern for each in granted for pattern in each.publish],
            [pattern for each in granted for pattern in each.subscribe],
        )
    )
    return {each for each in published if not each.startswith((INBOX, MAPPED_INBOX))}, subscribed


def exchange_lines(account: Account, root: str) -> list[str]:
    """``exports`` and ``imports`` of an account."""
    passing = exchanges(root)
    exported: dict[tuple[str, str], list[str]] = {}
    for each in passing:
        if each.exporter is account:
            exported.setdefault((each.kind, each.subject), []).append(each.importer)
    exports = [_export(kind, subject, importers) for (kind, subject), importers in exported.items()]
    imports = [
        f"      {{ {each.kind}: {{ account: {each.exporter}, subject: {json.dumps(each.subject)} }} }}"
        for each in passing
        if each.importer is account
    ]
    lines = ["    exports: [", *exports, "    ]"] if exports else []
    return [*lines, "    imports: [", *imports, "    ]"]


def _export(kind: str, subject: str, importers: list[str]) -> str:
    # Observers may be answered by many, or in many parts.
    many = kind == "service" and Account.OBSERVERS in importers and not subject.startswith(_ANSWERED_ONCE)
    response = ', response_type: "Stream"' if many else ""
    return f"      {{ {kind}: {json.dumps(subject)}, accounts: {json.dumps(sorted(importers))}{response} }}"
