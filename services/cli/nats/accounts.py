"""Accounts of a NATS server, and what passes between them; derived from `schemas.permissions`. Pure.

The server checks nobody's right to name a reply subject, and writes its own answers (an acknowledgement, the bytes of a
direct get) to whatever subject of the asker's account is named. So what is stored is in an account of its own, which
only the administrator is in; every central role has an account, and so have all hosts, and all observers. What a user
publishes passes to the accounts of those who receive it, subject by subject; an answer does not follow an import.

Two kinds of imports (https://docs.nats.io/running-a-nats-service/configuration/securing_nats/accounts):

- ``service``: a request passes, its reply subject replaced by one that the server chooses. For what JetStream answers,
  and for questions.
- ``stream``: a message passes as it is, with its reply subject. For observations and events; and for orders to hosts,
  which are answered at an inbox of 128 random bits. A reply subject that the server chooses has 36, and hosts share an
  account, in which they could guess it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Final

from schemas.permissions import INBOX, MAPPED_INBOX, NODE_ROLES, Identity, grants
from schemas.registry import CHANNELS, ENDPOINTS
from schemas.roles import Role
from schemas.service import Delivery

STORE: Final = "TURNBUCKLE"
"""What JetStream stores belongs to this account: its name is that of earlier versions."""
HOSTS: Final = "HOSTS"
_ANY_NODE: Final = "any-node"
_STORED: Final = ("$JS.", "$KV.", "$O.")
_JETSTREAM_INFO: Final = "$JS.API.INFO"
_IN_PARTS: Final = ("$JS.API.DIRECT.GET.", "$SRV.")
"""Answered by many messages."""
_ANSWERED_WITHIN: Final = "10m"
"""After that an answer is dropped; by default after two minutes."""


_SEVERAL: Final = (Role.OBSERVER, Role.OPERATOR)
_QUESTIONS: Final = (
    *(channel.template for channel in CHANNELS if channel.delivery is Delivery.REQUEST),
    *(endpoint.template for endpoint in ENDPOINTS),
)
_EVENTS: Final = tuple(channel.template for channel in CHANNELS if channel.delivery is Delivery.JETSTREAM)


def account_of(role: Role) -> str:
    """Whose account a role's users are in."""
    if role is Role.ADMINISTRATOR:
        return STORE
    return HOSTS if role in NODE_ROLES else f"{role.name}S" if role in _SEVERAL else role.name


ACCOUNTS: Final = tuple(dict.fromkeys((STORE, HOSTS, *(account_of(role) for role in Role))))
_ORDERED: Final = (HOSTS, account_of(Role.SLURM))
"""Accounts that are given orders."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A subject on which messages pass from one account (of a service: to the one that answers) to another."""

    kind: str
    """``service`` or ``stream``, as the server has it."""
    subject: str
    exporter: str
    importer: str


@lru_cache(maxsize=1)
def exchanges(root: str) -> tuple[Exchange, ...]:
    """All that passes between accounts, for whatever hosts there are."""
    subjects = {
        account: _subjects_of([role for role in Role if account_of(role) == account], root) for account in ACCOUNTS
    }
    passing: list[Exchange] = []
    for account in ACCOUNTS[1:]:
        published, _ = subjects[account]
        passing += _to_store(account, published, root)
        for other in ACCOUNTS[1:]:
            _, subscribed = subjects[other]
            received = [each for each in sorted(published) if any(_overlap(each, wanted) for wanted in subscribed)]
            passing += [_between(each, account, other, root) for each in received if other != account]
    return (*passing, *_answers(passing, root))


def _to_store(account: str, published: set[str], root: str) -> Iterator[Exchange]:
    events = {template.pattern(root).text for template in _EVENTS}
    # Without the last the server would answer all of $JS.API in the account itself, with "not enabled".
    stored = {each for each in published if each.startswith(_STORED) or each in events} | {_JETSTREAM_INFO}
    return (Exchange("service", each, STORE, account) for each in sorted(stored))


def _answers(passing: Iterable[Exchange], root: str) -> Iterator[Exchange]:
    """Inboxes of those whose questions pass as they are."""
    asked = {template.pattern(root).text for template in _QUESTIONS}
    ways = [(each.importer, each.exporter) for each in passing if each.kind == "stream" and each.subject in asked]
    return (Exchange("stream", f"{INBOX}.>", answering, asking) for answering, asking in dict.fromkeys(ways))


def _between(subject: str, publisher: str, receiver: str, root: str) -> Exchange:
    """How a message reaches the users of another account."""
    question = subject.startswith("$SRV.") or subject in {template.pattern(root).text for template in _QUESTIONS}
    # Observers may be anywhere: they must not name a subject of the account that answers.
    if question and (receiver not in _ORDERED or publisher == account_of(Role.OBSERVER)):
        return Exchange("service", subject, receiver, publisher)
    return Exchange("stream", subject, publisher, receiver)


def _overlap(one: str, other: str) -> bool:
    """Whether a subject matches both patterns."""
    for here, there in zip_longest(one.split("."), other.split("."), fillvalue=""):
        if ">" in {here, there}:
            return bool(here and there)
        if (here != there and "*" not in {here, there}) or "" in {here, there}:
            return False
    return True


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


def exchange_lines(account: str, root: str) -> list[str]:
    """``exports`` and ``imports`` of an account."""
    passing = exchanges(root)
    exported: dict[tuple[str, str], list[str]] = {}
    for each in passing:
        if each.exporter == account:
            exported.setdefault((each.kind, each.subject), []).append(each.importer)
    exports = [_export(kind, subject, importers) for (kind, subject), importers in exported.items()]
    imports = [
        f"      {{ {each.kind}: {{ account: {each.exporter}, subject: {json.dumps(each.subject)} }} }}"
        for each in passing
        if each.importer == account
    ]
    return ["    exports: [", *exports, "    ]", "    imports: [", *imports, "    ]"]


def _export(kind: str, subject: str, importers: list[str]) -> str:
    options = ""
    if kind == "service" and subject.startswith(_IN_PARTS):
        options = ', response_type: "Stream"'
    elif kind == "service" and not subject.startswith(_STORED):
        options = f', response_threshold: "{_ANSWERED_WITHIN}"'
    return f"      {{ {kind}: {json.dumps(subject)}, accounts: {json.dumps(sorted(importers))}{options} }}"
