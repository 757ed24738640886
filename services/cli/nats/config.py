"""The text of a NATS server's configuration: users with their permissions, JetStream, websocket, TLS, cluster. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemas.permissions import Grants, Identity, grants
from schemas.roles import Role
from services.cli.nats.accounts import ACCOUNTS, HOSTS, STORE, account_of, exchange_lines

MADE_BY: Final = "# Written by `turnbuckle nats config`. Make it anew instead of editing it.\n"
USERS_FILE: Final = "users.conf"
CLUSTER_FILE: Final = "cluster-{server}.conf"
WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - recognised, not listened at
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_ACCOUNT_COMMENTS: Final = {
    STORE: "Streams and buckets. Its user is the administrator.",
    HOSTS: "Users of all hosts. The server's answers to them stay here, where nothing is stored; so in all below.",
}
_CONNECTIONS: Final = 500
"""Of an account: replicas, commands, browsers; and `_CONNECTIONS_PER_USER`, for hosts."""
_CONNECTIONS_PER_USER: Final = 4
_OUTSIDE: Final = (HOSTS, account_of(Role.OBSERVER))
_SUBSCRIPTIONS: Final = 1_000
"""Of a connection from `_OUTSIDE`."""
_LAME_DUCK: Final = "30s"
_HANDSHAKE_FIRST: Final = (
    "  # Clients that start with TLS receive nothing in clear text; others get the server's INFO after 50 ms.",
    '  handshake_first: "auto"',
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Servers that keep JetStream together."""

    hosts: tuple[str, ...]
    """As the servers reach each other, and as they are named."""
    password: str
    """Between the servers."""
    listen: str = "0.0.0.0:6222"
    """Where a server waits for the others; on the port they are reached at."""

    @property
    def port(self) -> str:
        """At which the servers reach each other."""
        return self.listen.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """What a server needs to know. Paths are those of the machine, or container, that it runs in."""

    directory: str
    """Where the files stand: includes are relative, certificates are not."""
    store: str = "/data"
    listen: str = "127.0.0.1:4222"
    websocket: str | None = None
    monitor: str | None = "127.0.0.1:8222"
    tls: bool = True
    cluster: Cluster | None = None


@dataclass(frozen=True, slots=True)
class User:
    """A user of the bus."""

    identity: Identity
    public_key: str


def users_text(users: Sequence[User], root: str) -> str:
    """``accounts``: one user each, with what `schemas.permissions` grants. It holds public keys only."""
    lines = [MADE_BY + "accounts {"]
    for account in ACCOUNTS:
        comment = _ACCOUNT_COMMENTS.get(account)
        lines += [*([f"  # {comment}"] if comment else []), f"  {account} {{"]
        here = [user for user in users if account_of(user.identity.role) == account]
        lines += [*(["    jetstream: enabled"] if account == STORE else []), *_limit_lines(account, len(here))]
        lines += exchange_lines(account, root)
        lines += ["    users: ["]
        for user in sorted(here, key=lambda each: each.identity.name):
            lines += _user_lines(user, grants(user.identity, root))
        lines += ["    ]", "  }"]
    return "\n".join([*lines, "}", ""])


def _limit_lines(account: str, users: int) -> list[str]:
    """So that one account's connections leave room for the others'; the server limits no user's."""
    limits = [f"max_connections: {_CONNECTIONS + _CONNECTIONS_PER_USER * users}"]
    if account in _OUTSIDE:
        limits.append(f"max_subscriptions: {_SUBSCRIPTIONS}")
    return [f"    limits {{ {', '.join(limits)} }}"]


def _user_lines(user: User, granted: Grants) -> list[str]:
    # A browser can only be an observer, whoever's key it has got hold of.
    connections = ["STANDARD", "WEBSOCKET"] if user.identity.role is Role.OBSERVER else ["STANDARD"]
    return [
        f"      # {user.identity.name}",
        f"      {{ nkey: {user.public_key}, allowed_connection_types: {json.dumps(connections)}, permissions: {{",
        f"        publish: {{ allow: {_list(granted.publish)} }}",
        f"        subscribe: {{ allow: {_list(granted.subscribe)} }}",
        "      } }",
    ]


def _list(patterns: Sequence[str]) -> str:
    return "[\n" + "".join(f"          {json.dumps(pattern)}\n" for pattern in patterns) + "        ]"


def server_text(plan: ServerPlan, server: str) -> str:
    """A server's main file."""
    lines = [
        f"{MADE_BY}server_name: {json.dumps(server)}",
        f"listen: {json.dumps(plan.listen)}",
        *([f"http: {json.dumps(plan.monitor)}"] if plan.monitor else []),
        f"lame_duck_duration: {_LAME_DUCK}",
        "# An acknowledged event must survive a crash of the host; by default the disk is synced every two minutes.",
        "jetstream {",
        f"  store_dir: {json.dumps(plan.store)}",
        "  sync_interval: always",
        "  # An answer of the server that is written where it expects a request is refused; the default since 2.12.",
        "  strict: true",
        "}",
        *(["tls {", *_tls_lines(plan), *_HANDSHAKE_FIRST, "}"] if plan.tls else []),
        *_websocket_lines(plan),
        f"include {json.dumps(USERS_FILE)}",
        *([f"include {json.dumps(CLUSTER_FILE.format(server=server))}"] if plan.cluster else []),
    ]
    return "\n".join(lines) + "\n"


def _websocket_lines(plan: ServerPlan) -> list[str]:
    if plan.websocket is None:
        return []
    secure = ["  tls {", *(f"  {line}" for line in _tls_lines(plan)), "  }"] if plan.tls else ["  no_tls: true"]
    return [
        "# For the web console, that is for observers.",
        "websocket {",
        f"  listen: {json.dumps(plan.websocket)}",
        *secure,
        "  compression: true",
        "}",
    ]


def _tls_lines(plan: ServerPlan) -> list[str]:
    directory = f"{plan.directory.rstrip('/')}/tls"
    return [
        f"  cert_file: {json.dumps(f'{directory}/server.pem')}",
        f"  key_file: {json.dumps(f'{directory}/server.key')}",
    ]


def cluster_text(plan: ServerPlan, server: str) -> str:
    """How a server finds the others. It holds their password."""
    cluster = plan.cluster
    assert cluster is not None
    routes = [
        f"nats-route://route:{cluster.password}@{host}:{cluster.port}" for host in cluster.hosts if host != server
    ]
    secure = [
        "  tls {",
        *(f"  {line}" for line in _tls_lines(plan)),
        f"    ca_file: {json.dumps(plan.directory.rstrip('/') + '/tls/ca.pem')}",
        "    verify: true",
        "  }",
    ]
    return "\n".join(
        [
            MADE_BY + "cluster {",
            '  name: "turnbuckle"',
            f"  listen: {json.dumps(cluster.listen)}",
            f'  authorization {{ user: "route", password: {json.dumps(cluster.password)} }}',
            f"  routes: {json.dumps(routes)}",
            *(secure if plan.tls else []),
            "}",
            "",
        ]
    )
