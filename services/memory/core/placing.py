"""Which slab of a swap device goes to remote memory, and to which daemon. Pure.

A slab is a part of the device, the unit of remote memory. Its activity is a moving average of its page I/O; slabs that
swap enough are mapped, each to the one of two daemons drawn at random that has more free memory: hosts that have no
slab of the device come first, so that a host's death makes few of its slabs slow. After Infiniswap (Gu et al., NSDI
2017), sections 4.2 and 5.1; why two choices are nearly as good as all: Mitzenmacher, "The power of two choices in
randomized load balancing" (IEEE TPDS 12(10), 2001).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

ALPHA: Final = 0.2
"""Weight of one second's page I/O in the moving average."""
MAP_ABOVE_PAGES_PER_S: Final = 20.0
CHOICES: Final = 2
"""Daemons that are drawn for a slab."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Page I/O of one slab, pages in and out."""

    pages_per_s: float = 0.0
    """Exponentially weighted moving average."""

    def after(self, pages: int, elapsed_s: float) -> Activity:
        """With the pages of a further interval; the average does not depend on how the time is divided.

        Raises:
            ValueError: no time has passed, or the count has gone back.
        """
        if elapsed_s <= 0 or pages < 0:
            raise ValueError(f"{pages} pages in {elapsed_s:g} s: a count of a later time was due")
        kept = (1 - ALPHA) ** elapsed_s
        return Activity(kept * self.pages_per_s + (1 - kept) * pages / elapsed_s)


def slabs_to_map(
    activities: Mapping[int, Activity], mapped: AbstractSet[int], above_pages_per_s: float = MAP_ABOVE_PAGES_PER_S
) -> list[int]:
    """Slabs that are not mapped and swap enough for it, the most active first."""
    hot = [
        (-activity.pages_per_s, slab)
        for slab, activity in activities.items()
        if slab not in mapped and activity.pages_per_s > above_pages_per_s
    ]
    return [slab for _, slab in sorted(hot)]


@dataclass(frozen=True, slots=True, order=True)
class Daemon:
    """A daemon and what it says of its memory."""

    address: str
    """HOST:PORT; unique."""
    host: str
    """Failure domain: daemons on one host die together."""
    offered_bytes: int
    """Free memory beyond its headroom: what it would hold more."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A daemon for a slab, and why this one."""

    daemon: Daemon
    drawn: tuple[Daemon, ...]
    """Which it was chosen from: the most offered wins."""
    new_host: bool
    """Its host had no slab of the device; otherwise every host with room has one."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """No daemon can hold the slab."""

    slab_bytes: int
    most_offered_bytes: int
    """By one daemon; 0 without any."""


def choose(
    daemons: Collection[Daemon], used_hosts: AbstractSet[str], slab_bytes: int, draws: Sequence[float]
) -> Choice | NoRoom:
    """The daemon for one slab.

    Args:
        daemons: all that are known; their order does not matter.
        used_hosts: hosts that have a slab of this device.
        slab_bytes: size of the slab.
        draws: a random number of [0, 1) per daemon to draw, usually `CHOICES` of them.

    Raises:
        ValueError: no draw, or one outside of [0, 1).
    """
    if not draws or not all(0 <= draw < 1 for draw in draws):
        raise ValueError("draws have to be numbers of [0, 1), at least one")
    roomy = sorted(daemon for daemon in daemons if daemon.offered_bytes >= slab_bytes)
    if not roomy:
        return NoRoom(slab_bytes, max((daemon.offered_bytes for daemon in daemons), default=0))
    unused = [daemon for daemon in roomy if daemon.host not in used_hosts]
    drawn = _drawn(unused or roomy, draws)
    best = max(drawn, key=lambda daemon: daemon.offered_bytes)
    return Choice(best, drawn, new_host=bool(unused))


def _drawn(daemons: Sequence[Daemon], draws: Sequence[float]) -> tuple[Daemon, ...]:
    """One per draw, none twice, as far as there are any."""
    left = list(daemons)
    return tuple(left.pop(int(draw * len(left))) for draw in draws[: len(daemons)])
