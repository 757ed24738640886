"""What is ours in the kernel, told from a dump alone: a restarted reconciler adopts it and writes nothing.

An action of ours carries a cookie that says what it is for. A flower filter has no cookie of its own: ours has a handle
of our range, which stays when somebody replaces its actions by hand, or stands in our preference and binds an action
of ours.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Final

from services.reconciler.core.state import COOKIE_MAGIC, Filter, Tunnel

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

    A filter of another preference is ours with both marks: it was left by a run with another `pref`.
    """
    if found.kind != "flower":
        return False
    if found.pref == pref and found.chain == 0:
        return in_range(found.handle) or found.ours
    return in_range(found.handle) and found.ours


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
