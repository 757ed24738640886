"""Digests of forwarding state and rules, independent of host and row order (I8)."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from services._host.netlink.objects import Filter, Snapshot, Tunnel
from services.reconciler.core.ownership import managed_filters

_BYTES = 8


def forwarding_digest(snapshot: Snapshot) -> str:
    """Of the inputs of rules: links and forwarding tables, without carrier, MTU and routes."""
    rows = [
        f"l {link.ifindex} {link.name} {link.kind} {link.master} {link.up:d} {link.vxlan}" for link in snapshot.links
    ]
    rows += [
        f"f {row.ifindex} {row.mac} {row.own:d} {row.destination} {row.vlan} {row.static:d} {row.local:d} "
        f"{row.extern_learn:d} {row.nexthop_id} {row.vni} {row.port}"
        for row in snapshot.fdb
    ]
    return _digest(rows)


def rules_digest(snapshot: Snapshot, pref: int) -> str:
    """Of managed filters and their tunnels, without the kernel's counters."""
    return _digest(_filter_text(rule) for rule in managed_filters(snapshot, pref))


def _filter_text(rule: Filter) -> str:
    actions = " ".join(
        f"{action.kind}:{action.index}:{_tunnel_text(action.tunnel)}:{action.redirect_to}" for action in rule.actions
    )
    return (
        f"{rule.ifindex} {rule.chain} {rule.pref} {rule.handle} {rule.protocol} {rule.mac} {rule.skip_hw:d} "
        f"{rule.skip_sw:d} {rule.foreign_actions:d} {actions}"
    )


def _tunnel_text(tunnel: Tunnel | None) -> str:
    if tunnel is None:
        return ""
    return f"{tunnel.source}>{tunnel.destination}/{tunnel.vni}/{tunnel.port}/{tunnel.checksum:d}"


def _digest(rows: Iterable[str]) -> str:
    digest = blake2b(digest_size=_BYTES)
    for row in sorted(set(rows)):
        digest.update(row.encode())
        digest.update(b"\n")
    return digest.hexdigest()
