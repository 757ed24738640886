"""The doctor's checks of NATS and of the allocator's replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from schemas.leases import MEMBERS_KEY, Members
from schemas.streams import APPS, LEASES
from services._runtime.bus.api import BusError, BusSettingsError, CredentialsRefusedError, Entry, NotPermittedError
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services._runtime.command.finding import Finding, Level

OLDEST_SERVER: Final = (2, 11)
HEARTBEAT_WAIT_S: Final = 1.5
"""A live replica renews its entry three times in this interval."""
BUS: Final = "nats"
"""Name of the finding about the server."""
_REPLICA: Final = "replica."


async def check_bus(options: BusOptions) -> list[Finding]:
    """Server version, JetStream, TLS, and the allocator replicas."""
    try:
        bus = await NatsBus.connect(options)
    except (BusSettingsError, CredentialsRefusedError) as error:
        return [Finding(BUS, Level.FAILED, str(error))]
    except BusError as error:
        # Nothing runs before the first `turnbuckle up`, so this is no failure.
        return [Finding(BUS, Level.MISSING, str(error), "turnbuckle up")]
    try:
        return [_check_server(bus, options), *await _check_allocators(bus)]
    except NotPermittedError as error:
        return [Finding(BUS, Level.FAILED, str(error), "use the key of an operator or observer")]
    except BusError as error:
        return [Finding(BUS, Level.MISSING, str(error), "turnbuckle up")]
    finally:
        await bus.close(1.0)


def _check_server(bus: NatsBus, options: BusOptions) -> Finding:
    version = bus.connection.connected_server_version
    text = f"{version.major}.{version.minor}.{version.patch} with JetStream at {options.address}"
    if (version.major, version.minor) < OLDEST_SERVER:
        return Finding(BUS, Level.NOTE, f"{text}: older than 2.11", "run nats-server 2.11 or later")
    if not bus.connection.is_encrypted and crosses_network(options.servers):
        found = f"{text}, without TLS: anyone in between reads everything and can write in your name"
        return Finding(BUS, Level.NOTE, found, "turnbuckle nats config, and tls:// in NATS_URL")
    return Finding(BUS, Level.OK, f"{text}{', encrypted' if bus.connection.is_encrypted else ''}")


def crosses_network(urls: Sequence[str]) -> bool:
    """Whether one of these servers is not on this machine's loopback, as far as its URL says."""
    return any(not _is_loopback(urlsplit(url if "://" in url else f"nats://{url}").hostname or "") for url in urls)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _check_allocators(bus: NatsBus) -> list[Finding]:
    """From the `leases` bucket itself, which lists replicas also while none of them replies."""
    before = await bus.bucket(LEASES).entries()
    if any(key.startswith(_REPLICA) for key in before):
        await asyncio.sleep(HEARTBEAT_WAIT_S)
    after = await bus.bucket(LEASES).entries()
    return classify_replicas(before, after, set(await bus.bucket(APPS).entries()))


def classify_replicas(before: Mapping[str, Entry], after: Mapping[str, Entry], announced: set[str]) -> list[Finding]:
    """Live replicas, from two reads of the `leases` bucket, and announced applications without an owner."""
    replicas = {key.removeprefix(_REPLICA): entry for key, entry in after.items() if key.startswith(_REPLICA)}
    live = {name for name, entry in replicas.items() if _renewed(before.get(f"{_REPLICA}{name}"), entry)}
    dead = sorted(set(replicas) - live)
    silent = f"; silent: {', '.join(dead)}" if dead else ""
    if not live:
        return [Finding("allocators", Level.MISSING, f"none lives{silent}", "turnbuckle run allocator")]
    findings = [Finding("allocators", Level.OK, f"{', '.join(sorted(live))}{silent}")]
    record = after[MEMBERS_KEY].message if MEMBERS_KEY in after else None
    members = record if isinstance(record, Members) else Members()
    if orphans := sorted(app for app in announced if members.owner(app) not in live):
        text = f"no owner of {', '.join(orphans)}"
        findings.append(Finding("owners", Level.NOTE, text, "retry in 5 s: by then a live replica has taken over"))
    elif announced:
        findings.append(Finding("owners", Level.OK, f"all {len(announced)} announced applications have an owner"))
    return findings


def _renewed(before: Entry | None, after: Entry) -> bool:
    return before is None or before.revision != after.revision
