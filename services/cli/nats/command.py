"""`turnbuckle nats config|declare`: a NATS server whose users may do what their service needs, and no more."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from pathlib import Path
from typing import Annotated, Final

import typer

from schemas.permissions import NODE_ROLES, Identity, uses
from schemas.roles import Role
from schemas.subjects import SubjectError, check_root, token
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import ContextOption, ServerOption, connected, find_server, missing_key_text
from services._runtime.command.errors import BadFileError, NoPermissionError
from services._runtime.command.output import print_json, stdout_console
from services.cli.nats.config import (
    CLUSTER_FILE,
    LOOPBACK,
    USERS_FILE,
    WILDCARDS,
    Cluster,
    ServerPlan,
    User,
    cluster_text,
    server_text,
    users_text,
)
from services.cli.nats.keys import Keys, Owner

EXAMPLES: Final = """
Examples:

  turnbuckle nats config --out nats --node gpu-01

  turnbuckle nats config --out nats --node gpu-01 --node gpu-02 --listen 0.0.0.0:4222 --host nats.example

  turnbuckle nats config --out nats --node gpu-01 --cluster nats-1,nats-2,nats-3 --listen 0.0.0.0:4222

  TURNBUCKLE_NATS_NKEY_SEED_FILE=nats/secrets/administrator.nk turnbuckle nats declare

Keys and certificates are kept as they are when the command runs again. To replace a key, delete its file; to take a
node away, leave it out: then `nats-server --signal reload`.
"""
_ROLES: Final = tuple(role for role in Role if role not in (*NODE_ROLES, Role.SLURM))

app = typer.Typer(
    help="Configuration of a NATS server with one user per service, and what services store there.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("config", epilog=EXAMPLES)
def config_command(  # noqa: PLR0913 - a command's options are its parameters
    *,
    out: Annotated[Path, typer.Option("--out", help="Directory to write to.")],
    node: Annotated[list[str] | None, typer.Option("--node", help="A host with an agent; once for each.")] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="A user for `turnbuckle run slurm`, too.")] = False,
    listen: Annotated[str, typer.Option("--listen", help="ADDRESS:PORT for clients.")] = "127.0.0.1:4222",
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Name or address that clients connect to, for the certificate; once for each."),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls/--no-tls", help="Encrypt, by OUT/tls/{ca,server}.pem and server.key.")
    ] = True,
    websocket: Annotated[
        str, typer.Option("--websocket", help="ADDRESS:PORT for browsers of observers; default: none.")
    ] = "",
    monitor: Annotated[
        str, typer.Option("--monitor", help="ADDRESS:PORT for health and metrics; empty: none.")
    ] = "127.0.0.1:8222",
    cluster: Annotated[
        str, typer.Option("--cluster", help="Names of three or five servers, as they reach each other.")
    ] = "",
    cluster_listen: Annotated[
        str, typer.Option("--cluster-listen", help="ADDRESS:PORT for the other servers of the cluster.")
    ] = "0.0.0.0:6222",
    mounted_at: Annotated[
        str, typer.Option("--mounted-at", help="Where the server sees OUT; default: OUT itself.")
    ] = "",
    store: Annotated[
        str, typer.Option("--store", help="The server's directory for JetStream; default: OUT/jetstream, or /data.")
    ] = "",
    owner: Annotated[str, typer.Option("--owner", help="UID or UID:GID to own the seeds.")] = "",
    root: Annotated[str, typer.Option("--root", help="First token of every subject.")] = "tb",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write nats.conf, users.conf with permissions, secrets/USER.nk for each user, and certificates.

    Users: administrator, operator and observer, for people; allocator, collector, advisor, aggregator, kubeoperator,
    planner, scheduler, trainer; agent, reconciler, fast_path, runner and memory of each --node; slurm, with --slurm. A
    service finds its seed by TURNBUCKLE_NATS_NKEY_SEED_FILE.

    Certificates: yours, if ca.pem, server.pem and server.key stand in OUT/tls; else those of a test CA made there.
    """
    from services.cli.nats.certificates import ensure  # noqa: PLC0415 - cryptography loads slowly
    from services.cli.nats.report import Report  # noqa: PLC0415 - as above

    for address, option in (
        (listen, "listen"),
        (websocket, "websocket"),
        (monitor, "monitor"),
        (cluster_listen, "cluster-listen"),
    ):
        _check_address(address, f"--{option}")
    hosts = _hosts(cluster) if cluster else ()
    names = _certificate_hosts(host or [], hosts, listen)
    keys = Keys(out / "secrets", _owner(owner))
    users = _users(node or [], (Role.SLURM,) if slurm else (), keys, root)
    plan = ServerPlan(
        directory=mounted_at or str(out.resolve()),
        store=store or ("/data" if mounted_at else str(out.resolve() / "jetstream")),
        listen=listen,
        websocket=websocket or None,
        monitor=monitor or None,
        tls=tls,
        cluster=Cluster(hosts, keys.password("cluster"), cluster_listen) if cluster else None,
    )
    certificates = ensure(out / "tls", names, dt.datetime.now(dt.UTC)) if tls else None
    written = write(out, plan, users, keys, root)
    report = Report(out, plan, tuple(user.identity.name for user in users), tuple(written), certificates)
    if as_json:
        print_json(report.plain(keys))
    else:
        report.print_result(keys)


def _check_address(text: str, option: str) -> None:
    host, _, port = text.rpartition(":")
    if text and not (host and port.isdigit() and 0 < int(port) < 65_536):
        raise typer.BadParameter(f"{text!r} is not of the form ADDRESS:PORT", param_hint=option)


def _certificate_hosts(given: list[str], cluster: tuple[str, ...], listen: str) -> tuple[str, ...]:
    """Names and addresses for a test CA's certificate: those given, the cluster's, the address, this machine's own."""
    from services.cli.nats.certificates import check_host  # noqa: PLC0415 - cryptography loads slowly

    address = listen.rpartition(":")[0].strip("[]")
    local = LOOPBACK if address in (*WILDCARDS, *LOOPBACK) else (address,)
    try:
        wanted = [check_host(each) for each in (*given, *cluster)]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--host") from error
    return tuple(dict.fromkeys((*wanted, *local)))


def _users(nodes: list[str], more: tuple[Role, ...], keys: Keys, root: str) -> list[User]:
    try:
        check_root(root)
        identities = [Identity(role) for role in (*_ROLES, *more)]
        identities += [Identity(role, name) for name in dict.fromkeys(nodes) for role in NODE_ROLES]
        for name in nodes:
            token(name)
    except SubjectError as error:
        raise BadFileError(str(error)) from error
    users = []
    for identity in identities:
        key = keys.public_key(identity.name)
        users.append(User(dataclasses.replace(identity, inbox=key), key))
    return users


def write(out: Path, plan: ServerPlan, users: list[User], keys: Keys, root: str) -> list[Path]:
    """Write the server's files; returns them, a cluster's main files first."""
    servers = plan.cluster.hosts if plan.cluster else ("nats",)
    texts = {f"{server}.conf": server_text(plan, server) for server in servers}
    texts[USERS_FILE] = users_text(users, root)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadFileError(f"{out} cannot be written to: {error.strerror}") from error
    secret = [CLUSTER_FILE.format(server=server) for server in servers] if plan.cluster else []
    for server, name in zip(servers, secret, strict=False):
        keys.write(out / name, cluster_text(plan, server))
    return [out / name for name in (*texts, *secret)]


def _owner(text: str) -> Owner | None:
    uid, _, gid = text.partition(":")
    if not text:
        return None
    if not uid.isdigit() or not (gid or uid).isdigit():
        raise typer.BadParameter(f"{text!r} is no UID or UID:GID", param_hint="--owner")
    return Owner(int(uid), int(gid or uid))


def _hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(part.strip() for part in text.split(",") if part.strip())
    if len(hosts) not in {3, 5} or len(set(hosts)) != len(hosts):
        raise typer.BadParameter("three or five different names, separated by commas", param_hint="--cluster")
    return hosts


@app.command("declare", epilog=EXAMPLES)
def declare_command(
    *,
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, max=5, help="Servers that keep each: 1, 3 or 5.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Make every stream, bucket and store exist as this version wants them. For administrators."""
    options = find_server(server, context)
    everything = uses(Role.ADMINISTRATOR)
    wanted = dataclasses.replace(
        options,
        streams=everything.streams,
        buckets=everything.buckets,
        object_stores=everything.object_stores,
        replicas=replicas or options.replicas,
    )
    asyncio.run(_declare(wanted))
    names = {
        "streams": [one.stream_name(options.root) for one in everything.streams],
        "buckets": [one.bucket_name(options.root) for one in everything.buckets],
        "object_stores": [one.bucket_name(options.root) for one in everything.object_stores],
    }
    if as_json:
        print_json(names)
    else:
        stdout_console().print(f"{sum(map(len, names.values()))} streams, buckets and stores are there")


async def _declare(options: BusOptions) -> None:
    async with connected(options) as bus:  # connecting declares
        if bus.undeclared:
            needed = missing_key_text(options, "the administrator's")
            raise NoPermissionError(f"{', '.join(bus.undeclared)}: {needed}")
