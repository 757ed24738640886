"""What is ours in the kernel, told from a dump alone: a restarted reconciler adopts it and writes nothing.

An action of ours carries a cookie that says what it is for. A flower filter has no cookie of its own: ours binds an
action of ours, in our preference or with a handle of our range. A handle alone is nobody's mark: anybody may choose it.

So a filter whose actions somebody replaces by hand loses the mark. `KnownPlaces` remembers where this process has seen
it, and such a filter is put right again; a reconciler that starts afterwards takes it for somebody else's, and tells.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from services._host.netlink.objects import COOKIE_MAGIC, Filter, Snapshot, Tunnel

RANGE_START: Final = 0x54000000
"""First handle and index of ours. The kernel counts its own from 1, so nobody's automatic number is in the way."""
RANGE_SIZE: Final = 1 << 24
_HASH_BYTES: Final = 8

MIRRED_COOKIE: Final = COOKIE_MAGIC + bytes(12)
"""Of the redirect; no tunnel has it, for its hash would have to be 0 and its VNI too."""


def tunnel_cookie(tunnel: Tunnel) -> bytes:
    """Mark of a tunnel_key action: magic, VNI, hash of all that it sets; 16 bytes (TCA_ACT_COOKIE's most)."""
    return COOKIE_MAGIC + tunnel.vni.to_bytes(4, "big") + tunnel_hash(tunnel)


def tunnel_hash(tunnel: Tunnel) -> bytes:
    """8 bytes, stable over restarts. Two tunnels may share it: content decides, the hash only says what was meant."""
    text = f"{tunnel.source} {tunnel.destination} {tunnel.vni} {tunnel.port} {tunnel.checksum:d}"
    return blake2b(text.encode(), digest_size=_HASH_BYTES).digest()


def in_range(number: int) -> bool:
    """Whether a handle or an index is of our range."""
    return RANGE_START <= number < RANGE_START + RANGE_SIZE


def owns(found: Filter, pref: int) -> bool:
    """Whether a filter is ours: to be kept right, or deleted. Everything else is never written.

    Its action's cookie says so, in our preference; elsewhere it takes a handle of our range too: such a filter was left
    by a run with another `pref`.
    """
    return found.ours and ((found.pref == pref and found.chain == 0) or in_range(found.handle))


class KnownPlaces:
    """Where one process has seen filters of ours: one that loses its cookie there was edited, not replaced by others.

    No I/O. Of one thread at a time.
    """

    def __init__(self, pref: int) -> None:
        self._pref = pref
        self._places: frozenset[_Place] = frozenset()

    def recognise(self, snapshot: Snapshot) -> Snapshot:
        """The same snapshot, with `Filter.edited` set on filters of ours that lost their cookie since the last one."""
        filters = tuple(replace(found, edited=True) if self._was_ours(found) else found for found in snapshot.filters)
        self._places = frozenset(_place(found) for found in filters if owns(found, self._pref))
        return replace(snapshot, filters=filters)

    def _was_ours(self, found: Filter) -> bool:
        return found.kind == "flower" and not found.ours and _place(found) in self._places


_Place = tuple[int, int, int, int, str | None]


def _place(found: Filter) -> _Place:
    return (found.ifindex, found.chain, found.pref, found.handle, found.mac)


def free_number(preferred: int, used: Collection[int]) -> int:
    """First free number of our range from `preferred` on, around its end.

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
    """Where the index of a tunnel's action is looked for first: the same on every start."""
    return RANGE_START + int.from_bytes(tunnel_hash(tunnel)[:3], "big")
