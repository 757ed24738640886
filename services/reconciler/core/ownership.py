"""Ownership marks of managed filters and actions in the kernel, so that a restarted reconciler adopts them.

A managed action carries a cookie that encodes its purpose. A flower filter has no cookie: a managed one binds a managed
action, and has the configured preference or a handle of the managed range. A handle alone is no mark.

So a filter whose actions are replaced externally loses the mark. `KnownFilters` keeps the places of managed filters,
and such a filter is repaired; a reconciler that starts afterwards treats it as unmanaged, and reports it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from services._host.netlink.objects import COOKIE_MAGIC, ActionKind, Filter, Snapshot, Tunnel

RANGE_START: Final = 0x54000000
"""First managed handle and index. The kernel assigns its own from 1, so automatic numbers do not collide."""
RANGE_SIZE: Final = 1 << 24
_HASH_BYTES: Final = 8

MIRRED_COOKIE: Final = COOKIE_MAGIC + bytes(12)
"""Cookie of the redirect; no tunnel has it, as its hash and its VNI would have to be 0."""


def tunnel_cookie(tunnel: Tunnel) -> bytes:
    """Cookie of a tunnel_key action: magic, VNI, hash of all that it sets; 16 bytes (TCA_ACT_COOKIE's maximum)."""
    return COOKIE_MAGIC + tunnel.vni.to_bytes(4, "big") + tunnel_hash(tunnel)


def tunnel_hash(tunnel: Tunnel) -> bytes:
    """8 bytes, stable over restarts. Tunnels may collide: the content decides, the hash is only a hint."""
    text = f"{tunnel.source} {tunnel.destination} {tunnel.vni} {tunnel.port} {tunnel.checksum:d}"
    return blake2b(text.encode(), digest_size=_HASH_BYTES).digest()


def in_range(number: int) -> bool:
    """Whether a handle or an index is in the managed range."""
    return RANGE_START <= number < RANGE_START + RANGE_SIZE


def is_managed(found: Filter, pref: int) -> bool:
    """Whether a filter is managed: kept in sync, or deleted. Unmanaged filters are never written.

    Its action has the cookie, and it has the configured preference, or a handle of the managed range: such a filter
    remains of a run with another `pref`.
    """
    return found.managed and ((found.pref == pref and found.chain == 0) or in_range(found.handle))


def managed_filters(snapshot: Snapshot, pref: int) -> tuple[Filter, ...]:
    """Managed filters, in order of device, MAC and handle."""
    # By place, as a row that moved during the dump may be listed twice.
    by_place = {filter_place(rule): rule for rule in snapshot.filters if is_managed(rule, pref)}
    return tuple(by_place[place] for place in sorted(by_place))


def tunnel_of(rule: Filter) -> Tunnel | None:
    """A filter's tunnel: that of its last tunnel_key action, if a redirect follows."""
    tunnel = None
    for action in rule.actions:
        if action.kind is ActionKind.TUNNEL_KEY:
            tunnel = action.tunnel
        elif action.redirect_to:
            return tunnel
    return None


def filter_place(rule: Filter) -> tuple[int, str, int, int, int]:
    """Sort key: device, MAC, then what names a filter on it."""
    return (rule.ifindex, rule.mac or "", rule.chain, rule.pref, rule.handle)


class KnownFilters:
    """Places of managed filters that this process has seen: a filter without cookie there was edited externally.

    No I/O. Not thread-safe.
    """

    def __init__(self, pref: int) -> None:
        self._pref = pref
        self._places: frozenset[_Place] = frozenset()

    def recognise(self, snapshot: Snapshot) -> Snapshot:
        """The same snapshot, with `Filter.edited` set on managed filters that lost their cookie since the last one."""
        filters = tuple(
            replace(found, edited=True) if self._was_managed(found) else found for found in snapshot.filters
        )
        self._places = frozenset(_place(found) for found in filters if is_managed(found, self._pref))
        return replace(snapshot, filters=filters)

    def _was_managed(self, found: Filter) -> bool:
        return found.kind == "flower" and not found.managed and _place(found) in self._places


_Place = tuple[int, int, int, int, str | None]


def _place(found: Filter) -> _Place:
    return (found.ifindex, found.chain, found.pref, found.handle, found.mac)


def free_number(preferred: int, used: Collection[int]) -> int:
    """First free number of the managed range from `preferred` on, wrapping around.

    Raises:
        ValueError: All 16,777,216 are used.
    """
    offset = (preferred - RANGE_START) % RANGE_SIZE
    for step in range(RANGE_SIZE):
        number = RANGE_START + (offset + step) % RANGE_SIZE
        if number not in used:
            return number
    raise ValueError("no free number left")


def preferred_index(tunnel: Tunnel) -> int:
    """First index to try for a tunnel's action: the same on every start."""
    return RANGE_START + int.from_bytes(tunnel_hash(tunnel)[:3], "big")
